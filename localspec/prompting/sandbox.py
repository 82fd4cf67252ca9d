"""jinja2's sandbox with limits: a template comes with a model, from whoever made the file.

jinja2 leaves nested loops, and operations that make a text of gigabytes; here they end after some
seconds, or are refused. The marks of callers' characters stay (see `localspec.prompting.content`):
what does not know them is given plain text, and all that it returns is marked.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, cast

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from localspec.prompting.content import EXACT, Content, all_marked, all_plain, kept

SECONDS = 5.0
LONGEST = 32 << 20
_WIDEST = 10_000
_WIDE = re.compile(r"\d{5,}")
_NESTED = re.compile(r"\{[^{}]*\{")
_ITEMS = 1 << 20
"""Of lists within lists, counted as often as they occur: what compares or prints visits each."""
_DEEPEST = 200
_PLAIN_FILTERS = {
    *("center", "e", "escape", "filesizeformat", "float", "forceescape", "indent", "int"),
    *("pprint", "striptags", "title", "truncate", "urlencode", "urlize", "wordcount"),
    *("wordwrap", "xmlattr"),
}


class LimitError(SecurityError):
    """A template that takes too long, or makes too much."""


class Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, finalize=_checked)
        for name, apply in self.filters.items():
            self.filters[name] = bounded(name, apply)
        for name, test in self.tests.items():
            if getattr(test, "__module__", "") == "_operator":
                self.tests[name] = _checked_test(cast("Callable[..., Any]", test))
        self.filters |= {"_tick": _tick, "_checked": _checked}
        self.globals.pop("lipsum")
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
        if operator == "*" and any(isinstance(one, str | list | tuple) for one in (left, right)):
            text, times = (right, left) if isinstance(left, int) else (left, right)
            if isinstance(times, int) and len(text) * times > LONGEST:
                raise LimitError("it repeats a text too often")
        elif operator == "**" and not _small_power(left, right):
            raise LimitError("it makes too large a number")
        elif operator == "%" and isinstance(left, str):
            _check_items(right)
            _check_format(left, "%", right if isinstance(right, tuple) else (right,))
        elif operator == "+" and isinstance(left, str | list | tuple):
            _check_length(left, right)
        found = kept(super().call_binop(context, operator, left, right))
        _check_length(found)
        if isinstance(found, int) and found.bit_length() > _WIDEST:
            raise LimitError("it makes too large a number")
        return found

    def getitem(self, obj: Any, argument: Any) -> Any:
        _check_items(argument)
        return super().getitem(obj, argument)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        inner = super().wrap_str_format(value)
        if inner is None:
            return None

        def formatted(*args: Any, **named: Any) -> str:
            _check_format(value.__self__, "{", [*args, *named.values()])
            return inner(*args, **named)

        return formatted

    def call(self, context: Context, what: Any, /, *args: Any, **named: Any) -> Any:
        owner = getattr(what, "__self__", None)
        for arg in args:
            _check_items(arg)
        method = getattr(what, "__name__", "")
        if isinstance(owner, str | bytes | int):
            _check_width([*args, *named.values()])
            _check_growth(method, owner, args)
        if isinstance(owner, str):
            marks = isinstance(owner, Content) or any(isinstance(arg, Content) for arg in args)
            if marks and method not in EXACT:
                args, named, owner = all_plain(args), all_plain(named), all_plain(owner)
                found = super().call(context, getattr(owner, method), *args, **named)
                return all_marked(found)
            if marks and method not in ("format", "format_map"):
                what = getattr(Content(owner), method)
        found = kept(super().call(context, what, *args, **named))
        _check_length(found)
        return found


class Generation(Extension):
    """`{% generation %}…{% endgeneration %}`, around what is trained on, is what stands within."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's name and type)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Looked(NodeTransformer):
    """What nothing else could look at becomes a filter or a test: `a ~ b`, `a in b`, `a == b`. What
    may be repeated begins with a look at the clock."""

    def generic_visit(self, node: nodes.Node, *args: Any, **named: Any) -> nodes.Node:
        super().generic_visit(node, *args, **named)
        if isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock | nodes.Block):
            tick = nodes.Filter(nodes.Const(None), "_tick", [], [], None, None)
            node.body.insert(0, nodes.ExprStmt(tick).set_lineno(node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802 (jinja2's name)
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(parts, "join", [], [], None, None, lineno=node.lineno)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Expr:  # noqa: N802 (jinja2's name)
        self.generic_visit(node)
        operand = node.ops[0]
        if len(node.ops) == 1 and operand.op in ("in", "notin"):
            found = nodes.Test(node.expr, "in", [operand.expr], [], None, None)
            found.set_lineno(node.lineno)
            return found if operand.op == "in" else nodes.Not(found, lineno=node.lineno)
        node.expr = _looked_at(node.expr)
        for operand in node.ops:
            operand.expr = _looked_at(operand.expr)
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Pair:  # noqa: N802 (jinja2's name)
        self.generic_visit(node)
        node.key = _looked_at(node.key)
        return node


def _looked_at(node: nodes.Expr) -> nodes.Expr:
    if isinstance(node, nodes.Const):
        return node
    return nodes.Filter(node, "_checked", [], [], None, None, lineno=node.lineno)


def _is_in(value: Any, container: Any) -> bool:
    _check_items([value, container])
    if isinstance(value, Content) and type(container) is str:
        container = Content(container)
    return value in container


def _checked_test(test: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *values: test(*map(_checked, values))


def _checked(value: Any) -> Any:
    _check_items(value)
    return value


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


def _small_power(left: Any, right: Any) -> bool:
    if not (isinstance(left, int) and isinstance(right, int)):
        return True
    return abs(right) * max(1, left.bit_length()) <= _WIDEST


def bounded(name: str, apply: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(apply)  # with the attributes by which jinja2 knows those that want the environment
    def within(*args: Any, **named: Any) -> Any:
        values = [arg for arg in args if isinstance(arg, str | list | tuple | dict)]
        if name in ("center", "indent", "wordwrap", "round", "batch", "slice", "tojson"):
            _check_width([*args, *named.values()])
        if name not in ("length", "count", "default", "d", "first", "last"):
            _check_items(values)
        if values and isinstance(values[0], str):
            if name == "format":
                _check_format(values[0], "%", [*args, *named.values()])
            else:
                _check_growth(
                    name, values[0], [*args[args.index(values[0]) + 1 :], *named.values()]
                )
        elif values and name == "join":
            glue = max(
                (len(one) for one in [*args, *named.values()] if isinstance(one, str)), default=0
            )
            _check_items(values[0])
            _check_length(*values[0], glue=glue)
        if any(isinstance(one, Content) for one in [*args, *named.values()]):
            if name in _PLAIN_FILTERS:
                args = tuple(all_plain(arg) if isinstance(arg, str) else arg for arg in args)
                return all_marked(apply(*args, **all_plain(named)))
            args = tuple(Content(arg) if type(arg) is str else arg for arg in args)
        found = kept(apply(*args, **named))
        _check_length(found)
        return found

    return within


def _check_length(*found: Any, glue: int = 0) -> None:
    """Of texts and lists that are one, or are to become one with `glue` characters between."""
    length = sum(len(one) + glue for one in found if isinstance(one, str | bytes | list | tuple))
    if length > LONGEST:
        raise LimitError("it makes too long a text")


def _check_items(value: Any) -> None:
    seen: dict[int, int] = {}

    def count(one: Any, depth: int) -> int:
        if isinstance(one, str | bytes):
            return 1 + len(one) // 64
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

    if isinstance(value, list | tuple | dict):
        count(value, 0)


def _check_width(values: Iterable[Any]) -> None:
    if any(isinstance(value, int) and abs(value) > _WIDEST for value in values):
        raise LimitError("it pads a text too far")


def _check_format(form: str, opens: str, values: Sequence[Any]) -> None:
    """Before values are put into a form, in which each place begins with `opens`."""
    if _WIDE.search(form):
        raise LimitError("it pads a text too far")
    if "*" in form if opens == "%" else _NESTED.search(form):  # a width that is an argument
        _check_width(values)
    texts = [
        *values,
        *(one for value in values if isinstance(value, dict) for one in value.values()),
    ]
    longest = max((len(one) for one in texts if isinstance(one, str | list | tuple)), default=0)
    if form.count(opens) * longest > LONGEST:
        raise LimitError("it makes too long a text")


def _check_growth(name: str, owner: Any, args: Sequence[Any]) -> None:
    """Before what may multiply a text: each place that is replaced, each gap that is filled."""
    if not isinstance(owner, str):
        return
    most = 0
    width = max(
        (one if isinstance(one, int) else len(one) for one in args if isinstance(one, int | str)),
        default=8,
    )
    if name == "replace" and args:
        most = (len(owner) + 1) * max(len(arg) for arg in args if isinstance(arg, str))
    elif name == "join" and args:
        most = len(owner) * (len(args[0]) if hasattr(args[0], "__len__") else 1)
        if isinstance(args[0], list | tuple):
            _check_length(*args[0])
    elif name == "indent":
        most = owner.count("\n") * width
    elif name == "expandtabs":
        most = owner.count("\t") * width
    elif name == "translate":
        raise LimitError("it translates a text")
    if most > LONGEST:
        raise LimitError("it makes too long a text")
