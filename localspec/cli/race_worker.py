"""Both answers of a race, in one thread, in turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from localspec import Engine, SamplingParams, Stream
from localspec.cli.request import OpeningOptions, Request
from localspec.cli.worker import INTERRUPTED, EngineJob, Ready
from localspec.loading.beside import load_beside
from localspec.race.outcome import LaneResult, RaceOutcome, decided_by_logits, parting
from localspec.race.turns import LOCALSPEC, PLAIN, Lane, Lap, Progress, lanes_of, take_turns

_WARM_UP_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Raced:
    """Both answers are complete, or were cancelled.

    Attributes:
        calibration_seconds: what measuring took before the race, once for a pair on a machine.
    """

    outcome: RaceOutcome
    calibration_seconds: float


class RaceWorker(EngineJob[Ready | Lap | Raced]):
    """Runs one race.

    Args:
        scale: a pair of `localspec.bench.scale` instead of the request's models.
    """

    last = Raced

    def __init__(self, request: Request, scale: str | None, *, shows_progress: bool) -> None:
        super().__init__(request, shows_progress=shows_progress)
        self._scale = scale

    def _opening(self) -> OpeningOptions:
        opening = self._request.opening
        if self._scale is None:
            return opening
        from localspec.bench.scale import scaled_pair

        self._report(f"looking for the models of scale {self._scale}, or writing them: a minute")
        target, draft = scaled_pair(self._scale, offline=opening.offline)
        return replace(opening, model=str(target), draft=str(draft))

    def _answer(self, engine: Engine) -> None:
        self._thread.require_going_on(INTERRUPTED)
        with load_beside(engine, self._request.opening.options) as beside:
            prompt, notices = self._prompt(engine)
            measured = self._warm_up([beside, engine])
            answers = [
                self._stream(beside, prompt, None),
                self._stream(engine, prompt, None),
            ]
            self._queue.put(self._ready(engine, answers[LOCALSPEC].stats, notices))
            lanes = lanes_of(answers)
            progress = Progress()
            with self._thread.cancels(_Both(answers)):
                for lap in take_turns(lanes):
                    progress.add(lap)
                    self._queue.put(lap)
            outcome = self._compared(beside, answers, lanes, progress.lead())
            measured += answers[LOCALSPEC].stats.calibration_seconds
        self._queue.put(Raced(outcome, measured))

    def _warm_up(self, engines: Sequence[Engine]) -> float:
        """A first pass pays for page faults and allocations, and localspec's for measuring what
        passes cost: neither lane shall. Returns the seconds of that measuring."""
        measured = 0.0
        for engine in engines:
            self._report("warming up, and measuring what passes cost where that is not known")
            greedy = SamplingParams(temperature=0.0)
            stream = engine.stream("Hello", max_tokens=_WARM_UP_TOKENS, sampling=greedy)
            with self._thread.cancels(stream):
                measured += stream.completion().stats.calibration_seconds
            self._thread.require_going_on("Interrupted before the race began.")
        return measured

    def _compared(
        self, beside: Engine, answers: Sequence[Stream], lanes: Sequence[Lane], lead: float | None
    ) -> RaceOutcome:
        results = [
            LaneResult(
                text=answer.text,
                finish_reason=answer.finish_reason or "cancelled",
                seconds=lane.seconds,
                token_ids=tuple(lane.token_ids),
                stats=answer.stats,
            )
            for answer, lane in zip(answers, lanes, strict=True)
        ]
        plain, drafted = results[PLAIN].token_ids, results[LOCALSPEC].token_ids
        prompt = answers[PLAIN].context[: len(answers[PLAIN].context) - len(plain)]

        def gap(at: int) -> float:
            row = beside.logits([*prompt, *plain[:at]])
            return float(row[plain[at]] - row[drafted[at]])

        request = self._request
        free = request.grammar is None and request.json_schema is None
        looks = free and decided_by_logits(request.opening.sampling)
        return RaceOutcome(
            plain=results[PLAIN],
            localspec=results[LOCALSPEC],
            greedy=request.opening.sampling.greedy and answers[LOCALSPEC].stats.lossless,
            parting=parting(plain, drafted, beside.token_bytes, gap if looks else None),
            lead=lead,
        )


class _Both:
    """What a cancellation of the race reaches."""

    def __init__(self, answers: Sequence[Stream]) -> None:
        self._answers = answers

    def cancel(self) -> None:
        for answer in self._answers:
            answer.cancel()
