"""Chat templates in the sandbox."""

from __future__ import annotations

import contextlib

import pytest

from localspec import UsageError
from localspec.errors import describe
from localspec.prompting.template import ChatTemplate, Message

USER: list[Message] = [{"role": "user", "content": "Hi & <you>"}]


def render(source: str, messages: list[Message] = USER) -> str:
    return ChatTemplate(source, bos="<s>", eos="</s>", name="some.gguf").render(messages)


def test_messages_special_tokens_and_generation_prompt_reach_the_template() -> None:
    source = (
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m['content'] }}{{ eos_token }}"
        "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    assert render(source) == "<s>[user] Hi & <you></s>[assistant]"


def test_white_space_of_block_lines_is_trimmed_as_in_transformers() -> None:
    source = (
        "{% for m in messages %}\n    {{ m.content }}\n    {% if true %}\nx\n    {% endif %}\n"
        "{% endfor %}"
    )
    assert render(source) == "    Hi & <you>\nx\n"


def test_helpers_that_templates_use() -> None:
    assert render("{{ messages[0] | tojson }}") == '{"role": "user", "content": "Hi & <you>"}'
    assert render("{% for m in messages %}{% break %}{% endfor %}ok") == "ok"
    assert len(render("{{ strftime_now('%Y') }}")) == 4


def test_a_template_that_refuses_is_quoted() -> None:
    with pytest.raises(UsageError, match="Only users may speak") as raised:
        render("{{ raise_exception('Only users may speak') }}")
    assert "--raw" not in str(raised.value)
    assert "--raw" in describe(raised.value)[0]


def test_a_broken_template_is_named() -> None:
    with pytest.raises(UsageError, match=r"of some\.gguf is broken"):
        render("{% for m in %}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% set x = messages[0].update({'role': 'system'}) %}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    with pytest.raises(UsageError, match="refuses"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(9999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{{ 'many words' * 1000 }}{% endfor %}",
        "{{ 'a' * 9999999999 }}",
        "{{ 9 ** 99999999 }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ '{:9999999999d}'.format(1) }}",
        "{{ '{:{}}'.format('a', 9999999999) }}",
        "{{ 'a'.ljust(9999999999) }}",
        "{{ 'a' | center(9999999999) }}",
        "{{ '%9999999999d' | format(1) }}",
        "{% set n = namespace(s='ab') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}"
        "{% endfor %}",
        "{% set n = namespace(s='ab') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}"
        "{% endfor %}",
        "{% set n = namespace(s='ab') %}{% for i in range(60) %}"
        "{% set n.s = n.s | replace('ab', 'abab') %}{% endfor %}",
        "{% set n = namespace(s='ab') %}{% for i in range(60) %}"
        "{% set n.s = n.s.replace('ab', 'abab') %}{% endfor %}",
    ],
)
def test_time_and_text_have_limits(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localspec.prompting.sandbox.SECONDS", 0.3)
    with pytest.raises(UsageError, match=r"refuses these messages: it (takes|makes|pads|repeats)"):
        render(source)


def test_what_a_late_template_is_stopped_by_does_not_arrive_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("localspec.prompting.sandbox.SECONDS", 0.001)
    for _ in range(50):
        with contextlib.suppress(UsageError):
            render("{% for a in range(3000) %}{{ a }}{% endfor %}")
    monkeypatch.undo()
    assert render("{{ 'a' ~ 1 ~ '-' * 3 }}") == "a1---"


def test_tools_and_other_variables_reach_a_template_that_knows_them() -> None:
    source = "{% if tools %}{{ tools | tojson }}{% endif %}{{ enable_thinking }}"
    template = ChatTemplate(source, bos="", eos="")
    assert template.knows_tools
    assert template.render(USER, tools=[{"type": "function"}], more={"enable_thinking": 1}) == (
        '[{"type": "function"}]1'
    )
    assert template.render(USER) == ""
    assert not ChatTemplate("{{ messages }}", bos="", eos="").knows_tools


def test_other_variables_cannot_take_the_place_of_messages() -> None:
    template = ChatTemplate("{{ messages[0].content }}{{ bos_token }}", bos="<s>", eos="")
    assert template.render(USER, more={"messages": [], "bos_token": "no"}) == "Hi & <you><s>"
