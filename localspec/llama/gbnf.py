r"""GBNF, llama.cpp's grammar notation, translated to llguidance's Lark.

llguidance's own converter loses `\u` escapes, `{,n}`, nested repetitions and rules that differ
only in case, and `[a-z]+ "b"` never ends, as each literal is a lexeme. Here every part without
recursion is one terminal; only terminals next to recursive rules take the longest match. There,
terminals end where the next character decides: `name ws "("` or `name ws "+"` is four of them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple, TypeAlias

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
_EVERY = (1 << 129) - 1
"""A set of characters: a bit for each of ASCII, and one for all others."""


class _Item(NamedTuple):
    """Lark's notation of a part."""

    text: str
    regular: bool
    """Whether it has no recursive rules, so that the sets below are known."""
    first: int = 0
    """Characters that it can begin with."""
    more: int = 0
    """Upper bound of the characters that can continue a match to a longer one."""
    empty: bool = False


_Alternatives: TypeAlias = list[list[_Item]]


def lark_of(gbnf: str) -> str:
    """The grammar in Lark's notation, starting at the rule "root"; a UsageError names a fault."""
    bodies = dict(_rules_in(gbnf))  # the last one per name
    references = {  # tokens are no part of terminals: a rule with one counts as recursive
        name: {f["name"] or name for f, _ in body if f["name"] or f["token"]}
        for name, body in bodies.items()
    }
    for name in sorted(set().union(*references.values()) - references.keys()):
        raise _invalid(f"the rule '{name}' is missing")
    if "root" not in references:
        raise _invalid("it has no rule 'root', with which it would begin")
    if len(references) > MAX_RULES:
        raise UsageError(f"The grammar has more than {MAX_RULES} rules. Simplify it.")
    parts = {name: _Item(f"r{number}", False) for number, name in enumerate(references)}
    order: list[str] = []  # of rules without recursion, the innermost first
    while found := [n for n in references.keys() - order if references[n] <= {*order}]:
        order += sorted(found)
    lines, terminals = [f"start: {parts['root'].text}"], list[str]()
    for name in (*order, *(name for name in references if name not in order)):
        alternatives = _alternatives(bodies[name], parts, terminals)
        if name in order:
            parts[name] = _either(alternatives)._replace(text=parts[name].text.upper())
        lines.append(f"{parts[name].text}: {_written(alternatives, name in order, terminals)}")
    lines[0] = f"start: {parts['root'].text}"
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
            whole = _either(group)
            written = _written(group, whole.regular, terminals)
            groups[-1][-1].append(whole._replace(text=f"({written})"))
        elif sign == "|":
            groups[-1].append([])
        elif sign in "*+?{":
            if not sequence:
                raise _invalid(f"{found[0]!r} in line {line} repeats nothing")
            sequence.append(_repeated(sequence.pop(), _repetition(found, line)))
        elif found["name"]:
            sequence.append(parts[found["name"]])
        elif found["token"]:
            token = found[0].replace("!<[", "<[^")
            if token[0] == "!":
                raise _invalid(f"{token} in line {line} excludes a name: exclude an id, as !<[5]>")
            sequence.append(_Item(token, False))
        else:
            sequence.append(_terminal(found, line))
    if len(groups) > 1:
        raise _invalid(f"a parenthesis is not closed by line {body[-1][1]}")
    return groups[0]


def _in_sequence(items: Sequence[_Item]) -> _Item:
    first, more, empty = 0, 0, True
    for item in items:
        clash = more & item.first or more == _EVERY
        first |= item.first * empty
        more = _EVERY if clash else item.more | (more | item.first) * item.empty
        empty &= item.empty
    return _Item("", all(item.regular for item in items), first, more, empty)


def _either(alternatives: _Alternatives) -> _Item:
    first, more, empty, regular = 0, 0, False, True
    for one in map(_in_sequence, alternatives):
        more |= _EVERY if first & one.first else one.more
        first, empty, regular = first | one.first, empty | one.empty, regular & one.regular
    return _Item("", regular, first, more | first * empty, empty)


def _repeated(item: _Item, times: str) -> _Item:
    if times == "{0,0}":
        return _Item('""', item.regular, empty=True)
    again = item.first * (times not in ("?", "{1,1}", "{0,1}"))
    empty = item.empty or times[0] in "*?" or times.startswith("{0,")
    more = _EVERY if item.more & again else item.more | again | item.first * empty
    return _Item(f"({item.text}){times}", item.regular, item.first, more, empty)


def _written(alternatives: _Alternatives, is_terminal: bool, terminals: list[str]) -> str:
    """Alternatives as a terminal, or as a rule with `terminals` for its regular parts."""
    texts = []
    for sequence in alternatives:
        written: list[str] = []
        for regular, items in groupby(sequence, lambda item: item.regular):
            run = [*items]
            for part in [run] if is_terminal or not regular else _told_apart(run):
                texts_of = [item.text for item in part]
                if regular and not is_terminal:
                    terminals.append(f"X{len(terminals)}: {' '.join(texts_of)}")
                    texts_of = [f"X{len(terminals) - 1}"]
                written += texts_of
        texts.append(" ".join(written) or '""')
    return " | ".join(texts)


def _told_apart(run: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    """Parts of a run of regular items, which end where the next character decides."""
    following = [0]
    for item in reversed(run):
        following.append(item.first | following[-1] * item.empty)
    begin, whole = 0, _in_sequence([])
    for at, item in enumerate(run, 1):
        whole = _in_sequence([whole, item])
        if at < len(run) and whole.more and not whole.more & following[len(run) - at]:
            yield run[begin:at]
            begin, whole = at, _in_sequence([])
    yield run[begin:]


def _repetition(found: _Match, line: int) -> str:
    if found["sign"]:
        return found["sign"]
    least, most = found["least"] or "0", found["most"]
    if not found["comma"]:
        most = least
    if max(len(least), len(most)) > 9 or (most and int(most) < int(least)):
        raise _invalid(f"the repetition {found[0]} in line {line} cannot be counted")
    return f"{{{int(least)},{int(most) if most else ''}}}"


def _terminal(found: _Match, line: int) -> _Item:
    """A literal, a set, or the sign of any character."""
    if found["literal"]:
        letters = _letters(found[0][1:-1], line)
        text = "".join(map(_escape, letters))
        first = _bits(letters[0], letters[0]) if letters else 0
        return _Item(f"/{text}/" if text else '""', True, first, empty=not text)
    if found[0] in (".", "[^]"):
        return _Item("/(?s:.)/", True, _EVERY)
    negated = found[0].startswith("[^")
    letters = _letters(found[0][1 + negated : -1], line, hyphen=_RANGE)
    shown, at, bits = "", 0, 0
    while at < len(letters):
        low = high = letters[at][0]
        shown += _escape(low)
        if letters[at + 1 : at + 2] == [_RANGE] and at + 2 < len(letters):
            high = letters[at + 2][0]
            shown += "-" + _escape(high)
            if low > high:
                raise _invalid(f"a range in {found[0]} in line {line} goes backwards")
            at += 2
        bits |= _bits(low, high)
        at += 1
    if not shown:
        raise _invalid(f"the set [] in line {line} is empty")
    bits = _EVERY & ~bits | 1 << 128 if negated else bits
    return _Item(f"/[{'^' * negated}{shown}]/", True, bits)


def _bits(first: str, last: str) -> int:
    low, high = min(ord(first), 128), min(ord(last), 128)
    return (1 << high + 1) - (1 << low)


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
