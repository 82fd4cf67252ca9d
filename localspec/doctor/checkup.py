"""Measurements of `localspec doctor`: a pair decoding, within a time limit.

The policy keeps what it learns from them (`localspec.policy.store`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import geometric_mean
from time import perf_counter

from localspec.bench.samples import BenchPrompt
from localspec.bench.suites import SUITES, by_suite, interleaved, load_suites, prompt_for
from localspec.decoding.params import SamplingParams
from localspec.decoding.stats import GenerationStats
from localspec.drafters.options import Drafting
from localspec.engine import Engine
from localspec.errors import ContextOverflow
from localspec.gguf.dimensions import n_layers
from localspec.gguf.file import GGUFFile
from localspec.llama.devices import Device
from localspec.llama.options import ModelOptions
from localspec.pairing.memory import layers_that_fit
from localspec.pairing.rules import FAIL, OK, WARN, Check
from localspec.text import gigabytes, printable

LONG, QUICK = 60.0, 10.0
"""Time limits in seconds."""
TOKENS = 32
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9)
_CONTEXT = 64
"""Context tokens at which pass costs are reported, as in the measured answers; at 0 they would be
extrapolated."""
DISTURBED = 3.0
"""Another process is busy if a pass over n tokens takes this many times n single passes or earlier
passes, or if a token of an answer takes this many plain passes."""
LEAST_TOKENS = 8
"""Minimum tokens per answer, even if its share of the time is used up."""
LOOKUPS = ("ngram", "retrieval", "lookahead")
"""Drafters that need no model."""

_PLAIN, _PLANNED = Drafting(drafter="none"), Drafting()
_GREEDY = SamplingParams(temperature=0.0)


@dataclass(slots=True)
class TextKind:
    """Results for one kind of text. `tested`, `accepted`: tokens of the draft model; `plain`,
    `planned`: [tokens, seconds] of plain decoding and of `auto`."""

    name: str
    tested: int = 0
    accepted: int = 0
    plain: list[float] = field(default_factory=lambda: [0.0, 0.0])
    planned: list[float] = field(default_factory=lambda: [0.0, 0.0])

    @property
    def acceptance(self) -> float | None:
        return self.accepted / self.tested if self.tested else None

    @property
    def speed_up(self) -> float | None:
        """`auto`'s tokens per second ÷ plain decoding's; None if the answers are too short."""
        (tokens, seconds), (plain_tokens, plain_seconds) = self.planned, self.plain
        if not (tokens and seconds and plain_tokens and plain_seconds):
            return None
        return (tokens / seconds) / (plain_tokens / plain_seconds)

    def add(self, plain: GenerationStats, planned: GenerationStats) -> None:
        """Add the figures of two answers to the same prompt."""
        for stats, sums in ((plain, self.plain), (planned, self.planned)):
            sums[0] += stats.generated_tokens - 1
            sums[1] += stats.decode_seconds
        for name, drafter in planned.by_drafter.items():
            if name not in LOOKUPS:
                self.tested += drafter.tested
                self.accepted += drafter.accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class PairMeasurements:
    """Measurements of a pair. `curve`: seconds of a target pass, by tokens; `draft_seconds`,
    `cost`: of a draft pass over one token, in seconds and in target passes; `stock`: seconds of a
    plain pass of stock llama.cpp ÷ of one with localspec's kernels; `threads`: final number and
    reason; `partial`: stopped early; `steady`: not disturbed by other processes."""

    curve: dict[int, float]
    draft_seconds: float | None
    cost: float | None
    kinds: tuple[TextKind, ...]
    stock: float | None = None
    threads: str
    seconds: float
    partial: bool
    steady: bool

    @property
    def gains(self) -> dict[str, float]:
        """Speed-ups by kind of text."""
        return {kind.name: kind.speed_up for kind in self.kinds if kind.speed_up is not None}

    @property
    def speed_up(self) -> float | None:
        """The geometric mean over the kinds of text, as in `localspec bench`."""
        return geometric_mean(self.gains.values()) if self.gains else None

    @property
    def trusted(self) -> float | None:
        """The speed-up; None if another process disturbed the passes or the answers."""
        answers = [each for kind in self.kinds for each in (kind.plain, kind.planned)]
        pace = min((s / n for n, s in (kind.plain for kind in self.kinds) if n), default=0.0)
        even = all(s <= DISTURBED * pace * n for n, s in answers)
        return self.speed_up if self.steady and even else None


def measure_pair(
    engine: Engine,
    seconds: float,
    *,
    report: Callable[[str], None] = lambda text: None,
    stopped: Callable[[], bool] = lambda: False,
) -> PairMeasurements:
    """Measure an open pair, or only a target, for about `seconds`. `report`: gets the stage;
    `stopped`: whether to end early, with the figures so far."""
    started = perf_counter()
    end = started + seconds
    report("measuring what passes cost")
    engine.calibrate()
    kinds: dict[str, TextKind] = {}
    # The shortest prompt of each kind, then the second shortest, …, to save prefill time.
    suites = by_suite(sorted(load_suites(), key=lambda prompt: len(prompt.text)))
    for prompt in interleaved(suites[kind] for kind in SUITES):
        if stopped() or perf_counter() >= end:
            break
        report(f"speed in {prompt.suite}")
        kind = kinds.setdefault(prompt.suite, TextKind(prompt.suite))
        left = 2 * max(1, len(SUITES) - sum(kind.speed_up is not None for kind in kinds.values()))
        answers = []
        for number, drafting in enumerate((_PLAIN, _PLANNED)):
            now = perf_counter()
            deadline = now + max(0.0, end - now) / (left - number)
            answers.append(_measure_answer(engine, prompt, drafting, deadline, end, stopped))
        plain, planned = answers
        if plain is not None and planned is not None:
            kind.add(plain, planned)
    target = engine.profile.target
    curve = {n: target.seconds(n, _CONTEXT) for n in SIZES} if target else {}
    costs = engine.draft_costs if engine.draft is not None else None
    draft = None if costs is None else costs.seconds(1, _CONTEXT)
    smooth = all(took < DISTURBED * n * curve[1] for n, took in curve.items())
    return PairMeasurements(
        curve=curve,
        draft_seconds=draft,
        cost=draft / curve[1] if draft and curve else None,
        kinds=tuple(kind for kind in kinds.values() if kind.planned[0]),
        stock=engine.profile.stock,
        threads=engine.threads,
        seconds=perf_counter() - started,
        partial=stopped(),
        steady=not engine.profile.doubts and smooth and target.pace < DISTURBED,
    )


def _measure_answer(
    engine: Engine,
    prompt: BenchPrompt,
    drafting: Drafting,
    deadline: float,
    end: float,
    stopped: Callable[[], bool],
) -> GenerationStats | None:
    """Generate an answer until the deadline; None if it has too few tokens."""

    def cancel_late(done: int, total: int) -> None:
        if stopped() or perf_counter() >= end:
            stream.cancel()

    try:
        stream = engine.stream(
            prompt_for(engine, prompt),
            max_tokens=TOKENS,
            sampling=_GREEDY,
            drafting=drafting,
            progress=cancel_late,
        )
        with stream:
            for _ in stream:
                enough = stream.stats.generated_tokens >= LEAST_TOKENS
                if stopped() or perf_counter() >= (deadline if enough else end):
                    break
    except ContextOverflow:
        return None
    return stream.stats if stream.stats.generated_tokens >= LEAST_TOKENS else None


def text_check(engine: Engine) -> Check:
    """Check that the target generates text: a damaged one repeats itself, or ends at once."""
    rule = "target produces text"
    fox = "Tell me a story about a fox."
    prompt = BenchPrompt("fox", "story", fox, ({"role": "user", "content": fox},))
    stream = engine.stream(
        prompt_for(engine, prompt), max_tokens=16, sampling=_GREEDY, drafting=_PLAIN
    )
    with stream:
        tokens = [token for chunk in stream for token in chunk.token_ids]
    text = stream.text
    step = "Download it again, or use another quantization."
    if not text.strip():
        return Check(rule, FAIL, "It gives no answer to a simple prompt", step)
    shown = printable(repr(text), 60)
    if len(tokens) > 8 and len(set(tokens)) <= 2:
        return Check(rule, WARN, f"It repeats itself: {shown}", step)
    if text.count("\ufffd") > len(text) / 4:
        return Check(rule, WARN, f"Its output is mostly not text: {shown}", step)
    return Check(rule, OK, shown)


def device_checks(
    target: GGUFFile, draft: GGUFFile | None, options: ModelOptions, devices: Sequence[Device]
) -> list[Check]:
    """Check for each device that takes layers how much of the pair fits."""
    found = []
    for device in devices:
        if not device.takes_layers or not device.total:
            continue
        fit = layers_that_fit(target, draft, options, device.free)
        name = printable(f"{device.name} ({device.description})", 60)
        evidence = (
            f"{gigabytes(fit.need)} of the {gigabytes(device.free)} that are free "
            f"of {gigabytes(device.total)}"
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
