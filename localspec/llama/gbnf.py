r"""GBNF, llama.cpp's grammar notation, translated to llguidance's Lark.

llguidance's own converter loses `\u` escapes, `{,n}`, nested repetitions and rules that differ
only in case, and `[a-z]+ "b"` never ends, as each literal is a lexeme. Here every part without
recursion is one terminal; only terminals next to recursive rules take the longest match.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TypeAlias

from localspec.errors import UsageError

MAX_RULES = 500
"""llguidance recurses along chains of rules: thousands overflow its stack."""
MAX_DEPTH = 100

_TOKEN = re.compile(
    r'\s+|#[^\n]*|(?P<rule>[\w-]+)\s*::=|(?P<name>[\w-]+)|(?P<literal>"(?:[^"\\]|\\.)*")'
    r"|(?P<set>\[\^?(?:[^\]\\]|\\.)*\])|\{\s*(?P<least>\d*)\s*(?P<comma>,?)\s*(?P<most>\d*)\s*\}"
    r"|(?P<sign>[()|*+?.])",
    re.DOTALL | re.ASCII,
)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))|(.)", re.S)
_LETTERS = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "[": "[", "]": "]", "-": "-"}


@dataclass(slots=True)
class _Item:
    text: str = ""
    rule: str | None = None
    group: list[list[_Item]] | None = None
    repeated: list[str] = field(default_factory=list)


_Alternatives: TypeAlias = list[list[_Item]]


def lark_of(gbnf: str) -> str:
    """The grammar in Lark's notation, starting at the rule "root"; a UsageError names a fault."""
    rules = _rules_of(gbnf)
    references = {name: set(_references(rule)) for name, rule in rules.items()}
    for name in sorted(set().union(*references.values()) - rules.keys()):
        raise _invalid(f"the rule '{name}' is missing")
    if "root" not in rules:
        raise _invalid("it has no rule 'root', where it would begin")
    if len(rules) > MAX_RULES:
        raise UsageError(f"The grammar has more than {MAX_RULES} rules. Simplify it.")
    regular: set[str] = set()
    while found := {n for n in rules.keys() - regular if references[n] <= regular}:
        regular |= found
    return _Writer(rules, regular).text()


def _invalid(why: str) -> UsageError:
    return UsageError(
        f"The grammar is not valid GBNF: {why}. See grammars/README.md of llama.cpp for the syntax."
    )


def _references(alternatives: _Alternatives) -> list[str]:
    found = []
    for item in (item for sequence in alternatives for item in sequence):
        if item.rule is not None:
            found.append(item.rule)
        elif item.group is not None:
            found += _references(item.group)
    return found


def _rules_of(gbnf: str) -> dict[str, _Alternatives]:
    rules: dict[str, _Alternatives] = {}
    groups: list[_Alternatives] = []
    at = 0
    while at < len(gbnf):
        found = _TOKEN.match(gbnf, at)
        line = gbnf.count("\n", 0, at) + 1
        if found is None:
            shown = "an unclosed " if gbnf[at] in "\"['" else ""
            raise _invalid(f"{shown}{gbnf[at]!r} in line {line}")
        at = found.end()
        kind = found.lastgroup
        if kind is None:
            continue
        if kind == "rule":
            if len(groups) > 1:
                raise _invalid(f"a parenthesis is not closed before line {line}")
            groups = [rules.setdefault(found["rule"], [])]
            groups[0].append([])
        elif not groups:
            raise _invalid(f"{found[0]!r} in line {line} belongs to no rule")
        elif found[0] == "(":
            groups.append([[]])
            if len(groups) > MAX_DEPTH:
                raise UsageError(
                    f"The grammar is nested deeper than {MAX_DEPTH} parentheses. Simplify it."
                )
        elif found[0] == ")":
            if len(groups) == 1:
                raise _invalid(f"')' in line {line} closes nothing")
            group = groups.pop()
            groups[-1][-1].append(_Item(group=group))
        elif found[0] == "|":
            groups[-1].append([])
        elif kind in ("sign", "least", "comma", "most") and found[0] != ".":
            if not groups[-1][-1]:
                raise _invalid(f"{found[0]!r} in line {line} repeats nothing")
            groups[-1][-1][-1].repeated.append(_repetition(found, line))
        else:
            groups[-1][-1].append(_item(found, line))
    if len(groups) > 1:
        raise _invalid("a parenthesis is not closed")
    return rules


def _repetition(found: re.Match[str], line: int) -> str:
    if found["sign"]:
        return found["sign"]
    least, most = found["least"] or "0", found["most"]
    if not found["comma"]:
        most = least
    if max(len(least), len(most)) > 9 or (most and int(most) < int(least)):
        raise _invalid(f"the repetition {found[0]} in line {line} cannot be counted")
    return f"{{{int(least)},{int(most) if most else ''}}}"


def _item(found: re.Match[str], line: int) -> _Item:
    if found["name"]:
        return _Item(rule=found["name"])
    if found["literal"]:
        text = "".join(_escape(letter) for letter in _letters(found[0][1:-1], line))
        return _Item(text=f"/{text}/" if text else '""')
    if found[0] in (".", "[^]"):
        return _Item(text="/(?s:.)/")
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
    return _Item(text=f"/[{'^' * negated}{shown}]/")


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


class _Writer:
    """Writes rules in Lark's notation. `regular`: names of rules without recursion."""

    def __init__(self, rules: dict[str, _Alternatives], regular: set[str]) -> None:
        self._rules, self._regular = rules, regular
        self._names = {
            name: f"{'T' if name in regular else 'r'}{number}" for number, name in enumerate(rules)
        }
        self._extra_rules: list[str] = []

    def text(self) -> str:
        lines = [f"start: {self._names['root']}"]
        for name, rule in self._rules.items():
            lines.append(f"{self._names[name]}: {self._alternatives(rule, name in self._regular)}")
        return "\n".join(lines + self._extra_rules) + "\n"

    def _alternatives(self, alternatives: _Alternatives, terminal: bool) -> str:
        return " | ".join(self._sequence(sequence, terminal) for sequence in alternatives)

    def _sequence(self, sequence: list[_Item], terminal: bool) -> str:
        parts: list[str] = []
        run: list[_Item] = []
        for item in [*sequence, None]:
            if item is not None and (terminal or self._is_regular(item)):
                run.append(item)
                continue
            if run:
                parts.append(self._run(run, terminal))
                run = []
            if item is not None:
                parts.append(self._item(item, terminal=False))
        return " ".join(parts) or '""'

    def _run(self, run: list[_Item], terminal: bool) -> str:
        text = " ".join(self._item(item, terminal=True) for item in run)
        if terminal:
            return text
        self._extra_rules.append(f"X{len(self._extra_rules)}: {text}")
        return f"X{len(self._extra_rules) - 1}"

    def _is_regular(self, item: _Item) -> bool:
        return all(name in self._regular for name in _references([[item]]))

    def _item(self, item: _Item, *, terminal: bool) -> str:
        if item.group is not None:
            text = f"({self._alternatives(item.group, terminal)})"
        else:
            text = item.text or self._names[item.rule or ""]
        for repeated in item.repeated:
            text = '""' if repeated == "{0,0}" else f"({text}){repeated}"
        return text
