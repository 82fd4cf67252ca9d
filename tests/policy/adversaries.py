"""Adversarial texts, which depend on the drafts for them, on machines of changing speed.

The target's next token is decided during verification, with knowledge of the draft and the budget.
So these texts are the worst cases for drafting.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from localspec.decoding.acceptance import BlockVerification, GreedyMatch
from localspec.decoding.interfaces import PassRequest, PassResult, Step
from localspec.decoding.loop import speculate
from localspec.decoding.sampling import Rows
from localspec.decoding.tree import ROOT, TokenTree
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.ngram import NgramIndex, NgramSource
from localspec.policy.policy import Policy
from localspec.policy.profile import PairProfile
from tests.policy.measuring import OWN, Clock, TimedCache, TimedTarget
from tests.support.toys import AS_IS, GREEDY, SuccessorModel, session_of

CALIBRATED = (1, 2, 3, 4, 5, 6, 8, 12, 16, 32)  # sizes of a pass that are measured beforehand
WORDS = 24  # tokens of the vocabulary
PROMPT = 200  # tokens of a prompt


def predicted(token: int) -> int:
    """The prediction of the draft model after a token, and later of the n-gram."""
    return (token + 1) % WORDS


@dataclass
class Machine:
    """Costs of passes. `shape`: T(n) ÷ T(1) for n = 1, 2 …, beyond its end in proportion; `one`:
    T(1) in seconds; `price`: of a pass of the draft model over a token, in T(1). Factors: `pace` of
    every pass, by the number of passes before; `slower` of passes over n > 1 tokens, by n and that
    number; `changed` of a plain pass after one of another size. `reads`: tokens of the draft
    model's passes in the current step."""

    shape: Sequence[float]
    one: float = 0.02
    price: float = 0.1
    pace: Callable[[int], float] = lambda passes: 1.0
    slower: Callable[[int, int], float] = lambda n, passes: 1.0
    changed: float = 1.0
    clock: Clock = field(default_factory=Clock)
    passes: int = 0
    before: int = 0
    reads: list[int] = field(default_factory=list)

    @property
    def plain(self) -> float:
        """Current seconds of a plain pass."""
        return self.one * self.shape[0] * self.pace(self.passes)

    def curve(self, n: int) -> float:
        last = len(self.shape)
        return self.one * (self.shape[n - 1] if n <= last else self.shape[-1] * n / last)

    def target(self, n: int) -> float:
        before, self.before = self.before, n
        if n == 1:
            return self.plain * (1.0 if before == 1 else self.changed)
        return self.curve(n) * self.pace(self.passes) * self.slower(n, self.passes)

    def calibrated(self) -> dict[int, float]:
        return {n: self.curve(n) for n in CALIBRATED}

    def draft_curve(self, n: int) -> float:
        """A pass of the draft model over n tokens, as calibrated."""
        return self.price * self.one * (0.9 + 0.1 * n)

    def draft(self, n: int) -> float:
        self.reads.append(n)
        return self.draft_curve(n) * self.pace(self.passes)


class Text(NamedTuple):
    """The accepted levels of drafts, and whether tokens of plain passes are the predicted ones."""

    levels: Callable[["Situation"], int]
    continues: Callable[["Situation"], bool] = lambda at: True


@dataclass
class Situation:
    """State that a text may use. `step`: number of passes so far; `drafted`: number of these that
    verified a draft; `fund`: the current fund as a share of the largest one; `memory`: for the
    text's own use."""

    step: int
    drafted: int
    fund: float
    random: np.random.Generator
    memory: dict[str, int]


class TextTarget(TimedTarget):
    """A target that generates the text. `plain`: seconds of a plain pass instead of each pass."""

    def __init__(self, machine: Machine, text: Text, profile: PairProfile, seed: int) -> None:
        super().__init__(SuccessorModel({}, WORDS), machine.clock, machine.target)
        self.max_draft = 32
        self.plain: list[float] = []
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
        fund = (self._profile.budget.fund or 0.0) / most
        at = Situation(len(self.plain), self._drafted, fund, self._random, self._memory)
        self._drafted += bool(len(tree))
        machine.passes += 1
        return PassResult(self._rows_of(request.context[-1], tree, at), result.seconds)

    def _rows_of(self, last: int, tree: TokenTree, at: Situation) -> Rows:
        rows = np.full((1 + len(tree), WORDS), -60.0, np.float32)
        if not len(tree):
            continues = self._text.continues(at)
            rows[0, predicted(last) if continues else self._odd([predicted(last)])] = 0.0
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
        for leaf in (n for n in range(-1, len(tree)) if n == node or n not in following):
            children_tokens = [tree.tokens[child] for child in tree.children(leaf)]
            rows[leaf + 1, self._odd([*children_tokens, predicted(last)])] = 0.0
        return rows

    def _odd(self, but: Sequence[int]) -> int:
        while (token := int(self._random.integers(WORDS))) in but:
            pass
        return token


@dataclass
class Figures:
    """Figures of each step: seconds, those of plain decoding of its tokens, sizes of draft passes,
    and expected seconds, 0 for none."""

    seconds: list[float] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    sizes: list[list[int]] = field(default_factory=list)
    expected_seconds: list[float] = field(default_factory=list)

    @property
    def worst(self) -> float:
        """The largest excess of a stretch of steps over 1.01 × plain decoding, in seconds."""
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
    """Answers of these lengths with one profile, one after the other."""
    profile = PairProfile() if profile is None else profile
    if calibrated:
        profile.target.learn(machine.calibrated(), 0)
    figures, index = Figures(), NgramIndex()
    drafts = SuccessorModel({token: (predicted(token), 0.9) for token in range(WORDS)}, WORDS)
    models = [DraftModel(TimedCache(drafts, machine.clock, machine.draft), WORDS)][: int(model)]
    target = TextTarget(machine, text, profile, seed)
    random = np.random.default_rng(seed)
    for length in lengths:
        for source in models:
            costs = profile.source(source).costs
            if not costs and calibrated:
                costs.learn({n: machine.draft_curve(n) for n in (1, 2, 4, 8, 16, 64)}, 0)
        policy = Policy(
            profile, [NgramSource(index)], models, target.limits, branches=greedy, drawn=not greedy
        )
        prompt = random.integers(WORDS, size=PROMPT).tolist()
        target.rollback(prompt)
        session = session_of(prompt, size=WORDS, params=GREEDY if greedy else AS_IS, count=length)
        policy.begin(session.context)
        rule = GreedyMatch() if greedy else BlockVerification()
        steps = speculate(session, policy, rule, target, clock=machine.clock)
        first = len(target.plain)
        for number, step in enumerate(steps):
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
