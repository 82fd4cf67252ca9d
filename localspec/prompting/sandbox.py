"""jinja2's sandbox with limits on time and memory: templates come from untrusted model files.

jinja2 allows nested loops, and operations that build gigabytes of text. Here they stop after some
seconds, or are refused. Lists are checked where they are created, so that later operations on them
are bounded. The marks on callers' characters stay (see `localspec.prompting.marked_text`):
functions that do not know them get plain text, and their results are marked as a whole.
"""

import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from operator import length_hint
from types import GeneratorType
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from localspec.prompting.marked_text import EXACT, MarkedText, keep_marks, mark_all, unmark_all

SECONDS = 5.0
LONGEST = 32 << 20
_WIDEST = 10_000
"""Limit for the bits of a number, the width of padding, and the repetitions of a text."""
_WIDE = re.compile(r"\d{5,}")
_NESTED = re.compile(r"\{[^{}]*\{")
_ITEMS = 1 << 20
"""Limit for the items of nested lists. Shared ones count each time: printing visits every one."""
_CHARACTERS_PER_ITEM = 64  # of a long text
_DEEPEST = 200
_GROWING = {
    *("*", "join", "replace", "indent", "expandtabs", "center", "ljust", "rjust", "zfill"),
    *("wordwrap", "batch", "slice", "tojson", "round", "to_bytes", "urlize"),
}
"""Operations whose result may be as large as their operand times the largest argument."""
_JINJA_CONTEXTS = jinja2.Environment | nodes.EvalContext | Context
_PLAIN_FILTERS = {
    *("capitalize", "center", "e", "escape", "filesizeformat", "float", "forceescape", "fromjson"),
    *("indent", "int", "pprint", "striptags", "title", "truncate", "upper", "urlencode"),
    *("urlize", "wordcount", "wordwrap", "xmlattr"),
}

_OF_LISTS = {"upper", "lower", "capitalize", "title", "trim", "replace", "striptags", "e", "escape"}
"""Filters that convert a list to text first."""


class LimitError(SecurityError):
    """A template runs too long, or its output is too large."""


class _Namespace(Namespace):
    """A namespace with a fixed repr: the repr of nested ones could grow exponentially."""

    def __repr__(self) -> str:
        return "<Namespace>"


class Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, apply in self.filters.items():
            self.filters[name] = limited(name, apply)
        self.filters |= {"_tick": _tick, "_check_size": _check_size}
        self.globals.pop("lipsum")
        self.globals["namespace"] = _Namespace
        self.filters["safe"] = lambda value: value  # no escaping; jinja2's drops marks
        self.tests["in"] = _is_in

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        result: str = keep_marks("".join(parts))
        return result

    def handle_exception(self, source: str | None = None) -> NoReturn:
        """Raise the current exception as it is: jinja2's rewritten traceback of a running template
        is a cycle that keeps all callers alive, engines included."""
        if source is None:
            raise
        super().handle_exception(source)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _LimitInserter().visit(super()._parse(source, name, filename))
        return tree

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            if abs(right) * max(1, left.bit_length()) > _WIDEST:
                raise LimitError("it computes too large a number")
        elif operator == "%" and isinstance(left, str):
            _check_format(left, "%", right if isinstance(right, tuple) else (right,))
        elif operator == "*" and any(isinstance(x, str | list | tuple) for x in (left, right)):
            text, times = (right, left) if isinstance(left, int) else (left, right)
            _check_growth(operator, text, [times])
        result = _check_size(keep_marks(super().call_binop(context, operator, left, right)))
        if isinstance(result, int) and result.bit_length() > _WIDEST:
            raise LimitError("it computes too large a number")
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        inner = super().wrap_str_format(value)
        if inner is None:
            return None

        def format_checked(*args: Any, **named: Any) -> str:
            _check_format(value.__self__, "{", [*args, *named.values()])
            return inner(*args, **named)

        return format_checked

    def call(self, context: Context, function: Any, /, *args: Any, **named: Any) -> Any:
        owner, method = getattr(function, "__self__", None), getattr(function, "__name__", "")
        args = tuple(map(_as_list, args))
        _count_items([args, named])  # a macro may use them as lists
        text = owner if isinstance(owner, str | bytes) else ""
        _check_growth(method, text, [*args, *named.values()])
        if isinstance(owner, str):
            marks = any(isinstance(text, MarkedText) for text in (owner, *args))
            if marks and method not in EXACT:
                args, named, owner = unmark_all(args), unmark_all(named), unmark_all(owner)
                result = super().call(context, getattr(owner, method), *args, **named)
                return mark_all(result)
            if marks and method not in ("format", "format_map"):
                function = getattr(MarkedText(owner), method)
        return _check_size(keep_marks(super().call(context, function, *args, **named)))


class Generation(Extension):
    """Replaces `{% generation %}…{% endgeneration %}`, which marks training data, by its body."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's name and type)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _LimitInserter(NodeTransformer):
    """Adds limits where the sandbox has no hook. `[a, b]`, `a ~ b` and `a in b` become filters or
    tests; bodies that may be repeated begin with a check of the time."""

    def generic_visit(self, node: nodes.Node, *args: Any, **named: Any) -> Any:
        super().generic_visit(node, *args, **named)
        if isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock | nodes.Block):
            tick = nodes.Filter(nodes.Const(None), "_tick", [], [], None, None)
            node.body.insert(0, nodes.ExprStmt(tick).set_lineno(node.lineno))
        if isinstance(node, nodes.Assign):
            return _with_queues(node)
        if isinstance(node, nodes.Concat):
            node = nodes.Filter(nodes.List(node.nodes), "join", [], [], None, None)
        target = isinstance(node, nodes.Tuple) and node.ctx != "load"
        if isinstance(node, nodes.List | nodes.Tuple | nodes.Dict) and not target:
            return nodes.Filter(node, "_check_size", [], [], None, None, lineno=node.lineno)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Expr:  # noqa: N802 (jinja2's name)
        self.generic_visit(node)
        operand = node.ops[0]
        if len(node.ops) > 1 or operand.op not in ("in", "notin"):
            return node
        result = nodes.Test(node.expr, "in", [operand.expr], [], None, None)
        result.set_lineno(node.lineno)
        return result if operand.op == "in" else nodes.Not(result, lineno=node.lineno)


def _with_queues(node: nodes.Assign) -> Any:
    """Rewrite `append` and `pop(0)` on a namespace's list, as in Kimi's templates, to assignments:
    lists are immutable here."""
    match node.node:
        case nodes.Call(
            node=nodes.Getattr(
                node=nodes.Getattr(node=nodes.Name() as space) as queue, attr=method
            ),
            args=[item],
        ) if method == "append" or (method == "pop" and item == nodes.Const(0)):
            rest = nodes.Slice(nodes.Const(1), None, None)
            changed = (
                nodes.Add(queue, nodes.List([item]))
                if method == "append"
                else nodes.Getitem(queue, rest, "load")
            )
            node.node = nodes.Getitem(queue, item, "load") if method == "pop" else item
            place = nodes.NSRef(space.name, queue.attr)
            return [node, nodes.Assign(place, changed, lineno=node.lineno)]
    return node


def _is_in(value: Any, container: Any) -> bool:
    if isinstance(value, MarkedText) and type(container) is str:
        container = MarkedText(container)
    return value in container


def render(template: jinja2.Template, variables: dict[str, Any]) -> str:
    """Render a template. Raises LimitError if it runs too long, or its output is too large."""
    parts: list[str] = []
    length = 0
    _clock.until = time.monotonic() + SECONDS
    for part in template.generate(variables):
        length += len(part)
        if length > LONGEST:
            raise LimitError(f"it produces a prompt of more than {LONGEST:,} characters")
        parts.append(part)
    return Sandbox.concat(parts)


_clock = threading.local()


@jinja2.pass_context  # otherwise it would be compiled to a constant
def _tick(_context: Context, value: Any) -> Any:
    if time.monotonic() > _clock.until:
        raise LimitError(f"it takes longer than {SECONDS:g} seconds")
    return value


def limited(name: str, apply: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a filter so that its arguments and result are checked and keep their marks."""

    @wraps(apply)  # copies the attributes that make jinja2 pass the environment
    def apply_limited(*args: Any, **named: Any) -> Any:
        args = tuple(map(_as_list, args))
        values = [*args, *named.values()]
        first, *others = [item for item in values if not isinstance(item, _JINJA_CONTEXTS)]
        if name == "format" and isinstance(first, str):
            _check_format(first, "%", others)
        else:
            _check_growth(name, first, others)
        if name in _OF_LISTS:
            args = tuple(
                keep_marks(str(a)) if isinstance(a, list | tuple | dict) else a for a in args
            )
        if any(isinstance(item, MarkedText) for item in (*args, *named.values())):
            if name in _PLAIN_FILTERS:
                args = tuple(unmark_all(arg) if isinstance(arg, str) else arg for arg in args)
                return mark_all(apply(*args, **unmark_all(named)))
            args = tuple(MarkedText(arg) if type(arg) is str else arg for arg in args)
        return _check_size(keep_marks(apply(*args, **named)))

    return apply_limited


def _as_list(value: Any) -> Any:
    """Convert a generator, whose length is unknown, to a list; leave other values as they are."""
    return _check_size(list(value)) if isinstance(value, GeneratorType) else value


def _check_size(value: Any) -> Any:
    """Return the value. Raises LimitError if it is too long a text or list."""
    if isinstance(value, str | bytes) and len(value) > LONGEST:
        raise LimitError("it produces too long a text")
    _count_items(value)
    return value


def _check_growth(name: str, value: Any, others: Sequence[Any]) -> None:
    """Raise a LimitError if the result of an operation on a text or list could be too long."""
    if name == "translate":
        raise LimitError("it translates a text")
    if name in _GROWING:
        times = max((_length_of(item, counts=True) for item in others), default=1)
        if _length_of(value, counts=False) * times > LONGEST:
            raise LimitError("it produces too long a text")


def _check_format(form: str, opens: str, values: Sequence[Any]) -> None:
    """Raise a LimitError if formatting could give too long a text; `opens` begins a placeholder."""
    widths = bool("*" in form if opens == "%" else _NESTED.search(form))  # given as arguments
    inside = [item for value in values if isinstance(value, dict) for item in value.values()]
    longest = max((_length_of(item, counts=widths) for item in (*values, *inside)), default=0)
    if _WIDE.search(form) or form.count(opens) * longest > LONGEST:
        raise LimitError("it produces too long a text")


def _length_of(value: Any, *, counts: bool) -> int:
    """An upper limit for the characters of a text, or of a list as text. `counts`: a number is a
    repetition or a width."""
    if counts and isinstance(value, int):
        if abs(value) > _WIDEST:
            raise LimitError("it pads a text too far")
        return abs(value)
    if isinstance(value, str | bytes):
        return len(value)
    return _CHARACTERS_PER_ITEM * max(_count_items(value), length_hint(value, 1))


def _count_items(value: Any) -> int:
    """Count the items of nested lists, long texts as several. Raises LimitError for too many."""
    seen: dict[int, int] = {}

    def count(item: Any, depth: int) -> int:
        if isinstance(item, str | bytes):
            return 1 + len(item) // _CHARACTERS_PER_ITEM
        if not isinstance(item, list | tuple | dict):
            return 1
        if depth > _DEEPEST:
            raise LimitError("it nests lists too deeply")
        if id(item) not in seen:
            parts = item if not isinstance(item, dict) else [*item.keys(), *item.values()]
            seen[id(item)] = 1 + sum(count(part, depth + 1) for part in parts)
            if seen[id(item)] > _ITEMS:
                raise LimitError("it produces too long a list")
        return seen[id(item)]

    return count(value, 0)
