"""Log-probabilities are those of the target's rows, whoever proposed the tokens, or wrote them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from localspec import Engine, SamplingParams
from localspec.decoding.distribution import Distribution
from localspec.decoding.likelihood import _PASS_TOKENS
from localspec.decoding.logprobs import TokenLogprob, sampled_logprobs
from localspec.decoding.sampling import Sampler
from localspec.errors import Cancelled, ContextOverflow
from tests.support.asking import WAYS, asked


def answered(engine: Engine, drafter: str, **more: Any) -> Iterator[tuple[TokenLogprob, list[int]]]:
    """What is told of each token, and the text before it."""
    stream = asked(engine, "Once upon a time there was a fox", WAYS[drafter], 12, **more)
    told = [one for chunk in stream if chunk.step for one in chunk.step.logprobs]
    assert len(told) == stream.stats.generated_tokens == 12
    before = len(stream.context) - len(told)
    for number, one in enumerate(told):
        yield one, list(stream.context[: before + number])


@pytest.mark.parametrize("drafter", ["model", "none"])
def test_under_speculation_they_are_the_targets_own(engine: Engine, drafter: str) -> None:
    """Worked out again, one token after the other."""
    for one, text in answered(engine, drafter, logprobs=3):
        row = engine.logits(text).astype(np.float64)
        expected = row - row.max() - np.log(np.exp(row - row.max()).sum())
        assert one.logprob == pytest.approx(expected[one.token], abs=0.02)
        assert [p for _, p in one.top] == pytest.approx(sorted(expected)[-1:-4:-1], abs=0.02)


def test_as_sampled_they_are_of_what_tokens_are_drawn_from() -> None:
    target = Distribution(np.array([2, 5, 7], np.int32), np.array([0.25, 0.75, 0.0]))
    told, other = sampled_logprobs([target, Distribution.certain(3)], [2, 3], 3)
    assert np.exp(told.logprob) == pytest.approx(0.25)
    assert [token for token, _ in told.top] == [5, 2], "what cannot come is not told"
    assert np.exp([p for _, p in told.top]) == pytest.approx([0.75, 0.25])
    assert (other.logprob, other.top) == (0.0, ((3, 0.0),))


@pytest.mark.parametrize("drafter", ["model", "none"])
def test_as_sampled_under_speculation(engine: Engine, drafter: str) -> None:
    """Worked out again, penalties and truncation included, which look at the text so far."""
    sampling = SamplingParams(temperature=0.7, top_k=4, repeat_penalty=1.5, seed=3)
    sampler = Sampler(sampling, engine.model.vocabulary.size)
    for one, text in answered(engine, drafter, logprobs=4, sampling=sampling, as_sampled=True):
        window = sampler.window(text)
        assert window is not None
        p = sampler.distribution(engine.logits(text), window.after(()))
        assert np.exp(one.logprob) == pytest.approx(p.prob(one.token), abs=0.02)
        assert np.exp([value for _, value in one.top]) == pytest.approx(
            sorted(p.probs, reverse=True), abs=0.02
        )


def test_nobody_pays_for_them_who_did_not_ask(engine: Engine) -> None:
    stream = engine.stream("Once upon a time", max_tokens=2)
    assert all(chunk.step.logprobs == () for chunk in stream if chunk.step)


# Texts that are there already, read as drafts.


def expected(engine: Engine, tokens: list[int]) -> list[float]:
    """Log-probabilities by a pass for every token."""
    found = []
    for at in range(1, len(tokens)):
        row = engine.logits(tokens[:at]).astype(np.float64)
        found.append(float(row[tokens[at]] - np.logaddexp.reduce(row)))
    return found


@pytest.mark.parametrize("length", [1, 2, _PASS_TOKENS + 1, _PASS_TOKENS + 2, 2 * _PASS_TOKENS + 7])
def test_every_token_but_the_first_is_told(tiny: Engine, length: int) -> None:
    tokens = [5 + (7 * i) % 90 for i in range(length)]
    told = tiny.likelihood(tokens, 2)
    assert [one.token for one in told] == tokens[1:]
    assert all(len(one.top) == 2 for one in told)
    assert [one.logprob for one in told] == pytest.approx(expected(tiny, tokens), abs=0.05)


def test_a_text_has_to_fit_the_context(tiny: Engine) -> None:
    most = tiny.context_length
    assert len(tiny.likelihood([5] * most)) == most - 1
    for judge in (
        lambda: tiny.likelihood([5] * (most + 1)),
        lambda: tiny.logits([5] * (most + 1)),
        lambda: tiny.first_wrong([5] * most, [5]),
    ):
        with pytest.raises(ContextOverflow, match=f"has {most + 1} tokens and the context holds"):
            judge()


def test_it_leaves_the_engine_as_it_was(tiny: Engine) -> None:
    greedy = SamplingParams(temperature=0.0)
    before = tiny.generate("abc", max_tokens=12, sampling=greedy).text
    with pytest.raises(Cancelled):
        tiny.likelihood(list(range(5, 90)), stopped=lambda: True)
    tiny.likelihood(list(range(5, 90)))
    assert tiny.generate("abc", max_tokens=12, sampling=greedy).text == before
