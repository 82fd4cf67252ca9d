"""`/v1/completions`: continues a text, without a template, or fills in its middle."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from localspec import Engine, GenerationStats
from localspec.prompting.marked_text import mark_text, unmarked
from localspec.prompting.prompt import Tokens, prompt_tokens
from localspec.prompting.reasoning import Text
from localspec.server.answer_figures import TextOffsets, text_logprobs, text_of_tokens
from localspec.server.answers import AnswerPart, Answers, StreamRequest
from localspec.server.failures import ApiError
from localspec.server.openai.chat import AnswerFields, OpenaiReply
from localspec.server.reply import Event, Reply
from localspec.server.service import Service
from localspec.server.wire import MOST_CHOICES, Record

_RESERVED = 128
"""Tokens reserved for the infilled text if the request sets no limit."""
_SNIPPET = "\n\n--- snippet ---\n\n"


class PromptObject(Record):
    prompt_string: str
    multimodal_data: list[str] | str | None = None


Mixed = list[int | str]
Prompts = str | PromptObject | Mixed | list[str | Mixed | PromptObject]


def tokens_of(mixed: str | Mixed, engine: Engine, *, special: bool, add_bos: bool) -> list[int]:
    """Tokenize a list of texts and token ids; as in llama.cpp, BOS is added only before a text.
    Unless `special`, texts spell no special tokens."""
    vocabulary, tokens = engine.model.vocabulary, list[int]()
    for number, part in enumerate([mixed] if isinstance(mixed, str) else mixed):
        if isinstance(part, str):
            first = add_bos and not number
            if special:
                tokens += vocabulary.tokenize(part, special=True, add_bos=first)
            else:
                tokens += prompt_tokens(vocabulary, mark_text(part), add_bos=first)
        else:
            tokens += vocabulary.check_ids([part])
    return tokens


class RawFields(AnswerFields):
    """Fields of requests that continue a text; it may spell special tokens, as in llama.cpp."""

    parse_special: bool = True

    def prompts(self, given: Any, engine: Engine) -> list[str | Tokens]:
        several = isinstance(given, list) and not any(isinstance(part, int) for part in given)
        return [self._prompt(one, engine) for one in (given if several else [given])]

    def requests(
        self, service: Service, engine: Engine, prompts: Sequence[str | Tokens], *, silent: bool
    ) -> list[StreamRequest]:
        """The requests for all answers, grouped by prompt."""
        each = range(self.n or 1)
        if not prompts:
            raise ApiError(400, "The prompt is empty. Give some text to continue.", param="prompt")
        if len(prompts) * len(each) > MOST_CHOICES:
            raise ApiError(400, f"Ask for {MOST_CHOICES} answers at most.", param="prompt")
        found = [self.ask(service, engine, prompt, silent=silent) for prompt in prompts]
        return [ask.nth(number) for ask in found for number in each]

    def _prompt(self, prompt: str | PromptObject | Mixed, engine: Engine) -> str | Tokens:
        if isinstance(prompt, PromptObject):
            if prompt.multimodal_data:
                raise ApiError(400, "The model reads text only. Leave multimodal_data out.")
            prompt = prompt.prompt_string
        if isinstance(prompt, str):
            return prompt if self.parse_special else mark_text(prompt)
        return Tokens(tokens_of(prompt, engine, special=self.parse_special, add_bos=True))


def infill_prompt(
    engine: Engine,
    prefix: str,
    suffix: str,
    *,
    limit: int | None,
    begun: str = "",
    files: Sequence[tuple[str, str]] = (),
) -> Tokens:
    """Build an infill prompt, after other files (name and text of each). Long texts keep the part
    next to the gap: three quarters of the room for the prefix, one for the suffix. `limit`: most
    tokens of the infilled text; None and negative values set none. `begun`: its beginning. Raises
    ApiError if the model has no infill tokens."""
    vocabulary = engine.model.vocabulary
    marks = vocabulary.infill_tokens()
    if not {"pre", "suf", "mid"} <= marks.keys():
        why = "This model has no tokens for filling in the middle. Use a code model that has them."
        raise ApiError(501, why)

    def tokens(text: str) -> list[int]:
        return vocabulary.tokenize(text)

    answer = max(0, limit or 0) or _RESERVED
    room = max(16, engine.context_length - min(answer, engine.context_length // 2) - 8)
    before, after, start = tokens(prefix), tokens(suffix), tokens(begun)[-room // 4 :]
    after = after[: max(0, room // 4 - len(start))]
    before = before[max(0, len(before) - (room * 3 // 4)) :] + start
    context: list[int] = []
    for name, text in files:
        context += [marks["sep"], *tokens(f"{name}\n")] if "sep" in marks else tokens(_SNIPPET)
        context += tokens(text)
    if context and "rep" in marks:
        context = [marks["rep"], *tokens("myproject\n"), *context]
    if context and "sep" in marks:
        context += [marks["sep"], *tokens("filename\n")]
    left = room - len(before) - len(after)
    context = context[max(0, len(context) - left) :] if left > 0 else []
    bos = [vocabulary.bos] if vocabulary.adds_bos and vocabulary.bos >= 0 else []
    return Tokens([*bos, *context, marks["pre"], *before, marks["suf"], *after, marks["mid"]])


# Clients of chat completions send a boolean.
_as_count = BeforeValidator(lambda n: (int(n) or None) if isinstance(n, bool) else n)
Alternatives = Annotated[int | None, Field(ge=0, le=1000), _as_count]


class CompletionRequest(RawFields):
    prompt: Prompts
    logprobs: Alternatives = None
    echo: bool | None = None
    suffix: str | None = None


async def completions(service: Service, wanted: CompletionRequest) -> Reply:
    engine = await service.open(wanted.model)
    limit = wanted.limit[1]

    def prepared() -> tuple[list[str | Tokens], list[StreamRequest]]:
        prompts = whole = wanted.prompts(wanted.prompt, engine)
        if wanted.suffix:
            texts = [_text_of(prompt, engine) for prompt in prompts]
            whole = [infill_prompt(engine, text, wanted.suffix, limit=limit) for text in texts]
        silent = bool(wanted.echo) and limit == 0
        return prompts, wanted.requests(service, engine, whole, silent=silent)

    prompts, requests = await asyncio.to_thread(prepared)
    asked = [ask.with_options(logprobs=wanted.logprobs) for ask in requests]
    echoes = [_Echo()] * len(asked)
    if wanted.echo:
        echoed = [await _echo(service, engine, one, wanted.logprobs) for one in prompts]
        echoes = [one for one in echoed for _ in range(wanted.n or 1)]
    return CompletionReply(await service.begin(engine, *asked), wanted, echoes)


@dataclass(frozen=True, slots=True)
class _Echo:
    text: str = ""
    logprobs: dict[str, list[Any]] | None = None


def _text_of(prompt: str | Tokens, engine: Engine) -> str:
    if isinstance(prompt, str):
        return str(unmarked(prompt))
    return text_of_tokens(prompt, engine, special=False)


async def _echo(
    service: Service, engine: Engine, prompt: str | Tokens, alternatives: int | None
) -> _Echo:
    """Return the prompt's text, and its log-probabilities unless `alternatives` is None. Raises
    ApiError if the queue is full, and LocalspecError if there is no room for an answer."""
    text = await asyncio.to_thread(_text_of, prompt, engine)
    if alternatives is None:
        return _Echo(text)
    stats = GenerationStats()
    tokens = await asyncio.to_thread(engine.prompts.tokens, prompt, None, "error", stats)

    def work(disconnected: Callable[[], bool]) -> dict[str, list[Any]]:
        logprobs = engine.likelihood(tokens, alternatives, stopped=disconnected)
        # A token that the model needs before a text is not part of the prompt.
        vocabulary = engine.model.vocabulary
        added = isinstance(prompt, str) and vocabulary.adds_bos
        first = [] if added else tokens[:1]
        found = text_logprobs(logprobs, engine)
        if first:  # nothing precedes it
            found["tokens"].insert(0, text_of_tokens(first, engine, special=False))
            found["token_logprobs"].insert(0, None)
            found["top_logprobs"].insert(0, None)
        echoed = [*first, *(one.token for one in logprobs)]
        spaced = vocabulary.adds_space and b"".join(map(vocabulary.piece, echoed[:1]))[:1] == b" "
        found["text_offset"] = TextOffsets(engine, -spaced).of(echoed)
        return found

    return _Echo(text, await service.run_in_slot(work))


class CompletionReply(OpenaiReply):
    def __init__(
        self, answers: Answers, wanted: CompletionRequest, echoes: Sequence[_Echo]
    ) -> None:
        super().__init__(answers, wanted, "text_completion", "cmpl")
        self._wanted = wanted
        self._echoes = echoes
        self._offsets = [TextOffsets(self.engine, len(echo.text)) for echo in echoes]
        self._choices = [
            self._choice(AnswerPart(answer)) | self._prompt_ids(answer) for answer in self.answers
        ]

    def begin(self) -> Iterable[Event]:
        for echo, choice in zip(self._echoes, self._choices, strict=True):
            choice["text"] = echo.text
            lists = (echo.logprobs or choice["logprobs"] or {}).items()
            choice["logprobs"] = {name: [*found] for name, found in lists} or None
            if echo.text or echo.logprobs or self._ids_wanted:
                yield self._event(choice)

    def events_of(self, part: AnswerPart) -> Iterable[Event]:
        choice, whole = self._choice(part), self._choices[part.answer.number]
        if part.progress is not None:
            yield self._event(choice, prompt_progress=part.progress)
        elif part.complete:
            whole |= {"finish_reason": choice["finish_reason"], **self._token_ids(part.answer)}
            yield self._event(choice, timings=part.answer.timings)
        elif part.piece is not None or part.logprobs or choice.get("token_ids"):
            whole["text"] += choice["text"]
            for name, more in (choice["logprobs"] or {}).items():
                whole["logprobs"][name] += more
            yield self._event(choice)

    def whole(self) -> Any:
        return self._with_figures(self._choices)

    def _choice(self, part: AnswerPart) -> dict[str, Any]:
        answer, logprobs, finish = part.answer, part.logprobs, None
        if part.complete:
            reason = answer.stream.finish_reason
            finish = "length" if answer.ask.silent else "stop" if reason == "cancelled" else reason
        if self._echoes[answer.number].logprobs is None:
            # After an echoed prompt the end token stays: lm-evaluation-harness drops the last one.
            ends = self.engine.model.vocabulary.ends
            logprobs = [one for one in logprobs if not ends(one.token)]
        wants = self._wanted.logprobs is not None
        offsets = self._offsets[answer.number]
        return {
            "index": answer.number,
            "text": part.piece.text if isinstance(part.piece, Text) else "",
            "logprobs": text_logprobs(logprobs, self.engine, offsets) if wants else None,
            "finish_reason": finish,
            **self._token_ids(part.chunk),
        }
