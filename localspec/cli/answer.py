"""Answer one request with an open engine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from localspec import Completion, Engine, GenerationStats, Stream, paths
from localspec.chat.figures import Figures, Meter, baseline, measure_baseline
from localspec.cli import request as requests
from localspec.cli.formats import Format
from localspec.cli.request import AnswerRequest, uses_model
from localspec.cli.work import Work
from localspec.errors import SessionError, UsageError
from localspec.prompting.detokenizer import OPENS

Prompt = str | list[dict[str, Any]]


class AnswerResult(NamedTuple):
    """An answer, complete or cancelled; `figures` compare it with plain decoding."""

    completion: Completion
    figures: Figures
    model: str
    draft: str | None
    built_in: bool


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

        stream = stream_of(request, engine, prompt, reading)
        meter = Meter(stream.stats, engine.plain_seconds, engine.context_length)
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
            whole = (
                prompt + text
                if isinstance(prompt, str)
                else [*prompt, {"role": "assistant", "content": text}]
            )
            try:
                engine.save_session(path, whole)
            except SessionError as error:
                stream.stats.notices.append(unsaved := str(error))
        meter.baseline = baseline(engine)
        if measure and stream.finish_reason != "cancelled":
            console.progress("measuring plain llama.cpp, once")
            meter.baseline = measure_baseline(engine, request.opening.options)
        completion = Completion(stream.text, stream.finish_reason, stream.stats)
        form.finished(completion)
        if unsaved and console.quiet:  # which hides notices, but not losses
            console.say(f"localspec: {unsaved}")
        return AnswerResult(
            completion,
            meter.figures(),
            engine.model.name,
            None if engine.draft is None else engine.draft.name,
            engine.model.path == paths.embedded(paths.EMBEDDED_TARGET),
        )


def stream_of(
    request: AnswerRequest,
    engine: Engine,
    prompt: Prompt,
    progress: Callable[[int, int], None] | None = None,
) -> Stream:
    return engine.stream(
        prompt,
        max_tokens=request.max_tokens,
        stop=request.stop,
        sampling=request.opening.sampling,
        grammar=request.grammar,
        json_schema=request.json_schema,
        regex=request.regex,
        thinks=engine.prompts.thinks(prompt, free=request.free),
        progress=progress,
    )


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
