"""From what a caller passes to the token ids of a prompt that fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from localspec.decoding.stats import GenerationStats
from localspec.errors import ContextOverflow, UsageError
from localspec.prompting.template import ChatTemplate, Message, check_messages

if TYPE_CHECKING:
    from localspec.llama.model import Model

Prompt = str | Sequence[Message]
"""Raw text, or chat messages that go through the model's template."""


class Tokens(tuple[int, ...]):
    """A prompt of token ids, taken as they are."""

    __slots__ = ()


OVERFLOW = ("error", "drop_oldest")


class PromptBuilder:
    """Renders, tokenizes and fits prompts for one model and context length (in tokens)."""

    def __init__(self, model: Model, context_length: int) -> None:
        self._model = model
        self._context_length = context_length

    def tokens(
        self,
        prompt: Prompt | Tokens,
        max_tokens: int | None,
        overflow: str,
        stats: GenerationStats,
    ) -> list[int]:
        """The prompt's token ids, checked to leave room for an answer.

        Args:
            prompt: chat messages, raw text, or token ids.
            max_tokens: longest answer, None without a limit.
            overflow: one of OVERFLOW.
            stats: whose notices tell what was left out.

        Raises:
            UsageError: no prompt, messages that the template refuses, an unknown `overflow`.
            ContextOverflow: no room for an answer.
        """
        if overflow not in OVERFLOW:
            raise UsageError(f"overflow is '{overflow}'. Choose one of {', '.join(OVERFLOW)}.")
        vocabulary = self._model.vocabulary
        if isinstance(prompt, str):
            tokens = vocabulary.tokenize(prompt, special=True, add_bos=True)
        elif isinstance(prompt, Tokens):
            tokens = self.checked(prompt)
        else:
            check_messages(prompt)
            tokens = self._render(prompt)
            if overflow == "drop_oldest" and len(tokens) >= self._context_length:
                # Room for the answer as well, or every turn from here on would drop some more.
                reserve = min(max_tokens or self._context_length // 4, self._context_length // 2)
                tokens = self._drop_oldest(prompt, self._context_length - reserve, stats)
        if not tokens:
            raise UsageError("The prompt is empty. Give some text to go on from.")
        if len(tokens) >= self._context_length:
            raise ContextOverflow(
                f"The prompt has {len(tokens)} tokens and the context holds "
                f"{self._context_length}, the answer included. Shorten it, or open the model "
                "with a longer context (--ctx).",
                needed=len(tokens),
                available=self._context_length,
            )
        return tokens

    def text(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> str:
        """The messages as the model's template writes them, a BOS of its own included.

        Args:
            tools, more: see `ChatTemplate.render`.

        Raises:
            UsageError: there is no template, or it refuses the messages.
        """
        return self._template.render(messages, tools=tools, more=more)

    @property
    def knows_tools(self) -> bool:
        """Whether the model has a template with a place for descriptions of tools."""
        return self._model.chat_template is not None and self._template.knows_tools

    def rendered(self, text: str) -> list[int]:
        """Token ids of what a template wrote, with a BOS where the model wants one."""
        vocabulary = self._model.vocabulary
        bos = vocabulary.special_text(vocabulary.bos)
        # Some templates write BOS themselves; a second one would be a prompt nobody trained on.
        add_bos = not (bos and text.startswith(bos))
        return vocabulary.tokenize(text, special=True, add_bos=add_bos)

    def _render(self, messages: Sequence[Message]) -> list[int]:
        return self.rendered(self.text(messages))

    def checked(self, tokens: Sequence[int]) -> list[int]:
        """See `Vocabulary.checked`."""
        return self._model.vocabulary.checked(tokens)

    @cached_property
    def _template(self) -> ChatTemplate:
        vocabulary, source = self._model.vocabulary, self._model.chat_template
        if source is None:
            raise UsageError(
                f"{self._model.path.name} has no chat template. Pass raw text instead of messages "
                "(--raw on the command line)."
            )
        return ChatTemplate(
            source,
            bos=vocabulary.special_text(vocabulary.bos),
            eos=vocabulary.special_text(vocabulary.eos),
        )

    def _drop_oldest(
        self, messages: Sequence[Message], most: int, stats: GenerationStats
    ) -> list[int]:
        """Tokens of the messages without the oldest turns, at most `most` if that can be had."""
        first = 1 if messages[0]["role"] == "system" else 0
        starts = [i for i in range(first, len(messages)) if messages[i]["role"] == "user"]
        tokens: list[int] = []
        for start in starts[1:]:
            tokens = self._render([*messages[:first], *messages[start:]])
            dropped = start - first
            if len(tokens) <= most:
                break
        else:
            if not tokens:
                return self._render(messages)
        stats.notices.append(
            f"The conversation outgrew the context of {self._context_length} tokens: "
            f"its oldest {dropped} messages were left out."
        )
        return tokens
