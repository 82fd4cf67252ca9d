"""Prompts come mixed, and a file that is wrong says where."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import localspec
from localspec import Engine, ModelOptions
from localspec.bench.samples import BenchPrompt
from localspec.bench.suites import SETS, SUITES, load_suites, prompt_for, render_prompts
from localspec.errors import UsageError
from tests.cli.conftest import plain_model as plain_model
from tests.support.asking import ask
from tests.support.ggufs import tiny_llama


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return path


def test_built_in_suites_are_mixed(prompts: list[str]) -> None:
    loaded = load_suites()
    assert tuple(prompt.suite for prompt in loaded[:7]) == SUITES
    assert tuple(prompt.suite for prompt in loaded[7:14]) == SUITES
    assert Counter(prompt.suite for prompt in loaded) == dict.fromkeys(SUITES, 8)
    assert {p.text for p in loaded} == {re.sub(r"<\|\w+\|>", "", prompt) for prompt in prompts}
    assert len({prompt.id for prompt in loaded}) == 56


def test_prompt_files(tmp_path: Path) -> None:
    mail = write(tmp_path / "mail.jsonl", {"prompt": "Dear"}, {"prompt": "Hi", "id": "short"})
    code = {"prompt": "def f", "family": "code", "id": 7}
    best = {"prompt": "Best,", "suite": "mail"}
    loaded = load_suites([mail, write(tmp_path / "more.jsonl", code, best)])
    assert [" ".join((p.suite, p.id, p.text)) for p in loaded] == [
        *("mail mail-0 Dear", "code 7 def f", "mail short Hi", "mail mail-2 Best,")
    ]


def test_turns_and_messages(tmp_path: Path) -> None:
    said = [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}]
    talk = {"turns": ["Hi", "And?"], "suite": "chat", "id": 1}
    path = write(tmp_path / "own.jsonl", talk, {"messages": said})
    chat, own = load_suites([path])
    assert (chat.id, chat.text, chat.later_turns) == ("1", "Hi", ("And?",))
    assert chat.messages == ({"role": "user", "content": "Hi"},)
    assert [*own.messages] == said


def test_packaged_questions() -> None:
    judging, tuning, public = (
        load_suites([Path(name)]) for name in ("questions", "questions-tuning", "public")
    )
    kinds = {prompt.suite for prompt in judging}
    assert (len(kinds), kinds & {*SUITES}) == (13, set())
    assert kinds == {prompt.suite for prompt in tuning}
    for prompts in (judging, tuning):
        counts = Counter(prompt.suite for prompt in prompts)
        two_turns = {prompt.suite for prompt in prompts if prompt.later_turns}
        assert all(count == 6 for suite, count in counts.items() if suite not in two_turns)
        assert len(two_turns) == 8
    assert [prompt.suite for prompt in public[:4]] == ["humaneval", "gsm8k", "mmlu", "truthfulqa"]
    assert set(Counter(prompt.suite for prompt in public).values()) == {6}
    assert {prompt.id for prompt in judging}.isdisjoint(prompt.id for prompt in tuning)
    asked = {prompt.text for prompt in (*judging, *tuning)}
    assert asked.isdisjoint(prompt.text for prompt in public)
    assert sum(path.stat().st_size for path in SETS.values()) < 1_000_000


def test_file_precedes_a_packaged_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "questions", {"prompt": "mine"})
    assert [prompt.text for prompt in load_suites([Path("questions")])] == ["mine"]
    assert len(load_suites([Path("stories")])) == 56


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no prompts"),
        ("\n \n", "holds no prompts"),
        ('{"prompt": "a"}\n{"prompt": \n', "line 2 is not JSON"),
        ('{"text": "a"}\n', 'line 1 has no text in "prompt"'),
        ('["a"]\n', 'line 1 has no text in "prompt"'),
        ('{"prompt": 5}\n', 'line 1 has no text in "prompt"'),
        ('{"prompt": ""}\n', "line 1 has an empty prompt"),
        ('{"turns": []}\n', 'line 1 has "turns" that is not a list'),
        ('{"turns": ["a", 5]}\n', 'line 1 has "turns" that is not a list'),
        ('{"turns": "a"}\n', 'line 1 has "turns" that is not a list'),
        ('{"messages": []}\n', "line 1 has .* no messages"),
        ('{"messages": ["a"]}\n', "line 1 has .* no role"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}\n', "not the user's"),
        ('{"prompt": "a", "id": []}\n', 'line 1 has "id" that is not text'),
        ('{"prompt": "a", "id": "x"}\n' * 2, "line 2 repeats the id 'x' of suite 'own'"),
    ],
)
def test_malformed_files(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        load_suites([path])


def test_unreadable_files(tmp_path: Path) -> None:
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(UsageError, match="cannot be read"):
            load_suites([path])
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "\xe4"}')
    with pytest.raises(UsageError, match="UTF-8"):
        load_suites([tmp_path / "latin.jsonl"])


# Prompts reach a model as its own template writes them.

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant]"
)
OPTIONS = ModelOptions(context=512, threads=1)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A model with another template, which writes a BOS."""
    path = tiny_llama(tmp_path_factory.mktemp("other") / "o.gguf", chat_template=TEMPLATE)
    with localspec.load(path, draft=None, options=OPTIONS) as engine:
        yield engine


@pytest.fixture
def story() -> BenchPrompt:
    return load_suites(suites=["story"], per_suite=1)[0]


def test_stories_for_the_embedded_pair(engine: Engine, prompts: list[str]) -> None:
    assert {prompt.text for prompt in render_prompts(engine, load_suites())} == set(prompts)


def test_stories_for_another_model(other: Engine, story: BenchPrompt) -> None:
    (made,) = render_prompts(other, [story])
    assert "<|user|>" not in made.text
    assert "[user] Tell me a story about clara.\n[assistant]" in made.text
    (plain,) = load_suites(suites=["continue"], per_suite=1)
    assert render_prompts(other, [plain]) == [plain]


def test_text_and_messages_give_equal_prompts(other: Engine, story: BenchPrompt) -> None:
    (made,) = render_prompts(other, [story])
    answers = [ask(other, prompt, count=1).completion() for prompt in (made.text, story.messages)]
    assert answers[0].stats.prompt_tokens == answers[1].stats.prompt_tokens


def test_model_without_a_template_reads_the_text(plain_model: Path, story: BenchPrompt) -> None:
    with localspec.load(plain_model, draft=None, options=OPTIONS) as engine:
        assert prompt_for(engine, story) == "Tell me a story about clara."
