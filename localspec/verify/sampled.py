"""Check that sampled answers of every way of drafting have the target's distribution."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from itertools import count, islice, product

import numpy as np
import numpy.typing as npt

from localspec.decoding.interfaces import PassRequest, PassResult
from localspec.decoding.loop import speculate
from localspec.decoding.params import SamplingParams
from localspec.decoding.random_source import SeededRandom
from localspec.decoding.rules import acceptance_rule
from localspec.decoding.sampling import Row, Sampler
from localspec.decoding.session import Session
from localspec.decoding.tree import TokenTree
from localspec.drafters.composition import compose, sources
from localspec.drafters.options import Drafting
from localspec.policy.profile import PairProfile
from localspec.verify.checks import Deadline, Effort, Outcome, skipped_ways
from localspec.verify.subject import Subject

SAMPLING = SamplingParams(temperature=0.8, top_k=6, top_p=0.95, min_p=0.0)
"""Few tokens can follow each other, so that a small bias shows."""
REJECT = 1e-3
"""Probability of a false failure over all tests. Seeds are fixed."""
SEED = 20_26
DEPTH = 2
_ROUND = 100
"""Answers per way before the next way's turn, so that all have as many when time runs out."""
_SIZES = (1, 2, 4, 8, 16, 32)
_DRAWS = 4.0
"""Simulated samples expected beyond the rejection limit."""
_SEARCH_SHARE = 0.25
"""Share of the time for the search for places."""

Pair = tuple[int, int]


@dataclass(slots=True)
class WaySample:
    """The samples of one way of drafting: pairs of tokens, by the text before them."""

    drafting: Drafting
    profile: PairProfile
    seen: defaultdict[tuple[int, ...], Counter[Pair]] = field(
        default_factory=lambda: defaultdict(Counter)
    )
    tested: int = 0
    accepted: int = 0


class PairDistribution:
    """The distribution of pairs of tokens after a text. `chance`: simulated statistics of first
    tokens and of pairs, float64 [2, draws]; independent of those of other texts."""

    def __init__(
        self, expected: dict[Pair, float], samples: int, draws: int, random: np.random.Generator
    ) -> None:
        self.pairs, probs = list(expected), np.array([*expected.values()])
        probs /= probs.sum()
        self._counts = samples * probs
        firsts = [first for first, _ in self.pairs]
        self._starts = [i for i, first in enumerate(firsts) if first not in firsts[:i]]
        self.chance = self.statistics(random.multinomial(samples, probs, draws))

    def statistics(self, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Likelihood ratios of first tokens, and of pairs: from [..., pairs] to [2, ...]."""
        found = []
        for starts in (self._starts, range(len(self.pairs))):
            seen = np.add.reduceat(counts, starts, axis=-1)
            ratio = np.maximum(seen, 1) / np.add.reduceat(self._counts, starts)
            found.append((seen * np.log(ratio)).sum(axis=-1))
        return np.array(found)


@dataclass(frozen=True, slots=True)
class WayResult:
    """The result of one way: p-values of first tokens and of pairs. `impossible`: number of pairs
    that the target cannot generate."""

    samples: int
    firsts: float
    pairs: float
    impossible: int
    tested: int
    accepted: int


def sampled_ways(subject: Subject) -> dict[str, Drafting]:
    """`Subject.ways` with short drafts; chains by both lossless rules."""
    found: dict[str, Drafting] = {}
    for name, drafting in subject.ways().items():
        if drafting.drafter == "auto":
            found[name] = drafting
            continue
        found[name] = replace(drafting, depth=DEPTH)
        if drafting.width == 1 and drafting.drafter in ("ngram", "model"):
            found[f"{name}, rule token"] = replace(drafting, depth=DEPTH, rule="token")
    return found


def check_sampled(subject: Subject, effort: Effort, deadline: Deadline) -> Outcome:
    """Sample two tokens after many texts, in every way, and count."""
    sampler = Sampler(SAMPLING, subject.engine.model.vocabulary.size)
    search = deadline.share(_SEARCH_SHARE)
    places = sampling_places(subject, sampler, effort.places, search)
    ways = {
        name: WaySample(each, _profile(subject)) for name, each in sampled_ways(subject).items()
    }
    expected: dict[tuple[int, ...], dict[Pair, float]] = {}
    rounds = max(1, effort.samples // _ROUND)
    complete = bool(places) and (len(places) == effort.places or not search.over)
    seeds = count(SEED << 32)
    for number, place in enumerate(deadline.within(places), 1):
        # One place at a time, as `PlainRows` keeps all of its rows.
        level = deadline.share(1.0 / (len(places) + 1 - number))
        target = PlainRows(subject, place)
        expected[place] = _pair_probabilities(target, sampler)
        done = 0
        for _ in level.within(range(rounds)):
            for name, way in ways.items():
                subject.report(f"sampled, place {number} of {len(places)}: {name}")
                for seed in islice(seeds, _ROUND):
                    _draw(subject, target, sampler, way, SeededRandom(seed))
            done += 1
        complete = complete and done == rounds
    complete = complete and len(expected) == len(places)
    reject = REJECT / (2 * len(ways))
    any_way = next(iter(ways.values()))  # all have as many samples of a place
    draws, random = int(_DRAWS / reject), np.random.default_rng(SEED)
    by_chance = {
        place: PairDistribution(found, any_way.seen[place].total(), draws, random)
        for place, found in expected.items()
    }
    judged = {name: _judge(way, by_chance) for name, way in ways.items()}
    subject.engine.clear()
    return _outcome(judged, len(expected), reject, complete)


def _draw(
    subject: Subject, target: PlainRows, sampler: Sampler, way: WaySample, random: SeededRandom
) -> None:
    """Sample two tokens as an answer of `Engine` begins, but with drafts in the first step."""
    place = target.base
    limit = min(len(place) + 2 + DEPTH, subject.limits.capacity)
    session = Session(place[:-1], sampler, random, limit=limit, ends=lambda token: False)
    session.extend([place[-1]], None)  # nothing is drafted before the first token of an answer
    rule = acceptance_rule(way.drafting.rule, greedy=False)
    drafter = compose(way.drafting, subject.parts, way.profile, subject.limits, session, rule)
    drafter.begin(session.context)
    with closing(speculate(session, drafter, rule, target, clock=lambda: target.clock)) as steps:
        while len(session.context) < len(place) + 2:
            step = next(steps)
            way.tested += len(step.tested_nodes)
            way.accepted += len(step.accepted_nodes)
    first, second = session.context[len(place) : len(place) + 2]
    way.seen[place][first, second] += 1


def _profile(subject: Subject) -> PairProfile:
    """A profile for `auto` with the costs of `PlainRows`; never stored."""
    profile = PairProfile()
    profile.target.learn({n: seconds_of(n) for n in _SIZES}, 0)
    for source in sources(subject.parts)[1]:
        profile.source(source).costs.learn(dict.fromkeys(_SIZES, 0.001), 0)
    return profile


def _pair_probabilities(target: PlainRows, sampler: Sampler) -> dict[Pair, float]:
    """The probability of each pair of tokens by the target alone."""
    found: dict[Pair, float] = {}
    first = sampler.distribution(target.row(()))
    for token, p in zip(first.ids.tolist(), first.probs.tolist(), strict=True):
        second = sampler.distribution(target.row((token,)))
        for follower, q in zip(second.ids.tolist(), second.probs.tolist(), strict=True):
            found[token, follower] = p * q
    return found


def _judge(way: WaySample, places: Mapping[tuple[int, ...], PairDistribution]) -> WayResult:
    chance, seen = np.zeros((2, 1)), np.zeros((2, 1))
    samples = impossible = 0
    for text, place in places.items():
        counts = np.array([way.seen[text][pair] for pair in place.pairs])
        samples += way.seen[text].total()
        impossible += way.seen[text].total() - int(counts.sum())
        chance = chance + place.chance
        seen[:, 0] += place.statistics(counts)
    # Monte Carlo p-values (Barnard 1963): exact for any number of draws.
    firsts, pairs = (1 + (chance >= seen).sum(axis=1)) / (1 + chance.shape[1])
    return WayResult(samples, float(firsts), float(pairs), impossible, way.tested, way.accepted)


def _outcome(judged: dict[str, WayResult], places: int, reject: float, complete: bool) -> Outcome:
    faults = []
    for name, result in judged.items():
        if result.impossible:
            faults.append(f"{name} gave tokens with probability 0: {result.impossible}.")
        faults += [
            f"{name}: {what} are not distributed like the model's, p = {p:.2g}."
            for what, p in (("next tokens", result.firsts), ("token pairs", result.pairs))
            if p < reject
        ]
    tested = [result for result in judged.values() if result.tested]
    if not places:
        faults.append("No place was found where the model is undecided, so nothing was sampled.")
    elif not tested:
        faults.append("No drafter drafted anything, so nothing was verified.")
    least = min((min(result.firsts, result.pairs) for result in tested), default=1.0)
    summary = (
        f"{sum(result.samples for result in tested):,} token pairs from {len(tested)} ways to "
        f"draft (texts: {places}): the lowest p-value is {least:.2g}; below {reject:.1g} fails."
    )
    return Outcome(
        faults=tuple(faults),
        summary=summary
        + skipped_ways((), [name for name, result in judged.items() if not result.tested]),
        figures={
            "places": places,
            "sampling": asdict(SAMPLING),
            "seed": SEED,
            "reject": reject,
            "ways": {name: asdict(one) for name, one in judged.items()},
        },
        complete=complete,
    )


MAX_PROBABILITY, MIN_PROPOSAL = 0.85, 0.03
"""Faults of an acceptance rule hardly show beyond these probabilities of the best token and of the
n-gram's proposal."""
_PHRASE = 4
_STEP = 3


def sampling_places(
    subject: Subject, sampler: Sampler, most: int, deadline: Deadline
) -> list[tuple[int, ...]]:
    """Texts as token ids: a prompt, its plain answer, and a repeated phrase of that answer. They
    are chosen only by the target's probabilities; those where the n-gram's proposal is unlikely
    come last."""
    found, spare = list[tuple[int, ...]](), list[tuple[int, ...]]()
    ends = subject.engine.model.vocabulary.ends
    longest = max((len(answer.tokens) for answer in subject.answers), default=0)
    for start, answer in product(range(0, longest, _STEP), subject.answers):
        if len(found) == most or (found and deadline.over):
            break
        generated = answer.tokens[:-1] if ends(answer.tokens[-1]) else answer.tokens
        if len(generated) <= max(start + _PHRASE + 1, 2 * _PHRASE):
            continue
        subject.report("looking for places where the model is undecided")
        text = (*answer.prompt, *generated)
        place = (*text, *generated[start : start + _PHRASE])
        subject.target.rollback(text)
        p = sampler.distribution(subject.row(place))
        if p.probs.max() <= MAX_PROBABILITY:
            (found if p.prob(generated[start + _PHRASE]) >= MIN_PROPOSAL else spare).append(place)
    return [*found, *spare][:most]


_PLAIN, _TOKEN = 1.0, 0.001
"""Simulated seconds of passes, with which `auto` drafts wherever it can."""


class PlainRows:
    """A `Target` whose rows all come from plain passes after `base` and are cached, so that samples
    have exactly the plain distribution if the algorithm is right. `clock`: simulated seconds of its
    passes."""

    def __init__(self, subject: Subject, base: Sequence[int]) -> None:
        self._subject = subject
        self.base = tuple(base)
        self._rows: dict[tuple[int, ...], Row] = {}
        self.clock = 0.0
        subject.engine.clear()
        self.row(())

    def row(self, tail: Sequence[int]) -> Row:
        """The row after `base` and `tail`; float32 [vocabulary]."""
        key = tuple(tail)
        found = self._rows.get(key)
        if found is None:
            text = [*self.base, *key]
            self._subject.target.rollback(text[:-1])
            found = self._rows[key] = np.array(self._subject.row(text))
        return found

    def forward(self, request: PassRequest) -> PassResult:
        tail, tree = tuple(request.context[len(self.base) :]), request.tree
        rows = [self.row(tail)]
        rows += [self.row((*tail, *tree.path_tokens(node))) for node in range(len(tree))]
        seconds = seconds_of(len(rows))
        self.clock += seconds
        return PassResult(np.stack(rows), seconds)

    def commit(self, tree: TokenTree, path: Sequence[int]) -> None: ...

    def rollback(self, context: Sequence[int]) -> None: ...


def seconds_of(tokens: int) -> float:
    return _PLAIN + _TOKEN * tokens
