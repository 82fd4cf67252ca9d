"""Converts text or messages to the token ids of a prompt that fits the context.

Only the template itself can write special tokens. If a caller's text spells one, the prompt is
split at the template's special tokens, as llama.cpp does (`tokenizer_st_partition`), and the text
between them is tokenized as plain text.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from localspec.decoding.stats import GenerationStats
from localspec.errors import ContextOverflow, UsageError
from localspec.llama.pictures import MARK, Picture, mark_images
from localspec.llama.vocabulary import SpecialToken, Vocabulary
from localspec.prompting.continuation import begun_text, merge_answers
from localspec.prompting.detokenizer import (
    BEGINNINGS,
    CLOSES,
    OPENS,
    SPELLINGS,
    TEXTS,
    THOUGHTS,
    marks_in,
)
from localspec.prompting.marked_text import MarkedText, has_mark, unmarked
from localspec.prompting.reasoning import (
    Plain,
    Reader,
    ends_thinking,
    reasoning_reader,
    reasons,
    thought_marks,
)
from localspec.prompting.roles import SYSTEM
from localspec.prompting.template import ChatTemplate, Message, check_messages

if TYPE_CHECKING:
    from localspec.llama.model import Model
    from localspec.llama.projector import Projector

Prompt = str | Sequence[Message]
"""Raw text, or chat messages that go through the model's template. Special tokens that raw text
spells are read as such; those in messages, and in raw text that is `marked`, are text."""


class Tokens(tuple[int, ...]):
    """The token ids of a prompt; pictures replace the ids at their positions. `spelled`: control
    tokens that are part of the answer's text, and how they are written there. `closes`: the mark
    that ends the thought at the end; `texts`: those of `Detokenizer`."""

    pictures: tuple[Picture, ...] = ()
    spelled: Mapping[int, bytes] = MappingProxyType({})
    closes: str = CLOSES
    texts: Mapping[str, str] = MappingProxyType({})


OVERFLOW = ("error", "drop_oldest")
_NAMED = re.compile(r"(</?)(?:(think|tool_\w+|arg_\w+):[\w-]+|ifm\|(\w+))>")
"""Tokens around thoughts and calls of Hy3 and Hy4, with their checkpoint, and of K2 Horizon."""
_SPACE = " \t\n\r\v\f"
_Match = tuple[int, int, SpecialToken]
"""Start, end, and the special token that is spelled there."""


class PromptBuilder:
    """Builds prompts for one model and context length (in tokens)."""

    def __init__(
        self, model: Model, context_length: int, projector: Projector | None = None
    ) -> None:
        self._model = model
        self._projector = projector
        self.context_length = context_length

    def tokens(
        self,
        prompt: Prompt | Sequence[int],
        max_tokens: int | None,
        overflow: str,
        stats: GenerationStats,
    ) -> Tokens:
        """Tokenize a prompt that leaves room for an answer of `max_tokens`. `overflow`: one of
        OVERFLOW; dropped messages are reported by a notice of `stats`. Raises UsageError for an
        empty prompt, messages that the template refuses, or an unknown `overflow`, and
        ContextOverflow if there is no room for an answer."""
        if not isinstance(overflow, str) or overflow not in OVERFLOW:
            raise UsageError(f"overflow is '{overflow}'. Choose one of {', '.join(OVERFLOW)}.")
        vocabulary = self._model.vocabulary
        if not isinstance(prompt, str | Tokens):
            items: list[Any] = [*prompt]
            prompt = Tokens(items) if items and hasattr(items[0], "__index__") else items
        if isinstance(prompt, str):
            tokens = Tokens(prompt_tokens(vocabulary, prompt, add_bos=self._lacks_bos(prompt)))
        elif isinstance(prompt, Tokens):
            tokens = Tokens(vocabulary.check_ids(prompt))
            vars(tokens).update(vars(prompt))
        else:
            check_messages(prompt)
            tokens = self._render(prompt)
            if overflow == "drop_oldest" and len(tokens) >= self.context_length:
                # Leave room for the answer, or each later turn would drop more messages.
                reserve = min(max_tokens or self.context_length // 4, self.context_length // 2)
                tokens = self._drop_oldest(prompt, tokens, self.context_length - reserve, stats)
        if not tokens:
            raise UsageError("The prompt is empty. Give some text to continue.")
        if len(tokens) >= self.context_length:
            raise ContextOverflow(
                f"The prompt has {len(tokens)} tokens and the context holds "
                f"{self.context_length}, the answer included. Shorten it, or open the model "
                "with a longer context (--ctx).",
                needed=len(tokens),
                available=self.context_length,
            )
        return tokens

    def text(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> str:
        """See `ChatTemplate.render`. Raises UsageError if there is no template."""
        template = self._tool_template if tools else self._template
        return template.render(messages, tools=tools, more=more)

    def thinks(self, prompt: Prompt, *, free: bool) -> bool | None:
        """`thinks` of `Engine.stream` for this prompt; `free`: no grammar or schema applies."""
        if isinstance(prompt, str) or not reasons(self._model.chat_template):
            return None
        messages, _ = mark_images(prompt)
        thinking = ends_thinking(self._continued(messages), messages[-1])
        return thinking if thinking or free else None

    def reader(self, prompt: Prompt, *, thinks: bool | None) -> Reader:
        """Return a reader that separates the reasoning from the text of the answer."""
        template = None if isinstance(prompt, str) else self._model.chat_template
        return reasoning_reader(template, Plain(), thinks=thinks)

    @property
    def knows_tools(self) -> bool:
        return self._model.tool_template is not None and self._tool_template.knows_tools

    @property
    def sees_images(self) -> bool:
        return self._projector is not None

    def rendered(
        self,
        text: str,
        images: Mapping[str, bytes] = MappingProxyType({}),
        marks: Sequence[str] = (),
    ) -> Tokens:
        """Tokenize a rendered text, with BOS if the model wants one, and encode the images whose
        marks are in it. Raises UsageError if one cannot be read. `marks`: tokens of the template
        that answers show, besides those around thoughts."""
        found = self._with_images(text, images)
        special, source = self._model.vocabulary.special_tokens, self._source
        shown = {one[0]: f"{one[1]}{one[2] or one[3]}>" for one in _NAMED.finditer(source)}
        shown |= dict.fromkeys(THOUGHTS, OPENS) | dict.fromkeys(THOUGHTS.values(), CLOSES)
        for mark, spellings in SPELLINGS.items():
            shown |= spellings if mark in source else {}
        plain = str(unmarked(text)).rstrip()
        ends = (closes for opens, closes in marks_in(plain).items() if plain.endswith(opens))
        found.closes = next(ends, self.thought_marks[1])
        found.texts = next((texts for mark, texts in TEXTS.items() if mark in source), {})
        found.spelled = {
            special[mark].id: shown.get(mark, mark).encode()
            for mark in (*shown, *marks)
            if mark in special and mark in source
        }
        return found

    def _lacks_bos(self, text: str) -> bool:
        """Whether the text has no BOS yet; no model was trained on prompts with two."""
        vocabulary = self._model.vocabulary
        bos = vocabulary.special_text(vocabulary.bos)
        return not (bos and str.startswith(text, bos))

    @property
    def thought_marks(self) -> tuple[str, str]:
        return thought_marks(self._source)

    @property
    def begun_marks(self) -> tuple[str, str, str]:
        """The marks before a thought, between it and the text, and before the text."""
        (opens, closes), source = self.thought_marks, self._source
        marks = f"{opens}\n", f"\n{closes}\n\n", ""
        return next((found for mark, found in BEGINNINGS.items() if mark in source), marks)

    @property
    def _source(self) -> str:
        return f"{self._model.chat_template}{self._model.tool_template}"

    def _with_images(self, text: str, images: Mapping[str, bytes]) -> Tokens:
        add_bos, source, vocabulary = self._lacks_bos(text), self._source, self._model.vocabulary
        if not images:
            return Tokens(prompt_tokens(vocabulary, text, add_bos=add_bos, template=source))
        if self._projector is None:
            raise UsageError(
                f"{self._model.path.name} was opened for text only. Leave the images out, "
                "or open it with its projector.",
                hint="That is --mmproj on the command line.",
            )
        tokens: list[int] = []
        pictures: list[Picture] = []
        at = 0
        for place in [*MARK.finditer(unmarked(text)), None]:
            end = len(text) if place is None else place.start()
            begins, piece = add_bos and not at, text[at:end]
            tokens += prompt_tokens(vocabulary, piece, add_bos=begins, template=source)
            if place is None:
                break
            at = place.end()
            for part in self._projector.parts(place[1], images[place[1]]):
                if isinstance(part, list):
                    tokens += part
                else:
                    pictures.append(Picture(len(tokens), part))
                    tokens += [self._projector.filler] * len(part.ids)
        if pictures and pictures[-1].end == len(tokens):
            raise UsageError("The prompt ends with an image. Put some text after it.")
        found = Tokens(tokens)
        found.pictures = tuple(pictures)
        return found

    def _render(self, messages: Sequence[Message]) -> Tokens:
        texts, images = mark_images(messages)
        return self.rendered(self._continued(texts), images)

    def _continued(self, messages: Sequence[Message]) -> str:
        """As `text`; the answer continues a last message of the assistant."""
        merged, begun = merge_answers(messages)
        if not begun or len(merged) == 1:
            return self.text(merged)
        text = self.text(merged[:-1])
        return begun_text(text, merged[-1], self.thought_marks, self.begun_marks)

    @cached_property
    def _template(self) -> ChatTemplate:
        return self._create(self._model.chat_template)

    @cached_property
    def _tool_template(self) -> ChatTemplate:
        source = self._model.tool_template
        return self._template if source == self._model.chat_template else self._create(source)

    def _create(self, source: str | None) -> ChatTemplate:
        vocabulary = self._model.vocabulary
        if source is None:
            raise UsageError(
                f"{self._model.path.name} has no chat template. Pass raw text instead of messages.",
                hint="That is --raw on the command line.",
            )
        return ChatTemplate(
            source,
            bos=vocabulary.special_text(vocabulary.bos),
            eos=vocabulary.special_text(vocabulary.eos),
            name=self._model.path.name,
        )

    def _drop_oldest(
        self, messages: Sequence[Message], tokens: Tokens, most: int, stats: GenerationStats
    ) -> Tokens:
        first = next((i for i, one in enumerate(messages) if one["role"] not in SYSTEM), 0)
        starts = [i for i in range(first, len(messages)) if messages[i]["role"] == "user"][1:]
        if not starts:
            return tokens

        def without(start: int) -> Tokens:
            return self._render([*messages[:first], *messages[start:]])

        # Rendering and tokenizing take long, so that not each beginning is tried.
        found = bisect_left(starts[:-1], -most, key=lambda start: -len(without(start)))
        stats.notices.append(
            f"The conversation outgrew the context of {self.context_length} tokens. "
            f"Messages left out, oldest first: {starts[found] - first}."
        )
        return without(starts[found])


def prompt_tokens(
    vocabulary: Vocabulary, text: str, *, add_bos: bool, template: str = ""
) -> list[int]:
    """Tokenize a rendered text, in which callers' characters are marked.

    `add_bos` puts BOS first if the model's metadata asks for it. An EOS is never appended, as it
    would end the answer before it begins. `template`: its source; added tokens in it (`<think>`,
    `<tool_call>`) are plain text in callers' messages, as control tokens are."""
    tokens = [vocabulary.bos] if add_bos and vocabulary.adds_bos and vocabulary.bos >= 0 else []
    if not isinstance(text, MarkedText):
        return tokens + vocabulary.tokenize(text, special=True)
    shown: str = unmarked(text)
    written: list[_Match] = []
    forged: list[_Match] = []
    for start, end, token in _find_special_tokens(vocabulary.special_tokens, shown):
        spelling = shown[start:end]
        # llama.cpp does not count gpt-oss's turn markers as control tokens, so that they are shown.
        turns = token.control or (spelling[:2] in ("<|", "<｜") and spelling[-2:] in ("|>", "｜>"))
        if not turns and spelling not in template:
            continue  # runs of spaces, HTML tags
        if has_mark(text, start, end, answers=turns):
            forged.append((start, end, token))
        elif token.control:
            written.append((start, end, token))
    if not forged:
        return tokens + vocabulary.tokenize(shown, special=True)
    cuts = [start + 1 for start, _, token in forged if not token.control]
    at, strips = 0, False
    for place in [*_without_overlaps(written), None]:
        start, end, special = place or (len(shown), len(shown), None)
        stretch = shown[at:start]
        if strips:
            stretch = stretch.lstrip(_SPACE)
        begin = start - len(stretch)
        if special is not None and special.strips_left:
            stretch = stretch.rstrip(_SPACE)
        places = [cut - begin for cut in cuts if begin < cut < begin + len(stretch)]
        tokens += _tokenize_text(vocabulary, stretch, places)
        if special is not None:
            tokens.append(special.id)
            at, strips = end, special.strips_right
    return tokens


def _tokenize_text(vocabulary: Vocabulary, text: str, cuts: list[int]) -> list[int]:
    """Tokenize a text without control tokens, split at `cuts` so that llama.cpp does not find added
    tokens in it."""
    tokens: list[int] = []
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        if not start:
            tokens += vocabulary.tokenize(text[:end])
            continue
        # A vocabulary may add a space before every text, but not after a line end.
        line = vocabulary.tokenize("\n")
        found = vocabulary.tokenize("\n" + text[start:end])
        if found[: len(line)] != line:
            line, found = [], vocabulary.tokenize(text[start:end])
        tokens += found[len(line) :]
    return tokens


def _find_special_tokens(specials: Mapping[str, SpecialToken], text: str) -> list[_Match]:
    lengths: dict[str, set[int]] = {}
    for spelling in specials:
        lengths.setdefault(spelling[0], set()).add(len(spelling))
    places = re.finditer("|".join(map(re.escape, lengths)) or "(?!)", text)
    ends = ((one.start(), one.start() + n) for one in places for n in sorted(lengths[one[0]]))
    return [
        (start, end, specials[text[start:end]])
        for start, end in ends
        if end <= len(text) and text[start:end] in specials
    ]


def _without_overlaps(matches: list[_Match]) -> list[_Match]:
    """The longest match at each position, without overlaps; sorted by position."""
    taken: list[_Match] = []
    for match in sorted(matches, key=lambda one: (one[0], -one[1])):
        if not taken or taken[-1][1] <= match[0]:
            taken.append(match)
    return taken
