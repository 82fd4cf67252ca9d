"""The engine: a target, its drafters, and its answers."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from localspec.answering import Answer, AnswerGenerator, checked_stops, constraint_of, vocabulary_of
from localspec.decoding.interfaces import PassRequest
from localspec.decoding.likelihood import first_wrong, likelihood
from localspec.decoding.logprobs import TokenLogprob
from localspec.decoding.random_source import SeededRandom
from localspec.decoding.rules import acceptance_rule
from localspec.decoding.sampling import Rows, Sampler, SamplingParams
from localspec.decoding.session import ContextShift, Session
from localspec.decoding.stats import GenerationStats
from localspec.decoding.tree import TokenTree
from localspec.drafters.composition import require, sources
from localspec.drafters.heterogeneous import HeterogeneousDraftModel
from localspec.drafters.options import Drafting
from localspec.errors import ContextOverflow, EngineBusy, SessionError, UsageError
from localspec.keywords import AnswerKeywords, advised
from localspec.llama.threads import Threads
from localspec.policy.calibration import Calibration
from localspec.policy.cost_curve import CostCurve
from localspec.policy.profile import PairProfile
from localspec.policy.store import ProfileStore
from localspec.prompting.detokenizer import Detokenizer
from localspec.prompting.prompt import Prompt, PromptBuilder
from localspec.prompting.template import Message
from localspec.retrieval import learner
from localspec.retrieval.datastore import Datastore
from localspec.scheduling.slots import Slot, Slots
from localspec.scheduling.task import Task
from localspec.sessions.cache_states import CacheStates, identity
from localspec.sessions.sessions import OpenedSession, Sessions
from localspec.stream import Completion, Stream
from localspec.typed import convert, typed

if TYPE_CHECKING:
    from typing_extensions import Unpack  # of Python itself from 3.11 on

    from localspec.llama.model import Model
    from localspec.llama.projector import Projector


Result = TypeVar("Result")


class Engine(AnswerGenerator):
    """A loaded pair, from `localspec.load`. Close it, or use it as a context manager. It is freed
    as well once nothing refers to it.

    Any thread may call it. It generates `parallel` answers at once, further ones wait. Its KV
    caches are kept between calls, so a prompt decodes only what differs from an earlier one.

    Attributes:
        model: the target.
        prompts: builds prompts from messages.
        draft, drafts: the draft model or trained head, or None; whether anything drafts.
        why_no_draft: the reason, if there is none.
        why_draft: the reason for this one, if chosen by `-d auto`.
        notices: sentences for the user about the choice of the files.
    """

    def __init__(
        self,
        slots: Slots,
        *,
        store: ProfileStore,
        threads: Threads,
        drafting: Drafting,
        wait: bool,
        why_no_draft: str | None,
        why_draft: str | None = None,
        draft_path: Path | None = None,
        notices: tuple[str, ...] = (),
        owns_models: bool = True,
        prompt_cache: int = 0,
        exact: bool = False,
        batch_invariant: Callable[[], bool] = lambda: False,
        projector: Projector | None = None,
    ) -> None:
        """`slots`: caches and sources for each concurrent answer."""
        self._slots, self._scheduler = slots, slots.scheduler
        first = slots.all[0]
        target = first.cache
        self.model: Model = target.model
        vocabulary = self.model.vocabulary
        self._datastore = Datastore(vocabulary.fingerprint, vocabulary.size)
        for slot in slots.all:
            slot.parts = replace(slot.parts, datastore=self._datastore)
        self._slot, self._parts = first, first.parts
        cache = self._parts.native_cache
        self.draft: Model | None = None if cache is None else cache.model
        self._contexts = slots.contexts
        self.draft_path = draft_path
        self.why_no_draft = why_no_draft
        self.why_draft = why_draft
        self.notices = notices
        self.profile = PairProfile()
        self._store = store
        self._threads = threads
        threads.serve(*self._contexts)
        checked = not self._store.load(self.profile)
        self._calibration = Calibration(self.profile, threads, checked=checked)
        self._exact = exact
        self._is_batch_invariant = batch_invariant
        self._projector = projector
        self.prompts = PromptBuilder(self.model, self.context_length, projector)
        self._drafting, self.drafts = drafting, drafting.drafter != "none"
        model = self._parts.model
        self._sessions = Sessions(
            CacheStates(
                target,
                None if model is None else cache,  # a head's is not kept
                model.mapped if isinstance(model, HeterogeneousDraftModel) else None,
                identity(store.identity),
            ),
            prompt_cache,
            recurrent=target.recurrent,
        )
        self._owns_models = owns_models
        self._wait = wait
        slots.attach_sessions(self._sessions, self.profile)
        self._closed = False

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop all generations and free models and caches. Raises EngineBusy in a callback of an
        answer."""
        if self._closed:
            return
        self._closed = True  # first, so that no further task begins
        try:
            self._scheduler.close()
        except EngineBusy:
            self._closed = False
            raise
        if self._scheduler.orphaned:
            return  # another process computes with it, or Python ends
        self._free()

    def __del__(self) -> None:
        if not vars(self).get("_closed", True) and self._owns_models:
            self._closed = True
            self._scheduler.leave(self._free)

    def __reduce__(self) -> str:
        raise UsageError(
            "An engine cannot be copied or sent to another process. Load the model there."
        )

    def _free(self) -> None:
        self._sessions.close()
        if self.profile.target:
            self._store.save(self.profile)
        if self._projector is not None:
            self._projector.close()
        models = [context.model for context in self._contexts if self._owns_models]
        self._slots.close()
        for model in models:
            model.close()

    @property
    def parallel(self) -> int:
        """Number of concurrent answers; further ones wait."""
        return len(self._slots.all)

    @property
    def context_length(self) -> int:
        return self._slot.target.capacity

    @cached_property
    def batch_invariant(self) -> bool:
        """Whether a token's logits have the same bits whatever else is in its pass. Tested once per
        model and machine, which takes a moment."""
        return self._call(self._is_batch_invariant)

    @property
    def vocabulary(self) -> str | None:
        return vocabulary_of(self._parts)

    @advised
    @typed
    def stream(
        self,
        prompt: Prompt | Sequence[int],
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = (),
        stop_after: str = "",
        sampling: SamplingParams | None = None,
        grammar: str | None = None,
        json_schema: str | Mapping[str, Any] | None = None,
        regex: str | None = None,
        drafting: Drafting | None = None,
        overflow: str = "error",
        logprobs: int | None = None,
        as_sampled: bool = False,
        prediction: str = "",
        reuse: bool = True,
        shift: ContextShift | None = None,
        thinks: bool | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Stream:
        """Start an answer; iterate the result for its chunks.

        Args:
            prompt: chat messages, raw text, or token ids. With `ModelOptions.mmproj`, the content
                of a message may be a list of `{"type": "text", "text": …}` and `{"type": "image",
                "image": bytes}`.
            max_tokens: longest answer; None goes on to the end of the context.
            stop: one or more strings that end the answer.
            stop_after: a regular expression; stop strings count after its match where the answer
                begins.
            sampling: how tokens are picked.
            grammar: in GBNF or Lark.
            json_schema, regex: what the whole answer has to match.
            drafting: how to draft, instead of what the engine was loaded with.
            overflow: for messages longer than the context: "error", or "drop_oldest" to leave out
                the oldest turns (never a leading system message, never the last) with a notice.
            logprobs: give the target's log-probability of each token in `Chunk.step.logprobs`, and
                this many of the most probable ones; None for neither.
            as_sampled: take logprobs after bias, grammar, penalties, truncation and temperature.
            prediction: text that much of the answer may repeat, such as a file to be edited;
                lookups draft from it.
            reuse: whether cached prompts may serve. Without it the whole prompt is read, in passes
                of the same shapes every time, and is not kept for other answers.
            shift: what leaves the context when it is full, so that the answer goes on; None ends it
                there. Without `max_tokens` it then has one context of tokens at most. A leading BOS
                token always stays.
            thinks: True where the prompt ended with <think>, False where an answer may begin so:
                stop strings count after </think>, and so do constraints where it is True. None
                counts from the beginning.
            progress: called with tokens done and tokens to do while the prompt is read.

        Raises:
            UsageError: an option out of its range, an invalid grammar or schema.
            ContextOverflow: the prompt leaves no room for an answer.
        """
        self._check_open()
        stops = checked_stops(stop)
        if max_tokens is not None and max_tokens < 1:
            raise UsageError(f"max-tokens is {max_tokens}. Give 1 or more.")
        if logprobs is not None and logprobs < 0:
            raise UsageError(f"logprobs is {logprobs}. Give 0 or more, or None.")
        sampling = sampling or SamplingParams()
        drafting = drafting or self._drafting
        if self._exact:
            drafting = drafting.exactly()
        stats = GenerationStats(kernels=self.model.kernels.words)
        found = self.prompts.tokens(prompt, max_tokens, overflow, stats)
        tokens = list(found)
        if found.pictures:
            shift = None  # a shift would move the pictures
        seed = secrets.randbits(32) if sampling.seed is None else sampling.seed
        vocabulary, spelled = self.model.vocabulary, found.spelled
        piece = vocabulary.piece
        assembler = Detokenizer(
            (lambda token: spelled.get(token) or piece(token)) if spelled else piece,
            stops,
            ending=vocabulary.controls_in(stops),
            thinks=thinks,
            after=stop_after,
        )
        session = Session(
            tokens,
            Sampler(sampling, vocabulary.size),
            SeededRandom(seed),
            limit=len(tokens) + (max_tokens or self.context_length),
            ends=vocabulary.ends,
            completes=assembler.push,
            constraint=constraint_of(
                vocabulary,
                grammar,
                json_schema,
                regex,
                closes=self.prompts.thought_marks[1] if thinks else "",
            ),
            logprobs=logprobs,
            as_sampled=as_sampled,
            shift=self._shift_of(shift, tokens),
            capacity=self.context_length,
        )
        predicted = vocabulary.tokenize(prediction, special=False, add_bos=False)
        rule = acceptance_rule(drafting.rule, greedy=sampling.greedy, threshold=drafting.threshold)
        stats.notices += self._datastore.refresh()
        require(drafting, self._parts)
        stats.prompt_tokens, stats.seed = len(tokens), seed
        stats.rule, stats.lossless = rule.name, rule.lossless
        stats.vocabulary = self.vocabulary

        answer = Answer(
            session=session,
            detokenizer=assembler,
            sampling=sampling,
            drafting=drafting,
            rule=rule,
            stats=stats,
            prediction=predicted[: self.context_length],
            reuse=reuse,
            progress=progress,
            pictures=found.pictures,
        )
        when_full = None
        if shift is None and session.limit == self.context_length:
            when_full = (
                f"The context of {self.context_length} tokens is full, so the answer ends there. "
                "Open the model with a longer one (--ctx) to continue."
            )
        submit, cancel = partial(self._submit, answer), self._scheduler.cancel
        return Stream(submit, cancel, session, assembler, stats, when_full=when_full)

    def _shift_of(self, shift: ContextShift | None, tokens: Sequence[int]) -> ContextShift | None:
        vocabulary = self.model.vocabulary
        begins = vocabulary.adds_bos and tokens[:1] == [vocabulary.bos]
        if shift is None or shift.keep < 0 or not begins:
            return shift
        return replace(shift, keep=shift.keep + 1)

    def chat(self, messages: Sequence[Message], **asked: Unpack[AnswerKeywords]) -> Completion:
        """Answer chat messages; options and errors are those of `stream`."""
        return self.stream(messages, **asked).completion()

    def generate(self, text: str, **asked: Unpack[AnswerKeywords]) -> Completion:
        """Continue raw text, without a chat template; see `stream`."""
        return self.stream(text, **asked).completion()

    @typed
    def tokenize(self, text: str) -> list[int]:
        """Token ids of raw text; `<|…|>` markers become the control tokens they name."""
        self._check_open()
        return self.model.vocabulary.tokenize(text, special=True, add_bos=False)

    @typed
    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token; may be part of a character only."""
        return self.model.vocabulary.piece(*self._checked([token]))

    @typed
    def logits(self, tokens: Sequence[int]) -> Rows:
        """The target's logits after a text, float32 [vocabulary], a copy. A cached prefix is
        reused."""
        text = self._checked(tokens)
        if not text:
            raise UsageError("There are no tokens. Give one or more.")
        return self._over(text, lambda slot: np.array(_rows(slot, text)[-1]))

    @typed
    def first_wrong(self, prompt: Sequence[int], answer: Sequence[int]) -> int | None:
        """See `localspec.decoding.likelihood.first_wrong`; prompt and answer have to fit the
        context."""
        text, then = self._checked(prompt), self._checked(answer)
        self._checked([*text, *then])
        return self._over(text, lambda slot: first_wrong(slot.target, slot.limits, text, then))

    @typed
    def likelihood(
        self,
        tokens: Sequence[int],
        alternatives: int = 0,
        *,
        stopped: Callable[[], bool] = lambda: False,
    ) -> list[TokenLogprob]:
        """See `localspec.decoding.likelihood.likelihood`; the tokens have to fit the context."""
        text = self._checked(tokens)
        if alternatives < 0:
            raise UsageError(f"alternatives is {alternatives}. Give 0 or more.")
        return self._over(
            text,
            lambda slot: likelihood(slot.target, slot.limits, text, alternatives, stopped=stopped),
            reuse=False,
        )

    @property
    def threads(self) -> str:
        """Current number of threads for passes, the maximum, and the reason, for users."""
        return self._threads.why

    @property
    def learned(self) -> int:
        """Number of learned tokens (`localspec learn`) for the target's vocabulary."""
        self._datastore.refresh()
        return self._datastore.now.tokens

    @typed
    def learn(
        self, texts: Mapping[str, Sequence[str]], *, patience: float = learner.PATIENCE
    ) -> None:
        """Learn texts for the target's vocabulary, as `localspec learn` does.

        Args:
            texts: by name, for listing and forgetting; replaces earlier ones of that name.
            patience: seconds to wait for another process that is learning.

        Raises:
            DatastoreError, UsageError: as `localspec.retrieval.learner.learn`.
        """
        vocabulary = self.model.vocabulary
        facts = learner.LearnedVocabulary(
            vocabulary.fingerprint(), vocabulary.size, self.model.name
        )
        tokens = {
            convert("name", name, str): [
                vocabulary.tokenize(convert("text", text, str), special=False, add_bos=False)
                for text in ([known] if isinstance(known, str) else known)
            ]
            for name, known in texts.items()
        }
        learner.learn(facts, tokens, patience=patience)

    @property
    def head_source(self) -> str:
        """Name of the trained head if `draft` is one, else ""."""
        return self._parts.head_source

    @property
    def draft_costs(self) -> CostCurve | None:
        """Cost curve of the draft model; None without one."""
        _, models = sources(self._parts)
        return self.profile.source(models[0]).costs if models else None

    def plain_seconds(self, context_length: int) -> float | None:
        """T(1) at a context length, at the current pace; None until measured."""
        curve = self.profile.target
        return curve.seconds(1, context_length) * curve.pace if curve else None

    @typed
    def open_session(self, path: str | os.PathLike[str]) -> OpenedSession:
        """Restore a session of `save_session`, instead of decoding it again.

        Unusable parts (other models, another version, a damaged file) are left out with a notice in
        the result, and the next answer prefills that text. A missing file is no error.

        Raises:
            SessionError: the file is something else, or cannot be read.
        """
        self._require_one_at_a_time()
        return self._call(lambda: self._sessions.open(Path(path)))

    def take_turns(self) -> None:
        """Compute steps on demand, none ahead, for engines whose times are compared."""
        self._scheduler.ahead = 0

    def clear(self) -> int:
        """Empty the caches; returns how many tokens the target's held."""
        return self._call(self._slots.clear)

    @typed
    def save_session(self, path: str | os.PathLike[str], conversation: Any = None) -> int:
        """Save the KV caches of this conversation, replacing an older session.

        Args:
            conversation: JSON values to store with it, for `open_session`.

        Returns:
            Number of tokens in the target's cache.

        Raises:
            SessionError: it cannot be written, or would replace something else.
        """
        self._require_one_at_a_time()

        def work() -> int:
            self._sessions.save(Path(path), conversation)
            return len(self._slot.cache.tokens)

        return self._call(work)

    def calibrate(self) -> float:
        """Measure missing or outdated pass costs; returns the seconds it took. Otherwise, answers
        measure only what they need, a little at a time."""

        def work(task: Task) -> float:
            return self._measure(task.slot, (), 0, whole=True)

        return self._result((), work)

    def forget(self) -> None:
        """Drop measurements and acceptance estimates, here and on disk."""

        def work() -> None:
            self.profile.forget()
            self._store.remove()
            self._calibration.checked = True  # no measurements of earlier sessions are left

        self._call(work)

    # Tasks.

    def _submit(
        self, answer: Answer, owner: Hashable, on_item: Callable[[], object] | None
    ) -> Task:
        self._check_open()
        work, tokens = partial(self._answer, answer), answer.session.context
        return self._scheduler.submit(tokens, work, wait=self._wait, owner=owner, on_item=on_item)

    def _result(self, tokens: Sequence[int], work: Callable[[Task], Result]) -> Result:
        """Run a function as a task; returns its result, or raises its error."""
        self._check_open()
        owner = threading.get_ident()
        task = self._scheduler.submit(tokens, lambda task: task.put(work(task)), owner=owner)
        result: Result
        (result,) = task.items()
        return result

    def _call(self, work: Callable[[], Result]) -> Result:
        return self._result((), lambda task: work())

    def _over(
        self, tokens: Sequence[int], work: Callable[[Slot], Result], *, reuse: bool = True
    ) -> Result:
        """As `_result`, of a function of a slot that holds the cached prefix of a text."""

        def over(task: Task) -> Result:
            task.slot.load_prefix(tokens, reuse=reuse)
            return work(task.slot)

        return self._result(tokens, over)

    def _require_one_at_a_time(self) -> None:
        if self.parallel > 1:
            raise SessionError(
                "Sessions work only with one answer at a time. Open the model with parallel=1."
            )

    def _checked(self, tokens: Sequence[int]) -> list[int]:
        """Tokens that the caller gives for a text."""
        self._check_open()
        found, most = self.model.vocabulary.check_ids(tokens), self.context_length
        if len(found) > most:
            raise ContextOverflow(
                f"The text has {len(found)} tokens and the context holds {most}. Shorten it, or "
                "open the model with a longer context (--ctx).",
                needed=len(found),
                available=most,
            )
        return found

    def _check_open(self) -> None:
        # llama.cpp would read freed memory, and crash.
        if self._closed:
            raise UsageError("The engine is closed. Load the model again.")


def _rows(slot: Slot, tokens: Sequence[int]) -> Rows:
    return slot.target.forward(PassRequest(tokens, TokenTree())).rows
