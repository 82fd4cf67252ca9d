"""Chat templates of common model families (`tests/data/templates`), and their special tokens.

The facts (special tokens, order of parts, refusals) are those of the published configurations; the
wording is ours, and parts that no test needs are left out.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gguf import TokenType

from tests.conftest import DATA
from tests.support.retokenised import with_special_tokens

FOLDER = DATA / "templates"


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family. `control`: spellings of control tokens, first BOS, then EOS; `defined`: of
    user-defined tokens, which are no control tokens; `begins`: the end of a prompt; `system`: the
    beginning of a prompt with a system prompt S and a question U; `spaced`: whether the tokenizer
    is SentencePiece's, which adds a space before every text."""

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
        special = [(text, TokenType.CONTROL) for text in self.control]
        special += [(text, TokenType.USER_DEFINED) for text in self.defined]
        return with_special_tokens(
            path, source, special, template=self.template, spaced=self.spaced
        )


FAMILIES = {
    name: Family(name=name, **facts)
    for name, facts in json.loads((FOLDER / "families.json").read_text(encoding="utf-8")).items()
}
