"""Tokenizes a rendered prompt, in which only the template itself can write special tokens.

If a caller's text spells one, the prompt is split at the template's special tokens, as llama.cpp
does (`tokenizer_st_partition`), and the text between them is tokenized as plain text.
"""

import re
from collections.abc import Mapping

from localspec.llama.vocabulary import SpecialToken, Vocabulary
from localspec.prompting.marked_text import MarkedText, has_mark, unmarked

_SPACE = " \t\n\r\v\f"
Match = tuple[int, int, "SpecialToken"]
"""Start, end, and the special token that is spelled there."""


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
    written: list[Match] = []
    forged: list[Match] = []
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


def _find_special_tokens(specials: Mapping[str, SpecialToken], text: str) -> list[Match]:
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


def _without_overlaps(matches: list[Match]) -> list[Match]:
    """The longest match at each position, without overlaps; sorted by position."""
    taken: list[Match] = []
    for match in sorted(matches, key=lambda one: (one[0], -one[1])):
        if not taken or taken[-1][1] <= match[0]:
            taken.append(match)
    return taken
