"""A conversation that was kept goes on as if it had never been interrupted."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import localspec
from localspec import Drafting, Engine, ModelOptions, SessionError, paths
from localspec.sessions import conversation_files
from localspec.sessions.session_file import SessionFile, write
from tests.sessions.test_session_file import files_of_at_most
from tests.support import ggufs, inside, retokenised
from tests.support.asking import PLAIN, WAYS, asked
from tests.support.greedy import Reference
from tests.support.sessions import drafting_pair

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("home")]

STORY = "Tell me a story about a fox, a bear and a bird. " * 30
OPTIONS = ModelOptions(context=1024, threads=1)
MAKERS: dict[str, Callable[[Path], Path]] = {
    "mamba": ggufs.tiny_mamba,
    "hybrid": ggufs.tiny_hybrid,
}


def opened(draft: Path | str | None = "auto", **options: Any) -> Engine:
    return drafting_pair(draft=draft, **{"context": 1024, "threads": 1} | options)


def caches(engine: Engine) -> list[list[int]]:
    return [list(context.tokens) for context in inside.contexts(engine)]


def turns(engine: Engine, drafting: Drafting, save: Path | None = None) -> list[Any]:
    """Two turns of a chat; after the first one it may be kept."""
    messages = [{"role": "user", "content": STORY}]
    first = asked(engine, messages, drafting, 40).completion()
    messages += [
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "And then?"},
    ]
    if save is not None:
        engine.save_session(save, messages)
    return messages


def goes_on(engine: Engine, messages: list[Any], drafting: Drafting) -> localspec.Stream:
    stream = asked(engine, messages, drafting, 60)
    stream.completion()
    return stream


def check_same(
    engine: Engine, stream: localspec.Stream, again: localspec.Stream, noise: float = 0.0
) -> None:
    """Equal, but where two tokens tie within what batches do to them: which tokens share a pass
    depends on how long passes took."""
    wanted, got = list(stream.context), list(again.context)
    if got != wanted:
        at = next(i for i, (a, b) in enumerate(zip(wanted, got, strict=False)) if a != b)
        assert at >= stream.stats.prompt_tokens
        row = engine.logits(wanted[:at])
        assert abs(row[wanted[at]] - row[got[at]]) <= noise


@pytest.mark.parametrize("way", ["none", "model", "model tree", "auto"])
def test_it_goes_on_as_the_one_that_was_never_interrupted(
    tmp_path: Path, plain_answers: Reference, way: str
) -> None:
    path, drafting = tmp_path / "a.session", WAYS[way]
    with opened() as engine:
        messages = turns(engine, drafting, path)
        kept = caches(engine)
        wanted = goes_on(engine, messages, drafting)
    with opened() as engine:
        found = engine.open_session(path)
        assert (found.conversation, found.tokens, found.notices) == (messages, len(kept[0]), ())
        again = goes_on(engine, messages, drafting)
        assert again.stats.notices == []
        assert again.stats.cached_tokens == wanted.stats.cached_tokens > 300
        check_same(engine, wanted, again, 0.0 if way == "none" else plain_answers.noise)


@pytest.mark.parametrize("kind", ["the target's", "permuted", "sentencepiece"])
def test_a_draft_model_of_any_vocabulary(
    tmp_path: Path, draft_path: Path, plain_answers: Reference, kind: str
) -> None:
    draft = draft_path
    if kind != "the target's":
        draft = getattr(retokenised, kind)(tmp_path / "draft.gguf", draft_path)
    path, drafting = tmp_path / "a.session", WAYS["model"]
    with opened(draft) as engine:
        messages = turns(engine, drafting, path)
        kept = caches(engine)
        wanted = goes_on(engine, messages, drafting)
    with opened(draft) as engine:
        assert engine.open_session(path).notices == ()
        inside.sessions(engine).recall(engine.prompts.tokens(messages, 60, "error", wanted.stats))
        assert caches(engine) == kept
        again = goes_on(engine, messages, drafting)
        check_same(engine, wanted, again, plain_answers.noise)
        if kind == "the target's":
            assert again.stats.by_drafter == wanted.stats.by_drafter, "the same, at the same time"


@pytest.mark.parametrize("kind", sorted(MAKERS))
def test_a_recurrent_memory(tmp_path: Path, kind: str) -> None:
    model, path = MAKERS[kind](tmp_path / "model.gguf"), tmp_path / "a.session"
    text = "the fox and the bear " * 20
    with localspec.load(model, draft="none", options=OPTIONS) as engine:
        first = asked(engine, text, PLAIN, 12).completion()
        engine.save_session(path)
        more = text + first.text + " and"
        wanted = goes_on(engine, more, PLAIN)  # type: ignore[arg-type]
    with localspec.load(model, draft="none", options=OPTIONS) as engine:
        engine.open_session(path)
        again = goes_on(engine, more, PLAIN)  # type: ignore[arg-type]
        assert again.stats.cached_tokens == wanted.stats.cached_tokens
        check_same(engine, wanted, again)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[Any], str]]:
    """A session, what it goes on with, and how."""
    path = tmp_path_factory.mktemp("saved") / "a.session"
    with opened() as engine:
        messages = turns(engine, PLAIN, path)
        yield path, messages, goes_on(engine, messages, PLAIN).text


Saved = tuple[Path, list[Any], str]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"kv_type_k": "q8_0"}, "the KV cache has other types"),
        ({"flash_attention": "off"}, "the KV cache has other types"),
        ({"context": 256}, r"it has \d+ tokens, and the context 256 \(--ctx\)"),
    ],
)
def test_other_options(saved: Saved, options: dict[str, Any], why: str) -> None:
    path, messages, _ = saved
    with opened(**options) as engine:
        found = engine.open_session(path)
        assert found.conversation == messages
        assert found.tokens == 0
        (notice,) = found.notices
        assert notice.startswith(f"The session in {path} is read again: ")
        assert re.search(why, notice)
        assert engine.generate("Once", max_tokens=3).stats.cached_tokens == 0


def test_the_same_name_and_another_file(tmp_path: Path, target_path: Path) -> None:
    model, path = tmp_path / "model.gguf", tmp_path / "a.session"
    model.write_bytes(target_path.read_bytes())
    with localspec.load(model, draft="none", options=OPTIONS) as engine:
        engine.generate(STORY, max_tokens=2)
        engine.save_session(path)
    model.touch()
    with localspec.load(model, draft="none", options=OPTIONS) as engine:
        (notice,) = engine.open_session(path).notices
        assert "model.gguf is another file than it was" in notice


def test_another_draft_model(saved: Saved) -> None:
    """The target's part serves all the same."""
    path, messages, text = saved
    with opened("none") as engine:
        assert engine.open_session(path).notices == ()
        again = goes_on(engine, messages, PLAIN)
        assert again.stats.cached_tokens > 300
        assert again.text == text
    with opened(paths.embedded(paths.EMBEDDED_TARGET)) as engine:
        (notice,) = engine.open_session(path).notices
        assert notice.startswith("The draft model reads the session in ")
        again = goes_on(engine, messages, PLAIN)
        assert again.stats.cached_tokens > 300
        assert again.text == text


def test_another_version(saved: Saved, tmp_path: Path) -> None:
    path, _, _ = saved
    file = SessionFile(path)
    for what, value, why in (
        ("format", 99, "written by another version of localspec"),
        ("library", "0.1; x", "written with another version of llama.cpp"),
    ):
        other = tmp_path / f"{what}.session"
        facts = {**file.facts, "identity": {**file.facts["identity"], what: value}}
        write(other, facts, {})
        with opened() as engine:
            assert why in engine.open_session(other).notices[0]


def test_a_damaged_conversation_begins_anew_and_is_kept_aside(saved: Saved, tmp_path: Path) -> None:
    path, before = tmp_path / "damaged.session", saved[0].read_bytes()[:60]
    path.write_bytes(before)
    with opened() as engine:
        found = engine.open_session(path)
        assert (found.conversation, found.tokens) == (None, 0)
        assert "is damaged, so a new one starts" in found.notices[0]
        engine.generate("Once", max_tokens=3)
        engine.save_session(path, "Once")
        assert engine.open_session(path).conversation == "Once"
    assert (tmp_path / "damaged.session.damaged").read_bytes() == before


def test_something_else_is_never_replaced(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    path.write_text("# notes, a line long enough to be read as something\n")
    for use in (engine.open_session, engine.save_session):
        with pytest.raises(SessionError, match="is not a session of localspec"):
            use(path)
    assert path.read_text().startswith("# notes")


# The conversations that are kept by themselves


def stories(count: int) -> list[str]:
    return [f"{name} went to the river and saw a fox there. " * 30 for name in "ABCDEFG"[:count]]


def ask(engine: Engine, prompt: str) -> localspec.Completion:
    return asked(engine, prompt, PLAIN, 4).completion()


def test_conversations_in_turns_are_read_once() -> None:
    prompts = stories(3)
    with opened(prompt_cache=1 << 30) as engine:
        texts = [ask(engine, prompt).text for prompt in prompts]
        for _ in range(2):
            for prompt, text in zip(prompts, texts, strict=True):
                again = ask(engine, prompt)
                assert again.stats.cached_tokens == again.stats.prompt_tokens - 1
                assert (again.text, again.stats.notices) == (text, [])
    with opened(prompt_cache=1 << 30) as engine:
        for prompt in prompts:
            again = ask(engine, prompt)
            assert again.stats.cached_tokens == again.stats.prompt_tokens - 1, "and after the end"
    assert len(list(conversation_files.folder().iterdir())) == 3


def test_nothing_is_kept_unless_asked_for_and_long() -> None:
    for size, prompts in ((0, stories(2)), (1 << 30, ["Once upon a time", "The bear"])):
        with opened(prompt_cache=size) as engine:
            for prompt in prompts:
                ask(engine, prompt)
    assert not conversation_files.folder().exists()


def test_one_that_grew_takes_the_place_of_its_beginning() -> None:
    first, other = stories(2)
    with opened(prompt_cache=1 << 30) as engine:
        for prompt in (first, other, first + "And then it rained.", other):
            ask(engine, prompt)
        assert len(list(conversation_files.folder().iterdir())) == 2
        assert ask(engine, first + "And then it rained.").stats.cached_tokens > 300


def test_the_least_recently_used_one_goes() -> None:
    prompts = stories(4)
    with opened(prompt_cache=1 << 30) as engine:
        for prompt in prompts[:2]:
            ask(engine, prompt)
    size = max(path.stat().st_size for path in conversation_files.folder().iterdir())
    room = size * 3 + (3 << 16)
    with opened(prompt_cache=room) as engine:
        for prompt in (prompts[2], prompts[0], prompts[3]):  # A was used, B was not
            ask(engine, prompt)
    assert sum(path.stat().st_size for path in conversation_files.folder().iterdir()) <= room
    with opened() as engine:
        first = [
            b"".join(map(engine.token_bytes, SessionFile(path).part("target.tokens")[:4].tolist()))
            for path in conversation_files.folder().iterdir()
        ]
    assert sorted(re.findall("([A-G]) went", b"|".join(first).decode())) == ["A", "C", "D"]


def test_one_that_is_too_large_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "localspec"), opened(prompt_cache=200_000) as engine:
        for prompt in stories(2):
            assert ask(engine, prompt).stats.notices == []
    assert "are more than is kept" in caplog.text
    assert not conversation_files.folder().exists()


def test_a_damaged_one_is_decoded_again_and_goes() -> None:
    first, other = stories(2)
    with opened(prompt_cache=1 << 30) as engine:
        text = ask(engine, first).text
        ask(engine, other)
        (path,) = conversation_files.folder().iterdir()
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        again = ask(engine, first)
        assert again.text == text
        (notice,) = again.stats.notices
        assert notice.startswith("A conversation that was kept is read again: a part of ")
        assert not path.exists()


def test_a_full_disk_is_told_and_the_answer_goes_on() -> None:
    first, other = stories(2)
    with opened(prompt_cache=1 << 30) as engine:
        ask(engine, first)
        with files_of_at_most(100_000):
            answer = ask(engine, other)
        assert len(answer.text) > 3
        (notice,) = answer.stats.notices
        assert notice.startswith("What was read of the last conversation is not kept: ")


def test_one_that_is_longer_than_the_context_is_left_alone() -> None:
    prompt, _ = stories(2)
    with opened(prompt_cache=1 << 30) as engine:
        ask(engine, prompt)
    with opened(prompt_cache=1 << 30, context=300) as engine:
        answer = ask(engine, prompt[: len(prompt) // 2])
        assert (answer.stats.cached_tokens, answer.stats.notices) == (0, [])
    assert len(list(conversation_files.folder().iterdir())) == 1


def test_those_of_another_model_are_left_alone(draft_path: Path) -> None:
    prompt, other = stories(2)
    with opened(prompt_cache=1 << 30) as engine:
        ask(engine, prompt)
    with localspec.load(draft_path, draft="none", options=OPTIONS, prompt_cache=1 << 30) as engine:
        answer = ask(engine, prompt)
        assert (answer.stats.cached_tokens, answer.stats.notices) == (0, [])
        ask(engine, other)
    assert len(list(conversation_files.folder().iterdir())) == 3
