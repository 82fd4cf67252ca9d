"""The prompts of a suite as a model reads them: chat messages in its template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from localspec.bench.samples import BenchPrompt
from localspec.decoding.params import SamplingParams
from localspec.drafters.options import Drafting
from localspec.errors import ContextOverflow
from localspec.prompting.content import plain
from localspec.prompting.prompt import PromptBuilder

if TYPE_CHECKING:
    from localspec.engine import Engine
    from localspec.prompting.prompt import Prompt

_GREEDY, _PLAIN = SamplingParams(temperature=0.0), Drafting(drafter="none")


def prompt_for(engine: Engine, prompt: BenchPrompt) -> Prompt:
    """The prompt for `Engine.stream`: messages, or raw text without messages or a template."""
    if prompt.messages and engine.model.chat_template is not None:
        return prompt.messages
    if prompt.messages:
        return "\n\n".join(str(message["content"]) for message in prompt.messages)
    return prompt.text


def render_prompts(
    engine: Engine,
    prompts: Sequence[BenchPrompt],
    *,
    all_turns: bool = False,
    max_tokens: int | None = None,
) -> list[BenchPrompt]:
    """Prompts with the `text` that this model reads, also for peers.

    With `all_turns`, later turns follow as further prompts, after plain greedy answers of at most
    `max_tokens`. Raises UsageError: the model's template refuses the messages.
    """
    first = [replace(prompt, text=_text(engine, prompt)) for prompt in prompts]
    if not all_turns:
        return first
    return first + [later for prompt in first for later in _later(engine, prompt, max_tokens)]


def prompt_tokens(engine: Engine, text: str) -> list[int]:
    """Token ids of a prompt, as in `Engine.stream`."""
    return engine.model.vocabulary.tokenize(text, special=True, add_bos=True)


def _later(engine: Engine, prompt: BenchPrompt, max_tokens: int | None) -> list[BenchPrompt]:
    found: list[BenchPrompt] = []
    before = prompt
    for number, turn in enumerate(prompt.later_turns, 2):
        try:
            answer = _answer(engine, before, max_tokens)
        except ContextOverflow:  # the arms report it for the previous turn
            break
        messages = (
            *before.messages,
            {"role": "assistant", "content": answer},
            {"role": "user", "content": turn},
        )
        later = replace(prompt, id=f"{prompt.id}, turn {number}", messages=messages, later_turns=())
        before = replace(later, text=_text(engine, later))
        found.append(before)
    return found


def _answer(engine: Engine, prompt: BenchPrompt, max_tokens: int | None) -> str:
    stream = engine.stream(prompt.text, max_tokens=max_tokens, sampling=_GREEDY, drafting=_PLAIN)
    return stream.completion().text


def _text(engine: Engine, prompt: BenchPrompt) -> str:
    """The text as rendered by `Engine.stream`, without the BOS, which is added to raw text."""
    given = prompt_for(engine, prompt)
    if isinstance(given, str):
        return given
    vocabulary = engine.model.vocabulary
    text = str(plain(PromptBuilder(engine.model, engine.context_length).text(given)))
    bos = vocabulary.special_text(vocabulary.bos) if vocabulary.adds_bos else ""
    return text.removeprefix(bos)
