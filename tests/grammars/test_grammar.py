"""Grammars over the embedded vocabulary."""

from pathlib import Path

import numpy as np
import pytest
from gguf import TokenType

from localspec import ModelOptions, UsageError
from localspec.grammars.grammar import Grammar
from localspec.llama.model import Model
from localspec.llama.vocabulary import Vocabulary
from tests.support.retokenised import with_special_tokens
from tests.support.schemas import check_texts, lets_through


def pieces(vocabulary: Vocabulary, grammar: Grammar) -> set[bytes]:
    """The allowed tokens as bytes."""
    row = grammar.masked(np.zeros(vocabulary.size, np.float32))
    found = np.flatnonzero(row == 0.0)
    assert found.tolist() == [t for t in range(vocabulary.size) if grammar.allows(t)]
    return {vocabulary.piece(int(i), special=True) for i in found}


def advance(vocabulary: Vocabulary, grammar: Grammar, text: str) -> None:
    for token in vocabulary.tokenize(text, special=True):
        grammar.advance(token)


def test_only_matching_tokens_are_allowed(vocabulary: Vocabulary) -> None:
    grammar = Grammar(vocabulary, 'root ::= "ab" [0-9]+ "."')
    assert pieces(vocabulary, grammar) == {b"a", b"ab"}
    advance(vocabulary, grammar, "ab")
    assert b"7" in pieces(vocabulary, grammar)
    assert b"." not in pieces(vocabulary, grammar)
    advance(vocabulary, grammar, "7")
    assert b"." in pieces(vocabulary, grammar)


def test_forks_are_independent(vocabulary: Vocabulary) -> None:
    grammar = Grammar(vocabulary, 'root ::= "a" "1" | "b" "2"')
    fork = grammar.fork()
    advance(vocabulary, fork, "a")
    advance(vocabulary, grammar, "b")
    assert pieces(vocabulary, fork) == {b"1"}
    assert pieces(vocabulary, grammar) == {b"2"}


@pytest.mark.parametrize("k", [1, 3, 40, 10_000])
@pytest.mark.parametrize("pattern", ["[0-9]{40}", "[a-z ]{3,40}", "(?s:.*)", "fox"])
def test_likeliest_allowed_tokens(vocabulary: Vocabulary, pattern: str, k: int) -> None:
    grammar = Grammar.from_regex(vocabulary, pattern)
    row = np.random.default_rng(1).normal(size=vocabulary.size).round(1).astype(np.float32)
    masked = grammar.masked(row)
    expected = (-masked).argsort(kind="stable")[:k]
    assert grammar.likeliest(row, k).tolist() == expected[masked[expected] > -np.inf].tolist()


@pytest.mark.parametrize("closes", ["</think>", "<|user|>"])  # a text, and a control token
def test_grammar_starts_after_a_thought(vocabulary: Vocabulary, closes: str) -> None:
    for grammar in (
        Grammar(vocabulary, 'root ::= "ab"', thought_end=closes),
        Grammar(vocabulary, 'start: "ab"', thought_end=closes),
        Grammar(vocabulary, '?start: "ab"', thought_end=closes),
        Grammar(vocabulary, 'start[temperature=0.5]: "ab"', thought_end=closes),
        Grammar.from_regex(vocabulary, "ab", thought_end=closes),
    ):
        advance(vocabulary, grammar, "ab? </thi")
        assert {b"x", b"n"} < pieces(vocabulary, grammar)
        advance(vocabulary, grammar, f"nk {closes}\n\n")
        assert {b"a", b"ab"} < pieces(vocabulary, grammar)
        assert b"x" not in pieces(vocabulary, grammar)
        advance(vocabulary, grammar, "ab")
        assert pieces(vocabulary, grammar) == {b"<|end|>", b"<|endoftext|>"}


def test_tokens_too_long_for_llguidance_are_not_allowed(tmp_path: Path, draft_path: Path) -> None:
    special = [("<s>", TokenType.CONTROL), ("</s>", TokenType.CONTROL)]
    special.append(("x" * 2000, TokenType.USER_DEFINED))
    file = tmp_path / "long.gguf"
    with_special_tokens(file, draft_path, special, template="", spaced=False)
    with Model(file, ModelOptions()) as model:
        check_texts(model.vocabulary, Grammar.from_regex(model.vocabulary, "x+"), ["xx"], ["y"])


def test_forbidden_token_is_refused(vocabulary: Vocabulary) -> None:
    """llama.cpp itself would end the process here. End tokens are allowed at the end."""
    grammar = Grammar(vocabulary, 'root ::= "a" "b"?')
    assert not any(piece.startswith(b"<|") for piece in pieces(vocabulary, grammar))
    with pytest.raises(ValueError, match="not allowed"):
        advance(vocabulary, grammar, "x")
    advance(vocabulary, grammar, "a")
    assert pieces(vocabulary, grammar) == {b"b", b"<|end|>", b"<|endoftext|>"}


def test_limits_are_reported_by_every_fork(vocabulary: Vocabulary) -> None:
    """They share a lexer that is exhausted; tokens were once refused without a cause."""
    pattern = {"pattern": r"^$|(^(?:\S+\s+){0,99}\S+$)", "minLength": 1, "maxLength": 20_000}
    grammar = Grammar.from_schema(vocabulary, {"type": "string", **pattern})
    for _ in range(2):
        with pytest.raises(UsageError, match="too many ways"):
            lets_through(vocabulary, grammar, '"What is the fox doing here?"')


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [
        (r"[\w-\.]+", ["a-b.c"], ["a+"]),
        (r"[.-\d]+\d-\d", [".-11-2"], ["/1-2"]),
        (r"[\\w-z]+", [r"\wxyz"], ["-"]),
        (r"[\w--\d]+", ["ab"], ["a1", "-"]),
        (r"\[[^]]*[]][^]+", ["[ab]c", "[]]"], ["[a]", "abc"]),
        (r"\-\d", ["-1"], ["1"]),
        (r"\<\é[\>[]", ["<é>", "<é["], ["é"]),
        (r'{"a": \d{,2}}', ['{"a": 12}', '{"a": }'], ['{"a": 123}']),
    ],
)
def test_what_other_dialects_leave_literal(
    vocabulary: Vocabulary, pattern: str, right: list[str], wrong: list[str]
) -> None:
    check_texts(vocabulary, Grammar.from_regex(vocabulary, pattern), right, wrong)


def test_grammars_name_tokens(vocabulary: Vocabulary) -> None:
    user = vocabulary.special_tokens["<|user|>"].id
    texts = "root ::= <|user|> a\na ::= [a]", f'root ::= <[{user}]> "a"'
    for grammar in (Grammar(vocabulary, text) for text in texts):
        assert pieces(vocabulary, grammar) == {b"<|user|>"}
        grammar.advance(user)
        assert pieces(vocabulary, grammar) == {b"a"}
    ended = Grammar(vocabulary, 'root ::= "a" <|end|>')
    advance(vocabulary, ended, "a")
    assert not ended.forced()
    assert pieces(vocabulary, ended) == {b"<|end|>"}
    advance(vocabulary, ended, "<|end|>")
    other = Grammar(vocabulary, f"root ::= !<[{user}]>")
    assert not other.allows(user)
    assert other.allows(vocabulary.tokenize("a")[-1])


CALLS = """
root ::= term ws ("+" ws term)*
term ::= name ws | call | "(" root ")"
call ::= name ws "(" root ")"
name ::= [a-z]+
ws ::= " "?
"""
NAMES = 'root ::= a-b | aB | ab | start\na-b ::= "1"\naB ::= "2"\nab ::= "3"\nstart ::= "4"'
JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws # text
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,15})? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"""


@pytest.mark.parametrize(
    ("gbnf", "right", "wrong"),
    [
        ('root ::= [a-z]+ "b"', ["aaab", "bb"], ["b", "aaa"]),
        ('root ::= ("a" | "ab") ("bc" | "c")', ["abc", "abbc"], ["ab"]),
        (r'root ::= "\u0041\x42\U00000043" [\u0061-\u007A]', ["ABCa"], ["ABCA"]),
        (r'root ::= "é" [^\x00-\x7F] [\u3042-\u3093]+', ["éüあい"], ["éua"]),
        (r'root ::= "a/b\\c\"d" [\]\[^"-]+', ['a/b\\c"d][^"-'], ["a/b"]),
        ("root ::= .+", ["ab\nc"], [""]),
        ("root ::= [a-z-9]+ [+-]", ["a-9-", "b+"], ["8+"]),
        (r"root ::= [a\x2dz]{2} [x\-z]", ["a-z", "--x"], ["b-z", "aay"]),
        ('root ::= "a"{0} ("b" c){0,0} "e"\nc ::= "(" c ")" | "c"', ["e"], ["ae", "bce"]),
        ('root ::= "a"{2}{2} "b"{,2} "c"{1,}', ["aaaac", "aaaabbcc"], ["aac", "aaaa"]),
        ('root ::= ("a" | ) "b"? # none of "both"', ["", "a", "b", "ab"], ["ba"]),
        (NAMES, ["1", "2", "3", "4"], ["5"]),
        ('root ::= ("a" | "ab") "bc" | "(" root ")"', ["abc", "(abbc)"], ["ab", "(abc"]),
        ('root ::= root "+" n | n\nn ::= [0-9]+', ["1", "12+3+4"], ["+", "1+"]),
        ('root ::= (s "=" s "\\n")+\ns ::= "(" s ")" | "x" [ \\n]*', ["x =x\n\n(x)=x\n"], ["x=x"]),
        ('root ::= "if" root | "i" root | "fa" root | "."', ["ifa.", "if.", "ifif."], ["f."]),
        ('root ::= "a"\nroot ::= (\n  "b"\n  | "c"\n)', ["b", "c"], ["a", "bc"]),
        (
            CALLS,
            ["x", "x + y", "f (x)", "f (x + (y))", "f(ab) + x", "x  + y"],
            ["x +", "f (x y)", "x + + y"],
        ),
        (JSON, ['{"a": [1, -2.5e3, {"b": "\\u00e9 \\n"}],\n "c": null}'], ["[1]", '{"a": 01}']),
    ],
)
def test_accepted_and_rejected_texts(
    vocabulary: Vocabulary, gbnf: str, right: list[str], wrong: list[str]
) -> None:
    check_texts(vocabulary, Grammar(vocabulary, gbnf), right, wrong)


@pytest.mark.parametrize(
    ("gbnf", "names"),
    [
        ("", "is empty"),
        ('root ::= "a\0"', "NUL"),
        ('root ::= root "a"', "no answer at all"),
        ('root ::= "a', "an unclosed '\"' in line 1"),
        ("root ::= [a", "an unclosed '[' in line 1"),
        ('root ::= (\n"a"', "a parenthesis is not closed"),
        ('root ::= "a")', "')' in line 1 closes nothing"),
        ('start ::= "a"', "no rule 'root'"),
        ("root ::= missing", "the rule 'missing' is missing"),
        ('\nroot ::= * "a"', "'*' in line 2 repeats nothing"),
        (r'root ::= "\q"', "escapes nothing"),
        (r'root ::= "\ud800"', "half a character"),
        ("root ::= [z-a]", "goes backwards"),
        ("root ::= []", "empty"),
        ("root ::= !<think>", "excludes a name"),
        ("root ::= <nope>", 'unknown special token: "<nope>". Correct'),
        ("root ::=", "no answer"),
        ('root ::= "a"{3,2}', "cannot be counted"),
        ('root ::= "a"{99999999999}', "cannot be counted"),
        ('"a" root ::= "b"', "belongs to no rule"),
        ('a: "x"', "not valid Lark: no start rule"),
        ("start: T\nT: " + " & ".join(f"/.*a{{{i}}}.*/" for i in range(40)), "'&'"),
        ("start: /fox$x/", "^ and $ can only be followed at its ends"),
        (r"start: /\bfox\b/", r"word boundaries (\b)"),
        ("root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000, "nested deeper than 100"),
        (
            "\n".join(f"r{i} ::= r{i + 1}" for i in range(900)) + '\nr900 ::= "a"\nroot ::= r0',
            "500",
        ),
    ],
)
def test_refusals_name_the_error_and_print_nothing(
    vocabulary: Vocabulary, gbnf: str, names: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        Grammar(vocabulary, gbnf)
    assert names in str(caught.value)
    assert capfd.readouterr() == ("", "")
