r"""GBNF, llama.cpp's grammar notation, translated to llguidance's Lark.

llguidance's own converter loses `\u` escapes, `{,n}`, nested repetitions and rules that differ
only in case, and `[a-z]+ "b"` never ends, as each literal is a lexeme. Here every part without
recursion is one terminal; only terminals next to recursive rules take the longest match.
"""

import re
from collections.abc import Mapping
from itertools import groupby
from typing import TypeAlias

from localspec.errors import UsageError

MAX_RULES = 500
"""llguidance recurses along chains of rules: thousands overflow its stack."""
MAX_DEPTH = 100

_TOKEN = re.compile(
    r'\s+|#[^\n]*|(?P<rule>[\w-]+)\s*::=|(?P<name>[\w-]+)|(?P<literal>"(?:[^"\\]|\\.)*")'
    r"|(?P<set>\[\^?(?:[^\]\\]|\\.)*\])|\{\s*(?P<least>\d*)\s*(?P<comma>,?)\s*(?P<most>\d*)\s*\}"
    r"|(?P<token>!?<[^<>\s]+>)|(?P<sign>[()|*+?.])",
    re.DOTALL | re.ASCII,
)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))|(.)", re.S)
_LETTERS = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "[": "[", "]": "]", "-": "-"}


_Match: TypeAlias = re.Match[str]
_Item: TypeAlias = tuple[str, bool]
"""Lark's notation of a part, and whether that is regular: without recursive rules."""
_Alternatives: TypeAlias = list[list[_Item]]


def lark_of(gbnf: str) -> str:
    """The grammar in Lark's notation, starting at the rule "root"; a UsageError names a fault."""
    bodies = _rules_in(gbnf)
    references: dict[str, set[str]] = {name: set() for name, _ in bodies}
    for name, body in bodies:
        # Tokens are no part of terminals: a rule with one counts as recursive.
        references[name] |= {f["name"] or name for f, _ in body if f["name"] or f["token"]}
    for name in sorted(set().union(*references.values()) - references.keys()):
        raise _invalid(f"the rule '{name}' is missing")
    if "root" not in references:
        raise _invalid("it has no rule 'root', where it would begin")
    if len(references) > MAX_RULES:
        raise UsageError(f"The grammar has more than {MAX_RULES} rules. Simplify it.")
    regular: set[str] = set()
    while found := {n for n in references.keys() - regular if references[n] <= regular}:
        regular |= found
    parts = {
        name: (f"{'T' if name in regular else 'r'}{number}", name in regular)
        for number, name in enumerate(references)
    }
    rules: dict[str, _Alternatives] = {name: [] for name in references}
    terminals: list[str] = []
    for name, body in bodies:
        rules[name] += _alternatives(body, parts, terminals)
    lines = [f"start: {parts['root'][0]}"]
    for name, (written, is_terminal) in parts.items():
        lines.append(f"{written}: {_written(rules[name], is_terminal, terminals)}")
    return "\n".join(lines + terminals) + "\n"


def _invalid(why: str) -> UsageError:
    return UsageError(
        f"The grammar is not valid GBNF: {why}. See grammars/README.md of llama.cpp for the syntax."
    )


def _rules_in(gbnf: str) -> list[tuple[str, list[tuple[_Match, int]]]]:
    """Names and tokens of the rules, each token with its line."""
    rules: list[tuple[str, list[tuple[_Match, int]]]] = []
    at = 0
    while at < len(gbnf):
        found = _TOKEN.match(gbnf, at)
        line = gbnf.count("\n", 0, at) + 1
        if found is None:
            shown = "an unclosed " if gbnf[at] in "\"['" else ""
            raise _invalid(f"{shown}{gbnf[at]!r} in line {line}")
        at = found.end()
        if found["rule"]:
            rules.append((found["rule"], []))
        elif found.lastgroup is not None:
            if not rules:
                raise _invalid(f"{found[0]!r} in line {line} belongs to no rule")
            rules[-1][1].append((found, line))
    return rules


def _alternatives(
    body: list[tuple[_Match, int]], parts: Mapping[str, _Item], terminals: list[str]
) -> _Alternatives:
    """The alternatives of a rule. `parts`: rules by name; terminals of groups are added to
    `terminals`."""
    groups: list[_Alternatives] = [[[]]]
    for found, line in body:
        sign, sequence = found[0][0], groups[-1][-1]
        if sign == "(":
            groups.append([[]])
            if len(groups) > MAX_DEPTH:
                raise UsageError(
                    f"The grammar is nested deeper than {MAX_DEPTH} parentheses. Simplify it."
                )
        elif sign == ")":
            if len(groups) == 1:
                raise _invalid(f"')' in line {line} closes nothing")
            group = groups.pop()
            regular = all(each for sequence in group for _, each in sequence)
            groups[-1][-1].append((f"({_written(group, regular, terminals)})", regular))
        elif sign == "|":
            groups[-1].append([])
        elif sign in "*+?{":
            if not sequence:
                raise _invalid(f"{found[0]!r} in line {line} repeats nothing")
            text, regular = sequence.pop()
            times = _repetition(found, line)
            sequence.append(('""' if times == "{0,0}" else f"({text}){times}", regular))
        elif found["name"]:
            sequence.append(parts[found["name"]])
        elif found["token"]:
            token = found[0].replace("!<[", "<[^")
            if token[0] == "!":
                raise _invalid(f"{token} in line {line} excludes a name: exclude an id, as !<[5]>")
            sequence.append((token, False))
        else:
            sequence.append((_terminal(found, line), True))
    if len(groups) > 1:
        raise _invalid(f"a parenthesis is not closed by line {body[-1][1]}")
    return groups[0]


def _written(alternatives: _Alternatives, is_terminal: bool, terminals: list[str]) -> str:
    """Alternatives as a terminal, or as a rule with `terminals` for its regular parts."""
    texts = []
    for sequence in alternatives:
        written: list[str] = []
        for regular, items in groupby(sequence, lambda item: item[1]):
            run = [text for text, _ in items]
            if regular and not is_terminal:
                terminals.append(f"X{len(terminals)}: {' '.join(run)}")
                run = [f"X{len(terminals) - 1}"]
            written += run
        texts.append(" ".join(written) or '""')
    return " | ".join(texts)


def _repetition(found: _Match, line: int) -> str:
    if found["sign"]:
        return found["sign"]
    least, most = found["least"] or "0", found["most"]
    if not found["comma"]:
        most = least
    if max(len(least), len(most)) > 9 or (most and int(most) < int(least)):
        raise _invalid(f"the repetition {found[0]} in line {line} cannot be counted")
    return f"{{{int(least)},{int(most) if most else ''}}}"


def _terminal(found: _Match, line: int) -> str:
    """A literal, a set, or the sign of any character."""
    if found["literal"]:
        text = "".join(_escape(letter) for letter in _letters(found[0][1:-1], line))
        return f"/{text}/" if text else '""'
    if found[0] in (".", "[^]"):
        return "/(?s:.)/"
    negated = found[0].startswith("[^")
    letters = _letters(found[0][1 + negated : -1], line, hyphen=_RANGE)
    shown, at = "", 0
    while at < len(letters):
        shown += _escape(letters[at][0])
        if letters[at + 1 : at + 2] == [_RANGE] and at + 2 < len(letters):
            shown += "-" + _escape(letters[at + 2][0])
            if letters[at][0] > letters[at + 2][0]:
                raise _invalid(f"a range in {found[0]} in line {line} goes backwards")
            at += 2
        at += 1
    if not shown:
        raise _invalid(f"the set [] in line {line} is empty")
    return f"/[{'^' * negated}{shown}]/"


_RANGE = "--"
"""Marks the hyphen of a range, which is not escaped."""


def _letters(text: str, line: int, *, hyphen: str = "-") -> list[str]:
    found = []
    for match in _ESCAPE.finditer(text):
        *codes, escaped, plain = match.groups()
        code = next(filter(None, codes), None)
        if code is not None and int(code, 16) >= 0x110000:
            raise _invalid(f"{match[0]} in line {line} is not a character")
        letter = chr(int(code, 16)) if code else plain or _LETTERS.get(escaped)
        if letter is None:
            raise _invalid(f"{match[0]!r} in line {line} escapes nothing")
        found.append(hyphen if plain == "-" else letter)
    return found


def _escape(letter: str) -> str:
    if letter.isascii() and letter.isalnum():
        return letter
    if 0xD800 <= ord(letter) < 0xE000:
        raise _invalid(f"\\u{ord(letter):04x} is half a character")
    return f"\\x{{{ord(letter):X}}}"
