"""What a mask over a vocabulary costs: `python -m tools.mask_cost`.

The vocabulary is made up: single bytes and words, half of them behind a space. 2 % have a quotation
mark or a backslash in them and 6 % other signs or digits (SmolLM2's 49,152 tokens: 0.4 % and 4 %).
The schema has 20 properties of five kinds. "plain" is the top 40 of a row as it is, "top 40" those
that a schema allows, mask included, and "row" all of the row behind that mask.
"""

from __future__ import annotations

import json
import random
from time import perf_counter
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from localspec.decoding.sampling import top_ids
from localspec.llama import grammar
from localspec.llama.grammar import Grammar
from localspec.llama.vocabulary import TokenBytes, Vocabulary

_LETTERS = "etaoinshrdlucmfwypvbgkqjxzETAOINS"
_SIGNS = "{}[]:,.-_/ \n0123456789"
_QUOTES = '"\\'
_KINDS: list[dict[str, Any]] = [
    {"type": "string"},
    {"type": "integer", "minimum": 0, "maximum": 100},
    {"enum": ["red", "green", "blue"]},
    {"type": "array", "items": {"type": "number"}},
    {"type": "string", "pattern": "^[a-z]+$", "maxLength": 30},
]
_REPEATS = 9
_VALUES: list[Any] = ["hello there", 42, "green", [1.5, 2, -3], "abcdef"]


def made_vocabulary(size: int) -> TokenBytes:
    """A vocabulary of so many tokens; the last one ends an answer."""
    chance, pieces = random.Random(1), {bytes([byte]): None for byte in range(256)}
    while len(pieces) < size - 1:
        word, kind = chance.choices(_LETTERS, k=chance.randint(2, 9)), chance.random()
        if kind < 0.08:
            word[chance.randrange(len(word))] = chance.choice(_QUOTES if kind < 0.02 else _SIGNS)
        pieces[(" " * (chance.random() < 0.5) + "".join(word)).encode()] = None
    return TokenBytes(
        pieces=[*pieces, b"<end>"],
        controls=frozenset([size - 1]),
        single_bytes=frozenset(range(256)),
        tokenize=list,
        bos=-1,
        eot=size - 1,
        eos=size - 1,
        adds_bos=False,
    )


def main(size: int = 152_000) -> None:
    spelled = made_vocabulary(size)
    vocabulary = cast(
        "Vocabulary", SimpleNamespaceVocabulary(size=size, ends=lambda token: token == size - 1)
    )
    grammar.token_bytes = lambda vocabulary: spelled  # type: ignore[attr-defined]
    properties = {f"field{number}": _KINDS[number % 5] for number in range(20)}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    began = perf_counter()
    at = Grammar.from_json_schema(vocabulary, json.dumps(schema))
    print(f"first grammar of a model: {perf_counter() - began:.2f} s")
    began = perf_counter()
    start = Grammar.from_json_schema(vocabulary, json.dumps(schema))
    print(f"another one: {(perf_counter() - began) * 1e3:.1f} ms")
    longest: dict[bytes, int] = {piece: token for token, piece in enumerate(spelled.pieces)}
    value = {name: _VALUES[number % 5] for number, name in enumerate(properties)}
    text, tokens = json.dumps(value).encode(), list[int]()
    while text:
        piece = next(text[:n] for n in range(10, 0, -1) if text[:n] in longest)
        tokens.append(longest[piece])
        text = text[len(piece) :]
    row = np.random.default_rng(1).normal(size=size).astype(np.float32)
    names = ("plain", "top 40", "row", "token", "fork")
    seconds = np.zeros((_REPEATS, len(tokens), len(names)))
    for repeat in seconds:
        at = start.fork()
        for token, found in zip(tokens, repeat, strict=True):
            marks = [perf_counter()]
            for do in (
                lambda: top_ids(row, 40),
                lambda at=at: at.likeliest(row, 40),
                lambda at=at: at.masked(row),
                lambda at=at, token=token: at.advance(token),
                at.fork,
            ):
                do()
                marks.append(perf_counter())
            found[:] = np.diff(marks)
    # Others may use the machine: of each place, the least.
    for name, found in zip(names, seconds.min(axis=0).T, strict=True):
        median, mean, worst = np.median(found), np.mean(found), np.percentile(found, 95)
        print(
            f"{name}: median {median * 1e6:.0f}, mean {mean * 1e6:.0f}, 95 % {worst * 1e6:.0f} µs"
        )


class SimpleNamespaceVocabulary(SimpleNamespace):
    """As much of a `Vocabulary` as a grammar asks for; can be a key."""

    __hash__ = object.__hash__  # type: ignore[assignment]


if __name__ == "__main__":
    main()
