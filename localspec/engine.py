"""The engine: a target, its drafters, and its answers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from localspec.answering import Answer, AnswerGenerator, vocabulary_of
from localspec.decoding.interfaces import PassRequest
from localspec.decoding.likelihood import first_wrong, likelihood
from localspec.decoding.logprobs import TokenLogprob
from localspec.decoding.sampling import Rows
from localspec.decoding.tree import TokenTree
from localspec.drafters.composition import require, sources
from localspec.drafters.options import Drafting
from localspec.errors import ContextOverflow, SessionError, UsageError
from localspec.keywords import AnswerKeywords, AnswerOptions, advised
from localspec.llama.threads import Threads
from localspec.paths import expanded
from localspec.policy.calibration import Calibration
from localspec.policy.cost_curve import CostCurve
from localspec.policy.profile import PairProfile
from localspec.policy.store import ProfileStore
from localspec.prompting.prompt import Prompt, PromptBuilder
from localspec.prompting.template import Message
from localspec.retrieval import learner
from localspec.retrieval.datastore import Datastore
from localspec.scheduling.slots import Slot, Slots
from localspec.scheduling.task import CLOSED, Task
from localspec.sessions.sessions import OpenedSession, Sessions
from localspec.stream import Completion, Stream, Unique
from localspec.typed import convert, typed

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in the standard library since 3.11

    from localspec.llama.model import Model
    from localspec.llama.projector import Projector

Result = TypeVar("Result")


class Engine(Unique, AbstractContextManager["Engine"], AnswerGenerator):
    """A loaded pair, from `localspec.load`. Close it, use it as a context manager, or drop it.

    Any thread may call it. It generates `parallel` answers at once; further ones wait. Its KV
    caches are kept between calls, so a prefix shared with an earlier prompt is not prefilled again.

    Attributes:
        model: the target.
        prompts: builds prompts from messages.
        draft: the draft model or trained head, or None.
        drafts: whether anything drafts.
        why_no_draft, why_draft: the reason, if there is none, or if `-d auto` chose it.
        notices: sentences for the user about the choice of files.
        slots: caches and sources for each concurrent answer.
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
        self.slots = slots
        first = slots.all[0]
        target = first.cache
        self.model: Model = target.model
        vocabulary = self.model.vocabulary
        self._datastore = Datastore(vocabulary.fingerprint, vocabulary.size)
        for slot in slots.all:
            slot.parts = replace(slot.parts, datastore=self._datastore)
        self._parts = first.parts
        cache = self._parts.native_cache
        self.draft: Model | None = None if cache is None else cache.model
        self.draft_path = draft_path
        self.why_no_draft = why_no_draft
        self.why_draft = why_draft
        self.notices = notices
        self.profile = PairProfile()
        self._store, self._threads = store, threads
        threads.serve(*slots.contexts)
        checked = not self._store.load(self.profile)
        self._calibration = Calibration(self.profile, threads, checked=checked)
        self._exact = exact
        self._is_batch_invariant = batch_invariant
        self._projector = projector
        self.prompts = PromptBuilder(self.model, self.context_length, projector)
        self._drafting, self.drafts = drafting, drafting.drafter != "none"
        self._sessions = Sessions(target, self._parts, store.identity, prompt_cache)
        self._owns_models, self._wait = owns_models, wait
        slots.attach_sessions(self._sessions, self.profile)
        self._closed = False

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop all generations, which end as cancelled, and free models and caches. Raises
        EngineBusy if an answer's callback calls it."""
        self.slots.close()
        if not self._closed:
            self._closed = True
            if not self.slots.orphaned:  # by a fork, or interpreter exit
                self._free()

    def __del__(self) -> None:
        if not vars(self).get("_closed", True) and self._owns_models:
            self._closed = True
            self.slots.leave(self._free)

    def _free(self) -> None:
        with ExitStack() as freed:  # even if an interrupt ends the storing of a conversation
            for context in self.slots.contexts if self._owns_models else ():
                freed.callback(context.model.close)
            freed.callback(self.slots.free)
            if self._projector is not None:
                freed.callback(self._projector.close)
            self._sessions.keep(ends=True)
            if self.profile.target:
                self._store.save(self.profile)

    @property
    def parallel(self) -> int:
        """Number of concurrent answers; further ones wait."""
        return len(self.slots.all)

    @property
    def context_length(self) -> int:
        """Tokens of prompt and answer that the KV cache holds; all concurrent answers share it."""
        return self.slots.all[0].cache.capacity

    @cached_property
    def batch_invariant(self) -> bool:
        """Whether a token's logits have the same bits whatever else is in its pass. Tested once per
        model and machine, which takes a moment."""
        return self._call(self._is_batch_invariant)

    @advised
    def stream(self, prompt: Prompt | Sequence[int], **asked: Unpack[AnswerKeywords]) -> Stream:
        """Start an answer; iterate the result for its chunks.

        Args:
            prompt: chat messages (the answer continues a last one of the assistant), raw text, or
                token ids. With `ModelOptions.mmproj`, a content may be a list of `{"type": "text",
                "text": …}` and `{"type": "image", "image": bytes}`.
            asked: see `localspec.keywords.AnswerOptions`.

        Raises:
            UsageError: an option out of range, an invalid grammar or schema.
            ContextOverflow: the prompt leaves no room for an answer.
        """
        self._check_open()
        prompt = convert("prompt", prompt, str | Sequence)
        options = AnswerOptions(**asked)
        drafting = options.drafting or self._drafting
        if self._exact:
            drafting.require_exact()
        answer = Answer(self.model, self.prompts, prompt, options, drafting)
        stats, session, detokenizer = answer.stats, answer.session, answer.detokenizer
        stats.notices += self._datastore.refresh()
        stats.vocabulary = vocabulary_of(self._parts)
        require(drafting, self._parts)
        work = partial(self._answer, answer)
        submit = partial(self.slots.submit, session.context, work, wait=self._wait)
        return Stream(submit, self.slots.cancel, session, detokenizer, stats, answer.when_full)

    def chat(self, messages: Sequence[Message], **asked: Unpack[AnswerKeywords]) -> Completion:
        """Answer chat messages; options and errors are those of `stream`."""
        listed = [*messages] if isinstance(messages, str) else messages  # text is refused
        return self.stream(listed, **asked).completion()

    def generate(self, text: str, **asked: Unpack[AnswerKeywords]) -> Completion:
        """Continue raw text, without a chat template; see `stream`."""
        return self.stream(text, **asked).completion()

    @typed
    def tokenize(self, text: str) -> list[int]:
        """Token ids of raw text; `<|…|>` markers become the control tokens they name."""
        self._check_open()
        return self.model.vocabulary.tokenize(text, special=True)

    @typed
    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token, possibly only part of a character."""
        return self.model.vocabulary.piece(*self._checked([token]))

    @typed
    def logits(self, tokens: Sequence[int]) -> Rows:
        """The target's logits after a text, float32 [vocabulary], a copy. A cached prefix is
        reused."""
        text = self._checked(tokens, least=1)
        request = PassRequest(text, TokenTree())
        return self._over(text, lambda slot: np.array(slot.cache.forward(request).rows[-1]))

    @typed
    def first_wrong(self, prompt: Sequence[int], answer: Sequence[int]) -> int | None:
        """See `localspec.decoding.likelihood.first_wrong`; both have to fit the context."""
        text, then = self._checked(prompt, least=1), self._checked(answer)
        self._checked([*text, *then])
        return self._over(text, lambda slot: first_wrong(slot.cache, slot.limits, text, then))

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
            lambda slot: likelihood(slot.cache, slot.limits, text, alternatives, stopped=stopped),
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
        model, vocabulary = self.model, self.model.vocabulary
        facts = learner.LearnedVocabulary(vocabulary.fingerprint(), vocabulary.size, model.name)
        tokens = {
            convert("name", name, str): [
                vocabulary.tokenize(convert("text", text, str))
                for text in ([known] if isinstance(known, str) else convert(name, known, Sequence))
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
        """Restore a session saved by `save_session`, instead of decoding it again.

        Unusable parts (other models, another version, a damaged file) are left out with a notice in
        the result, and the next answer prefills that text. A missing file is no error.

        Raises:
            SessionError: the file is not a session, or cannot be read.
        """
        self._require_one_at_a_time()
        return self._call(lambda: self._sessions.open(expanded(path)))

    def take_turns(self) -> None:
        """Compute each step only on demand, so that engines can be timed against each other."""
        self.slots.ahead = 0

    def clear(self) -> int:
        """Empty the caches; returns how many tokens the target's held."""
        return self._call(self.slots.clear)

    @typed
    def save_session(self, path: str | os.PathLike[str], conversation: Any = None) -> int:
        """Save the KV caches of this conversation, replacing an older session.

        Args:
            conversation: JSON values to store with it, for `open_session`.

        Returns:
            Number of tokens in the target's cache.

        Raises:
            SessionError: it cannot be written, or would replace another kind of file.
        """
        self._require_one_at_a_time()
        return self._call(lambda: self._sessions.save(expanded(path), conversation))

    def calibrate(self) -> float:
        """Measure missing or outdated pass costs; returns the seconds it took. Otherwise, answers
        measure only what they need, a little at a time."""
        return self._result((), lambda task: self._measure(task.slot, (), 0, [], whole=True))

    def forget(self) -> None:
        """Drop measurements and acceptance estimates, here and on disk."""

        def work() -> None:
            self.profile.forget()
            self._store.remove()
            self._calibration.checked = True  # no measurements of earlier sessions are left

        self._call(work)

    # Tasks.

    def _result(self, tokens: Sequence[int], work: Callable[[Task], Result]) -> Result:
        """Run a function as a task; returns its result, or raises its error."""
        owner = threading.get_ident()
        task = self.slots.submit(tokens, lambda task: task.put(work(task)), owner=owner)
        result: Result
        try:
            (result,) = task.items()
        except BaseException:  # an interrupt, perhaps, after which nobody waits for it
            self.slots.cancel(task)
            raise
        return result

    def _call(self, work: Callable[[], Result]) -> Result:
        return self._result((), lambda task: work())

    def _over(
        self, tokens: Sequence[int], work: Callable[[Slot], Result], *, reuse: bool = True
    ) -> Result:
        """As `_result`, for a function of a slot that holds the cached prefix of a text."""

        def over(task: Task) -> Result:
            task.slot.load_prefix(tokens, [], reuse=reuse)
            return work(task.slot)

        return self._result(tokens, over)

    def _require_one_at_a_time(self) -> None:
        if self.parallel > 1:
            raise SessionError(
                "Sessions work only with one answer at a time. Leave out --parallel (parallel=1)."
            )

    def _checked(self, tokens: Sequence[int], least: int = 0) -> list[int]:
        """Validate a caller's token ids; `least`: the fewest allowed."""
        self._check_open()
        found, most = self.model.vocabulary.check_ids(tokens), self.context_length
        if len(found) < least:
            raise UsageError("There are no tokens. Give one or more.")
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
            raise UsageError(CLOSED)
