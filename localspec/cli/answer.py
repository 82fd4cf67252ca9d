"""Answer one request with an open engine: prompt, output, and statistics."""

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from localspec import Chunk, Completion, Engine, GenerationStats, Stream, paths
from localspec.chat import words
from localspec.chat.figures import Figures, Meter, measure_baseline
from localspec.cli import request as requests
from localspec.cli.output import Console
from localspec.cli.request import AnswerRequest, uses_model
from localspec.cli.work import Work
from localspec.errors import Cancelled, SessionError, UsageError, describe
from localspec.keywords import AnswerKeywords
from localspec.prompting.detokenizer import OPENS
from localspec.prompting.reasoning import Piece, Plain, Reader, Thought, as_text
from localspec.text import counted, rate, times

Prompt = str | list[dict[str, Any]]
TEXT, JSON, JSON_LINES = "text", "json", "jsonl"
_NAME_WIDTH = 15


class Format:
    """Prints an answer as events: start, chunk …, end, or error at any time. `kind`: TEXT for
    streamed text, with a newline at the end if it has none, and reasoning on standard error,
    dimmed; JSON for one object at the end, even if interrupted, but not after an error; JSON_LINES
    for one object per line and event."""

    def __init__(self, console: Console, kind: str) -> None:
        self._console, self._kind = console, kind
        self._reader: Reader = Plain()
        self._text = self._reasoning = ""
        self._models: dict[str, Any] = {"model": None, "draft": None, "files": []}

    def ready(self, engine: Engine, stats: GenerationStats, reader: Reader) -> None:
        """Start: the models are open, and the prompt is tokenized."""
        self._reader = reader
        opened = [one for one in (engine.model, engine.draft) if one is not None]
        name, draft = (*(one.name for one in opened), None)[:2]
        self._models = {"model": name, "draft": draft, "files": [str(one.path) for one in opened]}
        names = ("prompt_tokens", "rule", "lossless", "seed")
        self._event("start", **self._models, **{name: getattr(stats, name) for name in names})

    def chunk(self, chunk: Chunk) -> None:
        self._console.erase_progress()
        self._part(self._reader.push(chunk.text), chunk)

    def finished(self, completion: Completion) -> None:
        if rest := self._reader.finish():
            self._part(rest, Chunk("", (), (), None))
        said = _named(self._text, self._reasoning)
        finish, stats = completion.finish_reason, completion.stats.as_dict()
        self._event("end", **said, finish_reason=finish, stats=stats)

    def failed(self, error: BaseException) -> None:
        """End with an error, or an interrupt before the first token."""
        if isinstance(error, Cancelled):
            self.finished(Completion("", "cancelled", GenerationStats()))
        else:
            message, code = describe(error)
            self._event("error", message=message, exit_code=code)

    def _part(self, pieces: Sequence[Piece], chunk: Chunk) -> None:
        text = "".join(map(as_text, pieces))
        reasoning = "".join(one.text for one in pieces if isinstance(one, Thought))
        self._text, self._reasoning = self._text + text, self._reasoning + reasoning
        said = _named(text, reasoning)
        self._event("chunk", **said, token_ids=chunk.token_ids, sources=chunk.sources)

    def _event(self, name: str, **values: Any) -> None:
        if self._kind == JSON_LINES:
            self._console.answer_json({"event": name, **values})
        elif self._kind == TEXT:
            self._print(name, values)
        elif name == "end":
            self._console.answer_json({**values, **self._models})

    def _print(self, name: str, values: Mapping[str, Any]) -> None:
        text = self._text
        aside = self._reasoning and not self._console.quiet
        if name == "chunk":
            if "reasoning" in values and aside:
                self._console.say(values["reasoning"], dim=True, end="")
            if values["text"] and text == values["text"] and aside:
                self._console.say("\n")
            if values["text"]:
                self._console.answer(values["text"])
        elif name != "start" and text and not text.endswith("\n"):
            self._console.answer("\n")
        elif name != "start" and aside and not text:
            self._console.say("")


def _named(text: str, reasoning: str) -> dict[str, str]:
    return {"text": text, "reasoning": reasoning} if reasoning else {"text": text}


class AnswerResult(NamedTuple):
    """An answer, complete or cancelled; `figures` compare it with plain decoding. `unsaved`:
    why its session could not be saved, or ""."""

    completion: Completion
    figures: Figures
    model: str
    draft: str | None
    built_in: bool
    unsaved: str = ""


def answer_request(
    request: AnswerRequest, work: Work, form: Format, *, measure: bool
) -> AnswerResult:
    """Open the models, generate an answer, and print it. `measure`: also measure the speed-up."""
    with work.load(request.opening) as engine:
        prompt, notices = prompt_of(request, engine)
        path = request.session
        if path is not None:
            opened = engine.open_session(path)
            prompt = _continue(opened.conversation, prompt, path)
            notices = [*notices, *opened.notices]
        console = work.console

        def reading(done: int, total: int) -> None:
            console.progress(f"reading the prompt: {done / total:.0%}")

        def measuring(_: float) -> None:
            if work.stopped:
                raise Cancelled("Stopped.")
            console.progress("measuring plain llama.cpp, once")

        stream = stream_of(request, engine, prompt, reading)
        meter = Meter(stream.stats, engine)
        thinks = engine.prompts.thinks(prompt, free=request.free)
        console.notices(all_notices(request, engine, stream.stats, notices))
        form.ready(engine, stream.stats, engine.prompts.reader(prompt, thinks=thinks))
        with stream, work.cancelling(stream):
            for chunk in stream:
                work.writing = True
                form.chunk(chunk)
                if chunk.step is not None:
                    meter.add(chunk.step)
        assert stream.finish_reason is not None
        cut = stream.finish_reason == "length" and not stream.truncated
        if cut and request.opening.max_tokens is None:
            stream.stats.notices.append(
                f"The answer is cut off at {requests.LONGEST:,} tokens. Give -n N for a longer one."
            )
        unsaved = ""
        if path is not None:
            text = f"{OPENS}\n{stream.text}" if thinks else stream.text
            said = {"role": "assistant", "content": text}
            whole = prompt + text if isinstance(prompt, str) else [*prompt, said]
            try:
                engine.save_session(path, whole)
            except SessionError as error:
                stream.stats.notices.append(unsaved := str(error))
        completion = Completion(stream.text, stream.finish_reason, stream.stats)
        form.finished(completion)
        work.writing = False
        if measure and stream.finish_reason != "cancelled":
            measure_baseline(engine, request.opening.options, measuring)
        if unsaved and console.quiet:  # which hides notices, but not losses
            console.say(f"localspec: {unsaved}")
        return AnswerResult(
            completion,
            meter.figures(),
            engine.model.name,
            None if engine.draft is None else engine.draft.name,
            engine.model.path == paths.embedded(paths.EMBEDDED_TARGET),
            unsaved,
        )


def stream_of(
    request: AnswerRequest,
    engine: Engine,
    prompt: Prompt,
    progress: Callable[[int, int], None] | None = None,
) -> Stream:
    keywords: AnswerKeywords = {
        **request.keywords,
        "thinks": engine.prompts.thinks(prompt, free=request.free),
        "progress": progress,
    }
    return engine.stream(prompt, **keywords)


def prompt_of(request: AnswerRequest, engine: Engine) -> tuple[Prompt, list[str]]:
    """The prompt to stream, and notices about it."""
    if request.raw:
        return request.prompt, []
    if engine.model.chat_template is None:
        name = engine.model.path.name
        if request.system is not None:
            raise UsageError(
                f"{name} has no chat template, so it cannot use --system. "
                "Leave it out, or begin the prompt with that text."
            )
        if request.images:
            raise UsageError(f"{name} has no chat template, so it cannot use --image.")
        return request.prompt, [f"{name} has no chat template; the prompt is passed as it is."]
    messages: list[dict[str, Any]] = [{"role": "user", "content": request.prompt}]
    if request.images:
        shown = [{"type": "image", "image": image} for image in request.images]
        messages[0]["content"] = [*shown, {"type": "text", "text": request.prompt}]
    if request.system is not None:
        messages.insert(0, {"role": "system", "content": request.system})
    return messages, []


def all_notices(
    request: AnswerRequest, engine: Engine, stats: GenerationStats, more: list[str]
) -> list[str]:
    """Notices about drafting, after `more`."""
    opening = request.opening
    drafter = opening.drafting.drafter
    notices = [*more]
    if engine.draft is not None and not uses_model(drafter):
        notices.append(f"The draft model is not used: drafter '{drafter}' does not need it.")
    why = engine.why_no_draft or engine.why_draft
    if opening.draft == "auto" and why is not None and opening.named:
        notices.append(f"-d auto: {why}.")
    if engine.draft is not None and uses_model(drafter) and stats.vocabulary is not None:
        notices.append(f"The draft model has a {stats.vocabulary}.")
    if not stats.lossless:
        notices.append(f"Rule '{stats.rule}' is lossy: it can change the output.")
    return notices


def _continue(stored: Any, prompt: Prompt, path: Path) -> Prompt:
    """Append a prompt to the conversation stored in a session file. Raises UsageError if only one
    of them is a chat."""
    from localspec.tui.session.session_conversation import conversation_of

    found = conversation_of(stored)
    tools = found and isinstance(stored, list) and any(each["role"] == "tool" for each in stored)
    earlier = stored if found is None or tools else found.for_model()  # a chat has no tools
    if not isinstance(earlier, str | list):
        return prompt
    if isinstance(earlier, str) and isinstance(prompt, str):
        return earlier + prompt
    if isinstance(earlier, str) or isinstance(prompt, str):
        kept, other = ("a text", "with") if isinstance(earlier, str) else ("a chat", "without")
        raise UsageError(
            f"The session in {path} is {kept}. Continue {other} --raw, or give another file."
        )
    if prompt[0]["role"] == "system":  # the latest system prompt applies
        earlier = [message for message in earlier if message["role"] != "system"]
        return [prompt[0], *earlier, *prompt[1:]]
    return [*earlier, *prompt]


def stats_line(found: AnswerResult) -> str:
    """The summary line (`localspec.chat.words.line`), with causes and next steps."""
    figures = found.figures
    begin = "interrupted · " if found.completion.finish_reason == "cancelled" else ""
    if not figures.tokens:
        return f"{begin}no answer to a prompt of {counted(figures.prompt_tokens, 'token')} yet"
    end = " · built-in story model, for tests and demos" if found.built_in else ""
    in_full = not found.built_in or words.too_small(figures) is None
    return f"{begin}{words.line(figures, draft=found.draft, in_full=in_full)}{end}"


def stats_table(found: AnswerResult) -> str:
    """All statistics, one per line."""
    stats, finish = found.completion.stats, found.completion.finish_reason
    spans = ("prompt", "draft", "verify", "overhead")
    seconds = (f"{name} {getattr(stats, f'{name}_seconds'):.3f}" for name in spans)
    cached = f" ({stats.cached_tokens} cached)"
    rows = [
        ("model", found.model),
        ("draft model", found.draft or "none"),
        *([("", stats.vocabulary)] if stats.vocabulary else []),
        ("prompt", counted(stats.prompt_tokens, "token") + cached),
        ("generated", f"{counted(stats.generated_tokens, 'token')}, finish: {finish}"),
        ("speed", f"{rate(stats.tokens_per_second)} tok/s after the first token"),
        *_compared(found.figures),
        ("target passes", f"{stats.target_passes}, {stats.tokens_per_pass:.2f} tokens per pass"),
        ("drafted", f"{counted(stats.drafted, 'token')} ({stats.tested:,} tested)"),
        ("accepted", _share(stats.accepted, stats.tested)),
    ]
    positions = zip_longest(stats.accepted_per_position, stats.tested_per_position, fillvalue=0)
    for number, (accepted, tested) in enumerate(positions, start=1):
        rows.append((f"  position {number}", _share(accepted, tested)))
    for name, drafter in stats.by_drafter.items():
        rows.append((f"  {name}", _share(drafter.accepted, drafter.tested)))
    rows.append(("seconds", ", ".join(seconds)))
    for reason, passes in sorted(stats.reasons.items(), key=lambda item: -item[1]):
        rows.append(("not drafted", f"{counted(passes, 'pass', 'passes')}: {reason}"))
    if stats.threads:
        rows.append(("threads", stats.threads))
    if stats.kernels:
        rows.append(("kernels", stats.kernels))
    rows.append(("rule", f"{stats.rule}, {'lossless' if stats.lossless else 'lossy'}"))
    rows.append(("seed", str(stats.seed)))
    return "\n".join(f"{name:<{_NAME_WIDTH}}{value}" for name, value in rows)


def _compared(figures: Figures) -> list[tuple[str, str]]:
    if figures.plain_seconds is None or figures.speed_up is None:
        return []
    plain = rate((figures.tokens - 1) / figures.plain_seconds)
    return [("speed-up", f"{times(figures.speed_up)} {figures.beside} ({plain} tok/s)")]


def _share(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,}" + (f" ({part / whole:.0%})" if whole else "")
