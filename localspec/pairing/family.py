"""Whether the names of two models tell that they are of one family."""

from __future__ import annotations

import re

from localspec.gguf.file import GGUFFile

_GENERIC = frozenset(
    """
    and base beta bit chat coder code distill distilled draft embedding experimental expert
    fast finetune gguf hf instruct instruction it large lite long main math medium merge mini model
    models nano new nightly preview pro pt quant reasoning release small super test the think
    thinking tiny tuned turbo uncensored unsloth version vision
    """.split()  # noqa: SIM905
)
"""Words in names that say nothing of the family."""


def model_name(file: GGUFFile) -> str:
    """What a model calls itself, else what its file is called."""
    return file.text("general.name") or file.text("general.basename") or file.path.stem


def related(mine: str, other: str, *, unless_told: bool) -> bool:
    """Whether two names share a word, or a word of one is in one of the other.

    `unless_told` is the result where a name has no such words.
    """
    words, others = _words(mine), _words(other)
    if not (words and others):
        return unless_told
    return any(
        a == b or (min(len(a), len(b)) > 3 and (a in b or b in a)) for a in words for b in others
    )


def _words(text: str) -> set[str]:
    """ "Qwen2.5-7B-Instruct" → qwen."""
    words = re.findall(r"[a-z]{3,}", text.lower())
    return {word for word in words if word not in _GENERIC}
