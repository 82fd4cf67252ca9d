"""The engine: a target, its drafters, and one generation at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from localspec.decoding.interfaces import Limits, PassRequest
from localspec.decoding.likelihood import first_wrong, likelihood
from localspec.decoding.logprobs import TokenLogprob
from localspec.decoding.sampling import Rows
from localspec.decoding.tree import TokenTree
from localspec.drafters.composition import sources
from localspec.drafters.heterogeneous import HeterogeneousDraftModel, draft_model
from localspec.drafters.options import Drafting
from localspec.drafters.parallel import ParallelReader
from localspec.drafters.registry import Parts
from localspec.errors import EngineBusy, UsageError
from localspec.generating import Generating
from localspec.policy.calibration import Calibration
from localspec.policy.cost_curve import CostCurve
from localspec.policy.profile import PairProfile
from localspec.policy.store import ProfileStore
from localspec.policy.threads import DRAFT, TARGET, Threads
from localspec.prompting.prompt import PromptBuilder
from localspec.retrieval import learning
from localspec.retrieval.datastore import Datastore
from localspec.scheduling.scheduler import Scheduler
from localspec.scheduling.seats import Seat
from localspec.scheduling.task import Task
from localspec.sessions.cache_states import CacheStates, identity
from localspec.sessions.sessions import OpenedSession, Sessions

if TYPE_CHECKING:
    from localspec.drafters.trained_head import TrainedHead
    from localspec.drafters.vocabulary_map import VocabularyMap
    from localspec.llama.context import Context
    from localspec.llama.model import Model
    from localspec.llama.projector import Projector
    from localspec.llama.target import LlamaTarget


Result = TypeVar("Result")


class Engine(Generating):
    """A loaded pair. Made by `localspec.load`; close it, or use it as a context manager.

    Any thread may call it; one generation runs at a time. Its KV caches stay filled between calls,
    so a prompt that begins like the last one decodes only what is new.

    Attributes:
        model: the target.
        draft: the draft model, or the trained head; None without one.
        why_no_draft: the reason, where there is none.
        why_draft: why this one, where it was chosen by `-d auto`.
        notices: sentences for the user about the choice of the files.
    """

    def __init__(
        self,
        target: Context,
        draft: Context | None,
        *,
        draft_path: Path | None,
        vocabulary_map: VocabularyMap | None,
        cross_vocabulary: str,
        store: ProfileStore,
        threads: Threads,
        side_by_side: bool,
        drafting: Drafting,
        wait: bool,
        why_no_draft: str | None,
        why_draft: str | None = None,
        notices: tuple[str, ...] = (),
        owns_models: bool = True,
        prompt_cache: int = 0,
        head: TrainedHead | None = None,
        exact: bool = False,
        batch_invariant: Callable[[], bool] = lambda: False,
        projector: Projector | None = None,
    ) -> None:
        self.model: Model = target.model
        # Of a head's cache nothing is asked that a Context has not.
        drafting_cache = draft if head is None else cast("Context", head.cache)
        self.draft: Model | None = drafting_cache.model if drafting_cache is not None else None
        self.draft_path = draft_path
        self.why_no_draft = why_no_draft
        self.why_draft = why_draft
        self.notices = notices
        self._contexts = [one for one in (target, drafting_cache) if one is not None]
        size = self.model.vocabulary.size
        model = None
        if draft is not None:
            model = draft_model(draft, vocabulary_map, way=cross_vocabulary, size=size)
        if draft is not None and model is not None and side_by_side:
            draft.compute_apart()
            model.reader = ParallelReader(model)
        vocabulary = self.model.vocabulary
        self._datastore = Datastore(vocabulary.fingerprint, vocabulary.size)
        self._parts = Parts(model, datastore=self._datastore, head=head)
        self._seat = Seat(target, self._parts)
        self.profile = PairProfile()
        self._store = store
        self._threads = threads
        threads.serve(dict(zip((TARGET, DRAFT), self._contexts, strict=False)), self.profile)
        checked = not self._store.load(self.profile)
        self._calibration = Calibration(self.profile, threads, checked=checked)
        self._exact = exact
        self._is_batch_invariant = batch_invariant
        self._projector = projector
        self._prompts = PromptBuilder(self.model, self.context_length, projector)
        self._drafting = drafting
        between = model.mapped if isinstance(model, HeterogeneousDraftModel) else None
        self._sessions = Sessions(
            CacheStates(target, draft, between, self.profile, identity(store.identity)),
            prompt_cache,
            recurrent=target.recurrent,
        )
        self._owns_models = owns_models
        self._wait = wait
        self._scheduler = Scheduler(1, take=self._begun, interrupt=self._interrupt)
        self._closed = False

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop all generations and free models and caches. Raises EngineBusy in a callback of an
        answer."""
        if self._closed:
            return
        self._closed = True  # first, so that no task begins behind the last one
        try:
            self._scheduler.close()
        except EngineBusy:
            self._closed = False
            raise
        self._sessions.close()
        self._free()

    def _free(self) -> None:
        if self.profile.target:
            self._store.save(self.profile)
        if self._parts.model is not None and self._parts.model.reader is not None:
            self._parts.model.reader.close()
        if self._projector is not None:
            self._projector.close()
        models = [context.model for context in self._contexts if self._owns_models]
        for context in reversed(self._contexts):  # a head's rests on the target's
            context.close()
        for model in models:
            model.close()

    @property
    def prompts(self) -> PromptBuilder:
        """How prompts are made of messages."""
        return self._prompts

    @property
    def context_length(self) -> int:
        return self._target.capacity

    @cached_property
    def batch_invariant(self) -> bool:
        """Whether a token's logits have the same bits whatever shares its passes. Tried once for
        each model and machine, which takes a moment."""
        return self._call(self._is_batch_invariant)

    def tokenize(self, text: str) -> list[int]:
        """Token ids of raw text; `<|…|>` markers become the control tokens they name."""
        self._check_open()
        return self.model.vocabulary.tokenize(text, special=True, add_bos=False)

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token; may be part of a character only."""
        self._check_open()
        return self.model.vocabulary.piece(token)

    def logits(self, tokens: Sequence[int]) -> Rows:
        """The target's logits after a text, float32 [vocabulary], a copy. What the cache holds of
        the tokens is not read again."""
        return self._over(tokens, lambda seat: np.array(_rows(seat, tokens)[-1]))

    def first_wrong(self, prompt: Sequence[int], answer: Sequence[int]) -> int | None:
        """See `localspec.decoding.likelihood.first_wrong`; prompt and answer have to fit the
        context."""
        return self._over(
            prompt, lambda seat: first_wrong(seat.target, seat.limits, prompt, answer)
        )

    def likelihood(
        self,
        tokens: Sequence[int],
        alternatives: int = 0,
        *,
        stopped: Callable[[], bool] = lambda: False,
    ) -> list[TokenLogprob]:
        """See `localspec.decoding.likelihood.likelihood`; the tokens have to fit the context."""
        return self._over(
            tokens,
            lambda seat: likelihood(
                seat.target, seat.limits, tokens, alternatives, stopped=stopped
            ),
            reuse=False,
        )

    @property
    def threads(self) -> str:
        """How many threads passes run on at present, of how many, and why."""
        return self._threads.why

    @property
    def learned(self) -> int:
        """Tokens that were learned (`localspec learn`) for the target's vocabulary."""
        self._datastore.refresh()
        return self._datastore.now.tokens

    def learn(
        self, texts: Mapping[str, Sequence[str]], *, patience: float = learning.PATIENCE
    ) -> None:
        """Learn texts for the target's vocabulary, as `localspec learn` does.

        Args:
            texts: by the name under which they are listed and forgotten; earlier ones of that name
                are replaced.
            patience: seconds to wait for another process that learns.

        Raises:
            DatastoreError, UsageError: as `localspec.retrieval.learning.learn`.
        """
        vocabulary = self.model.vocabulary
        facts = learning.LearnedVocabulary(
            vocabulary.fingerprint(), vocabulary.size, self.model.name
        )
        tokens = {
            name: [vocabulary.tokenize(text, special=False, add_bos=False) for text in known]
            for name, known in texts.items()
        }
        learning.learn(facts, tokens, patience=patience)

    @property
    def head_source(self) -> str:
        """Name of the trained head that `draft` is, else ""."""
        return self._parts.head_source

    @property
    def draft_costs(self) -> CostCurve | None:
        """Cost curve of the draft model; None without one."""
        _, models = sources(self._parts)
        return self.profile.source(models[0]).costs if models else None

    def plain_seconds(self, context_length: int) -> float | None:
        """T(1) at so many tokens of context, at the present pace; None until it was measured."""
        curve = self.profile.target
        return curve.seconds(1, context_length) * curve.pace if curve else None

    def open_session(self, path: str | os.PathLike[str]) -> OpenedSession:
        """Take up what `save_session` kept, instead of decoding it again.

        What does not fit (other models, another version, a damaged file) is left out with a notice
        in the result; the next answer reads that text anew. A missing file is no error.

        Raises:
            SessionError: the file is something else, or cannot be read.
        """
        return self._call(lambda: self._sessions.open(Path(path)))

    def take_turns(self) -> None:
        """Compute a step only when it is read, none ahead: for engines whose times are compared."""
        self._scheduler.ahead = 0

    def clear(self) -> int:
        """Empty the caches; returns how many tokens the target's held."""

        def work() -> int:
            held = self._target.held
            self._sessions.leave()
            self._empty()
            return held

        return self._call(work)

    def save_session(self, path: str | os.PathLike[str], conversation: Any = None) -> int:
        """Keep the KV caches and what was learned of this conversation, replacing an older session.

        Args:
            conversation: JSON values to be kept with it, which `open_session` gives back.

        Returns:
            How many tokens the model has read of it.

        Raises:
            SessionError: it cannot be written, or would replace something else.
        """

        def work() -> int:
            self._sessions.save(Path(path), conversation)
            return self._target.held

        return self._call(work)

    def calibrate(self) -> float:
        """Measure what passes cost where that is not known or no longer true; returns the seconds
        it took. Answers measure by themselves only what they need, a little at a time."""

        def work(task: Task) -> float:
            return self._measure(self._seat_of(task), (), 0, whole=True)

        return self._result((), work)

    def forget(self) -> None:
        """Drop what was measured and learned, here and on disk."""

        def work() -> None:
            self.profile.forget()
            self._store.remove()
            self._calibration.checked = True  # nothing is left of another session

        self._call(work)

    # Tasks.

    @property
    def _target(self) -> LlamaTarget:
        return self._seat.target

    @property
    def _limits(self) -> Limits:
        return self._seat.limits

    def _result(self, tokens: Sequence[int], work: Callable[[Task], Result]) -> Result:
        """What a function returns or raises in a task of its own."""
        self._check_open()
        owner = threading.get_ident()
        task = self._scheduler.submit(tokens, lambda task: task.put(work(task)), owner=owner)
        result: Result
        (result,) = task.items()
        return result

    def _call(self, work: Callable[[], Result]) -> Result:
        return self._result((), lambda task: work())

    def _over(
        self, tokens: Sequence[int], work: Callable[[Seat], Result], *, reuse: bool = True
    ) -> Result:
        """`_result` of a function over a seat that has taken up a text."""

        def over(task: Task) -> Result:
            seat = self._seat_of(task)
            self._take_up(seat, tokens, reuse=reuse)
            return work(seat)

        return self._result(tokens, over)

    def _begun(self, task: Task) -> None:
        for context in self._contexts:
            context.resume()

    def _interrupt(self, task: Task) -> None:
        for context in self._contexts:
            context.cancel()

    def _check_open(self) -> None:
        # llama.cpp would read freed memory, and take the process with it.
        if self._closed:
            raise UsageError("The engine is closed. Load the model again.")


def _rows(seat: Seat, tokens: Sequence[int]) -> Rows:
    return seat.target.forward(PassRequest(tokens, TokenTree())).rows
