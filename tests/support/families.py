"""Chat templates of the families that people run (`tests/data/templates`), and what their
vocabularies need for them.

The facts (special tokens, order of the parts, what is refused and how) are those of the published
configurations; the wording is ours, and what no test asks for is left out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gguf import TokenType

from tests.conftest import DATA
from tests.support.retokenised import furnished

FOLDER = DATA / "templates"


@dataclass(frozen=True, kw_only=True)
class Family:
    """One of them.

    Attributes:
        control: spellings of control tokens, of which the first is BOS and the second EOS.
        defined: of tokens that are defined beside the vocabulary and are no control tokens.
        begins: what a prompt ends with.
        system: what a system prompt S and a question U begin with together.
        spaced: whether the tokenizer is SentencePiece's, with a space before every text.
    """

    name: str
    control: Sequence[str]
    defined: Sequence[str] = ()
    begins: str
    system: str
    spaced: bool = False

    @cached_property
    def template(self) -> str:
        return (FOLDER / f"{self.name}.jinja").read_text(encoding="utf-8")[:-1]

    def model(self, path: Path, source: Path) -> Path:
        """Write a model with this template."""
        special = [(text, TokenType.CONTROL) for text in self.control]
        special += [(text, TokenType.USER_DEFINED) for text in self.defined]
        return furnished(path, source, special, template=self.template, spaced=self.spaced)


FAMILIES = {
    name: Family(name=name, **facts)
    for name, facts in json.loads((FOLDER / "families.json").read_text(encoding="utf-8")).items()
}
