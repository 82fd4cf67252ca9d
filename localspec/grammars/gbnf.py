r"""GBNF, llama.cpp's grammar notation, translated to llguidance's Lark.

llguidance's own converter loses `\u` escapes, `{,n}`, nested repetitions and rules that differ
only in case, and `[a-z]+ "b"` never ends, as each literal is a lexeme. Here every part without
recursion is one terminal, which llguidance matches fast, but greedily. So terminals next to
recursive rules end where the next character decides: `name ws "("` or `name ws "+"` is four of
them. If one might still take characters that belong to what follows, all terminals of the grammar
are single characters, whose masks take some 100 times as long.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import groupby, product
from operator import or_
from typing import NamedTuple, TypeAlias

from localspec.errors import UsageError

MAX_RULES = 500
"""llguidance recurses along chains of rules: thousands overflow its stack."""
MAX_DEPTH = 100
_ROUNDS, _MOST_TERMINALS, _MOST_STEPS = 20, 300, 200_000
"""Bounds of the search for places where the longest match would be wrong; the rounds are those in
which rules learn what they begin and end with."""

_TOKEN = re.compile(
    r'\s+|#[^\n]*|(?P<rule>[\w-]+)\s*::=|(?P<name>[\w-]+)|(?P<literal>"(?:[^"\\]|\\.)*")'
    r"|(?P<set>\[\^?(?:[^\]\\]|\\.)*\])|\{\s*(?P<least>\d*)\s*(?P<comma>,?)\s*(?P<most>\d*)\s*\}"
    r"|(?P<token>!?<[^<>\s]+>)|(?P<sign>[()|*+?.])",
    re.DOTALL | re.ASCII,
)
_LETTER = r"(?:\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)|.)"
_RANGE = re.compile(f"({_LETTER})(?:-({_LETTER}))?", re.DOTALL)
_LETTERS = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "[": "[", "]": "]", "-": "-"}


_Match: TypeAlias = re.Match[str]
_EVERY = (1 << 129) - 1
"""A set of characters: a bit for each of ASCII, and one for all others."""


class _Item(NamedTuple):
    """Lark's notation of a part.

    A regular part is in a terminal; its sets have a bit per character, those of others a bit per
    terminal."""

    text: str
    regular: bool = False
    first: int = 0
    """What it can begin with."""
    last: int = 0
    """The terminals that it can end with."""
    more: int = 0
    """Upper bound of the characters that can continue a match of a regular part to a longer one."""
    all: int = 0
    """The characters of a regular part."""
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
    order: list[str] = []  # of rules without recursion, the innermost first
    while found := [n for n in references.keys() - order if references[n] <= {*order}]:
        order += sorted(found)
    translation = _Translation(bodies, order)
    if not translation.is_exact():
        translation = _Translation(bodies, (), letters=True)
    return translation.lark()


class _Translation:
    """Rules in Lark's notation: those in `regular` become terminals, in that order. With `letters`
    each terminal is one character."""

    def __init__(
        self,
        bodies: Mapping[str, list[tuple[_Match, int]]],
        regular: Sequence[str],
        *,
        letters: bool = False,
    ) -> None:
        self._letters = letters
        self._terminals: list[_Item] = []
        self._following: list[int] = []  # the terminals that can follow each, as bits
        self._parts = {name: _Item(f"r{number}") for number, name in enumerate(bodies)}
        self._lines: list[str] = []
        for name in regular:
            text = self._parts[name].text.upper()
            whole = _either(self._alternatives(bodies[name]))
            self._lines.append(f"{text}: {whole.text}")
            self._parts[name] = whole._replace(text=text)
        others = [name for name in bodies if name not in regular]
        for _ in range(_ROUNDS):
            self._count, before, rules = 0, dict(self._parts), list[str]()
            for name in others:
                text = self._parts[name].text
                whole = self._rule(self._alternatives(bodies[name]))
                rules.append(f"{text}: {whole.text}")
                self._parts[name] = whole._replace(text=text)
            self._stable = before == self._parts
            if letters or self._stable or len(self._terminals) > _MOST_TERMINALS:
                break
        self._lines += rules
        self._lines += (f"X{number}: {one.text}" for number, one in enumerate(self._terminals))

    def lark(self) -> str:
        return "\n".join([f"start: {self._parts['root'].text}", *self._lines]) + "\n"

    def is_exact(self) -> bool:
        """Whether the longest match is always the right one: no terminal takes characters that may
        follow it, nor does another one that is possible in the same place and begins alike."""
        if not self._stable:
            return False
        terminals, root = self._terminals, self._parts["root"]
        after = [_union(terminals[n].first for n in _bits_in(each)) for each in self._following]
        places = [] if root.regular else [(root.first, root.first)]
        seen, steps = set[tuple[int, int]](), 0
        for place in places:  # grows
            for n, m in product(*map(_bits_in, place)):
                one, other = terminals[n], terminals[m]
                if (n, m) not in seen and one.first & other.first:
                    if after[n] & (other.more if one.text == other.text else other.all):
                        return False
                    seen.add((n, m))
                    places.append((self._following[n], self._following[m]))
                steps += 1
                if steps > _MOST_STEPS:
                    return False
        return True

    def _alternatives(self, body: list[tuple[_Match, int]]) -> _Alternatives:
        """The alternatives of a rule."""
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
                regular = all(item.regular for one in group for item in one)
                whole = _either(group) if regular else self._rule(group)
                groups[-1][-1].append(whole._replace(text=f"({whole.text})"))
            elif sign == "|":
                groups[-1].append([])
            elif sign in "*+?{":
                if not sequence:
                    raise _invalid(f"{found[0]!r} in line {line} repeats nothing")
                sequence.append(self._repeated(sequence.pop(), _repetition(found, line)))
            elif found["name"]:
                sequence.append(self._parts[found["name"]])
            elif found["token"]:
                token = found[0].replace("!<[", "<[^")
                if token[0] == "!":
                    name = f"{token} in line {line} excludes a name"
                    raise _invalid(f"{name}: exclude an id, as !<[5]>")
                sequence.append(_Item(token))
            else:
                sequence.append(_terminal(found, line)._replace(regular=not self._letters))
        if len(groups) > 1:
            raise _invalid(f"a parenthesis is not closed by line {body[-1][1]}")
        return groups[0]

    def _repeated(self, item: _Item, times: str) -> _Item:
        if times == "{0,0}":
            return _Item('""', item.regular, empty=True)
        empty = item.empty or times[0] in "*?" or times.startswith("{0,")
        again = item.first * (times not in ("?", "{1,1}", "{0,1}"))
        self._follow(item.last, again)
        least, _, most = times[1:-1].partition(",")
        further = again * (least != most or times in ("*", "+")) | item.first * empty
        more = item.all if item.more & again else item.more | further
        return item._replace(text=f"({item.text}){times}", more=more, empty=empty)

    def _rule(self, alternatives: _Alternatives) -> _Item:
        """Alternatives as a rule, with terminals for its regular parts."""
        wholes = []
        for sequence in alternatives:
            whole = _Item("", empty=True)
            for item in self._with_terminals(sequence):
                self._follow(whole.last, item.first)
                whole = _Item(
                    f"{whole.text} {item.text}",
                    first=whole.first | item.first * whole.empty,
                    last=item.last | whole.last * item.empty,
                    empty=whole.empty and item.empty,
                )
            wholes.append(whole)
        return _Item(
            " | ".join(whole.text or '""' for whole in wholes),
            first=_union(whole.first for whole in wholes),
            last=_union(whole.last for whole in wholes),
            empty=any(whole.empty for whole in wholes),
        )

    def _with_terminals(self, sequence: Sequence[_Item]) -> Iterator[_Item]:
        for regular, items in groupby(sequence, lambda item: item.regular):
            for part in _told_apart([*items]) if regular else items:
                yield self._terminal(part) if regular else part

    def _terminal(self, whole: _Item) -> _Item:
        number = self._count
        self._count += 1
        if number == len(self._terminals):
            self._terminals.append(whole)
            self._following.append(0)
        return _Item(f"X{number}", first=1 << number, last=1 << number, empty=whole.empty)

    def _follow(self, terminals: int, others: int) -> None:
        if len(self._terminals) <= _MOST_TERMINALS:
            for number in _bits_in(terminals):
                self._following[number] |= others


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


def _in_sequence(items: Sequence[_Item]) -> _Item:
    """A sequence of regular items."""
    first, more, each, empty = 0, 0, 0, True
    for item in items:
        each |= item.all
        clash = more & item.first
        first |= item.first * empty
        more = each if clash else item.more | (more | item.first) * item.empty
        empty &= item.empty
    text = " ".join(item.text for item in items)
    return _Item(text, True, first, more=more, all=each, empty=empty)


def _either(alternatives: _Alternatives) -> _Item:
    """Alternatives of regular items."""
    first, more, each, empty, texts = 0, 0, 0, False, list[str]()
    for one in map(_in_sequence, alternatives):
        each |= one.all
        more |= each if first & one.first else one.more
        first, empty = first | one.first, empty | one.empty
        texts.append(one.text or '""')
    return _Item(" | ".join(texts), True, first, 0, more | first * empty, each, empty)


def _told_apart(run: Sequence[_Item]) -> Iterator[_Item]:
    """Parts of a run of regular items, which end where the next character decides."""
    following = [0]
    for item in reversed(run):
        following.append(item.first | following[-1] * item.empty)
    begin = 0
    for at in range(1, len(run)):
        whole = _in_sequence(run[begin:at])
        if whole.more and not whole.more & following[len(run) - at]:
            yield whole
            begin = at
    yield _in_sequence(run[begin:])


def _union(sets: Iterable[int]) -> int:
    return reduce(or_, sets, 0)


def _bits_in(number: int) -> Iterator[int]:
    return (bit for bit in range(number.bit_length()) if number >> bit & 1)


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
        spelled = re.findall(_LETTER, found[0][1:-1], re.DOTALL)
        letters = [_letter(one, line) for one in spelled]
        sets = [_bits(letter, letter) for letter in letters]
        text = " ".join(f"/{_escape(letter)}/" for letter in letters)
        first = sets[0] if sets else 0
        return _Item(text or '""', True, first, all=_union(sets), empty=not text)
    if found[0] in (".", "[^]"):
        return _Item("/(?s:.)/", True, _EVERY, all=_EVERY)
    negated = found[0].startswith("[^")
    shown, bits = "", 0
    for first, last in _RANGE.findall(found[0][1 + negated : -1]):
        low = _letter(first, line)
        high = _letter(last, line) if last else low
        if low > high:
            raise _invalid(f"a range in {found[0]} in line {line} goes backwards")
        shown += f"{_escape(low)}-{_escape(high)}" if last else _escape(low)
        bits |= _bits(low, high)
    if not shown:
        raise _invalid(f"the set [] in line {line} is empty")
    bits = _EVERY & ~bits | 1 << 128 if negated else bits
    return _Item(f"/[{'^' * negated}{shown}]/", True, bits, all=bits)


def _bits(first: str, last: str) -> int:
    low, high = min(ord(first), 128), min(ord(last), 128)
    return (1 << high + 1) - (1 << low)


def _letter(spelled: str, line: int) -> str:
    """The character that a `_LETTER` spells."""
    if spelled[0] != "\\":
        return spelled
    if len(spelled) > 2:
        if (code := int(spelled[2:], 16)) >= 0x110000:
            raise _invalid(f"{spelled} in line {line} is not a character")
        return chr(code)
    if spelled[1] not in _LETTERS:
        raise _invalid(f"{spelled!r} in line {line} escapes nothing")
    return _LETTERS[spelled[1]]


def _escape(letter: str) -> str:
    if letter.isascii() and letter.isalnum():
        return letter
    if 0xD800 <= ord(letter) < 0xE000:
        raise _invalid(f"\\u{ord(letter):04x} is half a character")
    return f"\\x{{{ord(letter):X}}}"
