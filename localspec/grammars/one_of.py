"""`oneOf`: whether its alternatives exclude each other."""

import json
import math
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

from localspec.grammars.schema_parts import Change

_MOST = 50
"""Maximum number of alternatives, which are compared pairwise."""
_DEPTH = 3
"""Maximum depth of objects and arrays whose parts are compared."""
_TYPES = {str: "string", bool: "boolean", int: "number", float: "number", list: "array"}
_TYPES |= {dict: "object", type(None): "null"}

_BOUNDS = {
    "string": ("minLength", "maxLength"),
    "number": ("minimum", "maximum"),
    "array": ("minItems", "maxItems"),
    "object": ("minProperties", "maxProperties"),
}
Schema = Mapping[str, Any]


def exclude_each_other(
    narrowed: Sequence[Schema], written: Sequence[Schema], resolve: Change
) -> bool:
    """Whether no value that one narrowed schema allows matches another one as written, judged by
    types, constants, bounds, first items and required properties. `resolve`: for references."""
    pairs = permutations(range(len(written)), 2)
    try:
        values = [_values(one) for one in written]
        if None not in values:
            keys = [_key(value) for one in values for value in one or ()]
            return len({*keys}) == len(keys)
        return len(written) <= _MOST and all(
            _apart(narrowed[one], written[other], resolve, _DEPTH) for one, other in pairs
        )
    except (AttributeError, TypeError):  # not schemas, which llguidance reports
        return False


def _apart(one: Schema, other: Schema, resolve: Change, depth: int) -> bool:
    values, others = _values(one), _values(other)
    if values is not None and others is not None:
        return {*map(_key, values)}.isdisjoint(map(_key, others))
    kinds = _kinds(one) & _kinds(other)
    if len(kinds) != 1 or not depth:
        return not kinds
    (kind,) = kinds
    least, most = _BOUNDS.get(kind, ("", ""))
    pairs = permutations((one, other))
    if any(low.get(most, math.inf) < high.get(least, -math.inf) for low, high in pairs):
        return True
    if kind == "array" and (one.get(least) or other.get(least)):
        first, second = (resolve(_first_item(schema)) for schema in (one, other))
        return _apart(first, second, resolve, depth - 1)
    if kind != "object":
        return False
    named, names = (schema.get("properties", {}) for schema in (one, other))
    required = {*one.get("required", ()), *other.get("required", ())}
    for schema, known in ((one, named), (other, names)):
        closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
        if closed and not required <= known.keys():
            return True
    return any(
        _apart(resolve(named[name]), resolve(names[name]), resolve, depth - 1)
        for name in required & named.keys() & names.keys()
    )


def _first_item(schema: Schema) -> Any:
    first, items = schema.get("prefixItems"), schema.get("items", {})
    first = items if isinstance(items, list) else first
    return first[0] if first else items


def _values(schema: Schema) -> list[Any] | None:
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _key(value: Any) -> str:
    plain = json.loads(json.dumps(value), parse_float=_number)
    return json.dumps(plain, sort_keys=True)


def _number(text: str) -> float:
    return int(number) if (number := float(text)).is_integer() else number  # 1.0 is 1


def _kinds(schema: Schema) -> set[str]:
    """The types that a schema may allow; integers are numbers."""
    values, given = _values(schema), schema.get("type", [*_TYPES.values()])
    if values is not None:
        return {_TYPES[type(value)] for value in values}
    kinds = [given] if isinstance(given, str) else given
    return {"number" if kind == "integer" else kind for kind in kinds}
