"""Texts that have no room beside several answers go to disk, and come back."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import localspec
from localspec import Drafting, Engine
from localspec.sessions import conversation_files
from tests.sessions.test_session_file import files_of_at_most
from tests.sessions.test_sessions import check_same, stories
from tests.support import inside
from tests.support.asking import asked
from tests.support.greedy import Reference
from tests.support.sessions import drafting_pair
from tests.support.together import together

DRAFTING = Drafting(drafter="model", depth=3)
pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("home")]


def opened(**options: Any) -> Engine:
    options = {"context": 1024, "threads": 1, "parallel": 2, "prompt_cache": 1 << 30} | options
    return drafting_pair(**options)


def ask(engine: Engine, prompt: str, **more: Any) -> localspec.Stream:
    stream = asked(engine, prompt, DRAFTING, 12, **more)
    stream.completion()
    return stream


def files() -> int:
    return len(list(conversation_files.folder().glob("*.session")))


def test_texts_come_back_after_the_end_of_the_engine_and_share_both_memories(
    plain_answers: Reference,
) -> None:
    prompts = stories(3)
    with opened(context=2048) as engine:
        assert engine.parallel > 1
        wanted = [ask(engine, prompt) for prompt in prompts]
        assert files() == 0, "there was room"
    assert files() == 3
    with opened(context=2048) as engine:
        assert engine.parallel > 1
        again = together([partial(ask, engine, prompt) for prompt in prompts])
        for before, now in zip(wanted, again, strict=True):
            assert isinstance(now, localspec.Stream), now
            assert now.stats.cached_tokens == now.stats.prompt_tokens - 1
            assert now.stats.notices == []
            check_same(engine, before, now, plain_answers.noise)
        drafts = inside.drafts_of_kept_texts(engine)
        assert all(len(drafted) > conversation_files.LEAST for drafted in drafts)
    assert files() == 3, "nothing is written twice"


def test_what_answers_push_out_is_on_disk_and_pushes_others_out_in_turn(
    plain_answers: Reference,
) -> None:
    """Room for two or three texts of some 400 tokens: the fourth has the first go."""
    prompts = stories(5)
    with opened(context=600) as engine:
        wanted = [ask(engine, prompt) for prompt in prompts]
        for _ in range(2):
            for prompt, before in zip(prompts, wanted, strict=True):
                now = ask(engine, prompt)
                assert now.stats.cached_tokens == now.stats.prompt_tokens - 1
                check_same(engine, before, now, plain_answers.noise)
    assert files() == 5


def test_one_answer_at_a_time_reads_what_several_left_and_the_other_way_round(
    plain_answers: Reference,
) -> None:
    first, second = stories(2)
    with opened() as engine:
        wanted = ask(engine, first)
    with opened(parallel=1) as engine:
        now = ask(engine, first)
        assert now.stats.cached_tokens == now.stats.prompt_tokens - 1
        check_same(engine, wanted, now, plain_answers.noise)
        wanted = ask(engine, second)
    with opened() as engine:
        now = ask(engine, second)
        assert now.stats.cached_tokens == now.stats.prompt_tokens - 1
        check_same(engine, wanted, now, plain_answers.noise)


def test_where_answers_hold_the_cells_it_is_decoded_and_the_file_stays() -> None:
    """Of 512 cells an answer holds some 200; the file has 343 tokens, the prompt 277 of them."""
    text, other = stories(2)
    prompt, other = text[: len(text) * 5 // 6], other[: len(other) * 6 // 10]
    with opened() as engine:
        ask(engine, text)
    with opened(context=480) as engine:
        held = asked(engine, other, DRAFTING, 100)
        next(held)
        assert 512 - len(held.context) < len(engine.tokenize(text)) < 480
        now = ask(engine, prompt)
        assert (now.stats.cached_tokens, now.stats.notices) == (0, [])
        held.close()
        engine.clear()
        now = ask(engine, prompt)
        assert now.stats.cached_tokens == now.stats.prompt_tokens - 1


def test_a_full_disk_disturbs_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    with opened(context=600) as engine, files_of_at_most(100_000):
        texts = [ask(engine, prompt).text for prompt in stories(5)]
        assert all(texts)
    assert "a conversation is not kept" in caplog.text


def test_who_keeps_nothing_to_itself_leaves_nothing_on_disk() -> None:
    prompt, other = stories(2)
    with opened() as engine:
        ask(engine, prompt, reuse=False)
        ask(engine, other)
        engine.clear()
    assert files() == 0
