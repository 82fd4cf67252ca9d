"""GBNF as llama.cpp reads it."""

from __future__ import annotations

import pytest

from localspec import UsageError
from localspec.llama.gbnf import lark_of
from localspec.llama.grammar import Grammar
from localspec.llama.vocabulary import Vocabulary
from tests.support.schemas import lets_through

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
        (
            'root ::= a-b | aB | ab | start\na-b ::= "1"\naB ::= "2"\nab ::= "3"\nstart ::= "4"',
            ["1", "2", "3", "4"],
            ["5"],
        ),
        ('root ::= ("a" | "ab") "bc" | "(" root ")"', ["abc", "(abbc)"], ["ab", "(abc"]),
        ('root ::= "x" | "(" root ")"', ["x", "((x))"], ["(x", "()"]),
        ('root ::= root "+" n | n\nn ::= [0-9]+', ["1", "12+3+4"], ["+", "1+"]),
        ('root ::= (\n  "a"\n  | "b"\n)', ["a", "b"], ["ab"]),
        (JSON, ['{"a": [1, -2.5e3, {"b": "\\u00e9 \\n"}],\n "c": null}'], ["[1]", '{"a": 01}']),
    ],
)
def test_answers(vocabulary: Vocabulary, gbnf: str, right: list[str], wrong: list[str]) -> None:
    grammar = Grammar(vocabulary, gbnf)
    assert [text for text in right if not lets_through(vocabulary, grammar, text)] == []
    assert [text for text in wrong if lets_through(vocabulary, grammar, text)] == []


@pytest.mark.parametrize(
    ("gbnf", "names"),
    [
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
        ('root ::= "a"{3,2}', "cannot be counted"),
        ('root ::= "a"{99999999999}', "cannot be counted"),
        ('"a" root ::= "b"', "belongs to no rule"),
        ("root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000, "nested deeper than 100"),
        (
            "\n".join(f"r{i} ::= r{i + 1}" for i in range(900)) + '\nr900 ::= "a"\nroot ::= r0',
            "500",
        ),
    ],
)
def test_refusals_say_what_is_wrong_and_where(gbnf: str, names: str) -> None:
    with pytest.raises(UsageError) as caught:
        lark_of(gbnf)
    assert names in str(caught.value)
