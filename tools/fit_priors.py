"""Fits what acceptance estimators start from to answers of real pairs.

    python -m tools.fit_priors --fit TARGET DRAFT PROMPTS … [--judge TARGET DRAFT PROMPTS …]

At every place of every answer, greedy and sampled, it notes the features of what each source would
draft there, and how likely that is to be accepted. Weights are fitted to all pairs of `--fit`
together, each pair counting the same, and judged, beside those that the sources have now, by the
log-loss on every pair. PROMPTS is a file or a set of prompts as `localspec bench --file` takes it,
or every second prompt of each of its suites: `stories:even` counts from the first one,
`stories:odd` from the second. No figure here is a time: a busy machine will do.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

import localspec
from localspec.bench.prompt_texts import prompt_for
from localspec.bench.samples import BenchPrompt
from localspec.bench.suites import load_suites
from localspec.decoding.auto_sources import Prediction, RankedLogits
from localspec.decoding.distribution import Distribution
from localspec.decoding.params import SamplingParams
from localspec.decoding.random_source import SeededRandom
from localspec.decoding.sampling import Sampler
from localspec.decoding.session import Session
from localspec.drafters import model, ngram
from localspec.drafters.draft_sampler import CoupledLogits, DraftLogits, DraftSampler
from localspec.engine import Engine
from localspec.policy.acceptance_estimator import AcceptanceEstimator
from localspec.policy.growing import SECOND, further_choices

HALVES = ("even", "odd")
RIDGE = 0.5
"""Strength of the pull to 0, in squared errors of one position: keeps weights finite."""
QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)


class Position(NamedTuple):
    """One place of an answer.

    Attributes:
        features: of the candidate.
        right: probability that it is accepted; 0 or 1 in a greedy answer.
    """

    features: tuple[float, ...]
    right: float


Trace = Mapping[str, Sequence[Position]]
"""Positions by source and kind of candidate, as in "model greedy"."""
Weights = Sequence[float]


def main() -> None:
    """Print the fitted weights, their log-loss, and the usual chances of a first token."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    three = ("TARGET", "DRAFT", "PROMPTS")
    parser.add_argument("--fit", nargs=3, action="append", metavar=three, required=True)
    parser.add_argument("--judge", nargs=3, action="append", metavar=three, default=[])
    parser.add_argument("--temperature", type=float, default=0.8, help="of the sampled answers")
    parser.add_argument("--per-suite", type=int, default=3, help="prompts of each suite")
    parser.add_argument("-n", type=int, default=48, dest="max_tokens", help="longest answer")
    parser.add_argument("--ctx", type=int, default=0, help="tokens of context")
    said = parser.parse_args()
    options = localspec.ModelOptions(context=said.ctx, threads=1)
    traces: dict[str, Trace] = {}
    for target, draft, prompts in said.fit + said.judge:
        chosen = load_prompts(prompts, said.per_suite)
        with localspec.load(target, draft=draft, options=options) as engine:
            name = f"{Path(target).stem} + {Path(draft).stem}, {prompts}"
            traces[name] = trace(engine, chosen, said.temperature, said.max_tokens)
    report(traces, len(said.fit))


def load_prompts(text: str, most: int) -> list[BenchPrompt]:
    """What PROMPTS says, of each suite `most` prompts."""
    name, _, half = text.rpartition(":")
    if half not in HALVES:
        return load_suites([Path(text)], per_suite=most)
    suites: dict[str, list[BenchPrompt]] = defaultdict(list)
    for prompt in load_suites([Path(name)]):
        suites[prompt.suite].append(prompt)
    first = HALVES.index(half)
    return [p for prompts in suites.values() for p in prompts[first::2][:most]]


def trace(
    engine: Engine, prompts: Sequence[BenchPrompt], temperature: float, max_tokens: int
) -> Trace:
    """The positions of all answers, greedy and at that temperature."""
    found: dict[str, list[Position]] = defaultdict(list)
    for number, prompt in enumerate(prompts):
        for at in (0.0, temperature):
            session = _session(engine, prompt, SamplingParams(temperature=at), number, max_tokens)
            for kind, position in _positions(engine, session):
                found[kind].append(position)
    return found


def _session(
    engine: Engine, prompt: BenchPrompt, sampling: SamplingParams, seed: int, max_tokens: int
) -> Session:
    vocabulary = engine.model.vocabulary
    stream = engine.stream(prompt_for(engine, prompt), sampling=sampling)
    tokens = stream._session.context  # never iterated: nothing is generated
    return Session(
        tokens,
        Sampler(sampling, vocabulary.size),
        SeededRandom(seed),
        limit=min(engine.context_length, len(tokens) + max_tokens),
        ends=vocabulary.ends,
    )


def _positions(engine: Engine, session: Session) -> Iterator[tuple[str, Position]]:
    """Generate an answer plainly, and see at each of its places what would be drafted there."""
    target, draft = engine._contexts[0], engine._parts.model
    assert draft is not None
    lookup = ngram.NgramSource(ngram.NgramIndex())
    lookup.begin(session.context)
    draft.begin(session.context)
    unread = session.context[engine._target.reuse(session.context) : -1]
    if unread:
        target.extend(unread, 0)
    while session.finish is None:
        said = target.extend(session.context[-1:])[0]
        p = session.sampler.distribution(said)
        if not session.at_prompt:  # the first token comes with the prompt
            hint = next(lookup.expected(lookup.place(session)), None)
            if hint is not None:
                kind = f"ngram {lookup.kind(session)}"
                yield kind, Position(hint.features, p.prob(hint.token))
            row = draft.read(session.context[len(draft.cache.tokens) :])[0]
            sampler = DraftSampler(session, (), greedy=False)
            logits = DraftLogits(row, sampler, 3)
            features = model.features_of(logits, hint)
            right = p.prob(logits.tokens[0])
            if session.sampler.greedy:
                yield "model greedy", Position(features, right)
                if not right:
                    yield from _further(logits, -1 if hint is None else hint.token, p)
            else:
                yield "model chosen", Position(features, right)
                q = sampler.distribution(row)
                overlap = float(np.minimum(p.probs, q.at(p.ids)).sum())
                yield "model sampled", Position(features, overlap)
                yield from _coupled(session, p, q, hint)
        session.extend([session.random.draw(p, session.position)], None)
        lookup.committed(session.context, {})


def _coupled(
    session: Session, p: Distribution, q: Distribution, hint: Prediction | None
) -> Iterator[tuple[str, Position]]:
    """The token that is drawn with the target's noise, and the next best of them."""
    random, place = session.random, session.position
    said = Distribution.certain(random.draw(p, place))
    logits = CoupledLogits(q, random.race(q, place), 3)
    right = said.prob(logits.tokens[0])
    yield "model coupled", Position(model.features_of(logits, hint), right)
    if not right:
        for kind, position in _further(logits, -1 if hint is None else hint.token, said):
            yield f"{kind} coupled", position


def _further(
    logits: RankedLogits, expected: int, p: Distribution
) -> Iterator[tuple[str, Position]]:
    """Second and further choices where the first is wrong, up to the one that is right."""
    for token, features in further_choices(logits, expected):
        yield f"model {SECOND}", Position(features, p.prob(token))
        if p.prob(token):
            return


def report(traces: Mapping[str, Trace], fitted_to: int) -> None:
    """Weights are fitted to the first traces, and all of them are judged."""
    priors = {f"model {kind}": prior for kind, prior in model.PRIORS.items()}
    priors |= {f"ngram {kind}": prior for kind, prior in ngram.PRIORS.items()}
    fitting = list(traces.values())[:fitted_to]
    for kind, prior in priors.items():
        weights = fit([one[kind] for one in fitting if one.get(kind)])
        print(f"\n{kind}: fitted ({', '.join(f'{weight:.2f}' for weight in weights)}), now {prior}")
        print(f"  {'':48}{'positions':>10}{'right':>8}{'fitted':>8}{'now':>8}  (log-loss)")
        for number, (name, one) in enumerate(traces.items()):
            positions = one.get(kind)
            if not positions:
                continue
            right = sum(position.right for position in positions) / len(positions)
            losses = f"{log_loss(weights, positions):8.4f}{log_loss(prior, positions):8.4f}"
            mark = "  fitted to" if number < fitted_to else ""
            print(f"  {name:48}{len(positions):10}{right:8.3f}{losses}{mark}")
        if kind == "model greedy":
            shown = ", ".join(f"{chance:.2f}" for chance in usual_chances(weights, fitting))
            print(f"  usual chances: {shown}")


def fit(pairs: Sequence[Sequence[Position]]) -> list[float]:
    """Weights of the logistic function, by Newton's method; every pair weighs the same."""
    features = np.array([one.features for positions in pairs for one in positions])
    right = np.array([one.right for positions in pairs for one in positions])
    shares = [len(right) / (len(pairs) * len(positions)) for positions in pairs]
    counts = np.repeat(shares, [len(positions) for positions in pairs])
    weights = np.zeros(features.shape[1])
    pull = RIDGE * np.eye(len(weights))
    for _ in range(30):
        chances = 1.0 / (1.0 + np.exp(-features @ weights))
        slope = features.T @ (counts * (chances - right)) + RIDGE * weights
        steepness = counts * chances * (1.0 - chances)
        weights -= np.linalg.solve((features.T * steepness) @ features + pull, slope)
    found: list[float] = weights.tolist()
    return found


def log_loss(prior: Weights, positions: Sequence[Position]) -> float:
    """Nats per position, of an estimator that learns nothing."""
    estimator = AcceptanceEstimator(prior)
    total = 0.0
    for features, right in positions:
        chance = estimator.predict(features)
        total -= right * math.log(chance) + (1.0 - right) * math.log(1.0 - chance)
    return total / len(positions)


def usual_chances(prior: Weights, traces: Sequence[Trace]) -> npt.NDArray[np.float64]:
    """QUANTILES of what the estimator expects of a first token, all pairs together."""
    estimator = AcceptanceEstimator(prior)
    chances = [[estimator.predict(one.features) for one in t["model greedy"]] for t in traces]
    shares = [np.full(len(found), 1.0 / len(found)) for found in chances]
    every, weight = np.concatenate(chances), np.concatenate(shares)
    order = every.argsort()
    sums = np.cumsum(weight[order]) / len(traces)
    found: npt.NDArray[np.float64] = every[order][sums.searchsorted(QUANTILES)]
    return found


if __name__ == "__main__":
    main()
