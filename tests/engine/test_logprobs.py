"""Log-probabilities are those of the target's rows, for drafted tokens and given texts too."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from localspec import Engine, SamplingParams
from localspec.decoding.distribution import Distribution
from localspec.decoding.logprobs import TokenLogprob, sampled_logprobs
from localspec.decoding.sampling import Sampler
from localspec.errors import Cancelled, ContextOverflow
from tests.support.asking import WAYS, ask, generate


def logprobs_of(
    engine: Engine, drafter: str, **more: Any
) -> Iterator[tuple[TokenLogprob, list[int]]]:
    """The log-probabilities of each token, and the text before it."""
    stream = ask(engine, "Once upon a time there was a fox", WAYS[drafter], 12, **more)
    logprobs = [one for chunk in stream if chunk.step for one in chunk.step.logprobs]
    assert len(logprobs) == stream.stats.generated_tokens == 12
    before = len(stream.context) - len(logprobs)
    for number, one in enumerate(logprobs):
        yield one, list(stream.context[: before + number])


@pytest.mark.parametrize("drafter", ["model", "none"])
def test_logprobs_of_drafted_tokens_are_the_targets(engine: Engine, drafter: str) -> None:
    for one, text in logprobs_of(engine, drafter, logprobs=3):
        expected = log_softmax(engine, text)
        assert one.logprob == pytest.approx(expected[one.token], abs=0.02)
        assert [p for _, p in one.top] == pytest.approx(sorted(expected)[-1:-4:-1], abs=0.02)


def test_sampled_logprobs_are_those_of_the_sampling_distribution() -> None:
    target = Distribution(np.array([2, 5, 7], np.int32), np.array([0.25, 0.75, 0.0]))
    logprobs, other = sampled_logprobs([target, Distribution.certain(3)], [2, 3], 3)
    assert np.exp(logprobs.logprob) == pytest.approx(0.25)
    assert [token for token, _ in logprobs.top] == [5, 2], "impossible tokens are left out"
    assert np.exp([p for _, p in logprobs.top]) == pytest.approx([0.75, 0.25])
    assert (other.logprob, other.top) == (0.0, ((3, 0.0),))


@pytest.mark.parametrize("drafter", ["model", "none"])
def test_sampled_logprobs_of_drafted_tokens(engine: Engine, drafter: str) -> None:
    """With penalties and truncation, which depend on the text so far."""
    sampling = SamplingParams(temperature=0.7, top_k=4, repeat_penalty=1.5, seed=3)
    sampler = Sampler(sampling, engine.model.vocabulary.size)
    for one, text in logprobs_of(engine, drafter, logprobs=4, sampling=sampling, as_sampled=True):
        window = sampler.window(text)
        assert window is not None
        p = sampler.distribution(engine.logits(text), window.after(()))
        assert np.exp(one.logprob) == pytest.approx(p.prob(one.token), abs=0.02)
        assert np.exp([value for _, value in one.top]) == pytest.approx(
            sorted(p.probs, reverse=True), abs=0.02
        )


def test_logprobs_are_only_computed_on_request(engine: Engine) -> None:
    stream = engine.stream("Once upon a time", max_tokens=2)
    assert all(chunk.step.logprobs == () for chunk in stream if chunk.step)


# Given texts, read as drafts.


def log_softmax(engine: Engine, tokens: list[int]) -> npt.NDArray[np.float64]:
    """Log-probabilities after a text, of a pass over all of it."""
    row = engine.logits(tokens).astype(np.float64)
    logprobs: npt.NDArray[np.float64] = row - np.logaddexp.reduce(row)
    return logprobs


@pytest.mark.parametrize("length", [1, 2, 33, 34, 71])  # a pass has 32 tokens
def test_likelihood_of_every_token_but_the_first(tiny: Engine, length: int) -> None:
    tokens = [5 + (7 * i) % 90 for i in range(length)]
    logprobs = tiny.likelihood(tokens, 2)
    assert [one.token for one in logprobs] == tokens[1:]
    assert all(len(one.top) == 2 for one in logprobs)
    expected = [log_softmax(tiny, tokens[:at])[tokens[at]] for at in range(1, length)]
    assert [one.logprob for one in logprobs] == pytest.approx(expected, abs=0.05)


def test_longer_texts_than_the_context_are_refused(tiny: Engine) -> None:
    most = tiny.context_length
    assert len(tiny.likelihood([5] * most)) == most - 1
    for judge in (
        lambda: tiny.likelihood([5] * (most + 1)),
        lambda: tiny.logits([5] * (most + 1)),
        lambda: tiny.first_wrong([5] * most, [5]),
    ):
        with pytest.raises(ContextOverflow, match=f"has {most + 1} tokens and the context holds"):
            judge()


def test_likelihood_does_not_change_later_answers(tiny: Engine) -> None:
    before = generate(tiny, "abc", count=12)
    with pytest.raises(Cancelled):
        tiny.likelihood(list(range(5, 90)), stopped=lambda: True)
    tiny.likelihood(list(range(5, 90)))
    assert generate(tiny, "abc", count=12) == before
