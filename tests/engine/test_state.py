"""However a generation ends, the caches hold committed tokens and nothing else.

After each way out the generation is continued, and has to say what one that was never interrupted
says. What an exception leaves behind, wherever it comes from: `tests/decoding/test_driver.py`.
"""

from __future__ import annotations

import threading
from contextlib import closing
from typing import NamedTuple

import pytest

from localspec import Cancelled, Drafting, Engine, ModelOptions
from localspec.decoding.session import Session
from localspec.llama.context import Context
from tests.support import inside
from tests.support.asking import GREEDY, WAYS, asked
from tests.support.greedy import greedy
from tests.support.sessions import a_session, steps

PROMPT = "<|user|>Tell me a story about a bird.<|end|><|assistant|>"
COUNT = 120
USED = ("model", "model tree", "cascade", "ngram+model", "auto")
# Only with the kernels does a text not depend on how passes are cut.
pytestmark = pytest.mark.usefixtures("kernels")


class Uninterrupted(NamedTuple):
    """A prompt, and what plain decoding says in a context of its own."""

    prompt: list[int]
    tokens: list[int]


@pytest.fixture(scope="module")
def uninterrupted(engine: Engine) -> Uninterrupted:
    prompt = engine.model.vocabulary.tokenize(PROMPT, special=True, add_bos=True)
    with closing(Context(engine.model, ModelOptions(context=1024))) as context:
        return Uninterrupted(prompt, greedy(context, prompt, COUNT))


@pytest.fixture(params=USED)
def drafting(request: pytest.FixtureRequest) -> Drafting:
    return WAYS[request.param]


def caches(engine: Engine) -> list[list[int]]:
    return [context.tokens for context in inside.contexts(engine)]


def check_and_continue(
    engine: Engine, session: Session, drafting: Drafting, uninterrupted: Uninterrupted
) -> None:
    """The caches hold a beginning of the committed tokens; going on from there gives the rest."""
    for cache in caches(engine):
        assert cache == session.context[: len(cache)]
        assert len(cache) < len(session.context)
    for context in inside.contexts(engine):
        context.resume()
    left = len(uninterrupted.prompt) + COUNT - len(session.context)
    further = a_session(engine, session.context, left, GREEDY)
    for _ in steps(engine, further, drafting):
        pass
    assert further.context[len(uninterrupted.prompt) :] == uninterrupted.tokens


def start(
    engine: Engine, uninterrupted: Uninterrupted, drafting: Drafting, take: int
) -> tuple[Session, object]:
    """A session after some steps, and its running generator."""
    engine.clear()
    session = a_session(engine, uninterrupted.prompt, COUNT, GREEDY)
    run = steps(engine, session, drafting)
    for _ in range(take):
        next(run)
    return session, run


def test_after_the_normal_end(
    engine: Engine, uninterrupted: Uninterrupted, drafting: Drafting
) -> None:
    session = a_session(engine, uninterrupted.prompt, 25, GREEDY)
    for _ in steps(engine, session, drafting):
        pass
    assert session.finish == "length"
    # All of it but the last token, which no pass has read yet.
    assert caches(engine)[0] == session.context[:-1]
    check_and_continue(engine, session, drafting, uninterrupted)


@pytest.mark.parametrize("take", [1, 3, 7])
def test_after_a_consumer_that_stops_iterating(
    engine: Engine, uninterrupted: Uninterrupted, drafting: Drafting, take: int
) -> None:
    session, run = start(engine, uninterrupted, drafting, take)
    run.close()  # type: ignore[attr-defined]
    assert caches(engine)[0] == session.context[:-1]
    check_and_continue(engine, session, drafting, uninterrupted)


@pytest.mark.parametrize("passes", [0, 2, 11])
def test_after_cancel_in_mid_step(
    engine: Engine,
    uninterrupted: Uninterrupted,
    drafting: Drafting,
    passes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The abort flag goes up before the n-th native pass, be it the draft's or the target's."""
    session, run = start(engine, uninterrupted, drafting, 2)
    with monkeypatch.context() as patch:
        inside.cancel_before(patch, passes)
        with pytest.raises(Cancelled):
            for _ in run:  # type: ignore[attr-defined]
                pass
    assert caches(engine)[0] == session.context[:-1]
    check_and_continue(engine, session, drafting, uninterrupted)


@pytest.mark.parametrize("leave", ["cancel", "close"])
def test_after_cancel_in_prefill(engine: Engine, uninterrupted: Uninterrupted, leave: str) -> None:
    """The prompt has two chunks; the answer is given up after the first."""
    prompt, drafting = "The fox and the bird and the bear went to the river. " * 60, WAYS["model"]
    done: list[int] = []

    def report(tokens: int, total: int) -> None:
        done.append(tokens)
        thread = threading.Thread(target=stream.cancel)
        thread.start()
        thread.join()

    engine.clear()
    stream = asked(engine, prompt, drafting, 20, progress=report)
    if leave == "cancel":
        assert list(stream) == []
        assert len(done) == 1
    else:
        stream.close()
        assert done == []
    assert stream.finish_reason == "cancelled"
    assert stream.text == ""
    tokens = engine.model.vocabulary.tokenize(prompt, special=True, add_bos=True)
    held = caches(engine)[0]
    if leave == "cancel":
        assert held == tokens[: done[0]]
    again = asked(engine, prompt, drafting, 20)
    answer = again.completion()
    assert answer.finish_reason in ("length", "stop")
    assert again.stats.cached_tokens >= (done[0] if done else 0)
    engine.clear()
    fresh = asked(engine, prompt, drafting, 20)
    assert fresh.completion().text == answer.text
