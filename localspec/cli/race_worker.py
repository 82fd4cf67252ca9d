"""Both answers of a race, in one thread."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from localspec import Engine, SamplingParams, Stream
from localspec.cli.request import AnswerRequest, OpeningOptions
from localspec.cli.worker import INTERRUPTED, EngineJob, Ready
from localspec.errors import UsageError
from localspec.loading.beside import load_beside
from localspec.race.race_outcome import LaneResult, Proof, RaceOutcome, decided_by_logits, parting
from localspec.race.raced_conversation import RacedConversation
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
    """The result.

    Attributes:
        outcomes: one for each question that both lanes came to; at least one.
        calibration_seconds: spent before the race.
    """

    outcomes: tuple[RaceOutcome, ...]
    calibration_seconds: float


class RaceWorker(EngineJob[Ready | Lap | Raced]):
    """Runs one race.

    Args:
        scale: a pair of `localspec.bench.scale` instead of the request's models.
        further: questions after the first; each lane continues from its own answers.
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
            for each in (beside, engine):
                each.take_turns()
            prompt, notices = self._prompt(engine)
            if self._further and isinstance(prompt, str):
                raise UsageError(
                    "--then continues a conversation, but this prompt is plain text: the model "
                    "has no chat template, or --raw leaves it out. Leave out --then."
                )
            provable = self._provable(engine)
            measured = self._warm_up(beside) + self._warm_up(engine)
            conversations = [
                RacedConversation(partial(self._stream, each, progress=None), prompt, self._further)
                for each in (beside, engine)
            ]
            stats = conversations[LOCALSPEC].streams[0].stats
            self._queue.put(self._ready(engine, stats, [*beside.notices, *notices]))
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
                alike = all(each.equal for each in outcomes)
                found = self._compared((beside, engine), streams, answers, alike=alike)
                outcomes.append(replace(found, lead=progress[question].lead()))
            if provable:
                outcomes = self._proved(engine, conversations[LOCALSPEC].streams, outcomes)
            measured += sum(s.stats.calibration_seconds for s in conversations[LOCALSPEC].streams)
        self._queue.put(Raced(tuple(outcomes), measured))

    def _provable(self, engine: Engine) -> bool:
        """Whether logits alone decide, and are batch-invariant."""
        request = self._request
        free = request.grammar is request.json_schema is request.regex is None
        if not free or not decided_by_logits(request.opening.sampling):
            return False
        self._report("trying whether passes of all sizes give the same bits")
        return engine.batch_invariant

    def _proved(
        self, engine: Engine, streams: Sequence[Stream], outcomes: Sequence[RaceOutcome]
    ) -> list[RaceOutcome]:
        """Adds a proof to each answer that is in the context as a whole."""
        engine.clear()
        proved = []
        for stream, outcome in zip(streams, outcomes, strict=False):
            text, tokens = list(stream.context), list(outcome.localspec.token_ids)
            prompt = text[: len(text) - len(tokens)]
            whole = text[len(prompt) :] == tokens and len(text) <= engine.context_length
            proof = None
            if outcome.localspec.stats.lossless and tokens and prompt and whole:
                self._report("reading localspec's answer once more, for the proof")
                proof = Proof(engine.first_wrong(prompt, tokens))
            proved.append(replace(outcome, proof=proof))
        return proved

    def _warm_up(self, engine: Engine) -> float:
        """Page faults, allocations, calibration; returns the seconds of the calibration."""
        self._report("warming up, and measuring what passes cost where that is not known")
        greedy = SamplingParams(temperature=0.0)
        stream = engine.stream("Hello", max_tokens=_WARM_UP_TOKENS, sampling=greedy)
        with self._thread.cancels(stream):
            measured = stream.completion().stats.calibration_seconds
        self._thread.require_going_on("Interrupted before the race began.")
        return measured

    def _compared(
        self,
        engines: tuple[Engine, Engine],
        streams: Sequence[Stream],
        answers: Sequence[LaneAnswer],
        *,
        alike: bool,
    ) -> RaceOutcome:
        beside, engine = engines
        plain, ours = (
            LaneResult(
                text=stream.text,
                finish_reason=stream.finish_reason or "cancelled",
                seconds=answer.seconds,
                token_ids=tuple(answer.token_ids),
                stats=stream.stats,
            )
            for stream, answer in zip(streams, answers, strict=True)
        )
        stock = engine.model.kernels.in_use and not beside.model.kernels.in_use
        halfway = len(streams[PLAIN].context) - len(plain.token_ids) // 2
        pace = engine.plain_seconds(halfway)
        if stock and pace and plain.stats.tokens_per_second:
            engine.profile.stock = 1.0 / (plain.stats.tokens_per_second * pace)
        return RaceOutcome(
            plain=plain,
            localspec=ours,
            greedy=self._request.opening.sampling.greedy and ours.stats.lossless,
            parting=parting(plain.token_ids, ours.token_ids, beside.token_bytes) if alike else None,
            lead=None,
            alike=alike,
            stock=stock,
        )


class _Both:
    def __init__(self, conversations: Sequence[RacedConversation]) -> None:
        self._conversations = conversations

    def cancel(self) -> None:
        for conversation in self._conversations:
            conversation.cancel()
