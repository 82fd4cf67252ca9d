"""JSON schemas, and whether a grammar lets an answer through."""

import json
from collections.abc import Iterator, Sequence
from itertools import islice, permutations, product
from typing import Any

import numpy as np

from localspec.grammars.grammar import Grammar
from localspec.llama.vocabulary import Vocabulary
from tests.conftest import DATA

SUITE = DATA / "json_schema_suite.jsonl"
"""The official suite of JSON Schema, see tests/data/README.md."""


def suite() -> Iterator[tuple[Any, list[Any], list[Any]]]:
    """Schemas, with values that each allows, and that it does not."""
    for line in SUITE.read_text(encoding="utf-8").splitlines():
        _, schema, valid, invalid = json.loads(line)
        yield schema, valid, invalid


def spellings(value: Any) -> Iterator[str]:
    """Ways to write a JSON value: properties in any order, 1.0 as 1."""
    if isinstance(value, dict) and len(value) < 5:
        for order in permutations(value.items()):
            for texts in product(*(list(islice(spellings(one), 4)) for _, one in order)):
                named = zip(order, texts, strict=True)
                yield "{" + ",".join(f"{written(name)}:{text}" for (name, _), text in named) + "}"
    elif isinstance(value, list):
        for texts in product(*(list(islice(spellings(one), 4)) for one in value)):
            yield "[" + ",".join(texts) + "]"
    else:
        yield written(value)
        if isinstance(value, float) and value.is_integer():
            yield str(int(value))


def written(value: Any) -> str:
    """A JSON value as an answer has it."""
    # llguidance wants U+007F escaped as well.
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("\x7f", r"\u007f")


def lets_through(vocabulary: Vocabulary, grammar: Grammar, text: str) -> bool:
    """Whether a grammar allows a text, token by token, and the end of the answer behind it."""
    at = grammar.fork()
    for token in vocabulary.tokenize(text.encode("utf-8", "surrogatepass")):
        if not at.allows(token):
            return False
        at.advance(token)
    return at.allows(vocabulary.eos)


def check_texts(
    vocabulary: Vocabulary, grammar: Grammar, right: Sequence[str], wrong: Sequence[str]
) -> None:
    assert [text for text in right if not lets_through(vocabulary, grammar, text)] == []
    assert [text for text in wrong if lets_through(vocabulary, grammar, text)] == []


def allows_value(vocabulary: Vocabulary, grammar: Grammar, value: Any) -> bool:
    """Whether it allows a JSON value, in any spelling."""
    texts = islice(spellings(value), 200)
    return any(lets_through(vocabulary, grammar, text) for text in texts)


def walk(vocabulary: Vocabulary, grammar: Grammar, seed: int) -> str | None:
    """A text that the grammar allows, drawn from masks alone; None where it does not end."""
    random, at = np.random.default_rng(seed), grammar.fork()
    pieces: list[bytes] = []
    for number in range(300):
        row = random.gumbel(size=vocabulary.size).astype(np.float32)
        row[closing(vocabulary)] += 3.0 + number / 30.0
        token = int(at.masked(row).argmax())
        at.advance(token)
        if vocabulary.ends(token):
            return b"".join(pieces).decode()
        pieces.append(vocabulary.piece(token))
    return None


def closing(vocabulary: Vocabulary) -> list[int]:
    """Tokens that close texts, lists and objects."""
    return [vocabulary.eos, *(vocabulary.tokenize(sign)[-1] for sign in (b'"', b"]", b"}"))]
