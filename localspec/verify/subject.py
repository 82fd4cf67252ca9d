"""The subject of verification: an open engine, used as by a user, and its target."""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from localspec.bench.suites import SETS, load_suites, prompt_for
from localspec.decoding.distribution import Ids
from localspec.decoding.interfaces import PassRequest, Target
from localspec.decoding.params import SamplingParams
from localspec.decoding.sampling import Row, top_ids
from localspec.decoding.stats import GenerationStats
from localspec.decoding.tree import ROOT, TokenTree
from localspec.drafters.options import Drafting
from localspec.engine import Engine
from localspec.llama.sequences import shared_prefix
from localspec.prompting.prompt import Prompt, Tokens
from localspec.verify.checks import BIT_EXACT

BEST = 8
"""Number of tokens whose distances from the best one are compared."""
_KEPT = 32


class BestTokens:
    """The best tokens of a row: ids int32 [32], best first, and their logits float64 [32]."""

    __slots__ = ("_bits", "ids", "logits")

    def __init__(self, row: Row) -> None:
        self.ids: Ids = top_ids(row, _KEPT)
        self.logits: npt.NDArray[np.float64] = row[self.ids].astype(np.float64)
        self._bits = hash(row.tobytes())

    def distance(self, row: Row) -> float:
        """How far a token's logit moved relative to the best one; 0 means the same bits."""
        if hash(row.tobytes()) == self._bits:
            return 0.0
        other, ours = row[self.ids[:BEST]].astype(np.float64), self.logits[:BEST]
        found = float(np.abs((other - other[0]) - (ours - ours[0])).max())
        return found or sys.float_info.min


PLAIN = Drafting(drafter="none")
GREEDY = SamplingParams(temperature=0.0)
MAX_PROMPT = 400
"""Maximum tokens of a prompt; longer ones would cost more and show no more."""
_BRANCHES = 3


@dataclass(frozen=True, slots=True)
class PlainAnswer:
    """A greedy answer by single-token passes; `best`: of the row before each token."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    best: tuple[BestTokens, ...]


@dataclass(frozen=True, slots=True)
class SubjectAnswer:
    """An answer of the engine; `context` also has the prompt's tokens."""

    tokens: tuple[int, ...]
    context: tuple[int, ...]
    text: str
    stats: GenerationStats


class Subject:
    """An engine under examination, which has no other users meanwhile. `report` gets the current
    step and may raise KeyboardInterrupt. `same_bits`: whether every row must have the same bits
    as in plain decoding; `answers`, `distances`: for later checks, plain answers and how far
    rounding moved rows, in logits."""

    def __init__(self, engine: Engine, report: Callable[[str], None]) -> None:
        self.engine = engine
        self._report, self._status = report, ""
        self.learned = engine.learned  # looks for learned texts, which decide what can draft
        self.same_bits = engine.batch_invariant
        self._slot = engine.slots.all[0]
        self.parts, self.limits = self._slot.parts, self._slot.limits
        self.answers = list[PlainAnswer]()
        self.distances = list[float]()

    def report(self, text: str | None = None) -> None:
        """Report the current step, or the last one again: this can raise KeyboardInterrupt, and
        answers can take minutes."""
        self._status = self._status if text is None else text
        self._report(self._status)

    @property
    def noise(self) -> float:
        return max(self.distances, default=0.0)

    def limit(self, noise: float) -> float:
        """The largest gap between two logits that rounding by `noise` may swap."""
        return BIT_EXACT if self.same_bits else noise

    @property
    def target(self) -> Target:
        return self._slot.cache

    @property
    def branches(self) -> bool:
        return self.limits.max_leaves >= _BRANCHES

    def ways(self) -> dict[str, Drafting]:
        """`auto` first, every registered drafter that applies, and trees of some of them."""
        found = {name: Drafting(drafter=name) for name in self.parts.usable}
        if self.branches:
            for name in ("ngram", "model"):
                if name in found:
                    found[f"{name} tree"] = Drafting(drafter=name, depth=3, width=_BRANCHES)
        return {"auto": Drafting(), **found}

    def prompts(self, count: int) -> list[tuple[int, ...]]:
        """Token ids of `count` prompts of `localspec bench` that are not too long."""
        room = min(MAX_PROMPT, self.engine.context_length // 4)
        suites = load_suites([SETS["stories"], SETS["questions"]])
        # First the prompts for which an n-gram can draft.
        suites.insert(0, suites.pop(next(i for i, p in enumerate(suites) if p.suite == "copy")))
        read = (tuple(self.tokens(prompt_for(self.engine, prompt))) for prompt in suites)
        return [*islice((tokens for tokens in read if len(tokens) <= room), count)]

    def tokens(self, prompt: Prompt) -> list[int]:
        return list(self.engine.prompts.tokens(prompt, 1, "error", GenerationStats()))

    def row(self, tokens: Sequence[int]) -> Row:
        """Logits after a text that begins with the cached tokens: float32 [vocabulary], valid until
        the next pass."""
        row: Row = self.target.forward(PassRequest(tokens, TokenTree())).rows[-1]
        return row

    def plain(self, prompt: Sequence[int], count: int, chunk: int | None = None) -> PlainAnswer:
        """Decode up to `count` tokens plainly, from an empty cache. `chunk`: read the prompt in
        chunks of this many tokens."""
        self.engine.clear()
        known = list(prompt)
        for end in range(chunk, len(known), chunk) if chunk else ():
            self.row(known[:end])
        found: list[BestTokens] = []
        ends = self.engine.model.vocabulary.ends
        while len(found) < count:
            self.report()
            found.append(BestTokens(self.row(known)))
            known.append(int(found[-1].ids[0]))
            if ends(known[-1]):
                break
        return PlainAnswer(tuple(prompt), tuple(known[len(prompt) :]), tuple(found))

    def answer(
        self,
        prompt: Sequence[int],
        count: int,
        drafting: Drafting,
        *,
        sampling: SamplingParams = GREEDY,
        grammar: str | None = None,
        reuse: bool = False,
    ) -> SubjectAnswer:
        stream = self.engine.stream(
            Tokens(prompt),
            max_tokens=count,
            sampling=sampling,
            drafting=drafting,
            grammar=grammar,
            reuse=reuse,
        )
        tokens: list[int] = []
        with stream:
            for chunk in stream:
                tokens += chunk.token_ids
                self.report()
        return SubjectAnswer(tuple(tokens), tuple(stream.context), stream.text, stream.stats)

    def first_difference(
        self, prompt: Sequence[int], plain: Sequence[int], other: Sequence[int]
    ) -> tuple[int, float]:
        """The length of the common prefix of two unequal answers, and the gap between the logits of
        the next tokens; infinite if one of the answers ends."""
        place = shared_prefix(plain, other)
        if place == min(len(plain), len(other)):
            return place, math.inf
        self.engine.clear()
        for end in range(place + 1):  # one pass per token, as in plain decoding
            row = self.row([*prompt, *plain[:end]])
        return place, abs(float(row[plain[place]] - row[other[place]]))


_SOURCE = "verify"


def rounding_distances(subject: Subject, answer: PlainAnswer, size: int) -> list[float]:
    """Read a plain answer again in passes over `size` ≥ 2 tokens. All of them are right, so cells
    of rejected tokens cannot count as rounding. Returns how far each row moved, in logits; see
    `BestTokens.distance`."""
    subject.engine.clear()
    tokens, best, found = answer.tokens, answer.best, list[float]()
    known = [*answer.prompt]
    start = 0  # the first token that is not known yet
    while len(tokens) - start >= 2:
        known.append(tokens[start])
        chain = list(tokens[start + 1 : start + size])
        tree = TokenTree.chain(chain, _SOURCE)
        last = start + size + size > len(tokens)
        if last and subject.branches:
            # As in a tree: next to a wrong branch. The cache is emptied afterwards.
            tree = TokenTree()
            tree.add(int(best[start + 1].ids[1]), ROOT, _SOURCE)
            node = ROOT
            for token in chain:
                node = tree.add(token, node, _SOURCE)
        rows = subject.target.forward(PassRequest(known, tree)).rows
        rows = rows[[0, *range(len(rows) - len(chain), len(rows))]]
        found += [plain.distance(row) for row, plain in zip(rows, best[start + 1 :], strict=False)]
        if last:
            break
        subject.target.commit(tree, range(len(chain)))
        known += chain
        start += size
    subject.engine.clear()
    return found
