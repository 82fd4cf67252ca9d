"""Models whose template knows tools, or begins with thinking: copies of the embedded one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.server.process import Running, serving
from tests.support.retokenised import outfitted

pytestmark = pytest.mark.nightly

TEMPLATE = (
    "{% if tools %}<|system|>Call with <tool_call>{% for t in tools %}{{ t | tojson }}{% endfor %}"
    "<|end|>{% endif %}{% for m in messages %}<|{{ m.role }}|>{{ m.reasoning_content }}"
    "{{ m.content }}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.name }}:{{ c.function.arguments.city }}]"
    "{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>"
    "{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)
TOOLS: Any = [{"type": "function", "function": {"name": "weather"}}]
ASK: Any = [{"role": "user", "content": "Tell me a story."}]


@pytest.fixture(scope="module")
def knowing(tmp_path_factory: pytest.TempPathFactory, draft_path: Path) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("knowing")
    model = outfitted(folder / "knowing.gguf", draft_path, template=TEMPLATE)
    with serving(
        folder, "--no-think", "-m", str(model), "-d", "none", "-c", "512", "-t", "1", "--temp", "0"
    ) as running:
        yield running


def prompt(server: Running, **body: Any) -> str:
    return str(server.post("/apply-template", body).json["prompt"])


def test_the_template_is_told_of_the_tools(knowing: Running) -> None:
    told = prompt(knowing, messages=ASK, tools=TOOLS)
    assert told.startswith('<|system|>Call with <tool_call>{"type": "function"')
    assert '"name": "weather"' in told
    assert "weather" not in prompt(knowing, messages=ASK)


def test_calls_and_results_reach_it_as_they_are(knowing: Running) -> None:
    """The arguments as an object, as templates want them."""
    function = {"name": "weather", "arguments": '{"city": "Rome"}'}
    calls = [{"id": "c", "type": "function", "function": function}]
    messages = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c", "content": "Rain."},
    ]
    told = prompt(knowing, messages=messages)
    assert told.endswith("<|assistant|>[weather:Rome]<|end|><|tool|>Rain.<|end|><|assistant|>")


def test_thoughts_of_earlier_turns_reach_it_in_anthropics_format_too(knowing: Running) -> None:
    def counted(*blocks: Any) -> int:
        messages = [*ASK, {"role": "assistant", "content": [*blocks]}, *ASK]
        reply = knowing.post("/v1/messages/count_tokens", {"messages": messages})
        return int(reply.json["input_tokens"])

    call = {"type": "tool_use", "id": "1", "name": "weather", "input": {"city": "Rome"}}
    thought = {"type": "thinking", "thinking": "I should look first."}
    assert counted(thought, call) > counted(call) > counted({"type": "text", "text": ""})


def test_it_answers_freely_where_it_may(knowing: Running) -> None:
    """No grammar holds it to anything: what it says without tools in mind is text."""
    with openai.OpenAI(base_url=f"{knowing.address}/v1", api_key="x") as client:
        free = client.chat.completions.create(model="any", messages=ASK, tools=TOOLS, max_tokens=20)
        assert free.choices[0].message.content
        assert free.choices[0].message.tool_calls is None
        forced = client.chat.completions.create(
            model="any", messages=ASK, tools=TOOLS, tool_choice="required", max_tokens=100
        )
        assert forced.choices[0].message.tool_calls


def test_what_it_thinks_is_told_apart(knowing: Running) -> None:
    """The prompt ends with <think>, and this model never comes to the end of it."""
    body = {"messages": ASK, "max_tokens": 12, "chat_template_kwargs": {"enable_thinking": True}}
    message = knowing.post("/v1/chat/completions", body).json["choices"][0]["message"]
    assert message["content"] == ""
    assert len(message["reasoning_content"]) > 5
    plain = {**body, "chat_template_kwargs": {}}
    message = knowing.post("/v1/chat/completions", plain).json["choices"][0]["message"]
    assert "reasoning_content" not in message
    assert message["content"]


def test_ollama_is_told_that_it_knows_tools(knowing: Running) -> None:
    assert "tools" in knowing.post("/api/show", {}).json["capabilities"]
