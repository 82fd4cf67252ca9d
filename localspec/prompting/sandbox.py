"""jinja2's sandbox with limits: a template comes with a model, from whoever made the file.

jinja2 keeps a template from Python's insides, from changing what it is given, and from ranges of
more than 100,000. Nested loops, and one operation that makes a text of gigabytes, are left; here
they end after some seconds, or are refused.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

SECONDS = 5.0
"""For one prompt. The longest templates take milliseconds."""
LONGEST = 32 << 20
"""Characters of a prompt; more than any context holds."""
_WIDEST = 10_000
"""Of a padded text; digits of a power."""
_WIDE = re.compile(r"\d{5,}")
_NESTED = re.compile(r"\{[^{}]*\{")


class Sandbox(ImmutableSandboxedEnvironment):
    """An environment for templates that nobody here wrote."""

    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, apply in self.filters.items():
            self.filters[name] = _bounded(name, apply)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        # a ~ b, which nothing else could look at, becomes [a, b] | join.
        tree: nodes.Template = _Joined().visit(super()._parse(source, name, filename))
        return tree

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*" and any(isinstance(one, str | list | tuple) for one in (left, right)):
            text, times = (right, left) if isinstance(left, int) else (left, right)
            if isinstance(times, int) and len(text) * times > LONGEST:
                raise SecurityError("it repeats a text too often")
        elif operator == "**" and not _small_power(left, right):
            raise SecurityError("it makes too large a number")
        elif operator == "%" and isinstance(left, str) and _WIDE.search(left):
            raise SecurityError("it pads a text too far")
        found = super().call_binop(context, operator, left, right)
        _check_length(found)
        if isinstance(found, int) and found.bit_length() > _WIDEST:
            raise SecurityError("it makes too large a number")
        return found

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        inner = super().wrap_str_format(value)
        if inner is None:
            return None
        if _WIDE.search(value.__self__):
            raise SecurityError("it pads a text too far")

        def formatted(*args: Any, **named: Any) -> str:
            if _NESTED.search(value.__self__):  # a width that is an argument
                _check_width([*args, *named.values()])
            return inner(*args, **named)

        return formatted

    def call(self, context: Context, what: Any, /, *args: Any, **named: Any) -> Any:
        owner = getattr(what, "__self__", None)
        if isinstance(owner, str | bytes | int):
            _check_width([*args, *named.values()])
            if what.__name__ in ("join", "replace"):
                _check_growth(what.__name__, owner, args)
        found = super().call(context, what, *args, **named)
        _check_length(found)
        return found


class _Joined(NodeTransformer):
    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802 (jinja2's name)
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(parts, "join", [], [], None, None, lineno=node.lineno)


def rendered(template: jinja2.Template, variables: dict[str, Any]) -> str:
    """The text of a template, within the limits.

    Raises:
        SecurityError: it takes too long, or makes too much.
    """
    parts: list[str] = []
    length = 0

    def render() -> str:
        nonlocal length
        for part in template.generate(variables):
            length += len(part)
            if length > LONGEST:
                raise SecurityError(f"it makes a prompt of more than {LONGEST:,} characters")
            parts.append(part)
        return "".join(parts)

    return _limited(render, SECONDS)


class _Late(BaseException):
    """Raised in a thread from outside; no `except Exception` of a library swallows it."""


def _limited(work: Callable[[], str], seconds: float) -> str:
    """What `work` returns, unless it takes longer. It is stopped between two steps of Python."""
    thread, changing, state = (
        threading.get_ident(),
        threading.Lock(),
        {"over": False, "sent": False},
    )

    def stop() -> None:
        with changing:
            if not state["over"]:
                state["sent"] = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread), ctypes.py_object(_Late)
                )

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    arrived = False
    try:
        timer.start()
        try:
            return work()
        except _Late:
            arrived = True
            raise
        finally:
            with changing:
                state["over"] = True
            timer.cancel()
            while state["sent"] and not arrived:  # it is on its way, and shall not arrive later
                pass
    except _Late:
        raise SecurityError(f"it takes longer than {seconds:g} seconds") from None


def _small_power(left: Any, right: Any) -> bool:
    if not (isinstance(left, int) and isinstance(right, int)):
        return True
    return abs(right) * max(1, left.bit_length()) <= _WIDEST


def _bounded(name: str, apply: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that neither is given nor makes too much."""

    @wraps(apply)  # with the attributes by which jinja2 knows those that want the environment
    def bounded(*args: Any, **named: Any) -> Any:
        texts = [arg for arg in args if isinstance(arg, str)]
        if name in ("center", "indent", "wordwrap", "round", "batch", "slice", "tojson"):
            _check_width([*args, *named.values()])
        elif name == "format" and texts and _WIDE.search(texts[0]):
            raise SecurityError("it pads a text too far")
        elif name == "replace" and texts:
            _check_growth(name, texts[0], texts[1:])
        found = apply(*args, **named)
        _check_length(found)
        return found

    return bounded


def _check_length(found: Any) -> None:
    if isinstance(found, str | bytes | list | tuple) and len(found) > LONGEST:
        raise SecurityError("it makes too long a text")


def _check_width(values: Iterable[Any]) -> None:
    if any(isinstance(value, int) and abs(value) > _WIDEST for value in values):
        raise SecurityError("it pads a text too far")


def _check_growth(name: str, owner: Any, args: Sequence[Any]) -> None:
    """Before what may multiply a text: each place that is replaced, each gap that is filled."""
    if not isinstance(owner, str) or not args:
        return
    if name == "replace":
        most = (len(owner) + 1) * max(len(arg) for arg in args if isinstance(arg, str))
    else:
        most = len(owner) * (len(args[0]) if hasattr(args[0], "__len__") else 1)
    if most > LONGEST:
        raise SecurityError("it makes too long a text")
