"""The generation of one answer, step by step."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from time import perf_counter

from localspec.decoding.loop import Drafter, speculate
from localspec.decoding.random_source import SeededRandom
from localspec.decoding.rules import acceptance_rule
from localspec.decoding.sampling import Constraint, Sampler, SamplingParams
from localspec.decoding.session import Session
from localspec.decoding.stats import GenerationStats
from localspec.drafters.composition import compose, decides, sources
from localspec.drafters.heterogeneous import HeterogeneousDraftModel
from localspec.drafters.options import Drafting
from localspec.drafters.registry import Parts
from localspec.errors import UsageError
from localspec.keywords import AnswerOptions
from localspec.llama.model import Model
from localspec.llama.native_context import CacheFull
from localspec.llama.threads import Threads
from localspec.llama.vocabulary import Vocabulary
from localspec.policy.calibration import Calibration
from localspec.policy.policy import Policy
from localspec.policy.profile import PairProfile
from localspec.prompting.detokenizer import Detokenizer
from localspec.prompting.prompt import Prompt, PromptBuilder
from localspec.scheduling.slots import Slot, Slots
from localspec.scheduling.task import Preempted, Task, Wait

_FULL = (
    "The context of {} tokens is full, so the answer ends there. Open the model with a longer one "
    "(--ctx) to continue."
)
_SHIFTED = (
    "The context was full, so the oldest text was dropped to continue. Open the model "
    "with a longer one (--ctx) to keep it."
)


class Answer:
    """A request for an answer, and its state. `prediction`: tokens of a text that much of the
    answer may repeat; `when_full`: the notice if a full context ends the answer. Raises the errors
    of `Engine.stream`."""

    def __init__(
        self,
        model: Model,
        prompts: PromptBuilder,
        prompt: Prompt | Sequence[int],
        options: AnswerOptions,
        drafting: Drafting,
    ) -> None:
        self.options, self.drafting = options, drafting
        sampling, vocabulary = options.sampling or SamplingParams(), model.vocabulary
        capacity, piece = prompts.context_length, vocabulary.piece
        seed = secrets.randbits(32) if sampling.seed is None else sampling.seed
        stops = tuple(options.stop or ())
        self.rule = rule = acceptance_rule(
            drafting.rule, greedy=sampling.greedy, threshold=drafting.threshold
        )
        self.stats = stats = GenerationStats(
            kernels=model.kernels.words, rule=rule.name, lossless=rule.lossless
        )
        found = prompts.tokens(prompt, options.max_tokens, options.overflow, stats)
        stats.prompt_tokens, stats.seed = len(found), seed
        shift, spelled, self.pictures = options.shift, found.spelled, found.pictures
        if found.pictures:
            shift = None  # a shift would move the pictures
        elif shift is not None and shift.keep >= 0:  # plus a leading BOS
            bos = vocabulary.adds_bos and found[:1] == (vocabulary.bos,)
            shift = replace(shift, keep=shift.keep + bos)
        self.detokenizer = Detokenizer(
            (lambda token: spelled.get(token) or piece(token)) if spelled else piece,
            stops,
            ending=vocabulary.controls_in(stops),
            texts=found.texts,
            thinks=options.thinks,
            after=options.stop_after,
        )
        self.session = Session(
            found,
            Sampler(sampling, vocabulary.size),
            SeededRandom(seed),
            limit=len(found) + (options.max_tokens or capacity),
            ends=vocabulary.ends,
            completes=self.detokenizer.push,
            constraint=constraint_of(options, vocabulary, closes=found.closes),
            logprobs=options.logprobs,
            as_sampled=options.as_sampled,
            shift=shift,
            capacity=capacity,
        )
        self.prediction = vocabulary.tokenize(options.prediction)[:capacity]
        ends_full = shift is None and self.session.limit == capacity
        self.when_full = _FULL.format(capacity) if ends_full else None


class AnswerGenerator:
    """Generates answers as tasks of a scheduler, in slots."""

    profile: PairProfile
    slots: Slots
    _threads: Threads
    _calibration: Calibration

    def _answer(self, answer: Answer, task: Task) -> None:
        slot: Slot = task.slot
        stats, started = answer.stats, perf_counter()
        try:
            drafter = self._begin(answer, task)
            elapsed = perf_counter() - started
            stats.prompt_seconds = max(0.0, elapsed - stats.calibration_seconds)
            self._generate(answer, task, drafter)
        finally:
            stats.threads = self._threads.why
            stats.notices += slot.cache.take_notices()
            slot.cache.progress = None
            slot.cache.pictures = ()

    def _begin(self, answer: Answer, task: Task) -> Drafter:
        """Begin an answer whose task has a slot; returns its drafter."""
        slot: Slot = task.slot
        stats, tokens, cache, parts = answer.stats, answer.session.context, slot.cache, slot.parts
        self._threads.begin()
        cache.pictures = answer.pictures
        known = slot.known(tokens) if answer.options.reuse else 0
        adaptive = decides(answer.drafting, parts, cache.why_not_draft)
        if adaptive:
            stats.calibration_seconds = self._measure(slot, tokens, known, stats.notices)
        drafter = compose(
            answer.drafting,
            parts,
            self.profile,
            slot.limits,
            answer.session,
            answer.rule,
            cannot=cache.why_not_draft,
            costs=slot.costs,
            known=known,
        )
        stats.vocabulary = vocabulary_of(parts)  # decided for this answer by now
        if isinstance(drafter, Policy):
            stats.account = drafter.statement
        cache.progress = answer.options.progress
        reuse = answer.options.reuse
        stats.cached_tokens = slot.load_prefix(tokens, stats.notices, reuse=reuse)
        parts.index.expect(tokens, answer.prediction)
        drafter.begin(tokens)

        def read() -> None:
            if unread := tokens[len(cache.tokens) : -1]:
                cache.extend(unread, 0, answer.options.progress)

        # Calibration may prefill the prompt, but only text.
        if adaptive and not answer.pictures and slot.alone:
            with suppress(CacheFull, Preempted):  # skipped if there is no room
                stats.calibration_seconds += self._calibration.run_after_prompt(
                    cache, sources(parts)[1], tokens, read
                )
        return drafter

    def _generate(self, answer: Answer, task: Task, drafter: Drafter) -> None:
        """Put the steps, across context shifts, with the seconds of shared passes; the number of
        threads may change between steps."""
        session, rule, clock = answer.session, answer.rule, self.slots.time_of(task)
        slot: Slot = task.slot
        waited = task.waited
        while True:
            with closing(speculate(session, drafter, rule, slot.cache, clock=clock)) as steps:
                while True:
                    before, lost = {**waited}, task.lost
                    step = next(steps, None)
                    self._threads.apply()
                    if step is None:
                        break
                    if task.lost > lost:
                        # The drafter counts this answer's share, readers the elapsed time.
                        step = step._replace(
                            seconds=step.seconds + task.lost - lost,
                            target_seconds=waited[Wait.TARGET] - before[Wait.TARGET],
                            draft_seconds=waited[Wait.DRAFT] - before[Wait.DRAFT],
                        )
                    item = step, answer.detokenizer.take()
                    if session.finish is None:
                        self.slots.put(task, item)
                    else:
                        task.put(item)
            if not session.shift():
                return
            # Continue with the shifted text, without another report of progress.
            slot.cache.progress = None
            slot.cache.reuse(session.context)
            slot.parts.index.expect(session.context, answer.prediction)
            drafter.begin(session.context)
            if _SHIFTED not in answer.stats.notices:
                answer.stats.notices.append(_SHIFTED)

    def _measure(
        self, slot: Slot, prompt: Sequence[int], known: int, notices: list[str], whole: bool = False
    ) -> float:
        # Measured curves are not refined while other answers would wait.
        if self.profile.target and not whole and not slot.alone:
            return 0.0
        models = sources(slot.parts)[1]
        with slot.measuring():
            return self._calibration.run(
                slot.cache, models, prompt, known, lambda: notices.extend(slot.keep()), whole=whole
            )
        return 0.0


def vocabulary_of(parts: Parts) -> str | None:
    """How the draft model's vocabulary differs, in words; None if it does not."""
    model = parts.model
    return model.summary if isinstance(model, HeterogeneousDraftModel) else None


def constraint_of(
    options: AnswerOptions, vocabulary: Vocabulary, *, closes: str
) -> Constraint | None:
    """The grammar of an answer, or None; `closes`: the mark at the end of thoughts. Raises
    UsageError for several constraints, or an invalid one."""
    grammar, schema, regex = options.grammar, options.json_schema, options.regex
    given = [one for one in (grammar, schema, regex) if one is not None]
    if not given:
        return None
    if len(given) > 1:
        raise UsageError(
            "A grammar, a JSON schema and a regular expression cannot be combined. Give one "
            "of them."
        )
    from localspec.grammars.grammar import Grammar  # llguidance is loaded where it is used
    from localspec.grammars.intended_schema import parse_schema

    closes = closes if options.thinks else ""
    if schema is not None:
        return Grammar.from_schema(vocabulary, parse_schema(schema), thought_end=closes)
    if regex is not None:
        return Grammar.from_regex(vocabulary, regex, thought_end=closes)
    return Grammar(vocabulary, str(grammar), thought_end=closes)
