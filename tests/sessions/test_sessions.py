"""Saved conversations continue as if they had never been interrupted."""

import logging
import re
from pathlib import Path
from typing import Any

import pytest

import localspec
from localspec import Completion, Drafting, Engine, ModelOptions, Stream, paths
from localspec.llama.options import IN_MEMORY
from localspec.sessions import conversations
from localspec.sessions.session_file import SessionFile, write
from tests.support import ggufs, inside, retokenised
from tests.support.asking import PLAIN, WAYS, ask, assistant, user
from tests.support.greedy import Reference
from tests.support.patches import files_of_at_most
from tests.support.sessions import drafting_pair

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("home")]

STORY = "Tell me a story about a fox, a bear and a bird. " * 30
OPTIONS = ModelOptions(context=1024, threads=1)
MAKERS = {"mamba": ggufs.tiny_mamba, "hybrid": ggufs.tiny_hybrid}


def open_pair(draft: Path | str | None = "auto", **options: Any) -> Engine:
    return drafting_pair(draft=draft, **{"context": 1024, "threads": 1} | options)


def caches(engine: Engine) -> list[list[int]]:
    return [list(context.tokens) for context in inside.contexts(engine)]


def save_first_turn(engine: Engine, drafting: Drafting, path: Path) -> list[Any]:
    """Answer the first turn, and save it; returns messages with the second question."""
    first = ask(engine, [user(STORY)], drafting, 40).completion()
    messages = [user(STORY), assistant(first.text), user("And then?")]
    engine.save_session(path, messages)
    return messages


def continue_chat(engine: Engine, messages: Any, drafting: Drafting) -> Stream:
    stream = ask(engine, messages, drafting, 60)
    stream.completion()
    return stream


def check_same(engine: Engine, stream: Stream, again: Stream, noise: float = 0.0) -> None:
    """Check that texts are equal, near-ties aside: the tokens of a pass depend on timing."""
    wanted, got = list(stream.context), list(again.context)
    if got != wanted:
        at = next(i for i, (a, b) in enumerate(zip(wanted, got, strict=False)) if a != b)
        assert at >= stream.stats.prompt_tokens
        row = engine.logits(wanted[:at])
        assert abs(row[wanted[at]] - row[got[at]]) <= noise


@pytest.mark.parametrize(
    ("way", "kind"),
    [
        *((way, "the target's") for way in ("none", "model", "model tree", "auto")),
        *(("model", kind) for kind in ("permuted", "sentencepiece")),
    ],
)
def test_restored_session_continues(
    tmp_path: Path, draft_path: Path, plain_answers: Reference, way: str, kind: str
) -> None:
    """With a draft model of any vocabulary."""
    draft = draft_path
    if kind != "the target's":
        draft = getattr(retokenised, kind)(tmp_path / "draft.gguf", draft_path)
    path, drafting = tmp_path / "a.session", WAYS[way]
    with open_pair(draft) as engine:
        messages = save_first_turn(engine, drafting, path)
        kept = caches(engine)
        wanted = continue_chat(engine, messages, drafting)
    with open_pair(draft) as engine:
        found = engine.open_session(path)
        assert (found.conversation, found.tokens, found.notices) == (messages, len(kept[0]), ())
        if way == "model":
            tokens = engine.prompts.tokens(messages, 60, "error", wanted.stats)
            inside.sessions(engine).recall(tokens)
            assert caches(engine) == kept
        again = continue_chat(engine, messages, drafting)
        assert again.stats.notices == []
        assert again.stats.cached_tokens == wanted.stats.cached_tokens > 300
        check_same(engine, wanted, again, 0.0 if way == "none" else plain_answers.noise)
        if (way, kind) == ("model", "the target's"):
            assert again.stats.by_drafter == wanted.stats.by_drafter, "the same, at the same time"


@pytest.mark.parametrize("kind", sorted(MAKERS))
def test_session_of_a_recurrent_model(tmp_path: Path, kind: str) -> None:
    model, path = MAKERS[kind](tmp_path / "model.gguf"), tmp_path / "a.session"
    text = "the fox and the bear " * 20
    with localspec.load(model, draft="none", options=OPTIONS) as engine:
        first = ask(engine, text, PLAIN, 12).completion()
        engine.save_session(path)
        more = text + first.text + " and"
        wanted = continue_chat(engine, more, PLAIN)
    with localspec.load(model, draft="none", options=OPTIONS) as engine:
        engine.open_session(path)
        again = continue_chat(engine, more, PLAIN)
        assert again.stats.cached_tokens == wanted.stats.cached_tokens
        check_same(engine, wanted, again)


Saved = tuple[Path, list[Any], str]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """A session file, the next messages, and the answer."""
    path = tmp_path_factory.mktemp("saved") / "a.session"
    with open_pair() as engine:
        messages = save_first_turn(engine, PLAIN, path)
        return path, messages, continue_chat(engine, messages, PLAIN).text


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"kv_type_k": "q8_0"}, "the KV cache has different types"),
        ({"flash_attention": "off"}, "the KV cache has different types"),
        ({"kernels": "off"}, r"other kernels wrote it \(--kernels\)"),
        ({"context": 256}, r"it has \d+ tokens, and the context 256 \(--ctx\)"),
    ],
)
def test_session_of_other_options(saved: Saved, options: dict[str, Any], why: str) -> None:
    path, messages, _ = saved
    with open_pair(**options) as engine:
        found = engine.open_session(path)
        assert (found.conversation, found.tokens) == (messages, 0)
        (notice,) = found.notices
        assert notice.startswith(f"The session in {path} is prefilled again: ")
        assert re.search(why, notice)
        assert engine.generate("Once", max_tokens=3).stats.cached_tokens == 0


def test_session_of_a_changed_model_file_is_read_again(tmp_path: Path, target_path: Path) -> None:
    model, path = tmp_path / "model.gguf", tmp_path / "a.session"
    model.write_bytes(target_path.read_bytes())
    with localspec.load(model, draft="none", options=OPTIONS) as engine:
        engine.generate(STORY, max_tokens=2)
        engine.save_session(path)
    model.touch()
    with localspec.load(model, draft="none", options=OPTIONS) as engine:
        (notice,) = engine.open_session(path).notices
        assert "model.gguf is a different file now" in notice


def test_session_of_another_draft_model(saved: Saved) -> None:
    """The target's part is used anyway."""
    path, messages, text = saved
    target = paths.embedded(paths.EMBEDDED_TARGET)
    for draft, told in (("none", []), (target, ["The draft model prefills session "])):
        with open_pair(draft) as engine:
            notices = engine.open_session(path).notices
            assert [notice[:33] for notice in notices] == told
            again = continue_chat(engine, messages, PLAIN)
            assert again.stats.cached_tokens > 300
            assert again.text == text


def test_session_of_another_version(saved: Saved, tmp_path: Path) -> None:
    file = SessionFile(saved[0])
    for what, value, why in (
        ("format", 99, "written by another version of localspec"),
        ("library", "0.1; x", "written with another version of llama.cpp"),
    ):
        other = tmp_path / f"{what}.session"
        facts = {**file.facts, "identity": {**file.facts["identity"], what: value}}
        write(other, facts, {})
        with open_pair() as engine:
            assert why in engine.open_session(other).notices[0]


def test_opened_session_is_saved_again(saved: Saved, tmp_path: Path) -> None:
    """Also if no prompt followed it, and in the user's own folder."""
    with open_pair() as engine, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path))
        engine.open_session(saved[0])
        assert engine.save_session("~/b") == engine.open_session(tmp_path / "b").tokens > 300


def test_damaged_session_is_set_aside(saved: Saved, tmp_path: Path) -> None:
    path, before = tmp_path / "damaged.session", saved[0].read_bytes()[:60]
    path.write_bytes(before)
    with open_pair() as engine:
        found = engine.open_session(path)
        assert (found.conversation, found.tokens) == (None, 0)
        assert "is damaged, so a new one starts" in found.notices[0]
        engine.generate("Once", max_tokens=3)
        engine.save_session(path, "Once")
        assert engine.open_session(path).conversation == "Once"
    assert (tmp_path / "damaged.session.damaged").read_bytes() == before


# The prompt cache: conversations that are stored automatically.


def stories(count: int) -> list[str]:
    return [f"{name} went to the river and saw a fox there. " * 30 for name in "ABCDEFG"[:count]]


def stored() -> list[Path]:
    return [*conversations.folder().glob("*")]


def complete(engine: Engine, prompt: str) -> Completion:
    return ask(engine, prompt, PLAIN, 4).completion()


@pytest.mark.parametrize("size", [1 << 30, IN_MEMORY])
def test_alternating_conversations_are_read_once(size: int) -> None:
    prompts, texts = stories(3), list[str]()
    for _ in range(2 if size > 0 else 1):
        with open_pair(prompt_cache=size) as engine:
            texts = texts or [complete(engine, prompt).text for prompt in prompts]
            engine.calibrate()  # clears the caches
            for prompt, text in [*zip(prompts, texts, strict=True)] * 2:
                again = complete(engine, prompt)
                assert again.stats.cached_tokens == again.stats.prompt_tokens - 1
                assert (again.text, again.stats.notices) == (text, [])
                getattr(engine, "logits" if prompt == prompts[0] else "likelihood")([5] * 9)
    assert len(stored()) == (3 if size > 0 else 0)


def test_memory_has_room_for_the_latest_conversations(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, three = stories(3)
    with open_pair(prompt_cache=IN_MEMORY) as engine:
        read = [complete(engine, prompt).stats.cached_tokens for prompt in (one, two, one, three)]
        monkeypatch.setattr(conversations, "available_memory", lambda: (0, 1 << 40))
        read += [complete(engine, prompt).stats.cached_tokens for prompt in (two, one)]
    assert [tokens > 256 for tokens in read] == [False, False, True, False, True, False]


def test_only_long_conversations_are_stored_on_request() -> None:
    for size, prompts in ((0, stories(2)), (1 << 30, ["Once upon a time", "The bear"])):
        with open_pair(prompt_cache=size) as engine:
            for prompt in prompts:
                complete(engine, prompt)
    assert not conversations.folder().exists()


def test_longer_conversation_replaces_its_prefix() -> None:
    first, other = stories(2)
    with open_pair(prompt_cache=1 << 30) as engine:
        for prompt in (first, other, first + "And then it rained.", other):
            complete(engine, prompt)
        assert len(stored()) == 2
        assert complete(engine, first + "And then it rained.").stats.cached_tokens > 300


def test_least_recently_used_conversation_is_removed() -> None:
    prompts = stories(4)
    with open_pair(prompt_cache=1 << 30) as engine:
        for prompt in prompts[:2]:
            complete(engine, prompt)
    size = max(path.stat().st_size for path in stored())
    room = size * 3 + (3 << 16)
    with open_pair(prompt_cache=room) as engine:
        for prompt in (prompts[2], prompts[0], prompts[3]):  # A was used, B was not
            complete(engine, prompt)
    assert sum(path.stat().st_size for path in stored()) <= room
    with open_pair() as engine:
        first = [
            b"".join(map(engine.token_bytes, SessionFile(path).part("target.tokens")[:4].tolist()))
            for path in stored()
        ]
    assert sorted(re.findall("([A-G]) went", b"|".join(first).decode())) == ["A", "C", "D"]


def test_too_large_conversation_is_not_stored(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "localspec"), open_pair(prompt_cache=200_000) as engine:
        for prompt in stories(2):
            assert complete(engine, prompt).stats.notices == []
    assert "exceed the limit of stored" in caplog.text
    assert not conversations.folder().exists()


def test_damaged_conversation_is_removed() -> None:
    first, other = stories(2)
    with open_pair(prompt_cache=1 << 30) as engine:
        text = complete(engine, first).text
        complete(engine, other)
        (path,) = stored()
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        again = complete(engine, first)
        assert again.text == text
        (notice,) = again.stats.notices
        assert notice.startswith("A stored conversation is prefilled again: a part of ")
        assert not path.exists()


@pytest.mark.parametrize("drafting", [PLAIN, Drafting()])  # calibration clears the caches
def test_full_disk_is_reported(draft_path: Path, drafting: Drafting) -> None:
    first, other = stories(2)
    with localspec.load(draft_path, draft="none", options=OPTIONS, prompt_cache=1 << 30) as engine:
        complete(engine, first)
        with files_of_at_most(100_000):
            answer = ask(engine, other, drafting, 4).completion()
        assert len(answer.text) > 3
        (notice,) = answer.stats.notices
        assert notice.startswith("The last conversation's cache is not stored: ")


def test_unusable_conversations_stay_on_disk(draft_path: Path) -> None:
    """Those that are longer than the context, and those of other models."""
    prompt, other = stories(2)
    with open_pair(prompt_cache=1 << 30) as engine:
        complete(engine, prompt)
    with open_pair(prompt_cache=1 << 30, context=300) as engine:
        stats = complete(engine, prompt[: len(prompt) // 2]).stats
        assert (stats.cached_tokens, stats.notices, len(stored())) == (0, [], 1)
    with localspec.load(draft_path, draft="none", options=OPTIONS, prompt_cache=1 << 30) as engine:
        stats = complete(engine, prompt).stats
        assert (stats.cached_tokens, stats.notices) == (0, [])
        complete(engine, other)
    assert len(stored()) == 3
