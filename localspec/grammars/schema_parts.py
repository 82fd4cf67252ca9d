"""The parts of JSON schemas, and what references compose of them, within bounds."""

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import islice
from typing import Any, TypeAlias
from urllib.parse import unquote

from localspec.errors import UsageError

_MOST_PARTS, _MOST_COMPOSED, _MOST_COPIED = 20_000, 500, 200_000
MAPS = frozenset(["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"])
_DATA = frozenset(["const", "enum", "default", "examples", "required"])
COMPOSED = frozenset(("$ref", "anyOf", "oneOf", "allOf"))
_DEFINITIONS = frozenset(("$defs", "definitions"))

Change: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]


def values_in(value: Any) -> Iterator[Any]:
    """A JSON value and all values in it."""
    pending = [value]
    while pending:
        current = pending.pop()
        yield current
        if isinstance(current, dict):
            pending.extend(current.values())
        elif isinstance(current, list):
            pending.extend(current)


def require_few_parts(schema: Mapping[str, Any]) -> None:
    """Raise a UsageError if a schema has too many parts, alone or in what its `allOf` and `oneOf`
    refer to, which is copied for each."""
    parts = [*islice(values_in(schema), _MOST_PARTS + 1)]
    if len(parts) > _MOST_PARTS:
        raise too_large(f"it has more than {_MOST_PARTS:,} parts")
    composed: Iterator[Any] = (
        value
        for part in parts
        if isinstance(part, dict)
        for one in (*composed_of(part, schema)[1:], *_options(part, "oneOf"))
        for value in values_in(resolve_reference(one, schema))
    )
    if any(number == _MOST_COPIED for number, _ in enumerate(composed)):
        raise too_large(f"its 'allOf' and 'oneOf' refer to more than {_MOST_COPIED:,} parts")


def map_schemas(schema: Any, change: Change) -> Any:
    """Apply `change` to every schema within a schema, the innermost first."""
    if isinstance(schema, list):
        return [map_schemas(part, change) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _DATA:
            found[key] = value
        elif key in MAPS and isinstance(value, dict):
            found[key] = {name: map_schemas(part, change) for name, part in value.items()}
        else:
            found[key] = map_schemas(value, change)
    return change(found)


def without(part: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {key: value for key, value in part.items() if key not in names}


def resolve_reference(part: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """The target of a reference within the schema; another schema unchanged."""
    if not isinstance(part, dict):
        return {}
    place = part.get("$ref")
    if not isinstance(place, str) or not place.startswith("#/"):
        return part
    found = target_of(place, root)
    beside = {key: value for key, value in part.items() if key != "$ref"}
    return {**found, **beside} if isinstance(found, dict) else part


def target_of(place: str, root: Mapping[str, Any]) -> Any:
    """What the reference `place`, # or #/…, points at; None if nothing."""
    found: Any = root
    for step in unquote(place[2:]).split("/") if place != "#" else ():
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            found = {str(number): one for number, one in enumerate(found)}
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def composed_of(
    part: Mapping[str, Any], root: Mapping[str, Any], by: str = "allOf"
) -> list[Mapping[str, Any]]:
    """A schema and all that it composes by a keyword, through references. A UsageError if they are
    too many: two references each can be thousands of millions."""
    found: list[Mapping[str, Any]] = []
    pending: list[Any] = [part]
    while pending:
        found.append(one := resolve_reference(pending.pop(), root))
        pending += _options(one, by)
        if len(found) + len(pending) > _MOST_COMPOSED:
            raise too_large(f"'{by}' composes more than {_MOST_COMPOSED} schemas, or itself")
    return found


def _options(part: Mapping[str, Any], by: str) -> list[Any]:
    options = part.get(by)
    return options if isinstance(options, list) else []


def places_in(schema: Mapping[str, Any]) -> set[str]:
    """The places that references in a schema point at."""
    found = (part.get("$ref") for part in values_in(schema) if isinstance(part, dict))
    return {place for place in found if isinstance(place, str)}


def patterns_in(part: Any, root: Mapping[str, Any], known: dict[int, int]) -> int:
    """At most how many patterns of a schema apply to one text. `known`: counts by id."""
    if isinstance(part, list):
        return max((patterns_in(one, root, known) for one in part), default=0)
    if not isinstance(part, dict):
        return 0
    if id(part) not in known:
        known[id(part)] = 0  # until it is counted, as it may refer to itself
        apart = [one for key, one in part.items() if key not in COMPOSED | _DEFINITIONS]
        target = target_of(part["$ref"], root) if isinstance(part.get("$ref"), str) else None
        others = part.get("anyOf"), part.get("oneOf"), target, *_options(part, "allOf")
        counts = [patterns_in(one, root, known) for one in (apart, *others)]
        counts[0] = max(counts[0], isinstance(part.get("pattern"), str))
        known[id(part)] = sum(counts)
    return known[id(part)]


def forbid_endless(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Let references to what only endless values match allow nothing: llguidance would begin one,
    and then be stuck or never end."""
    waiting = {place for place in places_in(schema) if place == "#" or place.startswith("#/")}
    while ended := {place for place in waiting if _ends(target_of(place, schema), waiting)}:
        waiting -= ended
    if not _ends(schema, waiting):
        raise UsageError(
            "No answer can match the JSON schema: a '$ref' that leads back to itself has no end. "
            "Make one of the properties on its way optional."
        )

    def change(part: dict[str, Any]) -> dict[str, Any]:
        return {"enum": []} if str(part.get("$ref")) in waiting else part

    return map_schemas(schema, change) if waiting else schema


def _ends(part: Any, endless: Collection[str]) -> bool:
    """Whether a schema may match a value if the references `endless` do not."""
    if not isinstance(part, dict):
        return True
    named, items = part.get("properties", {}), part.get("items")
    required, least = part.get("required", []), part.get("minItems")
    inner = [*_options(part, "allOf")]
    if part.get("type") == "object" and isinstance(named, dict) and isinstance(required, list):
        rest = None if "patternProperties" in part else part.get("additionalProperties")
        inner += [named.get(name, rest) for name in map(str, required)]
        if part.get("minProperties") and not named:
            inner.append(rest)
    if part.get("type") == "array" and isinstance(least, int | float):
        first, rest = _options(part, "prefixItems"), items
        if isinstance(items, list):
            first, rest = items, part.get("additionalItems")
        inner += [*first, rest][: int(least)]
    options = [some for by in ("anyOf", "oneOf") if (some := _options(part, by))]
    return (
        str(part.get("$ref")) not in endless
        and all(_ends(one, endless) for one in inner)
        and all(any(_ends(one, endless) for one in some) for some in options)
    )


def too_large(why: str) -> UsageError:
    return UsageError(f"The JSON schema is too large: {why}. Simplify it.")
