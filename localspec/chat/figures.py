"""The figures of an answer: speed, speed-up, and the sources of its text.

Computed from the engine's steps and `GenerationStats`. The same record is shown live, stored in the
history, and explained in words (`localspec.chat.words`).
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from localspec.policy.reasons import CONFIRMING, RESTING

if TYPE_CHECKING:
    # These import numpy, which would delay the chat's first paint.
    from localspec.decoding.interfaces import Step
    from localspec.decoding.stats import GenerationStats
    from localspec.engine import Engine
    from localspec.llama.model import Progress
    from localspec.llama.options import ModelOptions

STOCK = "plain llama.cpp"
"""The baseline's name, if stock llama.cpp's plain decoding was measured."""
UNDRAFTED = "without drafts"
"""The baseline's name if stock llama.cpp was not measured."""
SMALL = 300_000_000
"""Maximum bytes of a model that is quick to open a second time."""
BUCKET = 0.25
"""Seconds of decoding per point of `speeds`."""
RECENT = 6
"""Number of points averaged for the current speed."""
POINTS = 120
"""Maximum number of points of `speeds`."""
OFF_AFTER = 8
"""Steps in a row without a draft after which drafting counts as off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of one answer. Times are in seconds; None is unknown. `speed`: tokens per second
    after the first token, `speed_now` recently, `speeds` over time, oldest first; draft, verify and
    overhead are parts of `decode_seconds`; `plain_seconds`: time of the baseline for the same
    tokens, `beside`: its name; `by_drafter`, `by_position` (depth): (accepted, tested); `reasons`:
    number of steps without a draft by reason; `off`: why nothing is drafted now; `may_risk`:
    seconds that drafts may lose now, see `localspec.policy.budget`."""

    tokens: int = 0
    passes: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prompt_seconds: float = 0.0
    decode_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    overhead_seconds: float = 0.0
    speed: float = 0.0
    speed_now: float = 0.0
    plain_seconds: float | None = None
    beside: str = UNDRAFTED
    drafted: int = 0
    tested: int = 0
    accepted: int = 0
    by_drafter: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    by_position: tuple[tuple[int, int], ...] = ()
    speeds: tuple[float, ...] = ()
    context_used: int = 0
    context_length: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    off: str | None = None
    may_risk: float | None = None
    rule: str = ""
    lossless: bool = True
    seed: int | None = None
    notices: tuple[str, ...] = ()

    @property
    def speed_up(self) -> float | None:
        """Baseline seconds ÷ seconds."""
        if not self.plain_seconds or not self.decode_seconds:
            return None
        return self.plain_seconds / self.decode_seconds

    @property
    def times_plain(self) -> float | None:
        """`speed_up` over stock llama.cpp; None if that was not measured."""
        return self.speed_up if self.beside == STOCK else None

    @property
    def saved_seconds(self) -> float | None:
        """Negative for a loss."""
        return None if self.plain_seconds is None else self.plain_seconds - self.decode_seconds

    @property
    def tokens_per_pass(self) -> float:
        return self.tokens / self.passes if self.passes else 0.0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any] | None) -> Figures:
        """Figures from `as_dict`; missing and malformed fields get their defaults."""
        known = {}
        for f in fields(cls):
            with suppress(KeyError, TypeError, ValueError, AttributeError):
                read = _READERS[str(f.type).removesuffix(" | None")]
                known[f.name] = read((stored or {})[f.name])
        return cls(**known)


_SHARED_FIELDS = (
    *("prompt_tokens", "cached_tokens", "prompt_seconds", "decode_seconds", "draft_seconds"),
    *("verify_seconds", "overhead_seconds", "drafted", "tested", "accepted"),
    *("rule", "lossless", "seed"),
)
"""Fields copied from `GenerationStats`."""


def _number(value: Any) -> Any:
    if abs(value) < 2**53:  # not inf, nan, or too large to display
        return value
    raise ValueError(value)


def _pair(value: Any) -> tuple[int, int]:
    one, two = map(_number, value)
    return one, two


_READERS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("int", "float", "bool"), _number),
    "str": "".join,
    "tuple[str, ...]": lambda texts: tuple(map("".join, texts)),
    "tuple[float, ...]": lambda numbers: tuple(map(_number, numbers)),
    "tuple[tuple[int, int], ...]": lambda pairs: tuple(map(_pair, pairs)),
    "Mapping[str, int]": lambda counts: {n: _number(count) for n, count in counts.items()},
    "Mapping[str, tuple[int, int]]": lambda pairs: {n: _pair(pair) for n, pair in pairs.items()},
}
"""Validate a stored value, by the field's type; raise if it has another type."""


def baseline(engine: Engine) -> float | None:
    """The time of stock llama.cpp ÷ that of plain decoding; None if it was not measured. Without
    kernels both are equally fast."""
    return engine.profile.stock if engine.model.kernels.in_use else 1.0


def measure_baseline(
    engine: Engine, options: ModelOptions, progress: Progress | None = None
) -> float | None:
    """As `baseline`, but measures stock llama.cpp once if the model is small (`localspec doctor`
    measures any). Measuring empties the caches. `progress` may raise a LocalspecError to stop."""
    from localspec.loading.second_engine import measure_stock

    if engine.model.size <= SMALL:
        measure_stock(engine, options, again=False, progress=progress)
    return baseline(engine)


class Meter:
    """Collects the figures of one answer; `stats`: the stream's."""

    def __init__(self, stats: GenerationStats, engine: Engine) -> None:
        self._stats, self._engine = stats, engine
        self._context_length = engine.context_length
        self._context_used = 0
        self._plain = 0.0
        self._cost_unknown = False
        self._buckets: deque[tuple[int, float]] = deque([(0, 0.0)], maxlen=POINTS + 1)
        self._undrafted = 0
        self._reason: str | None = None

    def add(self, step: Step) -> None:
        tokens = len(step.tokens)
        self._context_used = step.context_length + tokens
        if step.reads_prompt:
            return
        if not step.drafted:
            # A plain step's own time, without a draft that was not used. Planning (some 60 µs)
            # counts as plain.
            self._plain += step.seconds - step.draft_seconds
        elif (cost := self._engine.plain_seconds(step.context_length)) is None:
            self._cost_unknown = True
        else:
            # A pass over several tokens is never cheaper than one over a single token: a plain
            # cost above this pass's time was measured while the machine was busier.
            self._plain += min(cost, step.target_seconds) * tokens
        count, seconds = self._buckets.pop()
        self._buckets.append((count + tokens, seconds + step.seconds))
        if seconds + step.seconds >= BUCKET:
            self._buckets.append((0, 0.0))
        why = step.why_not_drafted
        self._undrafted = 0 if why is None else self._undrafted + 1
        if why not in (CONFIRMING, RESTING):  # routine pauses, not the cause
            self._reason = why

    def figures(self) -> Figures:
        stats, account, stock = self._stats, self._stats.account, baseline(self._engine)
        buckets = list(self._buckets)
        recent, seconds = map(sum, zip(*buckets[-1 - RECENT :], strict=True))
        return Figures(
            **{name: getattr(stats, name) for name in _SHARED_FIELDS},
            tokens=stats.generated_tokens,
            passes=stats.target_passes,
            speed=stats.tokens_per_second,
            speed_now=recent / seconds if seconds else 0.0,
            plain_seconds=None
            if self._cost_unknown or not self._plain
            else self._plain * (stock or 1.0),
            beside=UNDRAFTED if stock is None else STOCK,
            by_drafter={name: (d.accepted, d.tested) for name, d in list(stats.by_drafter.items())},
            by_position=tuple(
                zip_longest(stats.accepted_per_position, stats.tested_per_position, fillvalue=0)
            ),
            speeds=tuple(round(count / took, 2) for count, took in buckets[:-1]),
            context_used=self._context_used or stats.prompt_tokens,
            context_length=self._context_length,
            reasons=dict(stats.reasons),
            off=self._reason if self._undrafted >= OFF_AFTER else None,
            may_risk=None if account is None else max(0.0, account.fund),
            notices=tuple(stats.notices),
        )


Span = tuple[int, str]
"""Characters, and their source: a drafter's name, or "target"."""
Rejected = tuple[int, str]
"""The characters of the answer before a rejected proposal, and its text."""


class Provenance:
    """Records the sources of one answer's text. A character belongs to the token that completes it.
    `begins`: the start of the answer that was part of the prompt; `spans`: runs that cover the text
    so far; `rejected`: rejected proposals in order."""

    def __init__(self, token_bytes: Callable[[int], bytes], begins: str = "") -> None:
        self.spans: list[Span] = []
        self.rejected: list[Rejected] = []
        self._bytes = token_bytes
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._length = 0
        self._append(begins, "target")

    def add(self, step: Step) -> None:
        accepted = len(step.path)
        for number, (token, source) in enumerate(zip(step.tokens, step.sources, strict=True)):
            if number == accepted:
                self._reject(step)
            self._append(self._decode(self._bytes(token)), source)

    def _append(self, text: str, source: str) -> None:
        if not text:
            return
        self._length += len(text)
        if self.spans and self.spans[-1][1] == source:
            self.spans[-1] = (self.spans[-1][0] + len(text), source)
        else:
            self.spans.append((len(text), source))

    def _reject(self, step: Step) -> None:
        """Record the main branch below the last accepted token as rejected."""
        # Imported here, because it imports numpy, which would delay the chat's first paint.
        from localspec.decoding.tree import ROOT

        tree = step.tree
        node, nodes = (step.path[-1] if step.path else ROOT), list[int]()
        while children := [n for n in tree.children(node) if n < tree.proposed]:
            node = children[0]
            nodes.append(node)
        if nodes:
            text = b"".join(self._bytes(tree.tokens[n]) for n in nodes).decode("utf-8", "replace")
            self.rejected.append((self._length, text))
