"""Prompt cache on disk with parallel answers."""

from functools import partial
from typing import Any

import pytest

from localspec import Drafting, Engine, Stream
from localspec.llama.options import IN_MEMORY
from localspec.sessions.conversations import LEAST
from tests.sessions.test_sessions import check_same, stored, stories
from tests.support import inside
from tests.support.asking import ask
from tests.support.greedy import Reference
from tests.support.sessions import drafting_pair
from tests.support.together import together

DRAFTING = Drafting(drafter="model", depth=3)
pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("home")]


def open_pair(**options: Any) -> Engine:
    options = {"context": 1024, "threads": 1, "parallel": 2, "prompt_cache": 1 << 30} | options
    return drafting_pair(**options)


def answer(engine: Engine, prompt: str, **more: Any) -> Stream:
    stream = ask(engine, prompt, DRAFTING, 12, **more)
    stream.completion()
    return stream


def check_restored(engine: Engine, before: Stream, now: Stream, known: Reference) -> None:
    """Check that an answer's prompt was in the cache, and that it is the same answer."""
    assert now.stats.cached_tokens == now.stats.prompt_tokens - 1
    check_same(engine, before, now, known.noise)


def test_texts_are_restored_in_the_next_session(plain_answers: Reference) -> None:
    prompts = stories(3)
    with open_pair(context=2048) as engine:
        assert engine.parallel > 1
        wanted = [answer(engine, prompt) for prompt in prompts]
        assert len(stored()) == 0, "there was room"
    assert len(stored()) == 3
    with open_pair(context=2048) as engine:
        assert engine.parallel > 1
        again = together([partial(answer, engine, prompt) for prompt in prompts])
        for before, now in zip(wanted, again, strict=True):
            assert isinstance(now, Stream), now
            assert now.stats.notices == []
            check_restored(engine, before, now, plain_answers)
        drafts = inside.drafts_of_kept_texts(engine)
        assert all(len(drafted) > LEAST for drafted in drafts)
    assert len(stored()) == 3, "nothing is written twice"


@pytest.mark.parametrize("size", [1 << 30, IN_MEMORY])
def test_evicted_texts_are_restored(size: int, plain_answers: Reference) -> None:
    """There is room for two or three texts of some 400 tokens."""
    prompts = stories(5)
    with open_pair(context=600, prompt_cache=size) as engine:
        wanted = [answer(engine, prompt) for prompt in prompts]
        for _ in range(2):
            for prompt, before in zip(prompts, wanted, strict=True):
                check_restored(engine, before, answer(engine, prompt), plain_answers)
    assert len(stored()) == (5 if size > 0 else 0)


def test_files_are_shared_with_single_answers(plain_answers: Reference) -> None:
    first, second = stories(2)
    with open_pair() as engine:
        wanted = answer(engine, first)
    with open_pair(parallel=1) as engine:
        check_restored(engine, wanted, answer(engine, first), plain_answers)
        wanted = answer(engine, second)
    with open_pair() as engine:
        check_restored(engine, wanted, answer(engine, second), plain_answers)


def test_text_is_decoded_if_answers_hold_the_cells() -> None:
    """An answer holds some 200 of 512 cells; the file has 343 tokens, the prompt 277 of them."""
    text, other = stories(2)
    prompt, other = text[: len(text) * 5 // 6], other[: len(other) * 6 // 10]
    with open_pair() as engine:
        answer(engine, text)
    with open_pair(context=480) as engine:
        held = ask(engine, other, DRAFTING, 100)
        next(held)
        assert 512 - len(held.context) < len(engine.tokenize(text)) < 480
        now = answer(engine, prompt)
        assert (now.stats.cached_tokens, now.stats.notices) == (0, [])
        held.close()
        engine.clear()
        now = answer(engine, prompt)
        assert now.stats.cached_tokens == now.stats.prompt_tokens - 1


def test_answers_without_reuse_and_clear_leave_no_files() -> None:
    prompt, other = stories(2)
    with open_pair() as engine:
        answer(engine, prompt, reuse=False)
        answer(engine, other)
        engine.clear()
    assert len(stored()) == 0
