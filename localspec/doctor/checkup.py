"""What `localspec doctor` measures: a pair at work on this machine.

Within a given time: what passes cost, how often drafts of the draft model are accepted in each
kind of text, and how fast the planner is beside plain decoding. What the planner learns meanwhile
stays (`localspec.policy.store`), and what comes out is kept as a recommendation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import zip_longest
from pathlib import Path
from statistics import mean
from time import perf_counter
from typing import TYPE_CHECKING

from localspec.bench.prompt_texts import prompt_for
from localspec.bench.samples import BenchPrompt
from localspec.bench.suites import SUITES, load_suites, story_prompt
from localspec.decoding.params import SamplingParams
from localspec.drafters.options import Drafting
from localspec.errors import ContextOverflow
from localspec.gguf.file import GGUFFile
from localspec.pairing.forecast import best
from localspec.pairing.memory import Use, n_layers
from localspec.pairing.pair_memory import layers_that_fit
from localspec.pairing.recommendations import Recommendation
from localspec.pairing.rules import FAIL, OK, WARN, Check
from localspec.text import gibibytes, printable

if TYPE_CHECKING:
    from localspec.decoding.stats import GenerationStats
    from localspec.engine import Engine
    from localspec.llama.devices import Device

LONG, QUICK = 60.0, 10.0
"""Seconds that measuring takes at most."""
DEPTH = 3
TOKENS = 32
SHARE = 0.4
"""Of the time, for acceptance; the rest goes to speed."""
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9)
UNLIKELY = 3.0
"""No pass over n tokens takes as many times n passes over one, and none as many times what it took
before, unless another process has the processor."""
FEW = 8
"""Tokens that an answer gets even where its share of the time is over: fewer say nothing."""
SLOW = 0.5
"""A draft model whose pass costs more than this share of the target's rarely pays."""

_PLAIN, _PLANNED = Drafting(drafter="none"), Drafting()
_GREEDY = SamplingParams(temperature=0.0)


@dataclass(slots=True)
class TextKind:
    """One kind of text.

    Attributes:
        tested, accepted: tokens of the draft model.
        plain, planned: tokens and seconds of either way.
        predicted: speed-up that cost and acceptance promise; None without a draft model.
    """

    name: str
    tested: int = 0
    accepted: int = 0
    plain: list[float] = field(default_factory=lambda: [0.0, 0.0])
    planned: list[float] = field(default_factory=lambda: [0.0, 0.0])
    predicted: float | None = None

    @property
    def acceptance(self) -> float | None:
        return self.accepted / self.tested if self.tested else None

    @property
    def measured(self) -> float | None:
        """The planner's tokens per second ÷ plain decoding's."""
        (tokens, seconds), (plain_tokens, plain_seconds) = self.planned, self.plain
        if not (tokens and seconds and plain_tokens and plain_seconds):
            return None
        return (tokens / seconds) / (plain_tokens / plain_seconds)

    @property
    def speed_up(self) -> float | None:
        """What was measured, else what is predicted."""
        return self.measured if self.measured is not None else self.predicted


@dataclass(frozen=True, slots=True, kw_only=True)
class PairMeasurements:
    """What came out.

    Attributes:
        curve: seconds of a target pass by its tokens.
        draft_seconds: of a pass of the draft model over one token, None without one.
        cost: the same in passes of the target.
        kinds: what there was time for.
        threads: how many threads passes ran on at the end, and why.
        seconds: that all of it took.
        partial: it was interrupted.
        steady: passes took about as long at the end as at the beginning; if not, another process
            was at work, and the figures are worth little.
    """

    curve: dict[int, float]
    draft_seconds: float | None
    cost: float | None
    kinds: tuple[TextKind, ...]
    threads: str
    seconds: float
    partial: bool
    steady: bool

    @property
    def speed_up(self) -> float | None:
        """Mean over the kinds; None where nothing was measured."""
        found = [kind.speed_up for kind in self.kinds if kind.speed_up is not None]
        return mean(found) if found else None


def measure_pair(
    engine: Engine,
    seconds: float,
    *,
    tell: Callable[[str], None] = lambda text: None,
    stopped: Callable[[], bool] = lambda: False,
) -> PairMeasurements:
    """Measure an open pair, or a target alone.

    Args:
        seconds: that it may take; a pass that runs then is finished.
        tell: called with what is done now.
        stopped: whether to end early, with what there is.
    """
    return _Measuring(engine, seconds, tell, stopped).run()


class _Measuring:
    """The state of one."""

    def __init__(
        self,
        engine: Engine,
        seconds: float,
        tell: Callable[[str], None],
        stopped: Callable[[], bool],
    ) -> None:
        self._engine = engine
        self._started = perf_counter()
        self._end = self._started + seconds
        self._share = self._started + seconds * SHARE
        self._tell, self._stopped = tell, stopped
        self._kinds: dict[str, TextKind] = {}
        self._drafts = engine.draft is not None

    def run(self) -> PairMeasurements:
        self._tell("measuring what passes cost")
        self._engine.calibrate()
        prompts = _shortest_first(load_suites())
        if self._drafts:
            for prompt in self._until(prompts, self._share, at_least=1):
                self._accept(prompt)
        for prompt in self._until(prompts, self._end):
            self._race(prompt)
        curve = self._curve()
        costs = self._engine.draft_costs if self._drafts else None
        draft = None if costs is None else costs.seconds(1, 0)
        cost = draft / curve[1] if draft and curve.get(1) else None
        for kind in self._kinds.values():
            if cost is not None and kind.acceptance is not None and curve.get(1):
                relative = [curve[n] / curve[1] for n in SIZES]
                kind.predicted = best(cost, kind.acceptance, relative).speed_up
        return PairMeasurements(
            curve=curve,
            draft_seconds=draft,
            cost=cost,
            kinds=tuple(kind for kind in self._kinds.values() if kind.tested or kind.planned[0]),
            threads=self._engine.threads,
            seconds=perf_counter() - self._started,
            partial=self._stopped(),
            steady=self._steady(curve),
        )

    def _until(
        self, prompts: Sequence[BenchPrompt], deadline: float, *, at_least: int = 0
    ) -> Iterator[BenchPrompt]:
        """Prompts, the kinds mixed, as long as there is time."""
        for number, prompt in enumerate(prompts):
            late = perf_counter() >= (self._end if number < at_least else deadline)
            if late or self._stopped():
                return
            yield prompt

    def _accept(self, prompt: BenchPrompt) -> None:
        """How often the draft model is right here."""
        self._tell(f"acceptance in {prompt.suite}")
        new = len(SUITES) - sum(1 for kind in self._kinds.values() if kind.tested)
        deadline = self._portion(self._share, max(1, new))
        stats = self._generate(prompt, Drafting(depth=DEPTH), deadline)
        if stats is not None:
            kind = self._kind(prompt)
            kind.tested += stats.tested
            kind.accepted += stats.accepted

    def _race(self, prompt: BenchPrompt) -> None:
        """The planner beside plain decoding."""
        self._tell(f"speed in {prompt.suite}")
        new = len(SUITES) - sum(1 for kind in self._kinds.values() if kind.planned[0])
        plain = self._generate(prompt, _PLAIN, self._portion(self._end, max(2, 2 * new)))
        planned = self._generate(prompt, _PLANNED, self._portion(self._end, max(1, 2 * new - 1)))
        kind = self._kind(prompt)
        for stats, sums in ((plain, kind.plain), (planned, kind.planned)):
            # A few tokens say nothing of a speed.
            if plain is None or planned is None or stats is None:
                return
            if min(plain.generated_tokens, planned.generated_tokens) < FEW:
                return
            sums[0] += stats.generated_tokens - 1
            sums[1] += stats.decode_seconds

    @staticmethod
    def _portion(end: float, parts: int) -> float:
        """When to stop, so that as many parts have the same time until the end."""
        now = perf_counter()
        return now + max(0.0, end - now) / parts

    def _kind(self, prompt: BenchPrompt) -> TextKind:
        return self._kinds.setdefault(prompt.suite, TextKind(prompt.suite))

    def _generate(
        self, prompt: BenchPrompt, drafting: Drafting, deadline: float
    ) -> GenerationStats | None:
        """An answer's figures, cut short at the deadline; None where there is no answer."""
        if self._stopped() or perf_counter() >= self._end:
            return None
        try:
            stream = self._engine.stream(
                prompt_for(self._engine, prompt),
                max_tokens=TOKENS,
                sampling=_GREEDY,
                drafting=drafting,
                progress=lambda done, total: self._hurry(),
            )
        except ContextOverflow:
            return None
        try:
            with stream:
                for _ in stream:
                    now, tokens = perf_counter(), stream.stats.generated_tokens
                    if now >= self._end or (now >= deadline and tokens >= FEW):
                        break
                    if self._stopped():
                        break
        except _Hurry:
            return None
        return stream.stats if stream.stats.generated_tokens > 1 else None

    def _hurry(self) -> None:
        """Between two chunks of a prompt."""
        if self._stopped() or perf_counter() >= self._end:
            raise _Hurry

    def _curve(self) -> dict[int, float]:
        target = self._engine.profile.target
        return {n: target.seconds(n, 0) for n in SIZES} if target else {}

    def _steady(self, curve: dict[int, float]) -> bool:
        """Whether no other process disturbed, as far as one can see."""
        profile = self._engine.profile
        smooth = all(seconds < UNLIKELY * n * curve[1] for n, seconds in curve.items())
        return not profile.doubts and smooth and profile.target.pace < UNLIKELY


def _shortest_first(prompts: Sequence[BenchPrompt]) -> list[BenchPrompt]:
    """The shortest prompt of each kind, then the second of each, and so on: reading takes time."""
    by_kind: dict[str, list[BenchPrompt]] = {}
    for prompt in sorted(prompts, key=lambda prompt: len(prompt.text)):
        by_kind.setdefault(prompt.suite, []).append(prompt)
    rounds = zip_longest(*(by_kind[kind] for kind in SUITES if kind in by_kind))
    return [prompt for round_ in rounds for prompt in round_ if prompt is not None]


class _Hurry(Exception):
    """The time is over in the middle of a prompt."""


def text_check(what: str, engine: Engine) -> Check:
    """Whether a model says anything: a damaged one repeats itself, or ends at once."""
    rule = f"{what} produces text"
    stream = engine.stream(
        prompt_for(
            engine,
            story_prompt(
                "fox", "story", "<|user|>Tell me a story about a fox.<|end|><|assistant|>"
            ),
        ),
        max_tokens=16,
        sampling=_GREEDY,
        drafting=_PLAIN,
    )
    with stream:
        tokens = [token for chunk in stream for token in chunk.token_ids]
    text = stream.text
    step = "Download it again, or take another quantization."
    if not text.strip():
        return Check(rule, FAIL, "It gives no answer to a simple prompt", step)
    shown = printable(repr(text), 60)
    if len(tokens) > 8 and len(set(tokens)) <= 2:
        return Check(rule, WARN, f"It repeats itself: {shown}", step)
    if text.count("\ufffd") > len(text) / 4:
        return Check(rule, WARN, f"Its output is mostly not text: {shown}", step)
    return Check(rule, OK, shown)


def cost_check(found: PairMeasurements) -> Check | None:
    """Whether the draft model is cheap enough, as measured; None without one."""
    cost = found.cost
    if cost is None or found.draft_seconds is None:
        return None
    evidence = (
        f"A pass of the draft takes {1e3 * found.draft_seconds:.1f} ms, "
        f"{cost:.0%} of one of the target"
    )
    if cost >= 1.0:
        step = "Choose a smaller draft: this one can never be faster."
        return Check("measured cost", FAIL, evidence, step)
    if cost > SLOW:
        return Check("measured cost", WARN, evidence, "Try a smaller draft.")
    return Check("measured cost", OK, evidence)


def device_checks(
    target: GGUFFile, draft: GGUFFile | None, use: Use, devices: Sequence[Device]
) -> list[Check]:
    """For each device that takes layers: whether the pair fits there, and what does."""
    found = []
    for device in devices:
        if not device.takes_layers or not device.total:
            continue
        fit = layers_that_fit(target, draft, use, device.free)
        name = printable(f"{device.name} ({device.description})", 60)
        evidence = (
            f"{gibibytes(fit.need)} of the {gibibytes(device.free)} that are free "
            f"of {gibibytes(device.total)}"
        )
        if fit.all_fit:
            found.append(Check(f"memory of {name}", OK, f"Everything fits: {evidence}"))
            continue
        total = n_layers(target) + 1
        offload = f"--gpu-layers {fit.target}"
        if draft is not None:
            offload += f" --draft-gpu-layers {fit.draft}"
        found.append(
            Check(
                f"memory of {name}",
                WARN,
                f"{total if fit.target < 0 else fit.target} of {total} layers of the target fit: "
                f"{evidence}",
                f"Offload what fits with {offload}, or shorten the context with --ctx.",
            )
        )
    return found


def recommendation(
    target: Path, draft: Path | None, found: PairMeasurements
) -> Recommendation | None:
    """What to keep of it; None where nothing was measured, or nothing that could be trusted."""
    speed_up = found.speed_up
    if speed_up is None or not found.steady:
        return None
    return Recommendation(
        target=target,
        draft=draft,
        speed_up=speed_up,
        by_kind={k.name: k.speed_up for k in found.kinds if k.speed_up is not None},
        acceptance={k.name: k.acceptance for k in found.kinds if k.acceptance is not None},
        cost=found.cost or 0.0,
        when=date.today().isoformat(),
    )
