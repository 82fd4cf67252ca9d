"""JSON schemas from clients: within bounds, and such that a grammar can be made of them.

A schema of a few bytes can describe a grammar of gigabytes. What makes one large is counted before
anything is made of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from typing import Any

from localspec.llama.schema_keywords import UNENFORCED
from localspec.server.failures import ApiError

_MOST_NODES = 5_000
_MOST_PROPERTIES = 200
_LONGEST_NAME = 200
_LARGEST_COUNT = 1_000
"""Of minItems, maxLength and their like, all of a schema together."""
_LONGEST_PATTERN = 500
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength")
_QUANTIFIER = re.compile(r"\{\s*(\d*)\s*(?:,\s*(\d*)\s*)?\}")


def require_bounded(schema: Any) -> None:
    """Return unless a grammar of the schema would be too large.

    Raises:
        ApiError: it would be.
    """
    nodes, counts = 0, 0
    level = [schema]
    while level:
        further: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                counts += _counted(one)
                further.extend(one.values())
            elif isinstance(one, list):
                further.extend(one)
        nodes += len(further)
        if nodes > _MOST_NODES:
            raise _too_large(f"it has more than {_MOST_NODES} parts")
        if counts > _LARGEST_COUNT:
            raise _too_large(f"its counts add up to more than {_LARGEST_COUNT}")
        level = further


def _counted(schema: Mapping[str, Any]) -> int:
    """What a part of a schema adds to the counts."""
    counts = 0
    for name in _COUNTS:
        count = schema.get(name)
        if isinstance(count, int) and not isinstance(count, bool):
            counts += max(0, count)
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        if len(pattern) > _LONGEST_PATTERN:
            raise _too_large(f"a pattern is longer than {_LONGEST_PATTERN} characters")
        product = 1
        for found in _QUANTIFIER.finditer(pattern):
            digits = max(found[1] or "", found[2] or "", key=lambda text: (len(text), text))
            # Nested quantifiers multiply; that these may not be is not worth a parser.
            product *= max(1, int(digits[:6] or 0))
            if product > _LARGEST_COUNT:
                break
        counts += product
    properties = schema.get("properties")
    if isinstance(properties, dict):
        if len(properties) > _MOST_PROPERTIES:
            raise _too_large(f"an object has more than {_MOST_PROPERTIES} properties")
        if any(len(name) > _LONGEST_NAME for name in properties):
            raise _too_large(f"a property's name is longer than {_LONGEST_NAME} characters")
    return counts


def _too_large(why: str) -> ApiError:
    return ApiError(400, f"The JSON schema is too large: {why}. Simplify it.", param="schema")


def loosened(schema: Any) -> Any:
    """A schema without what a grammar cannot enforce: for tools, whose clients check arguments."""
    if isinstance(schema, dict):
        return {
            key: _loosened_names(value)
            if key in ("properties", "$defs", "definitions")
            else value
            if key in ("const", "enum", "default", "examples", "required")
            else loosened(value)
            for key, value in schema.items()
            if key not in UNENFORCED
        }
    return [loosened(part) for part in schema] if isinstance(schema, list) else schema


def _loosened_names(properties: Any) -> Any:
    if not isinstance(properties, dict):
        return properties
    return {name: loosened(value) for name, value in properties.items()}


def hoisted(schema: Any, prefix: str, definitions: MutableMapping[str, Any]) -> Any:
    """A schema that becomes part of another one: its definitions move to `definitions`, under names
    that begin with a prefix of its own, and references follow them."""
    if isinstance(schema, list):
        return [hoisted(part, prefix, definitions) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {}
    for key, value in schema.items():
        if key in ("$defs", "definitions") and isinstance(value, dict):
            for name, definition in value.items():
                definitions[f"{prefix}-{name}"] = hoisted(definition, prefix, definitions)
        elif key == "$ref" and isinstance(value, str):
            found[key] = re.sub(r"^#/(?:\$defs|definitions)/", f"#/$defs/{prefix}-", value)
        elif key in ("const", "enum", "default", "examples"):
            found[key] = value
        else:
            found[key] = hoisted(value, prefix, definitions)
    return found
