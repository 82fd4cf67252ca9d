"""Grammars, JSON schemas and regular expressions as constraints."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, regex_to_lark

from localspec.decoding.distribution import Ids
from localspec.decoding.sampling import NEVER, Row, top_ids
from localspec.errors import UsageError
from localspec.grammars import json_schema
from localspec.grammars.gbnf import MAX_RULES, lark_of
from localspec.grammars.patterns import MAX_PATTERN, as_rust
from localspec.llama.vocabulary import Vocabulary

_LARK = re.compile(r"(?m)^[^\S\n]*(?:%llguidance\b|[?!]?start(?:\s*\[[^]\n]*\])?\s*:(?!:=))")
_OPTIONS = re.compile(r"(?m)^[^\S\n]*%llguidance\s*\{[^{}]*\}")
_START = re.compile(r"(?m)^[ \t]*[?!]?start(?:[ \t]*(\[[^]\n]*\]))?[ \t]*:")
_THOUGHT = """
start: thought space answer
space: /\\s{0,8}/
thought"""
_LARK_RULE = re.compile(r"(?m)^[ \t]*[?!]?\w[^\n:]*:")
_LARK_AND = re.compile(r'/(?:\\.|[^/\\\n])+/?|"(?:\\.|[^"\\\n])*"?|(&)')
_NAMED = re.compile(r'/(?:\\.|[^/\\\n])+/?|"(?:\\.|[^"\\\n])*"?|(<[^<>\s[]+>)')
"""The name of a token in Lark; or a pattern or text, in which there is none."""
_INVALID = "The grammar is not valid Lark"
_MAX_LENGTH = 50_000
"""Maximum characters of a grammar."""
_FUEL = 4_000_000
"""Steps of llguidance's lexer per mask, at most some 300 ms. Fewer do not suffice for "multipleOf",
nor for patterns combined with limits of length."""
_MAX_ITEMS = 8_000
"""Of llguidance's parser at one place. It counts four for each property that may come next."""
_ANCHORS = {"Word": r"word boundaries (\b) cannot be followed"}
_ANCHORS |= dict.fromkeys(("Start", "End"), "^ and $ can only be followed at its ends")
_LONGEST = 1024  # bytes of a token; llguidance crashes on longer ones, so they are never allowed
_DEAD_END = "NoExtensionBias"
"""llguidance's error if no token may follow."""
_PENALTIES = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little") == 1,
    np.float32(0.0),
    np.float32(NEVER),
)
"""By byte of a mask: what to add to the logits of its eight tokens, float32 [256, 8]."""


class Grammar:
    """llguidance's matcher after the text so far; a `decoding.sampling.Constraint`."""

    __slots__ = ("_bits", "_ends", "_matcher", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary, text: str, *, thought_end: str = "") -> None:
        """A grammar in GBNF or in llguidance's Lark; a UsageError explains why it is refused.
        `thought_end`: text that ends a preceding thought, which the prompt has begun."""
        if "\0" in text or not text.strip():
            raise UsageError("The grammar is empty or contains a NUL. Give GBNF text.")
        _require_length(text, "grammar", _MAX_LENGTH)
        if _LARK.search(text) or ("::=" not in text and _LARK_RULE.search(text)):
            self._begin(vocabulary, _bound_lark(text), _INVALID, thought_end)
        else:
            self._begin(vocabulary, lark_of(text), "The grammar cannot be followed", thought_end)

    @classmethod
    def from_schema(
        cls, vocabulary: Vocabulary, schema: Mapping[str, Any], *, thought_end: str = ""
    ) -> Grammar:
        """Allow all JSON texts that match a schema from `intended_schema.parse_schema`. A
        UsageError if it cannot be enforced."""
        made = cls.__new__(cls)
        grammar = json_schema.grammar_of(schema)
        made._begin(vocabulary, grammar, "The JSON schema cannot be followed", thought_end)
        return made

    @classmethod
    def from_regex(cls, vocabulary: Vocabulary, pattern: str, *, thought_end: str = "") -> Grammar:
        """Allow texts that a regular expression matches as a whole; a UsageError if invalid."""
        made, complaint = cls.__new__(cls), "The regular expression is not valid"
        made._begin(vocabulary, lark_of_regex(pattern), complaint, thought_end)
        return made

    def _begin(
        self, vocabulary: Vocabulary, grammar: str, complaint: str, thought_end: str
    ) -> None:
        if thought_end:
            mark = re.escape(thought_end).replace("/", r"\/")
            thought = f"[lazy]: /(?s:.)*{mark}/"
            ids = vocabulary.tokenize(thought_end, special=True)
            if not vocabulary.piece(ids[0]):  # a control token
                thought = ": /(?s:.)*/ " + " ".join(f"<[{token}]>" for token in ids)
            grammar = _START.sub(r"answer\1:", grammar, count=1) + _THOUGHT + thought
        grammar = _NAMED.sub(partial(_as_id, vocabulary), grammar)
        tokenizer, self._ends = _tokenizer_of(vocabulary)
        limits = LLParserLimits(
            max_items_in_row=_MAX_ITEMS, step_lexer_fuel=_FUEL, verbose_errors=False
        )
        # Without forcing, every tokenization of a text is allowed, as in llama.cpp.
        every = f'%llguidance {{"no_forcing": true}}\n{grammar}'
        self._matcher = LLMatcher(tokenizer, every, log_level=0, limits=limits)
        self._vocabulary = vocabulary
        self._bits: npt.NDArray[np.uint8] | None = None
        if not self._matcher.is_error():
            self._mask()
        if self._matcher.is_error():
            cause = _cause(self._matcher.get_error())
            if cause != _DEAD_END:
                raise UsageError(f"{complaint}: {cause}. Correct or simplify it.")
        dead = self._matcher.is_error()
        allowed: Any = () if dead else np.unpackbits(self._mask(), bitorder="little").nonzero()[0]
        if self._ends.issuperset(allowed):
            raise UsageError(f"{complaint}: it allows no answer at all. Loosen it.")

    def allows(self, token: int) -> bool:
        if self._matcher.validate_tokens([token]) == 1:
            return True
        in_mask = bool(self._mask()[token >> 3] >> (token & 7) & 1)
        if in_mask and token not in self._ends:  # forks share a lexer, which may be exhausted
            self._bits = None
            self._mask()
        self._raise_on_error()
        # A grammar may name an end token, which is then in the mask and cannot be consumed.
        return token in self._ends and (self._matcher.is_stopped() or in_mask)

    def masked(self, row: Row) -> Row:
        penalties = _PENALTIES.take(self._mask(), axis=0).ravel()[: len(row)]
        self._raise_on_error()
        return np.add(row, penalties, out=penalties)

    def likeliest(self, row: Row, k: int) -> Ids:
        masked = self.masked(row)
        ids = top_ids(masked, k)
        return ids[masked[ids] > NEVER]

    def advance(self, token: int) -> None:
        if self._matcher.try_consume_tokens([token]) != 1 and not self.allows(token):
            raise ValueError(f"token {token} is not allowed here")
        self._bits = None
        self._raise_on_error()

    def fork(self) -> Grammar:
        copy = Grammar.__new__(Grammar)
        copy._matcher, copy._bits = self._matcher.deep_copy(), self._bits
        copy._ends, copy._vocabulary = self._ends, self._vocabulary
        return copy

    def forced(self) -> Sequence[int]:
        matcher = self._matcher.deep_copy()  # the call can end a grammar of tokens
        text, tokenize = matcher.compute_ff_bytes(), self._vocabulary.tokenize
        for before in (b"", b"\1") if text else ():  # some vocabularies begin a text with a space
            skipped = tokenize(before) if before else []
            tokens = tokenize(before + text)[len(skipped) :]
            if b"".join(map(self._vocabulary.piece, tokens)) == text:
                return tokens
        return ()

    def _mask(self) -> npt.NDArray[np.uint8]:
        """A bit per token, lowest first; uint8 [at least vocabulary / 8]."""
        if self._bits is None:
            self._bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        return self._bits

    def _raise_on_error(self) -> None:
        if not self._matcher.is_error():
            return
        cause = _cause(self._matcher.get_error())
        if cause == _DEAD_END:
            raise UsageError("The grammar or schema allows nothing here. Loosen it.")
        raise UsageError(
            f"The grammar leaves too many ways to derive the answer: {cause}. "
            "Make it less ambiguous."
        )


def _as_id(vocabulary: Vocabulary, name: re.Match[str]) -> str:
    """The name of an added token as its id: llguidance knows only control tokens by name."""
    token = vocabulary.special_tokens.get(name[1] or "")
    return name[0] if token is None or token.control else f"<[{token.id}]>"


def _bound_lark(text: str) -> str:
    """A grammar in Lark within limits, without options; a UsageError if it is too large."""
    if len(_LARK_RULE.findall(text)) > MAX_RULES:
        raise UsageError(f"The grammar has more than {MAX_RULES} rules. Simplify it.")
    if sum(map(bool, _LARK_AND.findall(text))) > json_schema.MAX_TOGETHER:
        raise UsageError("The grammar combines too many patterns by '&'. Simplify it.")
    if text.count('"$ref"') > json_schema.MAX_REFERENCES:
        raise UsageError("The schemas in the grammar have too many references. Simplify it.")
    return json_schema.bound_embedded_schemas(_OPTIONS.sub("", text))


def check_lark(text: str) -> None:
    """Raise a UsageError if a grammar in Lark is too large or not valid."""
    _require_length(text, "grammar", _MAX_LENGTH)
    failed, messages = LLMatcher.validate_grammar_with_warnings(_bound_lark(text))
    if failed:
        raise UsageError(f"{_INVALID}: {_cause(messages[0])}. Correct or simplify it.")


def lark_of_regex(pattern: str) -> str:
    """The Lark grammar of `Grammar.from_regex`."""
    if not pattern:
        raise UsageError("The regular expression is empty. Leave it out, or give one.")
    _require_length(pattern, "regular expression", MAX_PATTERN)
    pattern = as_rust(pattern)
    return f"start: /{regex_to_lark(pattern, '')}/"


def _cause(message: str) -> str:
    if found := re.search(r"not supported yet; (Word|Start|End)", message):
        return _ANCHORS[found[1]]
    wrong = re.findall(r"(?m)^ *error: (.*)$", message)
    lines = [line.strip() for line in message.splitlines()]
    first = wrong[0] if wrong else next(filter(None, lines), "no cause given")
    first = first.partition("; following special tokens")[0]  # all of them
    return re.sub(r"^(?:at )?\d+\(\d+\): |^(?:parser|lexer|Parser) [Ee]rror: ", "", first)[:300]


def _require_length(text: str, what: str, most: int) -> None:
    if len(text) > most:
        raise UsageError(f"The {what} is longer than {most:,} characters. Shorten it.")
    if re.search("[\ud800-\udfff]", text):
        raise UsageError(f"The {what} contains a lone surrogate. Give whole characters.")


class _TokenTable:
    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, ends: list[int]) -> None:
        spelled = vocabulary.token_bytes()
        self.eos_token_id = ends[0] if ends else None
        self.tokens = [piece if len(piece) <= _LONGEST else b"" for piece in spelled.pieces]
        self.special_token_ids = sorted(spelled.controls | set(ends))

    def __call__(self, text: str) -> list[int]:
        """Unused: only forced bytes are read."""
        return []


_tokenizers: WeakKeyDictionary[Vocabulary, tuple[LLTokenizer, frozenset[int]]] = WeakKeyDictionary()
_tokenizers_lock = threading.Lock()


def _tokenizer_of(vocabulary: Vocabulary) -> tuple[LLTokenizer, frozenset[int]]:
    """llguidance's trie (0.7 s for 152,000 tokens, built once per model) and the end tokens."""
    with _tokenizers_lock:
        found = _tokenizers.get(vocabulary)
        if found is None:
            ends = [token for token in range(vocabulary.size) if vocabulary.ends(token)]
            spelling = _TokenTable(vocabulary, ends)
            tokenizer = LLTokenizer(spelling, eos_token=ends or None)  # type: ignore[arg-type]
            found = _tokenizers[vocabulary] = tokenizer, frozenset(ends)
        return found
