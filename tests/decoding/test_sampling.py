"""Sampling, compared with a slow implementation in llama.cpp's order of steps."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.decoding.acceptance import Verification
from localspec.decoding.occurrences import NONE, Occurrences
from localspec.decoding.sampling import GROUPS, Row, Sampler, SamplingParams, top_ids
from localspec.decoding.tree import ROOT, TokenTree
from localspec.errors import NativeError, UsageError
from tests.support.toys import AS_IS, GREEDY, ForbiddenPairs, examples, session_of

LLAMA_CPP = SamplingParams()


def only(allowed: Iterable[int], size: int) -> ForbiddenPairs:
    return ForbiddenPairs({(0, token) for token in {*range(size)}.difference(allowed)}, 0)


def recent_of(sampler: Sampler, text: Sequence[int], path: Sequence[int] = ()) -> Occurrences:
    """The occurrences that a session passes to the sampler after a text and a path."""
    window = sampler.window(text)
    return NONE if window is None else window.after(path)


def slow_logits(row: Row, text: Sequence[int], params: SamplingParams) -> dict[int, float]:
    """Bias, then penalties (llama_sampler_penalties_apply)."""
    logits = dict(enumerate(row.tolist()))
    for token, bias in params.logit_bias.items():
        logits[token] += bias
    window = list(text) if params.penalty_last_n == -1 else []
    if params.penalty_last_n > 0:
        window = list(text)[-params.penalty_last_n :]
    for token in set(window):
        if logits[token] <= 0:
            logits[token] *= params.repeat_penalty
        else:
            logits[token] /= params.repeat_penalty
        logits[token] -= window.count(token) * params.frequency_penalty
        logits[token] -= params.presence_penalty
    return logits


def slow_distribution(
    row: Row, text: Sequence[int], params: SamplingParams, allowed: Sequence[int] | None = None
) -> dict[int, float]:
    """Token to probability, by lists of (logit, token) that are cut one after the other."""
    logits = slow_logits(row, text, params)
    if allowed is not None:
        logits = {token: logits[token] for token in allowed}
    left = sorted(
        ((logit, token) for token, logit in logits.items() if logit > -math.inf),
        key=lambda pair: (-pair[0], pair[1]),
    )
    best = left[0][0]
    if params.temperature == 0:
        return {left[0][1]: 1.0}
    if params.top_k > 0:
        left = left[: params.top_k]
    if params.top_p < 1:
        total = sum(math.exp(logit - best) for logit, _ in left)
        held, kept = 0.0, 0
        for logit, _ in left:
            held += math.exp(logit - best) / total
            kept += 1
            if held >= params.top_p:
                break
        left = left[:kept]
    if params.min_p > 0:
        left = [pair for pair in left if pair[0] >= best + math.log(params.min_p)]
    weights = {token: math.exp((logit - best) / params.temperature) for logit, token in left}
    return {token: weight / sum(weights.values()) for token, weight in weights.items()}


@st.composite
def settings_of_all_kinds(draw: st.DrawFn, size: int) -> SamplingParams:
    """Combinations of settings, each of them off half of the time."""

    def maybe(off: Any, *values: Any) -> Any:
        return draw(st.one_of(st.just(off), st.sampled_from(values)))

    bias: dict[int, float] = maybe({}, {0: 1.5, size - 1: -math.inf}, {1: -2.0, 2: 3.25, 3: 0.5})
    return SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.3, 0.8, 1.0, 1.7])),
        top_k=maybe(0, 1, 3, 40, size - 1, size, 2 * size),
        top_p=maybe(1.0, 0.05, 0.7, 0.93, 0.999),
        min_p=maybe(0.0, 0.01, 0.07, 0.6, 1.0),
        repeat_penalty=maybe(1.0, 1.3, 0.8),
        frequency_penalty=maybe(0.0, 0.21, -0.4),
        presence_penalty=maybe(0.0, 0.37),
        penalty_last_n=draw(st.sampled_from([-1, 0, 3, 64])),
        logit_bias=bias,
    )


@pytest.mark.parametrize(("size", "count"), [(7, 150), (300, 60), (5000, 20)])
@pytest.mark.parametrize("constrained", [False, True], ids=["free", "constrained"])
def test_distribution_follows_llama_cpp(size: int, count: int, constrained: bool) -> None:
    @examples(count)
    @given(params=settings_of_all_kinds(size), seed=st.integers(0, 10**6), scale=st.floats(0.1, 9))
    def check(params: SamplingParams, seed: int, scale: float) -> None:
        rng = np.random.default_rng(seed)
        row = (scale * rng.standard_normal(size)).astype(np.float32)
        row[rng.integers(0, size, size // 5)] = -np.inf
        text = rng.integers(0, size, 70).tolist()
        committed = int(rng.integers(0, 71))
        row[0] = row[1] = 0.25  # something is always possible, and it ties
        allowed = None
        if constrained:
            allowed = sorted({0, *rng.integers(0, size, max(2, size // 3)).tolist()})
        constraint = None if allowed is None else only(allowed, size)
        kept = row.copy()
        sampler = Sampler(params, size)
        recent = recent_of(sampler, text[:committed], text[committed:])
        found = sampler.distribution(row, recent, constraint)
        wanted = slow_distribution(row, text, params, allowed)
        assert found.ids.tolist() == sorted(wanted)
        assert found.ids.dtype == np.int32
        assert found.probs == pytest.approx([wanted[i] for i in sorted(wanted)], rel=1e-4, abs=1e-9)
        assert found.probs.sum() == pytest.approx(1.0)
        assert (row == kept).all(), "the row belongs to llama.cpp"

    check()


@examples(100)
@given(
    params=settings_of_all_kinds(40),
    seed=st.integers(0, 10**6),
    k=st.integers(1, 45),
    constrained=st.booleans(),
)
def test_best_and_top_tokens(params: SamplingParams, seed: int, k: int, constrained: bool) -> None:
    rng = np.random.default_rng(seed)
    row = np.round(2 * rng.standard_normal(40)).astype(np.float32)  # many ties
    row[rng.integers(0, 40, 5)] = -np.inf
    row[5] = 0.0
    text = rng.integers(0, 40, 9).tolist()
    allowed = sorted({5, *rng.integers(0, 40, 12).tolist()}) if constrained else range(40)
    constraint = only(allowed, 40) if constrained else None
    # Float32 as llama.cpp computes, so that what ties there ties here.
    logits = {t: np.float32(x) for t, x in slow_logits(row, text, params).items()}
    order = sorted((t for t in allowed if logits[t] > -np.inf), key=lambda t: (-logits[t], t))
    sampler = Sampler(params, 40)
    recent = recent_of(sampler, text)
    top = sampler.top(row, recent, k, constraint)
    assert [logits[t] for t in top] == pytest.approx([logits[t] for t in order[:k]], rel=1e-5)
    assert sampler.best(row, recent, constraint) == top[0]
    if not sampler.adjusts:
        assert top == order[:k]


def test_grammar_that_allows_only_the_worst_token() -> None:
    row = np.arange(32000, dtype=np.float32)
    for params in (LLAMA_CPP, GREEDY, AS_IS, replace(AS_IS, top_p=0.5)):
        assert Sampler(params, 32000).distribution(row, NONE, only([0], 32000)).ids.tolist() == [0]
        assert Sampler(params, 32000).top(row, NONE, 3, only([7, 0], 32000)) == [7, 0]


EVERY_PATH = {
    "defaults": LLAMA_CPP,
    "greedy": GREEDY,
    "nothing": AS_IS,
    "top-p": replace(AS_IS, top_p=0.9),
    "min-p": replace(AS_IS, min_p=0.1),
    "top-k": replace(AS_IS, top_k=2),
}


@pytest.mark.parametrize("params", EVERY_PATH.values(), ids=EVERY_PATH.keys())
@pytest.mark.parametrize("size", [3, 6000])
@pytest.mark.parametrize("allowed", [[], [1]], ids=["nothing", "what is banned"])
def test_impossible_grammar_raises(params: SamplingParams, size: int, allowed: list[int]) -> None:
    row = np.zeros(size, np.float32)
    for banned, grammar in (({1}, only(allowed, size)), (range(size), None)):
        biased = replace(params, logit_bias=dict.fromkeys(banned, -math.inf))
        with pytest.raises(NativeError, match="No token is possible here"):
            Sampler(biased, size).distribution(row, NONE, grammar)


@pytest.mark.parametrize("params", EVERY_PATH.values(), ids=EVERY_PATH.keys())
@pytest.mark.parametrize(("n", "value"), [(n, x) for n in (3, 6000) for x in (np.nan, np.inf)])
def test_logits_that_are_not_finite_raise(params: SamplingParams, n: int, value: float) -> None:
    """The argmax of NaN would be the first token, which ends the text of many models."""
    for some in (slice(None), slice(n // 2, n // 2 + 1)):
        rows = np.zeros((1, n), np.float32)
        rows[0, some] = value
        with pytest.raises(NativeError, match="computes NaN"):
            Sampler(params, n).distribution(rows[0])
        with pytest.raises(NativeError, match="computes NaN"):
            Verification(rows, TokenTree(), session_of([1], params=params)).best(ROOT)


def one_group(rng: np.random.Generator, n: int) -> Row:
    """All the large logits fall into one group of top_ids."""
    row = rng.standard_normal(n).astype(np.float32)
    row[::GROUPS] += 50
    return row


def mostly_impossible(rng: np.random.Generator, n: int) -> Row:
    row = np.full(n, -np.inf, np.float32)
    row[rng.integers(0, n, 20)] = rng.standard_normal(20)
    return row


ROWS: dict[str, Callable[[np.random.Generator, int], Row]] = {
    "normal": lambda rng, n: rng.standard_normal(n).astype(np.float32),
    "ties": lambda rng, n: np.round(rng.standard_normal(n)).astype(np.float32),
    "equal": lambda rng, n: np.zeros(n, np.float32),
    "one group": one_group,
    "mostly impossible": mostly_impossible,
    "impossible": lambda rng, n: np.full(n, -np.inf, np.float32),
    "ascending": lambda rng, n: np.arange(n, dtype=np.float32),
    "descending": lambda rng, n: -np.arange(n, dtype=np.float32),
}
SIZES = (1, 2, 37, 4 * GROUPS - 1, 4 * GROUPS, 4 * GROUPS + 1, 8 * GROUPS - 1, 8 * GROUPS, 152_000)


@pytest.mark.parametrize("make", ROWS.values(), ids=ROWS.keys())
@pytest.mark.parametrize("n", SIZES)
def test_top_ids_equals_sorting(make: Callable[[np.random.Generator, int], Row], n: int) -> None:
    row = make(np.random.default_rng(n), n)
    order = np.argsort(-row, kind="stable")
    for k in {1, 2, 40, 256, GROUPS // 2, GROUPS // 2 + 1, n - 1, n, n + 1} - {0}:
        found = top_ids(row, k)
        assert found.dtype == np.int32
        assert found.tolist() == order[:k].tolist()


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", [-0.1, math.inf, math.nan]),
        ("top_k", [-1]),
        ("top_p", [0.0, -0.1, 1.01, math.nan]),
        ("min_p", [-0.01, 1.01, math.nan]),
        ("repeat_penalty", [0.0, -1.0, math.inf, math.nan]),
        ("frequency_penalty", [math.inf, math.nan]),
        ("presence_penalty", [-math.inf, math.nan]),
        ("penalty_last_n", [-2]),
        ("seed", [-1]),
    ],
)
def test_setting_out_of_range_is_refused(field: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(UsageError, match=f"^{field.replace('_', '-')} is {value}"):
            SamplingParams(**{field: value})


@pytest.mark.parametrize(
    ("bias", "words"),
    [
        # -inf bans a token; +inf would make the others' probabilities no numbers.
        ({3: math.inf}, "logit-bias"),
        ({3: math.nan}, "logit-bias"),
        *(({0: 1.0, token: 1.0}, "outside 0 … 7") for token in (-1, 8, 10**6)),
    ],
)
def test_invalid_bias_is_refused(bias: dict[int, float], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Sampler(SamplingParams(logit_bias=bias), 8)
    Sampler(SamplingParams(logit_bias={3: -math.inf, 7: 1.0}), 8)


def test_defaults_are_those_of_llama_cpp() -> None:
    wanted = SamplingParams(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, penalty_last_n=64)
    off = replace(wanted, repeat_penalty=1.0, frequency_penalty=0.0, presence_penalty=0.0)
    assert SamplingParams() == off
