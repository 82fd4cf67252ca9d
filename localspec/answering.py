"""What may be asked of an engine, and the answer that is made of it."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from localspec.decoding.acceptance import AcceptanceRule
from localspec.decoding.interfaces import Drafter, Step
from localspec.decoding.random_source import SeededRandom
from localspec.decoding.rules import acceptance_rule
from localspec.decoding.sampling import Constraint, Sampler, SamplingParams
from localspec.decoding.session import ContextShift, Session
from localspec.decoding.stats import GenerationStats
from localspec.drafters.composition import require
from localspec.drafters.heterogeneous import HeterogeneousDraftModel
from localspec.drafters.options import Drafting
from localspec.drafters.registry import Parts
from localspec.errors import UsageError
from localspec.llama.pictures import Picture
from localspec.prompting.detokenizer import Detokenizer
from localspec.prompting.prompt import Prompt, PromptBuilder, Tokens
from localspec.prompting.template import Message
from localspec.scheduling.scheduler import Scheduler
from localspec.scheduling.task import Task
from localspec.stream import Completion, Piece, Stream

if TYPE_CHECKING:
    from typing_extensions import Unpack  # of Python itself from 3.11 on

    from localspec.keywords import AnswerKeywords
    from localspec.llama.model import Model
    from localspec.llama.target import LlamaTarget
    from localspec.llama.vocabulary import Vocabulary
    from localspec.retrieval.datastore import Datastore


@dataclass(slots=True, kw_only=True)
class Answer:
    """An answer that was asked for."""

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

    def piece(self, step: Step) -> Piece:
        """What its reader gets of its latest step."""
        session = self.session
        length = len(session.context) + session.dropped
        return Piece(step, self.detokenizer.take(), length, session.finish)


def reread(answer: Answer, target: LlamaTarget, parts: Parts, drafter: Drafter) -> None:
    """After a shift of the context: bring target and drafts to the text that is left."""
    tokens, stats = answer.session.context, answer.stats
    target.progress = None  # the prompt's is over
    target.reuse(tokens)
    parts.index.expect(tokens, answer.prediction)
    drafter.begin(tokens)
    if SHIFTED not in stats.notices:
        stats.notices.append(SHIFTED)


def vocabulary_of(parts: Parts) -> str | None:
    """How drafts are made where the draft model has another vocabulary; None where it has the
    same."""
    model = parts.model
    return model.summary if isinstance(model, HeterogeneousDraftModel) else None


SHIFTED = (
    "The context was full, and the answer went on without the oldest of the text. Open the model "
    "with a longer one (--ctx) to keep it."
)


class Answering(ABC):
    """Makes a stream of a prompt and what is asked with it, over one target.

    Attributes:
        model: the target.
        context_length: tokens that prompt and answer may have together.
    """

    model: Model
    _parts: Parts
    _prompts: PromptBuilder
    _drafting: Drafting
    _datastore: Datastore
    _scheduler: Scheduler
    _exact = False  # see `ModelOptions.exact`

    @property
    @abstractmethod
    def context_length(self) -> int: ...

    @abstractmethod
    def _check_open(self) -> None:
        """Raise UsageError if it is closed."""

    @abstractmethod
    def _submit(self, answer: Answer, owner: int | None, told: Callable[[], object]) -> Task:
        """Begin an answer; see `Stream`."""

    @property
    def vocabulary(self) -> str | None:
        return vocabulary_of(self._parts)

    def stream(
        self,
        prompt: Prompt | Tokens,
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        sampling: SamplingParams | None = None,
        grammar: str | None = None,
        json_schema: str | None = None,
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
            prompt: chat messages, raw text, or `Tokens`. With `ModelOptions.mmproj`, the content of
                a message may be a list of `{"type": "text", "text": …}` and `{"type": "image",
                "image": bytes}`.
            max_tokens: longest answer; None goes on to the end of the context.
            stop: one or more strings that end the answer.
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
        stops = _checked_stops(stop)
        if max_tokens is not None and max_tokens < 1:
            raise UsageError(f"max-tokens is {max_tokens}. Give 1 or more.")
        sampling = sampling or SamplingParams()
        drafting = drafting or self._drafting
        if self._exact:
            drafting = drafting.exactly()
        stats = GenerationStats(kernels=self.model.kernels.words)
        found = self._prompts.tokens(prompt, max_tokens, overflow, stats)
        tokens = list(found)
        if found.pictures:
            shift = None  # what is left would have its pictures elsewhere
        seed = secrets.randbits(32) if sampling.seed is None else sampling.seed
        assembler = Detokenizer(
            self.model.vocabulary.piece,
            stops,
            ending=self.model.vocabulary.controls_in(stops),
            thinks=thinks,
        )
        session = Session(
            tokens,
            Sampler(sampling, self.model.vocabulary.size),
            SeededRandom(seed),
            limit=len(tokens) + (max_tokens or self.context_length),
            ends=self.model.vocabulary.ends,
            completes=assembler.push,
            constraint=_constraint_of(
                self.model.vocabulary, grammar, json_schema, regex, thinks=bool(thinks)
            ),
            logprobs=logprobs,
            as_sampled=as_sampled,
            shift=self._shift_of(shift, tokens),
            capacity=self.context_length,
        )
        predicted = self.model.vocabulary.tokenize(prediction, special=False, add_bos=False)
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


def _constraint_of(
    vocabulary: Vocabulary,
    grammar: str | None,
    json_schema: str | None,
    regex: str | None,
    *,
    thinks: bool,
) -> Constraint | None:
    """What an answer has to match, None for anything. Raises UsageError if several are given, or
    the one given is invalid."""
    given = [one for one in (grammar, json_schema, regex) if one is not None]
    if not given:
        return None
    if len(given) > 1:
        raise UsageError(
            "A grammar, a JSON schema and a regular expression exclude each other. Give one of "
            "them."
        )
    from localspec.llama.grammar import Grammar  # llguidance is loaded where it is used

    if json_schema is not None:
        return Grammar.from_json_schema(vocabulary, json_schema, thinks=thinks)
    if regex is not None:
        return Grammar.from_regex(vocabulary, regex, thinks=thinks)
    return Grammar(vocabulary, given[0], thinks=thinks)


def _checked_stops(stop: str | Sequence[str]) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    if any(not isinstance(text, str) or not text for text in stops):
        raise UsageError("A stop string is empty. Leave it out, or give some text.")
    return stops
