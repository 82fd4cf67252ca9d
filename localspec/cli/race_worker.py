"""Both answers of a race, in one thread, in turns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from localspec import Engine, SamplingParams, Stream
from localspec.cli.request import AnswerRequest, OpeningOptions
from localspec.cli.worker import INTERRUPTED, EngineJob, Ready
from localspec.errors import UsageError
from localspec.loading.beside import load_beside
from localspec.race.conversation import RacedConversation
from localspec.race.outcome import LaneResult, Proof, RaceOutcome, decided_by_logits, parting
from localspec.race.turns import (
    LOCALSPEC,
    PLAIN,
    LaneAnswer,
    Lap,
    RaceLane,
    RaceProgress,
    take_turns,
)

_WARM_UP_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Raced:
    """All answers are complete, or were cancelled.

    Attributes:
        outcomes: one for each question that both came to; at least one.
        calibration_seconds: what measuring took before the race, once for a pair on a machine.
    """

    outcomes: tuple[RaceOutcome, ...]
    calibration_seconds: float


class RaceWorker(EngineJob[Ready | Lap | Raced]):
    """Runs one race.

    Args:
        scale: a pair of `localspec.bench.scale` instead of the request's models.
        further: questions that are asked once the one before is answered. Each lane goes on from
            its own answers.
    """

    last = Raced

    def __init__(
        self,
        request: AnswerRequest,
        scale: str | None,
        further: Sequence[str] = (),
        *,
        shows_progress: bool,
    ) -> None:
        super().__init__(request, shows_progress=shows_progress)
        self._scale = scale
        self._further = further

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
            if self._further and isinstance(prompt, str):
                raise UsageError(
                    "--then continues a conversation, but this prompt is plain text: the model "
                    "has no chat template, or --raw leaves it out. Leave out --then."
                )
            notices = [*beside.notices, *notices]
            provable = self._provable(engine)
            measured = self._warm_up([beside, engine])
            conversations = [
                RacedConversation(partial(self._stream, each, progress=None), prompt, self._further)
                for each in (beside, engine)
            ]
            stats = conversations[LOCALSPEC].streams[0].stats
            self._queue.put(self._ready(engine, stats, notices))
            lanes = [RaceLane(number, each) for number, each in enumerate(conversations)]
            # Of each question by itself: its lanes begin at 0.
            progress: defaultdict[int, RaceProgress] = defaultdict(RaceProgress)
            with self._thread.cancels(_Both(conversations)):
                for lap in take_turns(lanes):
                    began = lanes[lap.lane].answers[lap.question].began
                    progress[lap.question].add(replace(lap, seconds=lap.seconds - began))
                    self._queue.put(lap)
            outcomes: list[RaceOutcome] = []
            for question, answers in enumerate(
                zip(*(each.answers for each in lanes), strict=False)
            ):
                streams = [each.streams[question] for each in conversations]
                lead = progress[question].lead()
                alike = all(each.equal for each in outcomes)
                found = self._compared((beside, engine), streams, answers, lead, alike=alike)
                outcomes.append(found)
            if provable:
                proofs = self._proofs(engine, conversations[LOCALSPEC].streams, outcomes)
                outcomes = [
                    replace(outcome, proof=proof)
                    for outcome, proof in zip(outcomes, proofs, strict=True)
                ]
            for stream in conversations[LOCALSPEC].streams:
                measured += stream.stats.calibration_seconds
        self._queue.put(Raced(tuple(outcomes), measured))

    def _provable(self, engine: Engine) -> bool:
        """Whether logits alone decide, and are the same bits however a text is read."""
        request = self._request
        if not self._by_logits or request.images:
            return False
        self._report("trying whether passes of all sizes give the same bits")
        return engine.batch_invariant

    @property
    def _by_logits(self) -> bool:
        """Whether the greatest logit is what is said."""
        request = self._request
        free = request.grammar is request.json_schema is request.regex is None
        return free and decided_by_logits(request.opening.sampling)

    def _proofs(
        self, engine: Engine, streams: Sequence[Stream], outcomes: Sequence[RaceOutcome]
    ) -> Iterator[Proof | None]:
        """Of each of localspec's answers that no rule was lossy for, read from the beginning."""
        engine.clear()
        for stream, outcome in zip(streams, outcomes, strict=False):
            said = outcome.localspec
            text, tokens = list(stream.context), list(said.token_ids)
            prompt = text[: len(text) - len(tokens)]
            # A context that was full has lost its beginning.
            whole = text[len(prompt) :] == tokens and len(text) <= engine.context_length
            if not (said.stats.lossless and tokens and prompt and whole):
                yield None
                continue
            self._report("reading localspec's answer once more, for the proof")
            yield Proof(engine.first_wrong(prompt, tokens))

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
        self,
        engines: tuple[Engine, Engine],
        streams: Sequence[Stream],
        answers: Sequence[LaneAnswer],
        lead: float | None,
        *,
        alike: bool,
    ) -> RaceOutcome:
        beside, engine = engines
        stock = engine.model.kernels.in_use and not beside.model.kernels.in_use
        results = [
            LaneResult(
                text=stream.text,
                finish_reason=stream.finish_reason or "cancelled",
                seconds=answer.seconds,
                token_ids=tuple(answer.token_ids),
                stats=stream.stats,
            )
            for stream, answer in zip(streams, answers, strict=True)
        ]
        plain, drafted = results[PLAIN].token_ids, results[LOCALSPEC].token_ids
        prompt = streams[PLAIN].context[: len(streams[PLAIN].context) - len(plain)]

        def gap(at: int) -> float:
            row = beside.logits([*prompt, *plain[:at]])
            return float(row[plain[at]] - row[drafted[at]])

        def rounding(at: int) -> float:
            text = [*prompt, *plain[:at]]
            in_steps = beside.logits(text)  # of the cache that plain decoding left
            if stock:
                return float(np.abs(engine.logits(text) - in_steps).max())
            beside.clear()
            return float(np.abs(beside.logits(text) - in_steps).max())

        looked = gap if self._by_logits else None
        return RaceOutcome(
            plain=results[PLAIN],
            localspec=results[LOCALSPEC],
            greedy=self._request.opening.sampling.greedy and streams[LOCALSPEC].stats.lossless,
            parting=parting(plain, drafted, beside.token_bytes, looked, rounding)
            if alike
            else None,
            lead=lead,
            alike=alike,
            stock=stock,
        )


class _Both:
    """What a cancellation of the race reaches."""

    def __init__(self, conversations: Sequence[RacedConversation]) -> None:
        self._conversations = conversations

    def cancel(self) -> None:
        for conversation in self._conversations:
            conversation.cancel()
