"""The prompts of a suite as a model reads them: chat messages in its template."""

from collections.abc import Sequence
from dataclasses import replace

from localspec.bench.samples import BenchPrompt
from localspec.engine import Engine
from localspec.prompting.marked_text import unmarked
from localspec.prompting.prompt import Prompt, PromptBuilder


def prompt_for(engine: Engine, prompt: BenchPrompt) -> Prompt:
    """The prompt for `Engine.stream`: messages, or raw text without messages or a template."""
    if prompt.messages and engine.model.chat_template is not None:
        return prompt.messages
    if prompt.messages:
        return "\n\n".join(str(message["content"]) for message in prompt.messages)
    return prompt.text


def render_prompts(engine: Engine, prompts: Sequence[BenchPrompt]) -> list[BenchPrompt]:
    """Prompts with the `text` that this model reads, also for peers. Raises UsageError: the model's
    template refuses the messages."""
    return [replace(prompt, text=_text(engine, prompt)) for prompt in prompts]


def prompt_tokens(engine: Engine, text: str) -> list[int]:
    """Token ids of a prompt, as in `Engine.stream`."""
    return engine.model.vocabulary.tokenize(text, special=True, add_bos=True)


def _text(engine: Engine, prompt: BenchPrompt) -> str:
    """The text as rendered by `Engine.stream`, without the BOS, which is added to raw text."""
    given = prompt_for(engine, prompt)
    if isinstance(given, str):
        return given
    vocabulary = engine.model.vocabulary
    text = str(unmarked(PromptBuilder(engine.model, engine.context_length).text(given)))
    bos = vocabulary.special_text(vocabulary.bos) if vocabulary.adds_bos else ""
    return text.removeprefix(bos)
