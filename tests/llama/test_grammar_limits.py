"""Grammars that would end the process, or keep it busy for ever, are refused before."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from localspec import UsageError
from localspec.llama.grammar import Grammar
from localspec.llama.grammar_limits import LARGEST, require_bounded
from localspec.llama.model import Model
from localspec.llama.options import ModelOptions


def passes(gbnf: str) -> bool:
    """Whether it is small enough."""
    try:
        require_bounded(gbnf)
    except UsageError:
        return False
    return True


@pytest.mark.parametrize(
    "gbnf",
    [
        "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000,
        "root ::= " + "(" * 4 + '"a"' + "){0,15}" * 4,
        "root ::= (" + " | ".join(['"a"'] * 3_000) + ")*",
        "\n".join(f"r{i} ::= r{i + 1} r{i + 1} | r{i + 1}" for i in range(10))
        + '\nr10 ::= "a"?\nroot ::= r0',
        "\n".join(f'r{i} ::= r{i + 1} "x"?' for i in range(5_000)) + '\nr5000 ::= "a"\nroot ::= r0',
        'root ::= "a"{99999999999}',
    ],
    ids=["deep", "repeated", "alternatives", "doubling", "chain", "count"],
)
def test_too_large(gbnf: str) -> None:
    with pytest.raises(UsageError, match="too large"):
        require_bounded(gbnf)


@pytest.mark.parametrize(
    "gbnf",
    [
        'root ::= "yes" | "no"',
        'root ::= [a-z]+ ("," [a-z]+)* # a "comment" (\n',
        'root ::= "\\"(((" [^"\\\\]* "\\"" {0}',
        'root ::= "a"{2,5} rest?\nrest ::= root | "."',
        "root ::= (" + " | ".join(f'"word{i}"' for i in range(1_000)) + ")",
        "",
        "nonsense ((",
    ],
)
def test_ordinary_ones_pass(gbnf: str) -> None:
    assert passes(gbnf)


def test_size_counts_repetitions_inside_repetitions() -> None:
    many = int(LARGEST**0.5)
    assert passes(f'root ::= ("a"{{{many}}}){{{many - 1}}}')
    assert not passes(f'root ::= ("a"{{{many + 1}}}){{{many + 1}}}')


@pytest.fixture(scope="module")
def vocabulary(draft_path: Path) -> Model:
    return Model(draft_path, ModelOptions())


def allows(model: Model, schema: str, text: str) -> bool:
    """Whether the grammar of a schema allows a text, letter by letter."""
    vocabulary = model.vocabulary
    grammar = Grammar.from_json_schema(vocabulary, schema)
    for letter in text:
        token = vocabulary.tokenize_bytes(letter.encode())[-1]
        if not grammar.allowed(np.array([token])).item():
            return False
        grammar.advance(token)
    return True


@pytest.mark.parametrize("pattern", ["^a}$", "^]b$", "^{3}]$", "^a]{$"])
def test_patterns_that_the_conversion_never_ends_on(vocabulary: Model, pattern: str) -> None:
    schema = json.dumps({"properties": {"x": {"type": "string", "pattern": pattern}}})
    with pytest.raises(UsageError):
        Grammar.from_json_schema(vocabulary.vocabulary, schema)


def test_patterns_with_brackets_still_work(vocabulary: Model) -> None:
    schema = json.dumps({"type": "string", "pattern": r"^[a-z\]]{2}\}$"})
    assert allows(vocabulary, schema, '"a]}"')
    assert not allows(vocabulary, schema, '"a}]"')
