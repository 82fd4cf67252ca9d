"""jinja2's sandbox with limits: a template comes with a model, from whoever made the file.

jinja2 leaves nested loops, and operations that make a text of gigabytes; here they end after some
seconds, or are refused. Lists are looked at where they are made, so that what reads them ends. The
marks of callers' characters stay (see `localspec.prompting.content`): what does not know them is
given plain text, and all that it returns is marked.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from operator import length_hint
from types import GeneratorType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from localspec.prompting.content import EXACT, Content, all_marked, all_plain, kept

SECONDS = 5.0
LONGEST = 32 << 20
_WIDEST = 10_000
"""Bits of a number, and how wide or often a text is."""
_WIDE = re.compile(r"\d{5,}")
_NESTED = re.compile(r"\{[^{}]*\{")
_ITEMS = 1 << 20
"""Of lists within lists, counted as often as they occur: what compares or prints visits each."""
_PIECE = 64  # characters of a text that count as an item
_DEEPEST = 200
_MULTIPLYING = {
    *("*", "join", "replace", "indent", "expandtabs", "center", "ljust", "rjust", "zfill"),
    *("wordwrap", "batch", "slice", "tojson", "round", "to_bytes", "urlize"),
}
"""What may make something as large as what it is given, times the largest argument."""
_OF_JINJA = jinja2.Environment | nodes.EvalContext | Context
_PLAIN_FILTERS = {
    *("center", "e", "escape", "filesizeformat", "float", "forceescape", "fromjson", "int"),
    *("indent", "pprint", "striptags", "title", "truncate", "urlencode", "urlize", "wordcount"),
    *("wordwrap", "xmlattr"),
}

_OF_TEXT = {"upper", "lower", "capitalize", "title", "trim", "replace", "striptags", "e", "escape"}
"""Filters that write a list out first."""


class LimitError(SecurityError):
    """A template that takes too long, or makes too much."""


class _Namespace(Namespace):
    """Not written out: two in each of many are short to write, and endless to read."""

    def __repr__(self) -> str:
        return "<Namespace>"


class Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, apply in self.filters.items():
            self.filters[name] = bounded(name, apply)
        self.filters |= {"_tick": _tick, "_checked": _checked}
        self.globals.pop("lipsum")
        self.globals["namespace"] = _Namespace
        self.filters["safe"] = lambda value: value  # nothing is escaped, and it would drop marks
        self.tests["in"] = _is_in

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        found: str = kept("".join(parts))
        return found

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Looked().visit(super()._parse(source, name, filename))
        return tree

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            if abs(right) * max(1, left.bit_length()) > _WIDEST:
                raise LimitError("it makes too large a number")
        elif operator == "%" and isinstance(left, str):
            _check_format(left, "%", right if isinstance(right, tuple) else (right,))
        elif operator == "*" and any(isinstance(one, str | list | tuple) for one in (left, right)):
            text, times = (right, left) if isinstance(left, int) else (left, right)
            _check_growth(operator, text, [times])
        found = _checked(kept(super().call_binop(context, operator, left, right)))
        if isinstance(found, int) and found.bit_length() > _WIDEST:
            raise LimitError("it makes too large a number")
        return found

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        inner = super().wrap_str_format(value)
        if inner is None:
            return None

        def formatted(*args: Any, **named: Any) -> str:
            _check_format(value.__self__, "{", [*args, *named.values()])
            return inner(*args, **named)

        return formatted

    def call(self, context: Context, what: Any, /, *args: Any, **named: Any) -> Any:
        owner, method = getattr(what, "__self__", None), getattr(what, "__name__", "")
        args = tuple(map(_listed, args))
        _items([args, named])  # which a macro has as lists
        text = owner if isinstance(owner, str | bytes) else ""
        _check_growth(method, text, [*args, *named.values()])
        if isinstance(owner, str):
            marks = isinstance(owner, Content) or any(isinstance(arg, Content) for arg in args)
            if marks and method not in EXACT:
                args, named, owner = all_plain(args), all_plain(named), all_plain(owner)
                found = super().call(context, getattr(owner, method), *args, **named)
                return all_marked(found)
            if marks and method not in ("format", "format_map"):
                what = getattr(Content(owner), method)
        return _checked(kept(super().call(context, what, *args, **named)))


class Generation(Extension):
    """`{% generation %}…{% endgeneration %}`, around what is trained on, is what stands within."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's name and type)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Looked(NodeTransformer):
    """What nothing else could look at becomes a filter or a test: `[a, b]`, `a ~ b`, `a in b`. What
    may be repeated begins with a look at the clock."""

    def generic_visit(self, node: nodes.Node, *args: Any, **named: Any) -> nodes.Node:
        super().generic_visit(node, *args, **named)
        if isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock | nodes.Block):
            tick = nodes.Filter(nodes.Const(None), "_tick", [], [], None, None)
            node.body.insert(0, nodes.ExprStmt(tick).set_lineno(node.lineno))
        target = isinstance(node, nodes.Tuple) and node.ctx != "load"
        if isinstance(node, nodes.List | nodes.Tuple | nodes.Dict) and not target:
            return nodes.Filter(node, "_checked", [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802 (jinja2's name)
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(parts, "join", [], [], None, None, lineno=node.lineno)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Expr:  # noqa: N802 (jinja2's name)
        self.generic_visit(node)
        operand = node.ops[0]
        if len(node.ops) > 1 or operand.op not in ("in", "notin"):
            return node
        found = nodes.Test(node.expr, "in", [operand.expr], [], None, None)
        found.set_lineno(node.lineno)
        return found if operand.op == "in" else nodes.Not(found, lineno=node.lineno)


def _is_in(value: Any, container: Any) -> bool:
    if isinstance(value, Content) and type(container) is str:
        container = Content(container)
    return value in container


def rendered(template: jinja2.Template, variables: dict[str, Any]) -> str:
    """The text of a template; a LimitError where it takes too long, or makes too much."""
    parts: list[str] = []
    length = 0
    _clock.until = time.monotonic() + SECONDS
    for part in template.generate(variables):
        length += len(part)
        if length > LONGEST:
            raise LimitError(f"it makes a prompt of more than {LONGEST:,} characters")
        parts.append(part)
    return Sandbox.concat(parts)


_clock = threading.local()


@jinja2.pass_context  # or the compiler would take it for a constant
def _tick(_context: Context, value: Any) -> Any:
    if time.monotonic() > _clock.until:
        raise LimitError(f"it takes longer than {SECONDS:g} seconds")
    return value


def bounded(name: str, apply: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(apply)  # with the attributes by which jinja2 knows those that want the environment
    def within(*args: Any, **named: Any) -> Any:
        args = tuple(map(_listed, args))
        values = [*args, *named.values()]
        first, *others = [one for one in values if not isinstance(one, _OF_JINJA)]
        if name == "format" and isinstance(first, str):
            _check_format(first, "%", others)
        else:
            _check_growth(name, first, others)
        if name in _OF_TEXT:
            args = tuple(kept(str(a)) if isinstance(a, list | tuple | dict) else a for a in args)
        if any(isinstance(one, Content) for one in (*args, *named.values())):
            if name in _PLAIN_FILTERS:
                args = tuple(all_plain(arg) if isinstance(arg, str) else arg for arg in args)
                return all_marked(apply(*args, **all_plain(named)))
            args = tuple(Content(arg) if type(arg) is str else arg for arg in args)
        return _checked(kept(apply(*args, **named)))

    return within


def _listed(value: Any) -> Any:
    """A list in place of a generator, whose length nobody knows."""
    return _checked(list(value)) if isinstance(value, GeneratorType) else value


def _checked(value: Any) -> Any:
    """What was made; a LimitError for too long a text or list."""
    if isinstance(value, str | bytes) and len(value) > LONGEST:
        raise LimitError("it makes too long a text")
    _items(value)
    return value


def _check_growth(name: str, value: Any, others: Sequence[Any]) -> None:
    """Before an operation on a text or a list."""
    if name == "translate":
        raise LimitError("it translates a text")
    if name in _MULTIPLYING:
        times = max((_size(one, counts=True) for one in others), default=1)
        if _size(value, counts=False) * times > LONGEST:
            raise LimitError("it makes too long a text")


def _check_format(form: str, opens: str, values: Sequence[Any]) -> None:
    """Before values are put into a form, in which each place begins with `opens`."""
    widths = bool("*" in form if opens == "%" else _NESTED.search(form))  # that are arguments
    inside = [one for value in values if isinstance(value, dict) for one in value.values()]
    longest = max((_size(one, counts=widths) for one in (*values, *inside)), default=0)
    if _WIDE.search(form) or form.count(opens) * longest > LONGEST:
        raise LimitError("it makes too long a text")


def _size(value: Any, *, counts: bool) -> int:
    """Most characters of a text, or of a list when it is written out; `counts`: a number is how
    often, or how wide."""
    if counts and isinstance(value, int) and abs(value) > _WIDEST:
        raise LimitError("it pads a text too far")
    if isinstance(value, str | bytes):
        return len(value)
    if counts and isinstance(value, int):
        return abs(value)
    return _PIECE * max(_items(value), length_hint(value, 1))


def _items(value: Any) -> int:
    """Of lists within lists, with a long text as several; a LimitError for too many."""
    seen: dict[int, int] = {}

    def count(one: Any, depth: int) -> int:
        if isinstance(one, str | bytes):
            return 1 + len(one) // _PIECE
        if not isinstance(one, list | tuple | dict):
            return 1
        if depth > _DEEPEST:
            raise LimitError("it makes too deep a list")
        if id(one) not in seen:
            within = one if not isinstance(one, dict) else [*one.keys(), *one.values()]
            seen[id(one)] = 1 + sum(count(part, depth + 1) for part in within)
            if seen[id(one)] > _ITEMS:
                raise LimitError("it makes too long a list")
        return seen[id(one)]

    return count(value, 0)
