"""JSON schemas with answers to them, and whether a grammar lets an answer through."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice, permutations, product
from typing import Any

import numpy as np
from hypothesis import strategies as st

from localspec.llama.grammar import Grammar
from localspec.llama.vocabulary import Vocabulary

PATTERNS = {
    r"^\d{4}$": "2026",
    r"\S": "x y",
    r"^a\.b$": "a.b",
    "^a|b$": "xb",
    "^.$": "é",
    "^[^a]{3}$": "bcd",
    "^[a-z]+$": "abc",
    r"^[A-Z]{2}-\d+$": "AB-17",
    r"^(yes|no)( \w+)?$": "no way",
    r"\\": "C:\\temp",
    "^\\/x$": "/x",
}
"""Patterns, and a text that each matches."""
TEXTS = ("", "a", "ab c", "C:\\temp", "a\nb", 'a"b', "é€", "{}", "/", "\t", "\u0001", "$ref", "~1")
NAMES = ("id", "name", "$ref", "a/b", "c~d", "a b", 'q"q', "é", "type", "not", "x-guidance")


@st.composite
def schemas(draw: st.DrawFn, depth: int = 2) -> tuple[dict[str, Any], Any]:
    """A schema and a value that it allows."""
    flat = ("null", "boolean", "integer", "number", "string", "pattern", "enum", "const")
    kind = draw(st.sampled_from(flat if depth == 0 else (*flat, *_DEEP, *_DEEP)))
    if kind in ("null", "boolean"):
        return {"type": kind}, None if kind == "null" else draw(st.booleans())
    if kind in ("integer", "number"):
        return draw(_numbers(whole=kind == "integer"))
    if kind == "string":
        text = draw(st.text(max_size=6) | st.sampled_from(TEXTS))
        least, most = draw(st.integers(0, 2)), draw(st.integers(0, 3))
        bounds = {"minLength": max(0, len(text) - least), "maxLength": len(text) + most}
        return {"type": kind, **draw(_some_of(bounds))}, text
    if kind == "pattern":
        pattern = draw(st.sampled_from(sorted(PATTERNS)))
        bound = draw(_some_of({"maxLength": len(PATTERNS[pattern])}))
        return {"type": "string", "pattern": pattern, **bound}, PATTERNS[pattern]
    if kind in ("enum", "const"):
        value = draw(st.sampled_from((*TEXTS, 0, -7, 1.5, True, None, [1, "a"], {"k": [None]})))
        return ({"enum": [value, "other", 3]} if kind == "enum" else {"const": value}), value
    return draw(_DEEP[kind](depth - 1))


@st.composite
def _some_of(draw: st.DrawFn, keywords: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in keywords.items() if draw(st.booleans())}


@st.composite
def _numbers(draw: st.DrawFn, *, whole: bool) -> tuple[dict[str, Any], Any]:
    value = draw(st.integers(-2000, 2000)) if whole else draw(st.integers(-9999, 9999)) / 100
    value = value or 0  # at a bound of 0, llguidance lets through 0, but not 0.0
    bounds: dict[str, float] = {
        "minimum": value - draw(st.integers(0, 50)),
        "maximum": value + draw(st.integers(0, 50)),
        "exclusiveMinimum": value - draw(st.integers(1, 50)),
        "exclusiveMaximum": value + draw(st.integers(1, 50)),
    }
    if whole and 0 < abs(value) < 60:
        bounds["multipleOf"] = abs(value)
    return {"type": "integer" if whole else "number", **draw(_some_of(bounds))}, value


@st.composite
def _arrays(draw: st.DrawFn, depth: int) -> tuple[dict[str, Any], Any]:
    item, value = draw(schemas(depth))
    count = draw(st.integers(0, 3))
    first = draw(st.lists(schemas(depth), max_size=2))
    schema: dict[str, Any] = {
        "type": "array",
        "items": item,
        "prefixItems": [one for one, _ in first],
    }
    values = [one for _, one in first] + [value] * count
    most: dict[str, Any] = {"minItems": draw(st.integers(0, len(values))), "maxItems": len(values)}
    return {**schema, **draw(_some_of(most))}, values


@st.composite
def _objects(draw: st.DrawFn, depth: int) -> tuple[dict[str, Any], Any]:
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4))
    made = {name: draw(schemas(depth)) for name in names}
    present = [name for name in names if draw(st.booleans())]
    value = {name: made[name][1] for name in present}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: one for name, (one, _) in made.items()},
        "required": [name for name in present if draw(st.booleans())],
    }
    if draw(st.booleans()):
        schema["additionalProperties"] = False
    elif draw(st.booleans()):
        further, one = draw(schemas(depth))
        schema["additionalProperties"] = further
        if draw(st.booleans()):
            schema["required"].append("further")
            value["further"] = one
    return schema, value


@st.composite
def _choices(draw: st.DrawFn, depth: int) -> tuple[dict[str, Any], Any]:
    made = draw(st.lists(schemas(depth), min_size=1, max_size=3))
    return {"anyOf": [one for one, _ in made]}, draw(st.sampled_from(made))[1]


_DEEP = {"array": _arrays, "object": _objects, "anyOf": _choices}


@st.composite
def with_references(draw: st.DrawFn) -> tuple[dict[str, Any], Any]:
    """A schema and a value that it allows; some of it stands in definitions."""
    schema, value = draw(schemas())
    if draw(st.booleans()):
        return schema, value
    name, written = draw(st.sampled_from((("a/b", "a~1b"), ("c~d", "c~0d"), ("e f", "e%20f"))))
    return {
        "$defs": {name: schema},
        "type": "array",
        "prefixItems": [{"$ref": f"#/$defs/{written}"}, {"$ref": "#/prefixItems/0"}],
    }, [value, value]


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
    for token in vocabulary.tokenize_bytes(text.encode("utf-8", "surrogatepass")):
        if not at.allows(token):
            return False
        at.advance(token)
    return at.allows(vocabulary.eos)


def allows_value(vocabulary: Vocabulary, grammar: Grammar, value: Any) -> bool:
    """Whether it allows a JSON value, in any spelling."""
    texts = islice(spellings(value), 200)
    return any(lets_through(vocabulary, grammar, text) for text in texts)


def walk(vocabulary: Vocabulary, grammar: Grammar, seed: int, most: int = 300) -> str | None:
    """A text that the grammar allows, drawn from masks alone; None where it does not end."""
    random, at = np.random.default_rng(seed), grammar.fork()
    said: list[bytes] = []
    for number in range(most):
        row = random.gumbel(size=vocabulary.size).astype(np.float32)
        row[closing(vocabulary)] += 3.0 + number / 30.0
        token = int(at.masked(row).argmax())
        at.advance(token)
        if vocabulary.ends(token):
            return b"".join(said).decode()
        said.append(vocabulary.piece(token))
    return None


def closing(vocabulary: Vocabulary) -> list[int]:
    """Tokens that bring an answer nearer to its end."""
    return [vocabulary.eos, *(vocabulary.tokenize_bytes(sign)[-1] for sign in (b'"', b"]", b"}"))]
