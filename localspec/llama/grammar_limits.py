"""How large a grammar gets, worked out before llama.cpp makes anything of it.

Its parser calls itself for every parenthesis, and ends the process where the stack ends; its
matcher keeps every way in which the text so far may have been derived, which a grammar of a few
hundred bytes can make millions of. Both are bounded here, from the text alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from localspec.errors import UsageError

DEEPEST = 2_000
"""Parentheses inside parentheses."""
LARGEST = 20_000
"""Elements, once all repetitions are written out."""
MOST_STARTS = 2_000
"""Ways in which a rule may begin."""
_CAP = 10**9
_TOGETHER = 16
"""Characters of a literal that count as much as another element."""

_TOKEN = re.compile(
    r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|#[^\n]*|([A-Za-z0-9-]+)(\s*::=)?'
    r"|\{\s*(\d*)\s*(,?)\s*(\d*)\s*\}|([()|*+?.])",
    re.DOTALL,
)


@dataclass(slots=True)
class _Item:
    """A literal, a reference to a rule, or a group, and how often it may come."""

    rule: str | None = None
    group: list[list[_Item]] | None = None
    least: int = 1
    most: int = 1


@dataclass(slots=True)
class _Starts:
    """Works out in how many ways rules begin."""

    rules: dict[str, list[list[_Item]]]
    known: dict[str, tuple[int, bool]] = field(default_factory=dict)

    def of(self, alternatives: list[list[_Item]]) -> tuple[int, bool]:
        """How many ways a group begins in, and whether it may be empty."""
        ways, empty = 0, False
        for sequence in alternatives:
            for item in sequence:
                count, nothing = self._item(item)
                # Every repetition of what may be empty is another way.
                ways = min(_CAP, ways + count * (max(1, item.most) if nothing else 1))
                if not (nothing or item.least == 0):
                    break
            else:
                empty = True
        return ways, empty

    def _item(self, item: _Item) -> tuple[int, bool]:
        if item.group is not None:
            return self.of(item.group)
        if item.rule is None or item.rule not in self.rules:
            return 1, False
        if item.rule not in self.known:
            self.known[item.rule] = 1, False  # where it comes back to itself
            self.known[item.rule] = self.of(self.rules[item.rule])
        return self.known[item.rule]


def require_bounded(gbnf: str, *, most_starts: int = MOST_STARTS) -> None:
    """Return unless a grammar is too deep, too large or too ambiguous.

    Raises:
        UsageError: it is.
    """
    rules, size = _read(gbnf)
    if size > LARGEST:
        raise _refusal(f"written out it has more than {LARGEST:,} elements")
    starts = _Starts(rules)
    try:
        ways = max((starts.of(rule)[0] for rule in rules.values()), default=0)
    except RecursionError:
        raise _refusal("its rules hang together in too long a chain") from None
    if ways > most_starts:
        raise _refusal(f"one of its rules can begin in more than {most_starts:,} ways")


def _refusal(why: str) -> UsageError:
    return UsageError(f"The grammar is too large: {why}. Simplify it.")


def _read(gbnf: str) -> tuple[dict[str, list[list[_Item]]], int]:
    """The rules of a grammar, and how many elements they have with all repetitions written out."""
    rules: dict[str, list[list[_Item]]] = {}
    open_groups: list[list[list[_Item]]] = [[[]]]
    sizes = [0]  # of what stands in each open group
    last = 0  # of the item that a repetition repeats
    total = 0
    for token in _TOKEN.finditer(gbnf):
        name, defines, least, comma, most, sign = token.groups()
        sequence = open_groups[-1][-1]
        text = token[0]
        if text.startswith("#"):
            continue
        if defines is not None:
            total += sizes[0]
            rules[name] = [[]]
            open_groups, sizes, last = [rules[name]], [0], 0
        elif sign == "(":
            open_groups.append([[]])
            sizes.append(0)
            if len(open_groups) > DEEPEST:
                raise _refusal(f"its parentheses are nested deeper than {DEEPEST:,}")
        elif sign == ")":
            if len(open_groups) > 1:
                last = sizes.pop()
                group = open_groups.pop()
                sizes[-1] += last
                open_groups[-1][-1].append(_Item(group=group))
        elif sign == "|":
            open_groups[-1].append([])
        elif text.startswith("{") or (sign is not None and sign in "*+?"):
            if sequence:
                item = sequence[-1]
                if sign is not None:
                    item.least, item.most = (1 if sign == "+" else 0), 1
                    count = 1
                else:
                    lower = min(int(least[:9] or 0), _CAP)
                    upper = int(most[:9] or 0) if comma and most else lower
                    item.least, item.most = lower, max(lower, upper)
                    count = max(1, item.most)
                sizes[-1] += last * (count - 1)
                last *= count
                if sum(sizes) > LARGEST:
                    raise _refusal(f"written out it has more than {LARGEST:,} elements")
        else:
            literal = 1 + len(text) // _TOGETHER if text.startswith('"') else 1
            sequence.append(_Item(rule=name))
            sizes[-1] += literal
            last = literal
    return rules, total + sizes[0]
