"""Chat templates in the sandbox."""

from __future__ import annotations

import pytest

from localspec import UsageError
from localspec.prompting.template import ChatTemplate, Message

USER: list[Message] = [{"role": "user", "content": "Hi & <you>"}]


def render(source: str, messages: list[Message] = USER) -> str:
    return ChatTemplate(source, bos="<s>", eos="</s>").render(messages)


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
    with pytest.raises(UsageError, match=r"Only users may speak.*--raw"):
        render("{{ raise_exception('Only users may speak') }}")


def test_a_broken_template_is_named() -> None:
    with pytest.raises(UsageError, match=r"broken.*--raw"):
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
