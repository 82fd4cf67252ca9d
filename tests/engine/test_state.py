"""However a generation ends, the caches hold committed tokens and nothing else.

Each test continues the generation, which must equal a plain one. State after exceptions:
`tests/decoding/test_driver.py`.
"""

import threading
from collections.abc import Generator
from contextlib import closing
from typing import NamedTuple

import pytest

from localspec import Cancelled, Drafting, Engine, ModelOptions
from localspec.decoding.interfaces import Step
from localspec.decoding.session import Session
from localspec.llama.context import Context
from tests.support import inside
from tests.support.asking import GREEDY, WAYS, ask
from tests.support.greedy import greedy
from tests.support.sessions import a_session, steps

PROMPT = "<|user|>Tell me a story about a bird.<|end|><|assistant|>"
COUNT = 120
USED = ("model", "model tree", "cascade", "ngram+model", "auto")
# Only with the kernels texts do not depend on the sizes of passes.
pytestmark = pytest.mark.usefixtures("kernels")


class Plain(NamedTuple):
    prompt: list[int]
    tokens: list[int]


@pytest.fixture(scope="module")
def plain(engine: Engine) -> Plain:
    prompt = engine.model.vocabulary.tokenize(PROMPT, special=True, add_bos=True)
    with closing(Context.open(engine.model, ModelOptions(context=1024))) as context:
        return Plain(prompt, greedy(context, prompt, COUNT))


@pytest.fixture(params=USED)
def drafting(request: pytest.FixtureRequest) -> Drafting:
    return WAYS[request.param]


def caches(engine: Engine) -> list[list[int]]:
    return [context.tokens for context in inside.contexts(engine)]


def check_and_continue(engine: Engine, session: Session, drafting: Drafting, plain: Plain) -> None:
    """Check that caches hold a prefix of the committed tokens, and continue to the end."""
    for cache in caches(engine):
        assert cache == session.context[: len(cache)]
        assert len(cache) < len(session.context)
    for context in inside.contexts(engine):
        context.resume()
    left = len(plain.prompt) + COUNT - len(session.context)
    further = a_session(engine, session.context, left, GREEDY)
    for _ in steps(engine, further, drafting):
        pass
    assert further.context[len(plain.prompt) :] == plain.tokens


def start(
    engine: Engine, plain: Plain, drafting: Drafting, take: int, count: int = COUNT
) -> tuple[Session, Generator[Step, None, None]]:
    engine.clear()
    session = a_session(engine, plain.prompt, count, GREEDY)
    run = steps(engine, session, drafting)
    for _ in range(take):
        next(run)
    return session, run


@pytest.mark.parametrize("take", [1, 3, 7, None])
def test_after_early_close_and_the_end(
    engine: Engine, plain: Plain, drafting: Drafting, take: int | None
) -> None:
    session, run = start(engine, plain, drafting, take or 0, count=COUNT if take else 25)
    if take is None:
        list(run)
        assert session.finish == "length"
    run.close()
    # All but the last token, which no pass has read yet.
    assert caches(engine)[0] == session.context[:-1]
    check_and_continue(engine, session, drafting, plain)


@pytest.mark.parametrize("passes", [0, 2, 11])
def test_after_cancel_in_mid_step(
    engine: Engine, plain: Plain, drafting: Drafting, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The abort flag is set before the n-th native pass, of the draft model or the target."""
    session, run = start(engine, plain, drafting, 2)
    with monkeypatch.context() as patch:
        inside.cancel_before(patch, passes)
        with pytest.raises(Cancelled):
            for _ in run:
                pass
    assert caches(engine)[0] == session.context[:-1]
    check_and_continue(engine, session, drafting, plain)


@pytest.mark.parametrize("leave", ["cancel", "close"])
def test_after_cancel_in_prefill(engine: Engine, plain: Plain, leave: str) -> None:
    """The prompt has two chunks; the answer is cancelled after the first."""
    prompt, drafting = "The fox and the bird and the bear went to the river. " * 60, WAYS["model"]
    done: list[int] = []

    def report(tokens: int, total: int) -> None:
        done.append(tokens)
        thread = threading.Thread(target=stream.cancel)
        thread.start()
        thread.join()

    engine.clear()
    stream = ask(engine, prompt, drafting, 20, progress=report)
    if leave == "cancel":
        assert list(stream) == []
        assert len(done) == 1
        tokens = engine.model.vocabulary.tokenize(prompt, special=True, add_bos=True)
        assert caches(engine)[0] == tokens[: done[0]]
    else:
        stream.close()
        assert done == []
    assert stream.finish_reason == "cancelled"
    assert stream.text == ""
    again = ask(engine, prompt, drafting, 20).completion()
    assert again.finish_reason in ("length", "stop")
    assert again.stats.cached_tokens >= (done[0] if done else 0)
    engine.clear()
    assert ask(engine, prompt, drafting, 20).completion().text == again.text
