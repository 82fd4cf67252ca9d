"""JSON schemas as their authors intend them, without artefacts of the clients' languages."""

import json
import re
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import chain, combinations
from typing import Any

from localspec.errors import UsageError
from localspec.grammars.one_of import exclude_each_other
from localspec.grammars.patterns import FORMATS
from localspec.grammars.schema_parts import (
    MAPS,
    Change,
    composed_of,
    map_schemas,
    require_few_parts,
    resolve_reference,
    too_large,
    values_in,
)

_EMPTY = MAPS | {"items", "additionalProperties", "additionalItems"}
_OF_OBJECTS = frozenset(["properties", "required", "additionalProperties", "patternProperties"])
_OPEN = frozenset(["additionalProperties", "propertyNames", "minProperties"])
_BARE = frozenset(["type", "properties", "title", "description", "$schema"])
_ROOT = frozenset(["$defs", "definitions", "$schema", "$id"])
_ANNOTATIONS = frozenset(["title", "description", "default", "examples", "deprecated"])
_MERGED = frozenset(["type", "properties", "required"])
_ITEMS = frozenset(["items", "prefixItems", "additionalItems"])
_CHOICES = frozenset(["$ref", "$dynamicRef", "anyOf", "oneOf"])
_UNEVALUATED = frozenset(["unevaluatedItems", "unevaluatedProperties"])
_APPLIED = _CHOICES | {"allOf", "if", "then", "else", "dependentSchemas", "contains"}
_VARIED = _CHOICES - {"oneOf"} | {"allOf", "patternProperties", "propertyNames"}
_VARYING = frozenset(["properties", "required", "additionalProperties", "minProperties"])
_PRESENCE = frozenset(["oneOf", "not", "dependentRequired", "dependencies"])
_MOST_NAMES, _MOST_VARIANTS = 5, 20
_LISTS = frozenset(
    ["required", "enum", "type", "anyOf", "oneOf", "allOf", "prefixItems", "examples"]
)
_LISTED = re.compile(r"\^(?:([\w-]+)|\((?:\?:)?([\w-]+(?:\|[\w-]+)*)\))\$")
_TYPES = {name: name for name in "string number integer boolean object array null".split()}
_TYPES |= {"str": "string", "float": "number", "int": "integer", "bool": "boolean"}
_TYPES |= {"dict": "object", "list": "array", "tuple": "array"}
_DECIDES_TYPE = frozenset(["type", "$ref", "const", "enum", "anyOf", "oneOf", "allOf"])


def parse_schema(given: str | Mapping[str, Any]) -> dict[str, Any]:
    """The `intended` schema from JSON text or an object. A UsageError if it is not a schema."""
    try:
        text = given if isinstance(given, str) else json.dumps(given)
        schema = json.loads(text, parse_constant=_no_number)
        if isinstance(schema, dict):
            return intended(schema)
    except RecursionError:
        raise too_large("it is nested too deeply") from None
    except UsageError:
        raise
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"The JSON schema is not JSON: {error}. Pass a file or an object."
        ) from None
    if isinstance(schema, bool):
        return {} if schema else {"enum": []}
    raise UsageError("A JSON schema is an object. Wrap it in { }.")


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def intended(schema: Mapping[str, Any], *, of_objects: bool = False) -> dict[str, Any]:
    """The schema narrowed as by OpenAI, ollama and llama.cpp: objects have only the properties
    that are named. `of_objects`: the schema describes an object even if it does not say so."""
    found = normalise({**schema, "nullable": None})  # an answer is not null
    if of_objects and found.get("required") == []:
        del found["required"]
    if of_objects and found.get("properties") == {} and found.keys() <= _BARE:
        return {"type": "object", "additionalProperties": False}
    if not _is_typed(found) or (of_objects and not found.keys() & _DECIDES_TYPE):
        found = {"type": "object", **found}
    plain = map_schemas(found, lambda part: _rewrite(part, found))
    require_few_parts(plain)
    joined: dict[str, Any] = map_schemas(plain, lambda part: _merge_all_of(part, plain))
    varied = map_schemas(joined, _as_variants)
    composed = _is_composed(varied)
    varied, close = (joined, dict) if composed else (varied, _close)
    chosen = map_schemas(varied, lambda part: _as_any_of(part, varied, close, opens=not of_objects))
    return dict(map_schemas(chosen, close))


def _is_composed(schema: Mapping[str, Any]) -> bool:
    """Whether several schemas apply to one object, so that each names some properties."""
    require_few_parts(schema)
    keys = [part.keys() for part in values_in(schema) if isinstance(part, dict)]
    return any("allOf" in names or (names & _OF_OBJECTS and names & _CHOICES) for names in keys)


def normalise(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Undo what clients' languages change: an empty object written as a list (PHP), a list with
    gaps as an object (PHP), null for a missing value, types in capitals and counts as text
    (Gemini), types by their names in Python."""
    return dict(map_schemas(schema, _normalise_part))


def _normalise_part(part: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for key, value in part.items():
        if value is None and key not in ("const", "default"):
            continue
        if key in _LISTS and isinstance(value, dict) and all(map(str.isdigit, value)):
            value = [*value.values()]
        elif key in _EMPTY and value == []:
            value = {}
        if key in MAPS and isinstance(value, dict):
            value = {name: {} if one in ([], None, True) else one for name, one in value.items()}
        if key.startswith(("min", "max")) and isinstance(value, str) and value.isdecimal():
            value = int(value)
        if key == "type" and isinstance(value, list):
            value = [_TYPES.get(str(one).lower(), one) for one in value]
        elif key == "type":
            value = _TYPES.get(str(value).lower(), value)
        found[key] = value
    return found


def _rewrite(part: dict[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """Write in enforceable keywords: `nullable` (OpenAPI, Gemini), "not anything" (zod's never),
    and `propertyNames` that are listed or have a pattern (keys of dictionaries)."""
    if part.keys() - _ANNOTATIONS == {"not"} and part["not"] in ({}, True) and part != root:
        return {"enum": []}
    if part.pop("nullable", False) is True and part.keys() & _DECIDES_TYPE:
        return {"anyOf": [_rewrite(part, root), {"type": "null"}]}
    if "$ref" in part and "unevaluatedProperties" in part and "allOf" not in part:
        part["allOf"] = [{"$ref": part.pop("$ref")}]
    part = _evaluate(_name_listed(part))
    given, properties = part.get("propertyNames"), part.get("properties", {})
    plain = isinstance(properties, dict) and "patternProperties" not in part
    if isinstance(given, dict) and plain:
        names, value = _names(given, root), part.get("additionalProperties", {})
        closed = {**part, "propertyNames": {}, "additionalProperties": False}
        if isinstance(names, list):
            return {**closed, "properties": {name: properties.get(name, value) for name in names}}
        if names is not None and not properties:
            return {**closed, "patternProperties": {names: value}}
    return part


def _name_listed(part: dict[str, Any]) -> dict[str, Any]:
    """Write `patternProperties` that list their names as properties: after them, llguidance would
    begin another one, and be stuck."""
    patterns, properties = part.get("patternProperties"), part.get("properties", {})
    if not (isinstance(patterns, dict) and isinstance(properties, dict)):
        return part
    listed = {pattern: _LISTED.fullmatch(pattern) for pattern in patterns}
    found, others = {**part, "properties": {**properties}}, {**patterns}
    for pattern, names in listed.items():
        if names is not None:
            one = others.pop(pattern)
            for name in (names[1] or names[2]).split("|"):
                own = properties.get(name, one)
                same = own == one or (own and one and own == {**own, **one})
                found["properties"][name] = own if same else {"allOf": [own, one]}
    if len(others) == len(patterns):
        return part
    del found["patternProperties"]
    return {**found, "patternProperties": others} if others else found


def _names(given: Any, root: Mapping[str, Any]) -> list[str] | str | None:
    """The names that a schema of names allows, or a pattern that they match; None if unknown."""
    composed_of(given, root, "anyOf")
    found = resolve_reference(given, root)
    match {"type": "string", **{name: found[name] for name in found.keys() - _ANNOTATIONS}}:
        case {"type": "string", "const": name, **rest} if not rest:
            return [name] if isinstance(name, str) else []
        case {"type": "string", "enum": [*names], **rest} if not rest:
            return [name for name in names if isinstance(name, str)]
        case {"type": "string", "anyOf": [*options], **rest} if not rest:
            lists = [_names(one, root) for one in options]
            if all(isinstance(one, list) for one in lists):
                return [name for one in lists for name in one or ()]
        case {"type": "string", "pattern": str(pattern), **rest} if rest.keys() <= {"format"}:
            return pattern
        case {"type": "string", "format": str(form), **rest} if not rest:
            return FORMATS.get(form)
        case {"type": "string", **rest} if rest.keys() <= {"minLength", "maxLength"}:
            if all(isinstance(count, int | float) for count in rest.values()):
                least, most = int(rest.get("minLength", 0)), rest.get("maxLength")
                return rf"^[\s\S]{{{least},{'' if most is None else int(most)}}}$"
    return None


def _evaluate(part: dict[str, Any]) -> dict[str, Any]:
    """Replace `unevaluatedProperties` and `unevaluatedItems` by their meaning within one schema,
    unless they stand alone, like those that cannot see other parts of `allOf`."""
    if part.keys() <= _UNEVALUATED or part.keys() & _APPLIED:
        return part
    found = {key: value for key, value in part.items() if key not in _UNEVALUATED}
    for key in _UNEVALUATED & part.keys():
        more = "additionalItems" if isinstance(part.get("items"), list) else "items"
        found.setdefault(more if key == "unevaluatedItems" else "additionalProperties", part[key])
    return found


def _as_variants(part: dict[str, Any]) -> dict[str, Any]:
    """Write as `anyOf` which properties a closed object has, by lists of names: exactly one of
    `oneOf`, not all of `not`, `dependentRequired`, or one more than required."""
    properties, base = part.get("properties"), part.get("required", [])
    if part.keys() & _VARIED or part.get("additionalProperties", False) is not False:
        return part
    if part.get("type") != "object" or not isinstance(properties, dict):
        return part
    needs = part.get("dependentRequired", part.get("dependencies", {}))
    options, given = part.get("oneOf", []), part.keys() & _PRESENCE
    bare = [*options, part.get("not", {"required": []})] if isinstance(options, list) else []
    if not bare or not isinstance(needs, dict) or {"dependentRequired", "dependencies"} <= given:
        return part
    lists = [base, *needs.values(), *map(_required_alone, bare)]
    if not all(isinstance(one, list) and {*map(str, one)} <= {*properties} for one in lists):
        return part
    *ones, out = ({*one} for one in lists[1 + len(needs) :])

    def allowed(names: set[str]) -> bool:
        fits = sum(one <= names for one in ones) == 1 or not ones
        return (
            fits
            and not ("not" in part and out <= names)
            and all({*needs[name]} <= names for name in names & needs.keys())
        )

    named = sorted({*chain(*lists[1:]), *needs.keys() & properties.keys()} - {*base})
    least = part.get("minProperties", 0)
    pairs: Iterable[tuple[set[str], Iterable[str]]]
    if given and not least and len(named) <= _MOST_NAMES:
        some = chain.from_iterable(combinations(named, size) for size in range(len(named) + 1))
        pairs = [({*named} - {*more}, more) for more in some if allowed({*base, *more})]
    elif not given and least == len({*base}) + 1 and len(properties) <= _MOST_VARIANTS:
        free = [name for name in properties if name not in base]
        pairs = [({*free[:at]}, [name]) for at, name in enumerate(free)]
    else:
        return part
    variants = [
        {
            "type": "object",
            "properties": {name: one for name, one in properties.items() if name not in gone},
            "required": [*base, *more],
            "additionalProperties": False,
        }
        for gone, more in pairs
    ]
    return {key: one for key, one in part.items() if key not in _VARYING | _PRESENCE} | {
        "anyOf": variants
    }


def _required_alone(option: Any) -> Any:
    """The names that a schema requires, if it contains nothing else."""
    alone = isinstance(option, dict) and option.keys() - _ANNOTATIONS == {"required"}
    return option["required"] if alone else None


def _merge_all_of(part: dict[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `allOf` if it is one schema, or objects with different properties. If some of them are
    closed, the merged object is: each alone would forbid the others' properties."""
    options, shut = part.get("allOf"), part.get("unevaluatedProperties") is False
    beside = {key: value for key, value in part.items() if key != "allOf"}
    if not isinstance(options, list) or not all(isinstance(option, dict) for option in options):
        return part
    if shut:
        del beside["unevaluatedProperties"]
    elif (
        len(options) == 1
        and not options[0].keys() & beside.keys() - _ANNOTATIONS
        and not (options[0].keys() & _ITEMS and beside.keys() & _ITEMS)
        and not (beside.keys() & {"properties", "patternProperties"})
        and not beside.get("additionalProperties")
    ):
        return {**options[0], **beside}
    whole = (_merge_all_of(resolve_reference(option, root), root) for option in options)
    objects = [{**item} for item in (*whole, beside)]
    closed = [item.pop("additionalProperties", None) for item in objects] + [False] * shut
    kinds = [item["type"] for item in objects if "type" in item]
    properties = [item.get("properties", {}) for item in objects]
    required = [item.get("required", []) for item in objects]
    plain = all(item.keys() - _ANNOTATIONS - _ROOT <= _MERGED for item in objects)
    plain &= all(kind == "object" for kind in kinds) and bool(kinds or any(properties))
    plain &= all(value in (None, False) for value in closed)
    if not plain or ({*map(type, properties)}, {*map(type, required)}) != ({dict}, {list}):
        return part
    merged = {name: value for group in properties for name, value in group.items()}
    if len(merged) < sum(map(len, properties)):
        return part
    names = [name for group in required for name in group]
    more: dict[str, Any] = {"required": names} if names else {}
    more |= {"additionalProperties": False} if False in closed else {}
    return {**beside, "type": "object", "properties": merged, **more}


def _as_any_of(
    part: dict[str, Any], root: Mapping[str, Any], close: Change, *, opens: bool
) -> dict[str, Any]:
    """Write `oneOf` as `anyOf` if its alternatives exclude each other once they are closed.
    Otherwise, if `opens`, leave them open: a match of one must not match another as written."""
    options = part.get("oneOf")
    if not isinstance(options, list) or not all(isinstance(one, dict) for one in options):
        return part
    resolve = partial(resolve_reference, root=root)
    written = [*map(resolve, options)]
    typed = [
        one if _is_typed(known) else {"type": "object", **known}
        for one, known in zip(options, written, strict=True)
    ]
    narrowed = [map_schemas(resolve(one), close) for one in typed]
    beside = {key: value for key, value in part.items() if key != "oneOf"}
    if "anyOf" not in part and exclude_each_other(narrowed, written, resolve):
        return {**beside, "anyOf": typed}
    opened = [map_schemas(one, _open) for one in written] if opens else options
    return {**beside, "oneOf": opened}


def _is_typed(part: Mapping[str, Any]) -> bool:
    return bool(part.keys() & _DECIDES_TYPE) or not part.keys() & _OF_OBJECTS


def _open(part: dict[str, Any]) -> dict[str, Any]:
    return {"additionalProperties": {}, **part} if "properties" in part else part


def _close(part: dict[str, Any]) -> dict[str, Any]:
    properties, required = part.get("properties", {}), part.get("required", [])
    known = isinstance(properties, dict) and isinstance(required, list)
    named = properties or part.get("patternProperties")
    if known and named and not part.keys() & _OPEN and {*map(str, required)} <= {*properties}:
        part["additionalProperties"] = False
    return part
