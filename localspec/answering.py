"""The generation of one answer, step by step."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from localspec.decoding.acceptance import AcceptanceRule
from localspec.decoding.interfaces import Drafter, Step
from localspec.decoding.loop import drive, speculate
from localspec.decoding.sampling import Constraint, SamplingParams
from localspec.decoding.session import Session
from localspec.decoding.stats import GenerationStats
from localspec.drafters.composition import compose, decides, sources
from localspec.drafters.heterogeneous import HeterogeneousDraftModel
from localspec.drafters.options import Drafting
from localspec.drafters.registry import Parts
from localspec.errors import UsageError
from localspec.llama.native_context import CacheFull
from localspec.llama.pictures import Picture
from localspec.llama.threads import Threads
from localspec.policy.calibration import Calibration
from localspec.policy.policy import Policy
from localspec.policy.profile import PairProfile
from localspec.prompting.detokenizer import Detokenizer
from localspec.scheduling.scheduler import Scheduler
from localspec.scheduling.slots import Slot
from localspec.scheduling.task import Preempted, Task, Wait
from localspec.typed import convert

if TYPE_CHECKING:
    from localspec.llama.vocabulary import Vocabulary

SHIFTED = (
    "The context was full, and the answer went on without the oldest of the text. Open the model "
    "with a longer one (--ctx) to keep it."
)


@dataclass(slots=True, kw_only=True)
class Answer:
    """The request for an answer, and its state."""

    session: Session
    detokenizer: Detokenizer
    sampling: SamplingParams
    drafting: Drafting
    rule: AcceptanceRule
    stats: GenerationStats
    prediction: Sequence[int] = ()
    reuse: bool = True
    progress: Callable[[int, int], None] | None
    pictures: Sequence[Picture] = ()


class AnswerGenerator:
    """Generates answers as tasks of a scheduler, in slots."""

    profile: PairProfile
    _scheduler: Scheduler
    _threads: Threads
    _calibration: Calibration

    def _answer(self, answer: Answer, task: Task) -> None:
        slot: Slot = task.slot
        stats, session, started = answer.stats, answer.session, perf_counter()
        steps = self.begin(answer, task)
        elapsed = perf_counter() - started
        stats.prompt_seconds = max(0.0, elapsed - stats.calibration_seconds)
        try:
            for step in steps:
                item = step, answer.detokenizer.take()
                if session.finish is None:
                    self._scheduler.put(task, item)
                else:
                    task.put(item)
        finally:
            steps.close()
            stats.threads = self._threads.why
            stats.notices += slot.cache.take_notices()
            slot.target.progress = None
            slot.target.set_pictures(())

    def begin(self, answer: Answer, task: Task) -> Generator[Step, None, None]:
        """Begin an answer whose task has a slot; returns its steps."""
        slot: Slot = task.slot
        stats, tokens, target, parts = answer.stats, answer.session.context, slot.target, slot.parts
        self._threads.begin()
        target.set_pictures(answer.pictures)
        known = slot.known(tokens) if answer.reuse else 0
        adaptive = decides(answer.drafting, parts, target.why_not_draft)
        if adaptive:
            stats.calibration_seconds = self._measure(slot, tokens, known)
        drafter = compose(
            answer.drafting,
            parts,
            self.profile,
            slot.limits,
            costs=slot.costs,
            greedy=answer.sampling.greedy,
            trees=answer.rule.trees,
            coupled=answer.rule.coupled,
            cannot=target.why_not_draft,
            session=answer.session,
            known=known,
        )
        stats.vocabulary = vocabulary_of(parts)  # decided for this answer by now
        if isinstance(drafter, Policy):
            stats.account = drafter.statement
        target.progress = answer.progress
        if answer.reuse:
            stats.notices += slot.recall(tokens)
        stats.cached_tokens = slot.load_prefix(tokens, reuse=answer.reuse)
        parts.index.expect(tokens, answer.prediction)
        drafter.begin(tokens)

        def read() -> None:
            if unread := tokens[len(slot.cache.tokens) : -1]:
                slot.cache.extend(unread, 0, answer.progress)

        # It may prefill the prompt, but only as text.
        if adaptive and not answer.pictures and slot.alone:
            with suppress(CacheFull, Preempted):  # skipped without room
                stats.calibration_seconds += self._calibration.run_after_prompt(
                    slot.cache, sources(parts)[1], tokens, read
                )
        return self._steps(answer, task, drafter)

    def _steps(self, answer: Answer, task: Task, drafter: Drafter) -> Generator[Step, None, None]:
        """Yield the steps, across context shifts, with the seconds of shared passes; the number of
        threads may change between steps."""
        session, rule, clock = answer.session, answer.rule, self._scheduler.time_of(task)
        slot: Slot = task.slot
        waited = task.waited
        while True:
            requests = speculate(session, drafter, rule, clock=clock)
            with closing(drive(session, requests, slot.target)) as steps:
                while True:
                    before, lost = {**waited}, task.lost
                    step = next(steps, None)
                    self._threads.apply()
                    if step is None:
                        break
                    if task.lost > lost:
                        # The drafter counts this answer's share, its reader the elapsed time.
                        step = step._replace(
                            seconds=step.seconds + task.lost - lost,
                            target_seconds=waited[Wait.TARGET] - before[Wait.TARGET],
                            draft_seconds=waited[Wait.DRAFT] - before[Wait.DRAFT],
                        )
                    yield step
            if not session.shift():
                return
            # Continue with the shifted text, without another report of progress.
            slot.target.progress = None
            slot.target.reuse(session.context)
            slot.parts.index.expect(session.context, answer.prediction)
            drafter.begin(session.context)
            if SHIFTED not in answer.stats.notices:
                answer.stats.notices.append(SHIFTED)

    def _measure(
        self, slot: Slot, prompt: Sequence[int], known: int, *, whole: bool = False
    ) -> float:
        # Measured curves are not refined while other answers would wait.
        if self.profile.target and not whole and not slot.alone:
            return 0.0
        models = sources(slot.parts)[1]
        with slot.measuring():
            return self._calibration.run(slot.cache, models, prompt, known, whole=whole)
        return 0.0


def vocabulary_of(parts: Parts) -> str | None:
    """How a draft model with another vocabulary drafts; None for the same vocabulary."""
    model = parts.model
    return model.summary if isinstance(model, HeterogeneousDraftModel) else None


def constraint_of(
    vocabulary: Vocabulary,
    grammar: str | None,
    json_schema: str | Mapping[str, Any] | None,
    regex: str | None,
    *,
    closes: str,
) -> Constraint | None:
    """The grammar of an answer, or None. Raises UsageError for several, or an invalid one."""
    given = [one for one in (grammar, json_schema, regex) if one is not None]
    if not given:
        return None
    if len(given) > 1:
        raise UsageError(
            "A grammar, a JSON schema and a regular expression exclude each other. Give one of "
            "them."
        )
    from localspec.llama.grammar import Grammar  # llguidance is loaded where it is used
    from localspec.llama.intended_schema import parse_schema

    if json_schema is not None:
        return Grammar.from_schema(vocabulary, parse_schema(json_schema), thought_end=closes)
    if regex is not None:
        return Grammar.from_regex(vocabulary, regex, thought_end=closes)
    return Grammar(vocabulary, str(grammar), thought_end=closes)


def checked_stops(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the stop strings as a tuple. Raises UsageError if one is empty."""
    stops = (stop,) if isinstance(stop, str) else tuple(() if stop is None else stop)
    stops = tuple(convert("stop", text, str) for text in stops)
    if not all(stops):
        raise UsageError("A stop string is empty. Leave it out, or give some text.")
    return stops
