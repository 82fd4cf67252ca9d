"""Log-probabilities are those of the target's rows, whoever proposed the tokens."""

from __future__ import annotations

import numpy as np
import pytest

from localspec import Drafting, Engine, SamplingParams
from localspec.decoding.distribution import Distribution
from localspec.decoding.logprobs import told_as_sampled
from localspec.decoding.sampling import Sampler


@pytest.mark.parametrize("drafting", [Drafting(drafter="model"), Drafting(drafter="none")])
def test_under_speculation_they_are_the_targets_own(engine: Engine, drafting: Drafting) -> None:
    """Worked out again, one token after the other."""
    stream = engine.stream(
        "Once upon a time there was a fox",
        max_tokens=12,
        sampling=SamplingParams(temperature=0.0),
        drafting=drafting,
        logprobs=3,
    )
    told = [one for chunk in stream if chunk.step for one in chunk.step.logprobs]
    text = list(stream.context[: -len(told)])
    assert len(told) == stream.stats.generated_tokens == 12
    for one in told:
        row = engine.logits(text).astype(np.float64)
        expected = row - row.max() - np.log(np.exp(row - row.max()).sum())
        assert one.logprob == pytest.approx(expected[one.token], abs=0.02)
        assert [p for _, p in one.top] == pytest.approx(sorted(expected)[-1:-4:-1], abs=0.02)
        text.append(one.token)


def test_as_sampled_they_are_of_what_tokens_are_drawn_from() -> None:
    target = Distribution(np.array([2, 5, 7], np.int32), np.array([0.25, 0.75, 0.0]))
    told, other = told_as_sampled([target, Distribution.certain(3)], [2, 3], 3)
    assert np.exp(told.logprob) == pytest.approx(0.25)
    assert [token for token, _ in told.top] == [5, 2], "what cannot come is not told"
    assert np.exp([p for _, p in told.top]) == pytest.approx([0.75, 0.25])
    assert (other.logprob, other.top) == (0.0, ((3, 0.0),))


@pytest.mark.parametrize("drafter", ["model", "none"])
def test_as_sampled_under_speculation(engine: Engine, drafter: str) -> None:
    """Worked out again, penalties and truncation included, which look at the text so far."""
    sampling = SamplingParams(temperature=0.7, top_k=4, repeat_penalty=1.5, seed=3)
    stream = engine.stream(
        "Once upon a time there was a fox",
        max_tokens=12,
        sampling=sampling,
        drafting=Drafting(drafter=drafter),
        logprobs=4,
        as_sampled=True,
    )
    told = [one for chunk in stream if chunk.step for one in chunk.step.logprobs]
    assert len(told) == stream.stats.generated_tokens == 12
    text = list(stream.context[: -len(told)])
    sampler = Sampler(sampling, engine.model.vocabulary.size)
    for one in told:
        window = sampler.window(text)
        assert window is not None
        p = sampler.distribution(engine.logits(text), window.behind(()))
        assert np.exp(one.logprob) == pytest.approx(p.prob(one.token), abs=0.02)
        assert np.exp([value for _, value in one.top]) == pytest.approx(
            sorted(p.probs, reverse=True), abs=0.02
        )
        text.append(one.token)


def test_nobody_pays_for_them_who_did_not_ask(engine: Engine) -> None:
    stream = engine.stream("Once upon a time", max_tokens=2)
    assert all(chunk.step.logprobs == () for chunk in stream if chunk.step)
