"""What localspec's own work costs as the context grows: everything except native passes.

    python -m tools.context_lengths [--quick] [--cold]

Time per step at 512, 8,192 and 32,768 tokens of context, greedy: plain decoding, drafts of four
tokens, and what the planner decides. The answer is the same at each length, and so is the text
right before it. Models are scripted (`tools.scripted`); the rest is the real thing. With `--cold`
their passes read as much memory as real ones do, which leaves the processor's caches without
localspec's own work: that is how it is with a real model.

Run it on a quiet machine: the figures are microseconds.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping

import numpy as np

from localspec import SamplingParams
from localspec.decoding.driver import drive
from localspec.decoding.interfaces import Limits
from localspec.decoding.loop import speculate
from localspec.decoding.random_source import SeededRandom
from localspec.decoding.rules import acceptance_rule
from localspec.decoding.sampling import Sampler
from localspec.decoding.session import Session
from localspec.drafters.byte_vocabulary import ByteVocabulary
from localspec.drafters.composition import compose, sources
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.heterogeneous import HeterogeneousDraftModel
from localspec.drafters.mapped_cache import MappedCache
from localspec.drafters.options import Drafting
from localspec.drafters.registry import Parts
from localspec.drafters.vocabulary_map import VocabularyMap
from localspec.policy.cost_curve import SIZES
from localspec.policy.profile import PairProfile
from tools.medians import report
from tools.scripted import (
    DRAFT_SECONDS,
    Script,
    ScriptedCache,
    ScriptedTarget,
    Weights,
    idle,
    other_vocabulary,
    target_seconds,
    words,
)

LENGTHS = (512, 8_192, 32_768)
"""Tokens of the prompt."""
WITHIN = 1.3
"""What the slowest length may cost, next to the quickest."""
VOCABULARY = 8_192
"""As the embedded pair's: where rows are longer, more of the time is spent on them."""
ANSWER = 192
"""Tokens."""
BEYOND = 80
"""Places behind the answer that a draft may reach."""
COPIES, LONGEST_COPY = 0.08, 16
"""How often the text begins to repeat something of the last few hundred tokens, and for how long
at most."""
RIGHT = 0.75
"""How often the draft model says what the target does."""

NONE, SAME, MAPPED = "none", "same", "mapped"
"""Draft models: none at all, one with the target's vocabulary, one with another."""
WAYS: Mapping[str, tuple[Drafting, str]] = {
    "plain": (Drafting(drafter="none"), NONE),
    "model, depth 4": (Drafting(drafter="model", depth=4), SAME),
    "mapped model, depth 4": (Drafting(drafter="model", depth=4), MAPPED),
    "auto, no draft model": (Drafting(), NONE),
    "auto": (Drafting(), SAME),
    "auto, mapped model": (Drafting(), MAPPED),
}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the repetitions")
    parser.add_argument("--cold", action="store_true", help="passes empty the processor's caches")
    args = parser.parse_args()
    by_context_length(3 if args.quick else 30, cold=args.cold)


def by_context_length(rounds: int, *, cold: bool = False) -> None:
    """Each way at each length, the lengths interleaved."""
    texts, wait = Texts(), Weights().read if cold else idle
    for name, (drafting, kind) in WAYS.items():
        pairs = {length: ScriptedPair(texts, length, kind, wait) for length in LENGTHS}
        costs: dict[int, list[float]] = {length: [] for length in LENGTHS}
        drafted: dict[int, float] = {}
        for number in range(rounds + 1):
            for length, pair in pairs.items():
                cost, drafted[length] = pair.answer(drafting)
                if number:  # the first one allocates, and the planner knows nothing
                    costs[length].append(1e6 * cost)
        for length, values in costs.items():
            report(f"own time per step, {name}, {length:,} tokens", values, "µs")
        medians = [statistics.median(values) for values in costs.values()]
        ratio = max(medians) / min(medians)
        mark = f"  over {WITHIN}!" if ratio > WITHIN else ""
        shown = ", ".join(f"{each:.1f}" for each in drafted.values())
        print(f"{f'  slowest ÷ quickest (drafted per step: {shown})':58}{ratio:9.3f} ×{mark}")


class Texts:
    """What the models say.

    The text of a shorter context is the end of that of a longer one. Its words are as unevenly
    frequent as real ones, and it repeats stretches of itself.

    Attributes:
        said: the target's tokens, as long as the longest prompt, the answer and what is BEYOND.
        translation: to the draft model with another vocabulary.
    """

    def __init__(self) -> None:
        random = np.random.default_rng(3)
        size = LENGTHS[-1] + ANSWER + BEYOND
        # Zipf's law, in Mandelbrot's form: the most frequent word is every twenty-fifth or so.
        weights = 1.0 / (np.arange(VOCABULARY) + 2.7)
        chosen = random.choice(VOCABULARY, size, p=weights / weights.sum())
        fresh = iter(random.permutation(VOCABULARY)[chosen].tolist())
        self.said: list[int] = []
        while len(self.said) < size:
            if len(self.said) > 400 and random.random() < COPIES:
                start = len(self.said) - int(random.integers(20, 400))
                self.said += self.said[start : start + int(random.integers(4, LONGEST_COPY + 1))]
            self.said.append(next(fresh))
        del self.said[size:]
        spelled = words(VOCABULARY)
        self._target, self._draft = ByteVocabulary(spelled), other_vocabulary(spelled)
        sample = b"".join(spelled[token] for token in self.said[:200])
        self.translation = VocabularyMap(self._target, self._draft, sample=sample)

    def of_target(self, length: int) -> Script:
        """The target's, from the beginning of a prompt of that length."""
        said = self.said[LENGTHS[-1] - length :]
        return Script(said, VOCABULARY, [14.0] * len(said))

    def of_draft(self, length: int) -> Script:
        """The same for the draft model."""
        return self._guessed(self.said, length + ANSWER + BEYOND, VOCABULARY)

    def of_mapped(self, length: int) -> Script:
        """The same for the one with another vocabulary."""
        whole = self._written_by_draft(self.said)
        count = len(self._written_by_draft(self.said[LENGTHS[-1] - length :]))
        return self._guessed(whole, count, len(self._draft.spelled))

    def _written_by_draft(self, said: list[int]) -> list[int]:
        text = b"".join(self._target.spelled[token] for token in said)
        return [token for token, _ in self._draft.encode(text)]

    def _guessed(self, said: list[int], count: int, size: int) -> Script:
        """The last `count` tokens of a text as a draft model says them, some of them wrong."""
        random = np.random.default_rng(4)
        right = random.random(len(said)) < RIGHT
        others = random.integers(size, size=len(said))
        guessed = np.where(right, said, others).tolist()
        margins = np.where(right, 14.0, 12.0).tolist()
        return Script(guessed[-count:], size, margins[-count:])


class ScriptedPair:
    """A pair with a context of one length, and what localspec makes of it.

    Args:
        kind: NONE, SAME or MAPPED.
        wait: what its passes do for as long as they take.
    """

    def __init__(
        self, texts: Texts, length: int, kind: str, wait: Callable[[float], None] = idle
    ) -> None:
        self._prompt = texts.said[LENGTHS[-1] - length : LENGTHS[-1]]
        capacity = length + ANSWER + BEYOND
        self._target = ScriptedTarget(texts.of_target(length), capacity, wait)
        self._cache: ScriptedCache | None = None
        model: DraftModel | None = None
        if kind == SAME:
            self._cache = ScriptedCache(texts.of_draft(length), capacity, wait)
            model = DraftModel(self._cache, VOCABULARY)
        elif kind == MAPPED:
            room = texts.translation.room(capacity)
            self._cache = ScriptedCache(texts.of_mapped(length), room, wait)
            mapped = MappedCache(self._cache, texts.translation)
            model = HeterogeneousDraftModel(mapped, VOCABULARY)
        self._parts = Parts(model)
        self._profile = PairProfile()
        self._profile.target.learn({n: target_seconds(n) for n in SIZES}, length)
        for source in sources(self._parts)[1]:
            costs = self._profile.source(source).costs
            costs.learn(dict.fromkeys(SIZES, DRAFT_SECONDS), length)

    def answer(self, drafting: Drafting) -> tuple[float, float]:
        """Localspec's own seconds per step of one answer, and tokens drafted per step."""
        target, prompt = self._target, self._prompt
        sampling = SamplingParams(temperature=0)
        session = Session(
            prompt,
            Sampler(sampling, VOCABULARY),
            SeededRandom(1),
            limit=len(prompt) + ANSWER,
            ends=lambda token: False,
        )
        rule = acceptance_rule(drafting.rule, greedy=True, threshold=drafting.threshold)
        planner, drafter = compose(
            drafting,
            self._parts,
            self._profile,
            Limits(target.capacity, target.max_draft, target.max_leaves),
            greedy=True,
            trees=rule.trees,
            cannot=None,
        )
        target.tokens = prompt[:-1]
        drafter.begin(prompt)
        steps = drive(session, speculate(session, drafter, planner, rule), target)
        next(steps)  # the prompt's
        native, seconds, count, drafted = self._native(), 0.0, 0, 0
        for step in steps:
            seconds += step.seconds
            count += 1
            drafted += step.drafted
        return (seconds - (self._native() - native)) / count, drafted / count

    def _native(self) -> float:
        # The caches' own: what a drafter calls native has the translation in it.
        cache = self._cache
        return self._target.native_seconds + (0.0 if cache is None else cache.native_seconds)


if __name__ == "__main__":
    main()
