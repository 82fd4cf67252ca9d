"""Chat templates in the sandbox."""

import contextlib
import gc
import weakref
from typing import Any

import pytest

from localspec import UsageError
from localspec.errors import describe
from localspec.prompting.marked_text import unmarked
from localspec.prompting.template import ChatTemplate, Message

USER: list[Message] = [{"role": "user", "content": "Hi & <you>"}]


def render(source: str, messages: list[Message] = USER, **more: Any) -> str:
    template = ChatTemplate(source, bos="<s>", eos="</s>", name="some.gguf")
    return str(unmarked(template.render(messages, **more)))


def test_white_space_is_trimmed_as_in_transformers() -> None:
    source = "{% for m in messages %}\n    {{ m.content }}\n    {% if true %}\nx\n    {% endif %}\n"
    assert render(source + "{% endfor %}") == "    Hi & <you>\nx\n"


def test_helpers_of_templates() -> None:
    assert render("{{ messages[0] | tojson }}") == '{"role": "user", "content": "Hi & <you>"}'
    assert render("{% for m in messages %}{% break %}{% endfor %}ok") == "ok"
    assert render("{% generation %}{{ messages[0].content }}{% endgeneration %}") == "Hi & <you>"
    assert render("{{ 123456 | tojson }}") == "123456"
    assert len(render("{{ strftime_now('%Y') }}")) == 4
    assert render("{{ functions }}{{ datetime | length }}{{ date_string | length }}") == "1111"
    messages: list[Message] = [{"role": "user", "content": '{"a": ["<b>"]}'}]
    assert render("{{ (messages[0].content | fromjson)['a'][0] }}", messages) == "<b>"
    # Templates with tools only do not check for their absence.
    each = "{% for tool in tools %}{{ tool.function.name }}{% endfor %}{{ messages[0].content }}"
    assert render(each) == USER[0]["content"]
    assert render("{{ tools is none }}") == "True"


def test_templates_that_need_simplified_schemas() -> None:
    source = "{% for p in tools[0].properties.values() %}{{ p.description + p.type.upper() }}"
    tools = [{"properties": {"a": {"type": ["null", "integer"]}, "b": {"description": "x"}}}]
    assert render(source + "{% endfor %}{{ messages[0].content }}", tools=tools)[:14] == (
        "INTEGERxSTRING"
    )
    source = "{% for m in messages %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
    source += "{{ c.function.name }}:{{ c.function.arguments.items() | list }}"
    source += "{% endfor %}{% endfor %}"
    for given, shown in (('{"a": 1}', "[('a', 1)]"), ("ls", "[('arguments', 'ls')]"), ("", "[]")):
        calls = [{"id": "1", "function": {"name": "f", "arguments": given}}]
        messages: list[Message] = [*USER, {"role": "assistant", "tool_calls": calls}]
        assert render(source, messages) == f"{USER[0]['content']}f:{shown}"


def test_schemas_of_objects_name_the_type_of_their_values() -> None:
    """Command R's template asks for it."""
    source = "{{ tools[0].properties.a.additionalProperties.type + tools[0].properties.a.type }}"
    tools = [{"properties": {"a": {"type": "object"}}}]
    assert render(source + "{{ messages[0].content }}", tools=tools)[:12] == "stringobject"


def test_tools_and_a_system_message_alone() -> None:
    """Llama's template puts tools into the first user message."""
    source = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if tools and "
    source += "messages[-1].role == 'system' %}{{ raise_exception('No') }}{% endif %}"
    system: list[Message] = [{"role": "system", "content": "S"}]
    assert render(source, system) == "[system]S[assistant]"
    assert render(source, system, tools=[{"name": "f"}]) == "[user]S[assistant]"


@pytest.mark.parametrize("both", [False, True])
def test_thoughts_before_calls_are_beside_a_content(both: bool) -> None:
    """As in LFM2.5; gpt-oss's template takes one of them."""
    source = "{% for m in messages %}{% if m.thinking and m.content and not both %}"
    source += "{{ raise_exception('Both') }}{% endif %}[{{ m.thinking }}|{{ m.content }}]"
    source += "{{ m.tool_calls }}{% endfor %}"
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    turn = {"role": "assistant", "content": "Well", "reasoning_content": "Hm", "tool_calls": calls}
    source = source.replace("not both", "false" if both else "true")
    found = render(source, [*USER, turn, {"role": "tool", "tool_call_id": "1", "content": "5"}])
    assert ("[Hm|Well]" if both else "[Hm\n\nWell|]") in found


@pytest.mark.parametrize("shown", ["m.content", "m.content | string", "m.content | tojson"])
def test_thoughts_beside_a_text_are_not_printed_as_parts(shown: str) -> None:
    """LFM2's template prints lists as JSON."""
    source = "{% for m in messages %}[{{ m.content if m.content is string else " + shown
    turn = {"role": "assistant", "content": "Well", "reasoning_content": "Hm"}
    assert render(source + " }}]{% endfor %}", [*USER, turn, *USER]).count("[Well]") == 1


CALLS = [
    {"id": id, "type": "function", "function": {"name": f"f{id}", "arguments": "5"}} for id in "ab"
]
RESULTS: list[Message] = [
    {"role": "tool", "tool_call_id": call["id"], "content": f"of {call['id']}"} for call in CALLS
]
CALLED: Message = {"role": "assistant", "content": "Well", "reasoning_content": "Hm"}
SHOWN = """{% for c in m.tool_calls or [] %}({{ c.function.name }} {{ c.function.arguments }}
    {{- c.id }}){% endfor %}"""
LATE = f"""{{% set x = namespace(said='') %}}{{% for m in messages %}}{{% if m.role != 'tool' %}}
    {{{{- x.said }}}}{{% set x.said = '' %}}{{% endif %}}{SHOWN}{{% if m.tool_calls %}}
    {{%- set x.said = m.content or '' %}}{{% else %}}[{{{{ m.content }}}}]{{% endif %}}
    {{%- endfor %}}{{{{ x.said }}}}"""


@pytest.mark.parametrize(
    "source",
    [
        LATE,  # texts behind results, as in Gemma 4's
        # Neither texts beside calls, nor two answers in a row, as in Mistral's.
        "{% set x = namespace(last='') %}{% for m in messages %}" + SHOWN + "{% if not m.tool_calls"
        " %}{% if m.role == x.last and m.role != 'tool' %}{{ raise_exception('Alternate') }}"
        "{% endif %}[{{ m.content }}]{% set x.last = m.role if m.role != 'tool' else x.last %}"
        "{% endif %}{% endfor %}",
    ],
    ids=["late", "dropped"],
)
def test_texts_beside_calls_stay_before_them(source: str) -> None:
    answer: Message = {"role": "assistant", "content": "Five"}
    found = render(source, [*USER, {**CALLED, "tool_calls": CALLS}, *RESULTS, answer])
    order = [found.find(one) for one in ("[Well]", "(fa", "(fb", "[of a]", "[of b]", "[Five]")]
    assert order == sorted(order)
    assert order[0] > 0


def test_results_keep_their_role_in_templates_that_show_no_calls() -> None:
    """In LFM2's, Granite 3's and SmolLM3's; those without tools were not trained for results."""
    source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    results = [{**one, "role": "function"} for one in RESULTS]
    said = [*USER, {**CALLED, "tool_calls": CALLS}, *results]
    assert render(source, said).count("<user>Result of the call: of") == 2
    assert "<tool>of a<tool>of b" in render(source + "{{ tools or '' }}", said)


def test_thoughts_before_several_calls_are_rendered_once() -> None:
    source = "{% for m in messages %}{% if (m.tool_calls or []) | length > 1 %}{{ raise_exception("
    source += "'One') }}{% endif %}<{{ m.reasoning_content }}|{{ m.content }}>" + SHOWN
    found = render(source + "{% endfor %}", [*USER, {**CALLED, "tool_calls": CALLS}, *RESULTS])
    assert found.count("Hm") == 1
    assert found.index("<Hm|Well>(fa") < found.index("|of a>") < found.index("(fb")


def test_conversations_fit_templates_that_treat_tools_specially() -> None:
    """Llama's template takes the first message for a question if there are tools."""
    source = "{% if tools %}{{ tools | length }}{{ messages[0].content }}{% set messages = messages"
    source += "[1:] %}{% endif %}{% for m in messages %}[{{ m.content }}]" + SHOWN + "{% endfor %}"
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
    found = render(source, [{**CALLED, "tool_calls": CALLS}, *RESULTS, *USER], tools=tools)
    assert [one for one in ("Well", "(fa 5a)", "(fb", "[of a]", "[of b]") if one not in found] == []
    found = render(source, [{"role": "assistant", "content": "Hi"}, *USER], tools=tools)
    assert found.startswith("1[Hi]"), "the first question is empty"


def test_refusals_of_templates_are_quoted() -> None:
    with pytest.raises(UsageError, match="Only users may speak") as raised:
        render("{{ raise_exception('Only users may speak') }}")
    assert "--raw" not in str(raised.value)
    assert "--raw" in describe(raised.value)[0]


@pytest.mark.parametrize("source", ["{{ raise_exception('No') }}", "{{ 1 / 0 }}", "{{ x.y.z }}"])
def test_refusals_keep_no_caller_alive(source: str) -> None:
    """An engine that is dropped after a refusal is freed at once, as its memory is large."""

    class Caller:
        pass

    def refused() -> weakref.ref[Caller]:
        caller = Caller()
        with contextlib.suppress(UsageError):
            render(source)
            pytest.fail("it was rendered")
        return weakref.ref(caller)

    refused()  # jinja2 imports a module
    gc.disable()
    try:
        assert refused()() is None
    finally:
        gc.enable()


DOUBLED = (
    "{% set n = namespace(s=(1,), t=(1,)) %}{% for i in range(60) %}{% set n.s = (n.s, n.s) %}"
    "{% set n.t = (n.t, n.t) %}{% endfor %}{% for i in range(150) %}{% set n.s = (n.s,) %}"
    "{% set n.t = (n.t,) %}{% endfor %}"
)
"""Lists of two lists of two lists …: short to write, and endless to render."""
GROWN = "{% set n = namespace(s='ab') %}{% for i in range(60) %}{% set n.s = "
ENDS = [
    *("{{ n.s }}", "{{ n.s | tojson }}", "{{ n.s | string }}", "{{ [n.s] | join }}"),
    *("{{ 'a' ~ n.s }}", "{{ '%s' % n.s }}", "{{ n.s == n.t }}", "{{ 1 if n.s < n.t <= n.s }}"),
    *("{{ n.s in [n.t] }}", "{{ [n.s] | select('equalto', n.t) | list | length }}"),
    *("{{ {n.s: 1} | length }}", "{{ messages[0][n.s] }}", "{{ messages[0].get(n.s) }}"),
    *("{{ '{}'.format(n.s) }}", "{{ [n.s, n.t] | sort | length }}"),
]


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(9999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{{ 'many words' * 1000 }}{% endfor %}",
        *("{{ 'a' * 9999999999 }}", "{{ 9 ** 99999999 }}", "{{ '%9999999999d' % 1 }}"),
        *("{{ '{:9999999999d}'.format(1) }}", "{{ '{:{}}'.format('a', 9999999999) }}"),
        "{{ '{a:{b}}'.format_map({'a': 'a', 'b': 9999999999}) }}",
        *("{{ 'a'.ljust(9999999999) }}", "{{ 'a' | center(9999999999) }}"),
        *("{{ '%9999999999d' | format(1) }}", "{{ range(100000000) | list }}"),
        "{% for i in range(100000000) %}{% endfor %}",
        "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) ~ f(n - 1) }}{% endif %}{% endmacro %}{{ f(99) }}",
        "{% block a %}{{ self.a() }}{% endblock %}",
        "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        *("{{ '%*d' % (999999999, 1) }}", "{{ '%*d' | format(999999999, 1) }}"),
        *("{{ ('\\n' * 9000000) | indent(9000) }}", "{{ ('\\t' * 9000000).expandtabs(9000) }}"),
        *("{{ (['a' * 9999999] * 9999) | join }}", "{{ ''.join(['a' * 9999999] * 9999) }}"),
        "{{ ('a' * 9999 * 9).join(range(99999) | map('string')) }}",
        "{{ range(99999) | map('string') | join('a' * 9999 * 9) }}",
        "{{ ('%s' * 9999) % ((['a' * 9999999] * 9999) | list) }}",
        "{{ ('%(a)s' * 9999) % {'a': 'a' * 9999999} }}",
        "{{ ('{0}' * 9999).format('a' * 9999999) }}",
        *(DOUBLED + end for end in ENDS),
        "{% set n = namespace(s=[1]) %}{% for i in range(99999) %}{% set n.s = [n.s] %}{% endfor %}"
        "{{ n.s }}",
        GROWN + "n.s ~ n.s %}{% endfor %}",
        GROWN + "n.s + n.s %}{% endfor %}",
        GROWN + "n.s | replace('ab', 'abab') %}{% endfor %}",
        GROWN + "n.s.replace('ab', 'abab') %}{% endfor %}",
    ],
)
def test_time_and_text_have_limits(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localspec.prompting.sandbox.SECONDS", 0.3)
    with pytest.raises(UsageError, match=r"some\.gguf (refuses these messages|fails): it "):
        render(source)


def test_nested_namespaces_have_a_fixed_repr() -> None:
    """The text would double with each level."""
    twice = "{% for i in range(9) %}{% set n.v = namespace(a=n.v, b=n.v) %}{% endfor %}"
    assert render("{% set n = namespace(v=1) %}" + twice + "{{ n.v }}") == "<Namespace>"


def test_timeout_does_not_hit_later_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localspec.prompting.sandbox.SECONDS", 0.001)
    for _ in range(50):
        with contextlib.suppress(UsageError):
            render("{% for a in range(3000) %}{{ a }}{% endfor %}")
    monkeypatch.undo()
    assert render("{{ 'a' ~ 1 ~ '-' * 3 }}") == "a1---"


def test_tools_and_other_variables_are_passed() -> None:
    source = "{% if tools %}{{ tools | tojson }}{% endif %}{{ enable_thinking }}"
    template = ChatTemplate(source, bos="", eos="")
    assert template.knows_tools
    found = template.render(USER, tools=[{"type": "function"}], more={"enable_thinking": 1})
    assert found == '[{"type": "function"}]1'
    assert template.render(USER) == ""
    assert not ChatTemplate("M{% if x %}{{ tools }}{% endif %}", bos="", eos="").knows_tools


def test_other_variables_cannot_replace_messages() -> None:
    more = {"messages": [], "bos_token": "no"}
    assert render("{{ messages[0].content }}{{ bos_token }}", more=more) == "Hi & <you><s>"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "refuses"),
        ("{{ messages.append(1) }}", "refuses"),
        ("{{ cycler.__init__.__globals__ }}", "refuses"),
        ("{% set x = messages[0].update({'role': 'system'}) %}", "refuses"),
        ("{{ 1 / 0 }}", "(fails|refuses)"),
        ("{{ messages[0].content + 1 }}", "(fails|refuses)"),
        ("{{ messages[9].content }}", "(fails|refuses)"),
        ("{{ nothing.at.all }}", "(fails|refuses)"),
        ("{{ messages | first | length | upper | int('x') | sum }}", "(fails|refuses)"),
        ("{% include 'other' %}", "(fails|refuses)"),
        ("{{ messages[0].content.encode('nothing') }}", "(fails|refuses)"),
        ("{% for m in %}", "is broken"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "is broken"),
        ("{% for a in b %}" * 40 + "{% endfor %}" * 40, "is broken"),
        ("{{ '" + "a" * 2**21, "is broken"),
    ],
    ids=range(15),
)
def test_attacks_and_failures_are_named(source: str, words: str) -> None:
    with pytest.raises(UsageError, match=rf"some\.gguf {words}"):
        render(source)


OPERATIONS = [
    *("m | trim", "m.strip() + '|' + m.lstrip('H') ~ m.rstrip('>')", "m.split('</think>')[-1]"),
    *("m.split('<think>', 1) | join('+')", "m.rsplit('<', 1)[0]", "m.split() | join(' ')"),
    *("m.partition('&')[2] ~ m.rpartition('&')[0]", "m.replace('<', '[').replace('', '-')"),
    *("m | replace('think', 'THINK')", "m[3:-2] + m[0] + m[::-1]"),
    "m | upper ~ m.lower() ~ m.title() ~ m | capitalize",
    "m | title ~ m | e ~ m | indent ~ m | urlencode ~ m | wordcount",
    "m | tojson ~ m | tojson(indent=2) ~ m | tojson(ensure_ascii=true)",
    "'<think>' in m, m in ['x', m], m == 'x', m in 'Hi & <think>x</think> you', m > 'A'",
    "m.startswith('Hi'), m.endswith('you'), m.find('&'), m.count('i'), m.isascii()",
    "m | length, m is string, m is mapping, m | list | length, m | first, m | last",
    "'%s and %s' % (m, 1), '%s' | format(m), '{} {:>40}'.format(m, m)",
    "messages | map(attribute='content') | join('/')",
    "messages[0], messages[0] | tojson, messages[0].items() | list",
    "m.removeprefix('Hi').removesuffix('you'), m.splitlines(), m * 2",
    "dict(a=m), [m], (m,), {'k': m}[ 'k' ], {m: 1}[m]",
    "[m, 'a', 'Z'] | sort | join, [m, m] | unique | list | length",
    "m | int(7), m | float(1.5), m | string, m | safe, m | default('x'), m | reverse",
    "m.center(60), m.zfill(50), m.encode('utf-8') | length, m.swapcase()",
    "['x', m] | upper ~ [m] | capitalize ~ {'k': [m]} | title ~ [m] | replace('Hi', 'Yo')",
    "[m] | trim('[]') ~ [m] | striptags ~ [m] | lower ~ [m] | e",
]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_marks_are_invisible_to_templates(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text equals that without marks, and every character of messages is marked."""
    source = "{% set m = messages[0].content %}{{ " + operation + " }}"
    source += "{% macro f(x) %}{{ x }}{% endmacro %}{% set b %}{{ m }}{% endset %}{{ f(m) + b }}"
    messages = [{"role": "user", "content": "Hi & <think>x</think> you"}]
    found = ChatTemplate(source, bos="", eos="").render(messages)
    assert "<" not in str.__str__(found).translate({}) or "<" in operation
    monkeypatch.setattr("localspec.prompting.template.mark_all", lambda value, **_: value)
    assert unmarked(found) == ChatTemplate(source, bos="", eos="").render(messages)


def test_generation_prompt_is_derived_from_the_template() -> None:
    source = "{% for m in messages %}### {{ m.role }}:\n{{ m.content }}\n\n{% endfor %}"
    assert render(source) == "### user:\nHi & <you>\n\n### assistant:\n"
    assert render(source, more={"add_generation_prompt": False}).endswith("<you>\n\n")
    source = "{% for m in messages %}{{ m.role }}:{{ '>' if m.role == 'assistant' }}"  # Command R7B
    assert render(source + "{{ m.content }};{% endfor %}assistant:").endswith("<you>;assistant:")
