"""Token ids of a rendered prompt, in which only the template's own special tokens are such.

Where a caller spelled out a special token, the text is cut at the template's, as llama.cpp cuts it
(`tokenizer_st_partition`), and what is between them is tokenized as text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from localspec.prompting.content import Content, has_mark, plain

if TYPE_CHECKING:
    from localspec.llama.vocabulary import SpecialToken, Vocabulary

_SPACE = " \t\n\r\v\f"
Match = tuple[int, int, "SpecialToken"]
"""Start, end, and what is spelled there."""


def prompt_tokens(
    vocabulary: Vocabulary, text: str, *, add_bos: bool, template: str = ""
) -> list[int]:
    """Token ids of what a template wrote, with marks on what callers wrote. `add_bos`: put BOS
    before it, where the model's metadata say so; an EOS that they want behind every text would end
    the prompt's answer before it begins. `template`: its source; tokens defined beside the
    vocabulary that it has (`<think>`, `<tool_call>`) are text in what callers wrote, as control
    tokens are."""
    tokens = [vocabulary.bos] if add_bos and vocabulary.adds_bos and vocabulary.bos >= 0 else []
    if not isinstance(text, Content):
        return tokens + vocabulary.tokenize(text, special=True, add_bos=False)
    shown: str = plain(text)
    written: list[Match] = []
    forged: list[Match] = []
    for start, end, token in _spelled(vocabulary.special_tokens, shown):
        spelling = shown[start:end]
        # llama.cpp takes gpt-oss's markers of turns for no control tokens, to have them shown.
        turns = token.control or (spelling[:2] in ("<|", "<｜") and spelling[-2:] in ("|>", "｜>"))
        if not turns and spelling not in template:
            continue  # such as runs of spaces, and HTML tags
        if has_mark(text, start, end, answers=turns):
            forged.append((start, end, token))
        elif token.control:
            written.append((start, end, token))
    if not forged:
        return tokens + vocabulary.tokenize(shown, special=True, add_bos=False)
    cuts = [start + 1 for start, _, token in forged if not token.control]
    at, strips = 0, False
    for place in [*_apart(written), None]:
        start, end, special = place or (len(shown), len(shown), None)
        stretch = shown[at:start]
        if strips:
            stretch = stretch.lstrip(_SPACE)
        begin = start - len(stretch)
        if special is not None and special.strips_left:
            stretch = stretch.rstrip(_SPACE)
        places = [cut - begin for cut in cuts if begin < cut < begin + len(stretch)]
        tokens += _as_text(vocabulary, stretch, places)
        if special is not None:
            tokens.append(special.id)
            at, strips = end, special.strips_right
    return tokens


def _as_text(vocabulary: Vocabulary, text: str, cuts: list[int]) -> list[int]:
    """Tokens of a text without control tokens; a cut keeps apart what would be a token that
    llama.cpp looks for even so."""
    tokens: list[int] = []
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        if not start:
            tokens += vocabulary.tokenize(text[:end], special=False, add_bos=False)
            continue
        # A vocabulary may put a space before every text, but not behind a line's end.
        line = vocabulary.tokenize("\n", special=False, add_bos=False)
        found = vocabulary.tokenize("\n" + text[start:end], special=False, add_bos=False)
        if found[: len(line)] != line:
            line, found = [], vocabulary.tokenize(text[start:end], special=False, add_bos=False)
        tokens += found[len(line) :]
    return tokens


def _spelled(specials: Mapping[str, SpecialToken], text: str) -> list[Match]:
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


def _apart(matches: list[Match]) -> list[Match]:
    """Those that llama.cpp finds: the longest first, and no two over one another; in order."""
    ordered = sorted(matches, key=lambda one: one[0])
    if all(one[1] <= other[0] for one, other in pairwise(ordered)):
        return ordered
    taken: list[Match] = []
    for match in sorted(matches, key=lambda one: (one[0] - one[1], one[0])):
        if all(match[1] <= other[0] or other[1] <= match[0] for other in taken):
            taken.append(match)
    return sorted(taken, key=lambda one: one[0])
