"""`llm -m localspec/REF`: a plugin for the `llm` command, which answers in its own process. To
keep a model loaded between commands, use `localspec serve`, see docs/serve.md."""

import atexit
import json
import logging
from collections.abc import Iterator
from functools import cache
from typing import Any

import llm
from llm.parts import TextPart
from pydantic import Field

import localspec
from localspec.prompting.reasoning import as_text

logger = logging.getLogger("localspec.llm")

PREFIX = "localspec/"


@llm.hookimpl
def register_models(register: Any) -> None:
    """Register every local model that can generate text, under its reference for `-m`."""
    from localspec.hub.local import local_models

    try:
        references = [model.reference for model in local_models() if model.problem is None]
    except (localspec.LocalspecError, OSError) as error:  # llm still has other models
        logger.warning("no local models are listed: %s", error)
        references = ["demo"]
    for reference in dict.fromkeys(references):
        register(LlmModel(reference))


class LlmModel(llm.Model):
    """A model on this machine."""

    can_stream = True
    supports_schema = True

    class Options(llm.Options):
        max_tokens: int | None = Field(None, ge=1, description="Maximum tokens to generate.")
        temperature: float | None = Field(None, ge=0, description="0 is greedy.")
        top_p: float | None = Field(None, gt=0, le=1, description="Nucleus.")
        top_k: int | None = Field(None, ge=0, description="0 is off.")
        seed: int | None = Field(None, ge=0, description="The same seed repeats an answer.")
        draft: str = Field("auto", description="The draft model: a reference, auto or none.")

    def __init__(self, reference: str) -> None:
        self.model_id = PREFIX + reference
        self._reference = reference

    def execute(
        self, prompt: Any, stream: bool, response: Any, conversation: Any = None
    ) -> Iterator[str]:
        options = prompt.options
        sampling = options.model_dump(exclude={"max_tokens", "draft"}, exclude_none=True)
        engine = _engine(self._reference, options.draft)
        asked = _messages(prompt) if engine.model.chat_template else prompt.prompt
        thinks = engine.prompts.thinks(asked, free=not prompt.schema)
        reader = engine.prompts.reader(asked, thinks=thinks)
        answer = engine.stream(
            asked,
            max_tokens=options.max_tokens,
            sampling=localspec.SamplingParams(**sampling),
            json_schema=json.dumps(prompt.schema) if prompt.schema else None,
            overflow="drop_oldest",
            thinks=thinks,
        )
        with answer:
            for chunk in answer:
                yield from filter(None, map(as_text, reader.push(chunk.text)))
        yield from filter(None, map(as_text, reader.finish()))
        response.set_usage(
            input=answer.stats.prompt_tokens,
            output=answer.stats.generated_tokens,
            details={"drafted": answer.stats.drafted, "accepted": answer.stats.accepted},
        )


@cache
def _engine(reference: str, draft: str) -> localspec.Engine:
    engine = localspec.load(reference, draft=draft)
    atexit.register(engine.close)
    return engine


def _messages(prompt: Any) -> list[dict[str, str]]:
    """The whole conversation, which llm passes with each prompt."""
    found = [
        {"role": message.role, "content": "".join(part.text for part in parts)}
        for message in prompt.messages
        if (parts := [part for part in message.parts if isinstance(part, TextPart)])
    ] or [{"role": "user", "content": ""}]
    if prompt.system:  # a new one is not in the conversation
        found = [message for message in found if message["role"] != "system"]
        found.insert(0, {"role": "system", "content": prompt.system})
    return found
