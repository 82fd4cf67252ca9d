"""Texts that see what is drafted before they say how they go on, on machines that change.

What the target says is decided when it is asked, by somebody who knows the draft, the account, and
whether anything was drafted at all. No text can do more harm than one of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from localspec.decoding.acceptance import GreedyMatch
from localspec.decoding.interfaces import PassRequest, PassResult, Step
from localspec.decoding.loop import drive, speculate
from localspec.decoding.rules import BestLossless
from localspec.decoding.sampling import Rows
from localspec.decoding.tree import ROOT, TokenTree
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.ngram import NgramIndex, NgramSource
from localspec.policy.policy import Policy
from localspec.policy.profile import PairProfile
from tests.policy.measuring import OWN, Clock, TimedCache, TimedTarget
from tests.support.toys import AS_IS, GREEDY, Follows, session_of

CALIBRATED = (1, 2, 3, 4, 5, 6, 8, 12, 16, 32)  # sizes of a pass that are measured beforehand
WORDS = 24  # tokens of the vocabulary
PROMPT = 200  # tokens of a prompt


def natural(token: int) -> int:
    """What the draft model says behind a token, and in time the n-gram."""
    return (token + 1) % WORDS


@dataclass
class Machine:
    """What passes take.

    Attributes:
        shape: T(n) ÷ T(1) for n = 1, 2 …; beyond its end in proportion.
        one: T(1) in seconds.
        price: of a pass of the draft model over a token, in T(1).
        pace: factor of every pass, by what passes have been made.
        dearer: factor of passes over n > 1 tokens, by n and the passes made.
        changed: factor of a plain pass behind one of another size.
        reads: tokens of the draft model's passes in the step under way.
    """

    shape: Sequence[float]
    one: float = 0.02
    price: float = 0.1
    pace: Callable[[int], float] = lambda passes: 1.0
    dearer: Callable[[int, int], float] = lambda n, passes: 1.0
    changed: float = 1.0
    clock: Clock = field(default_factory=Clock)
    passes: int = 0
    before: int = 0
    reads: list[int] = field(default_factory=list)

    @property
    def plain(self) -> float:
        """Seconds of a pass of plain decoding, at present."""
        return self.one * self.shape[0] * self.pace(self.passes)

    def curve(self, n: int) -> float:
        """T(n) as calibrated."""
        last = len(self.shape)
        return self.one * (self.shape[n - 1] if n <= last else self.shape[-1] * n / last)

    def target(self, n: int) -> float:
        before, self.before = self.before, n
        if n == 1:
            return self.plain * (1.0 if before == 1 else self.changed)
        return self.curve(n) * self.pace(self.passes) * self.dearer(n, self.passes)

    def calibrated(self, sizes: Sequence[int]) -> tuple[Sequence[int], list[float]]:
        """T(n) of these sizes."""
        return sizes, [self.curve(n) for n in sizes]

    def draft_curve(self, n: int) -> float:
        """A pass of the draft model over n tokens, as calibrated."""
        return self.price * self.one * (0.9 + 0.1 * n)

    def draft(self, n: int) -> float:
        self.reads.append(n)
        return self.draft_curve(n) * self.pace(self.passes)


class Text(NamedTuple):
    """How the target goes on."""

    levels: Callable[[Situation], int]
    goes_on: Callable[[Situation], bool] = lambda at: True


@dataclass
class Situation:
    """What the text knows when it goes on.

    Attributes:
        step: how many passes there were.
        drafted: of these, how many had a draft to verify.
        fund: of what may be risked at most, how much there is.
        memory: for the text's own use.
    """

    step: int
    drafted: int
    fund: float
    random: np.random.Generator
    memory: dict[str, int]


class Writer(TimedTarget):
    """A target that says what the text wants.

    Attributes:
        plain: by pass, what a plain one would have taken.
    """

    def __init__(self, machine: Machine, text: Text, profile: PairProfile, seed: int) -> None:
        super().__init__(Follows({}, WORDS), machine.clock, machine.target)
        self.max_draft = 32
        self.plain: list[float] = []
        self.excess: list[float] = []
        self._machine = machine
        self._text = text
        self._profile = profile
        self._random = np.random.default_rng(seed)
        self._memory: dict[str, int] = {}
        self._drafted = 0

    def forward(self, request: PassRequest) -> PassResult:
        tree, machine = request.tree, self._machine
        self.plain.append(machine.plain)
        result = super().forward(request)
        most = max(0.5, 8 * machine.plain)
        at = Situation(
            len(self.plain),
            self._drafted,
            (self._profile.budget.fund or 0.0) / most,
            self._random,
            self._memory,
        )
        self._drafted += bool(len(tree))
        machine.passes += 1
        return PassResult(self._rows_of(request.context[-1], tree, at), result.seconds)

    def _rows_of(self, last: int, tree: TokenTree, at: Situation) -> Rows:
        rows = np.full((1 + len(tree), WORDS), -60.0, np.float32)
        if not len(tree):
            goes_on = self._text.goes_on(at)
            rows[0, natural(last) if goes_on else self._odd([natural(last)])] = 0.0
            return rows
        left, node = self._text.levels(at), ROOT
        following = {ROOT}
        while True:
            children = list(tree.children(node))
            if not children or left <= 0:
                break
            rows[node + 1, tree.tokens[children[0]]] = 0.0
            node, left = children[0], left - 1
            following.add(node)
        for behind in (n for n in range(-1, len(tree)) if n == node or n not in following):
            said = [tree.tokens[child] for child in tree.children(behind)]
            rows[behind + 1, self._odd([*said, natural(last)])] = 0.0
        return rows

    def _odd(self, but: Sequence[int]) -> int:
        while (token := int(self._random.integers(WORDS))) in but:
            pass
        return token


@dataclass
class Figures:
    """Of one run: seconds of each step, and of plain decoding the same tokens then; the sizes of
    its draft passes, and the seconds expected for it, 0 where none were."""

    seconds: list[float] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    sizes: list[list[int]] = field(default_factory=list)
    expected_seconds: list[float] = field(default_factory=list)

    @property
    def worst(self) -> float:
        """Seconds that some stretch took beyond 1.01 × plain decoding."""
        worst = run = 0.0
        for seconds, plain in zip(self.seconds, self.plain, strict=True):
            run = max(0.0, run + seconds - 1.01 * plain)
            worst = max(worst, run)
        return worst

    @property
    def speed_up(self) -> float:
        return sum(self.plain) / sum(self.seconds)


def answers(
    machine: Machine,
    text: Text,
    *,
    lengths: Sequence[int] = (400,),
    greedy: bool = True,
    model: bool = True,
    calibrated: bool = True,
    seed: int = 1,
    profile: PairProfile | None = None,
) -> tuple[PairProfile, Figures]:
    """Answers of these lengths, one after the other, as one engine gives them."""
    profile = PairProfile() if profile is None else profile
    if calibrated:
        sizes, seconds = machine.calibrated(CALIBRATED)
        profile.target.learn(dict(zip(sizes, seconds, strict=True)), 0)
    figures, index = Figures(), NgramIndex()
    drafts = Follows({token: (natural(token), 0.9) for token in range(WORDS)}, WORDS)
    cache = None
    if model:
        cache = DraftModel(TimedCache(drafts, machine.clock, machine.draft), WORDS)
    target = Writer(machine, text, profile, seed)
    random = np.random.default_rng(seed)
    for length in lengths:
        lookups = [NgramSource(index)]
        models = [] if cache is None else [cache]
        for source in models:
            costs = profile.source(source).costs
            if not costs and calibrated:
                costs.learn({n: machine.draft_curve(n) for n in (1, 2, 4, 8, 16, 64)}, 0)
        policy = Policy(profile, lookups, models, target.limits, branches=greedy, drawn=not greedy)
        prompt = random.integers(WORDS, size=PROMPT).tolist()
        target.rollback(prompt)
        session = session_of(prompt, size=WORDS, params=GREEDY if greedy else AS_IS, count=length)
        policy.begin(session.context)
        rule = GreedyMatch() if greedy else BestLossless()
        requests = speculate(session, policy, rule, clock=machine.clock)
        first = len(target.plain)
        for number, step in enumerate(drive(session, requests, target)):
            read, machine.reads = machine.reads, []
            if step.reads_prompt:
                continue
            figures.steps.append(step)
            figures.sizes.append(read)
            expected = step.draft.expected_seconds
            pace = profile.target.pace
            figures.expected_seconds.append(0.0 if expected is None else expected * pace)
            figures.seconds.append(step.seconds)
            figures.tokens.append(len(step.tokens))
            plain = target.plain[first + number] + 2 * OWN
            figures.plain.append(len(step.tokens) * plain)
    return profile, figures
