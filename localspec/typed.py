"""Values that callers give, held to the types that are declared for them."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, wraps
from inspect import signature
from types import NoneType, UnionType
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from localspec.errors import WrongType

Asked = ParamSpec("Asked")
Result = TypeVar("Result")

_WORDS: dict[Any, str] = {
    str: "text",
    float: "a number",
    bool: "True or False",
    int: "a whole number",
    Callable: "a function",
    Iterable: "a sequence",
    Mapping: "a dictionary",
    NoneType: "None",
    os.PathLike: "a path",
}


@lru_cache
def _hints(of: Callable[..., Any]) -> Mapping[str, Any]:
    return get_type_hints(of)


def typed(function: Callable[Asked, Result]) -> Callable[Asked, Result]:
    """With arguments that are `fitted`."""
    parameters = signature(function)

    @wraps(function)
    def call(*args: Asked.args, **keywords: Asked.kwargs) -> Result:
        try:
            bound, hints = parameters.bind(*args, **keywords), _hints(function)
        except TypeError:
            return function(*args, **keywords)  # which names itself
        for name, value in bound.arguments.items():
            if name in hints:
                bound.arguments[name] = fitted(name, value, hints[name])
        return function(*bound.args, **bound.kwargs)

    return call


def fit(record: Any, *besides: str) -> None:
    """Have the fields of a dataclass `fitted`, `besides` excepted."""
    for name, kind in _hints(record.__class__).items():
        if name not in besides and kind is not str:  # names are judged by what there is
            object.__setattr__(record, name, fitted(name, getattr(record, name), kind))


def fitted(name: str, value: Any, kind: Any) -> Any:
    """A value of a declared type, a number of another library as Python's; any iterable is a
    sequence. A WrongType if it is of another type."""
    union = get_origin(kind) in (Union, UnionType)
    bases = [get_origin(one) or one for one in (get_args(kind) if union else (kind,))]
    bases = [Iterable if base in (tuple, Sequence) else base for base in bases]
    if Any in bases:
        return value
    if isinstance(value, tuple(bases)) and not isinstance(value, bytes | bytearray):
        return value
    if float in bases and isinstance(value, int):
        return value
    for base, method in ((int, "__index__"), (float, "__float__")):
        if base in bases and hasattr(value, method):
            with suppress(TypeError):
                return operator.index(value) if base is int else float(value)
    words = (
        _WORDS.get(base, f"a{'n' * base.__name__.startswith('A')} {base.__name__}")
        for base in bases
    )
    wanted = " or ".join(dict.fromkeys(words))
    shown = repr(value)
    shown = shown if len(shown) <= 80 else f"{shown[:80]}…"
    raise WrongType(f"{name.replace('_', '-')} is {shown}. Give {wanted}.")
