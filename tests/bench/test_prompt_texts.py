"""Prompts reach a model as its own template writes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import localspec
from localspec import Engine, ModelOptions
from localspec.bench.prompt_texts import prompt_for, rendered
from localspec.bench.samples import BenchPrompt
from localspec.bench.suites import load_suites
from localspec.decoding.params import SamplingParams
from localspec.drafters.options import Drafting
from tests.cli.conftest import plain_model as plain_model
from tests.support.ggufs import tiny_llama

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant]"
)
OPTIONS = ModelOptions(context=512, threads=1)
GREEDY, PLAIN = SamplingParams(temperature=0.0), Drafting(drafter="none")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A model with other markers, and a BOS in its template."""
    path = tiny_llama(tmp_path_factory.mktemp("other") / "o.gguf", chat_template=TEMPLATE)
    with localspec.load(path, draft=None, options=OPTIONS) as engine:
        yield engine


@pytest.fixture
def story() -> BenchPrompt:
    return load_suites(suites=["story"], per_suite=1)[0]


def test_stories_for_the_embedded_pair(engine: Engine, prompts: list[str]) -> None:
    assert {prompt.text for prompt in rendered(engine, load_suites())} == set(prompts)


def test_stories_for_another_model(other: Engine, story: BenchPrompt) -> None:
    (made,) = rendered(other, [story])
    assert "<|user|>" not in made.text
    assert "[user] Tell me a story about clara.\n[assistant]" in made.text
    (plain,) = load_suites(suites=["continue"], per_suite=1)
    assert rendered(other, [plain]) == [plain]


def test_the_text_is_read_as_the_messages_are(other: Engine, story: BenchPrompt) -> None:
    """One BOS, whether the template or the tokenizer writes it."""
    (made,) = rendered(other, [story])
    seen = []
    for prompt in (made.text, story.messages):
        stream = other.stream(prompt, max_tokens=1, sampling=GREEDY)
        list(stream)
        seen.append(stream.stats.prompt_tokens)
    assert seen[0] == seen[1]


def test_a_model_without_a_template_reads_the_words(plain_model: Path, story: BenchPrompt) -> None:
    with localspec.load(plain_model, draft=None, options=OPTIONS) as engine:
        assert prompt_for(engine, story) == "Tell me a story about clara."


def test_all_turns_follow_the_models_own_answers(engine: Engine) -> None:
    said = ("Tell me a story about a fox.", "And then?", "Why?")
    asked = BenchPrompt("q", "s", said[0], ({"role": "user", "content": said[0]},), said[1:])
    assert len(rendered(engine, [asked])) == 1
    first, second, third = rendered(engine, [asked], all_turns=True, max_tokens=8)
    assert [p.id for p in (first, second, third)] == ["q", "q, turn 2", "q, turn 3"]
    assert [m["role"] for m in third.messages] == ["user", "assistant"] * 2 + ["user"]
    stream = engine.stream(first.text, max_tokens=8, sampling=GREEDY, drafting=PLAIN)
    list(stream)
    assert second.messages[1]["content"] == stream.text
    assert second.text == f"{first.text}{stream.text}<|end|><|user|>And then?<|end|><|assistant|>"
    assert third.text.startswith(second.text)
