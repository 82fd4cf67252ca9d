"""Conversion and checks of callers' values by their declared types."""

import math
import operator
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import lru_cache, wraps
from inspect import Parameter, signature
from inspect import iscoroutinefunction as is_async
from types import NoneType, UnionType
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from localspec.errors import UsageError, WrongType

Params = ParamSpec("Params")
Result = TypeVar("Result")

_WORDS: dict[Any, str] = {
    str: "text",
    float: "a number",
    bool: "True or False",
    int: "a whole number",
    Callable: "a plain function",
    Iterable: "a sequence",
    Mapping: "a dictionary",
    NoneType: "None",
    os.PathLike: "a path",
}
_BYTES = (bytes, bytearray, memoryview)


@lru_cache
def _hints(annotated: Callable[..., Any]) -> Mapping[str, Any]:
    return get_type_hints(annotated)


def typed(function: Callable[Params, Result]) -> Callable[Params, Result]:
    """Decorate a function to `convert` its arguments."""
    parameters = signature(function)

    @wraps(function)
    def call(*args: Params.args, **keywords: Params.kwargs) -> Result:
        try:
            bound, hints = parameters.bind(*args, **keywords), _hints(function)
        except TypeError:
            return function(*args, **keywords)  # its TypeError names the function
        for name, value in bound.arguments.items():
            if name in hints and parameters.parameters[name].kind is not Parameter.VAR_KEYWORD:
                bound.arguments[name] = convert(name, value, hints[name])
        return function(*bound.args, **bound.kwargs)

    return call


def convert_fields(record: Any, *besides: str) -> None:
    """Apply `convert` to the fields of a dataclass, except `besides`."""
    for name, kind in _hints(record.__class__).items():
        if name not in besides and kind is not str:  # names are checked against the known ones
            object.__setattr__(record, name, convert(name, getattr(record, name), kind))


def convert(name: str, value: Any, kind: Any) -> Any:
    """Return a value of a declared type: numbers of other libraries become Python's, members of
    enumerations their values, and any iterable passes as a sequence. Raises WrongType for another
    type, and UsageError for an empty path."""
    if getattr(value, "shape", None) == ():  # a scalar of numpy or torch
        value = value.item()
    value = value.value if isinstance(value, Enum) else value
    union = get_origin(kind) in (Union, UnionType)
    bases = [get_origin(one) or one for one in (get_args(kind) if union else (kind,))]
    bases = [Iterable if base in (tuple, Sequence) else base for base in bases]
    if Any in bases:
        return value
    if isinstance(value, int) and value.bit_length() > sys.float_info.max_exp:
        raise WrongType(f"{name.replace('_', '-')} has more than 300 digits. Give a smaller one.")
    if isinstance(value, float) and math.isnan(value):
        raise WrongType(f"{name.replace('_', '-')} is nan. Give a number.")
    if isinstance(value, str) and not value and os.PathLike in bases:
        raise UsageError(f"{name.replace('_', '-')} is empty. Leave it out, or name a file.")
    if isinstance(value, tuple(bases)) and not isinstance(value, _BYTES) and not is_async(value):
        return value
    if float in bases and isinstance(value, int):
        return +value  # True is 1
    for base, number in ((int, operator.index), (float, float)):
        if base in bases and not isinstance(value, (str, *_BYTES)):
            with suppress(TypeError, ValueError, ArithmeticError):
                return convert(name, number(value), kind)
    words = (
        _WORDS.get(base, f"a{'n' * base.__name__.startswith(('A', 'E'))} {base.__name__}")
        for base in bases
    )
    wanted = " or ".join(dict.fromkeys(words))
    shown = repr(value)
    shown = shown if len(shown) <= 80 else f"{shown[:80]}…"
    raise WrongType(f"{name.replace('_', '-')} is {shown}. Give {wanted}.")
