"""JSON schemas as llguidance grammars. What cannot be enforced is refused by name."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from itertools import filterfalse
from typing import Any

from localspec.errors import UsageError
from localspec.llama.intended_schema import (
    ROOT,
    TYPES,
    intended,
    mapped,
    resolved,
    too_large,
    values_in,
)

WHITESPACE = "\\x20"
"""At most one space between parts: small models get lost in line feeds."""
LONGEST_PATTERN = 10_000
"""Characters of a regular expression; more can take seconds."""
_MOST_PARTS = 20_000
MOST_REFERENCES = 300
"""llguidance recurses along references; a thousand overflow its stack."""
_MOST_PATTERNS = 50
"""Property patterns of an object, which are compared pairwise."""

_UNENFORCED = frozenset(
    (
        "not", "if", "then", "else", "uniqueItems", "contains", "minContains", "maxContains",
        "propertyNames", "dependencies", "dependentRequired", "dependentSchemas",
        "unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef"
    )
)  # fmt: skip
_ENFORCED_FORMATS = frozenset(
    (
        "date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid",
        "uri", "unknown"
    )
)  # fmt: skip
_UNENFORCED_FORMATS = frozenset(
    (
        "idn-email", "idn-hostname", "iri", "iri-reference", "uri-reference", "uri-template",
        "json-pointer", "relative-json-pointer", "regex"
    )
)  # fmt: skip
_FORMATS = _ENFORCED_FORMATS | _UNENFORCED_FORMATS
_IDLE: dict[str, tuple[tuple[str, ...], tuple[bool, ...]]] = {
    "if": (("then", "else"), ()),
    "then": (("if",), ()),
    "else": (("if",), ()),
    "minContains": (("contains",), ()),
    "maxContains": (("contains",), ()),
    "uniqueItems": ((), (False,)),
    "propertyNames": ((), (True,)),
    "unevaluatedItems": ((), (True,)),
    "unevaluatedProperties": ((), (True,)),
    "$dynamicAnchor": (("$dynamicRef",), ()),
}
"""Keywords without effect unless one of these stands beside them, or with such a value."""
_COMPOSED = frozenset(("$ref", "anyOf", "oneOf", "allOf"))
_BOUNDS = {"minimum": math.inf, "exclusiveMinimum": math.inf} | dict.fromkeys(
    ("maximum", "exclusiveMaximum"), -math.inf
)
_FARTHEST = (1 << 63) - 1024
"""The largest double below the 64-bit integers' end."""
_EMBEDDED = re.compile(r"%json(?:\s|//[^\n]*|#[^\n]*)*(?={)")


def _told_apart(part: dict[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """`oneOf` as `anyOf`, where the alternatives exclude each other once references are
    resolved."""
    options = part.get("oneOf")
    if not isinstance(options, list) or "anyOf" in part:
        return part
    named = [resolved(one, root) if isinstance(one, dict) else one for one in options]
    known = {key: root[key] for key in root.keys() & ROOT}
    if _compiled({**known, "oneOf": named})[1] is not None:
        return part
    return {**{key: value for key, value in part.items() if key != "oneOf"}, "anyOf": options}


def grammar_of(schema: Mapping[str, Any]) -> str:
    """llguidance's grammar of a schema; a UsageError names what cannot be enforced."""
    bounded = _bounded(schema)
    for part in values_in(bounded):
        for _, why in _misread(part):
            raise UsageError(why)
    _, grammar, cause = _compiled_apart(bounded)
    if cause is not None:
        raise cause
    return grammar


def bounded_within(grammar: str) -> str:
    """The same Lark grammar, whose schemas are without idle keywords; a UsageError if one is too
    large."""
    found, at = list[str](), 0
    for match in _EMBEDDED.finditer(grammar):
        if match.start() < at:
            continue
        try:
            schema, end = json.JSONDecoder().raw_decode(grammar, match.end())
        except (ValueError, RecursionError):
            continue  # llguidance says so
        options = {name: schema[name] for name in schema.keys() & {"x-guidance"}}
        found += [grammar[at : match.end()], json.dumps({**_bounded(schema), **options})]
        at = end
    return "".join([*found, grammar[at:]])


def enforceable(schema: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A tool's schema, as `intended`, without what cannot be enforced: clients check arguments. And
    the keywords left out, or the sentence that says why all was."""
    left_out: set[str] = set()
    try:
        bounded = _bounded(intended(schema, of_objects=True))
        bounded, _, cause = _compiled_apart(bounded)
        if cause is not None or any(any(_misread(part)) for part in values_in(bounded)):
            bounded = mapped(bounded, lambda part: _loosened(part, left_out))
            cause = _compiled(bounded)[1]
    except RecursionError:
        cause = too_large("it is nested too deeply")
    except UsageError as error:
        cause = error
    if cause is not None:
        return {"type": "object"}, [str(cause)]
    kind = {} if bounded.keys() & _COMPOSED else {"type": "object"}  # all arguments are
    return {**bounded, **kind}, sorted(left_out)


def _compiled_apart(schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], str, UsageError | None]:
    """As `_compiled`, with the schema, in which references of `oneOf` are resolved if needed."""
    grammar, cause = _compiled(schema)
    if cause is not None and "oneOf" in str(cause):
        apart = mapped(schema, lambda part: _told_apart(part, schema))
        return apart, *_compiled(apart)
    return schema, grammar, cause


def _compiled(schema: Mapping[str, Any]) -> tuple[str, UsageError | None]:
    from llguidance import LLMatcher

    options = {"whitespace_pattern": WHITESPACE}
    text = json.dumps({**schema, "x-guidance": options})
    try:
        grammar = f"start: %json {text}"
        failed, messages = LLMatcher.validate_grammar_with_warnings(grammar)
    except ValueError as error:
        return "", _in_words(str(error))
    return grammar, _in_words(messages[0]) if failed else None


def _bounded(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema without idle keywords; a UsageError if it is too large."""
    references: set[str] = set()
    parts = 0
    try:
        for part in values_in(schema):
            parts += 1
            if parts > _MOST_PARTS:
                raise too_large(f"it has more than {_MOST_PARTS:,} parts")
            if isinstance(part, dict):
                if isinstance(part.get("$ref"), str):
                    references.add(part["$ref"])
                if len(str(part.get("pattern", ""))) > LONGEST_PATTERN:
                    raise too_large(f"a pattern is longer than {LONGEST_PATTERN:,} characters")
                patterns = part.get("patternProperties")
                if isinstance(patterns, dict) and len(patterns) > _MOST_PATTERNS:
                    raise too_large(f"an object has more than {_MOST_PATTERNS} patternProperties")
        if len(references) > MOST_REFERENCES:
            raise too_large(f"it has references to more than {MOST_REFERENCES} places")
        found = mapped(schema, _without_idle)
    except RecursionError:
        raise too_large("it is nested too deeply") from None
    return {key: value for key, value in found.items() if key != "x-guidance"}


def _without_idle(part: dict[str, Any]) -> dict[str, Any]:
    """Without idle keywords and unknown formats; counts of 2.0 become 2."""
    found = {}
    for key, value in part.items():
        beside, anything = _IDLE.get(key, ((), ()))
        if (beside and not part.keys() & set(beside)) or any(value is one for one in anything):
            continue
        if key == "format" and isinstance(value, str) and value not in _FORMATS:
            continue
        counts = key.startswith(("min", "max")) and isinstance(value, float)
        found[key] = int(value) if counts and value.is_integer() else value
        if key in _BOUNDS and isinstance(value, int | float) and abs(value) > 1 << 53:
            found[key] = _inside(value, _BOUNDS[key])
    return found


def _inside(bound: float, limit: float) -> int:
    """The integer nearest to a bound, towards the limit, that a double and 64 bits hold: llguidance
    reads bounds as such, and crashes where two are below. A UsageError where there is none."""
    near = max(-_FARTHEST, min(bound, _FARTHEST))
    if (near < bound) if limit > 0 else (near > bound):
        raise UsageError(
            f"The JSON schema has the bound {str(bound)[:40]}, which is beyond 64-bit integers. "
            "Leave it out, and check the answer for it."
        )
    found = float(near)
    if (found < near) if limit > 0 else (found > near):
        found = math.nextafter(found, limit)
    return int(found)


def _misread(part: Any) -> Iterator[tuple[str, str]]:
    """Keywords that llguidance accepts and does not enforce, each with a sentence about it."""
    if not isinstance(part, dict):
        return
    least, required = part.get("minProperties"), part.get("required")
    named = len(set(map(str, required))) if isinstance(required, list) else 0
    if isinstance(least, int) and least > named + 1:  # one that repeats would be counted
        why = "properties that are required and one more. Name them in 'required'."
        why = f"The JSON schema uses 'minProperties', which cannot be enforced beyond the {why}"
        yield "minProperties", why
    for key in ("const", "enum"):
        for number in filterfalse(_is_exact, values_in(part.get(key))):
            why = "Make it a string, or leave it out and check the answer for it."
            what = f"The JSON schema has the number {str(number)[:40]}"
            yield key, f"{what}, which cannot be enforced to its last digit. {why}"


def _is_exact(value: Any) -> bool:
    """Whether llguidance would write this value: it reads numbers as doubles, and decimals to some
    fifteen digits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    if isinstance(value, int) and not 1 << 53 < abs(value) < 1 << 64:
        return abs(value) < 1 << 64
    _, digits, exponent = Decimal(str(value)).normalize().as_tuple()
    return len(digits) <= 15 and -20 <= int(exponent) <= 20


def _loosened(part: dict[str, Any], left_out: set[str]) -> dict[str, Any]:
    """Without what cannot be enforced, whose names go to `left_out`."""
    gone = part.keys() & _UNENFORCED | {key for key, _ in _misread(part)}
    if str(part.get("format")) in _UNENFORCED_FORMATS:
        gone |= {"format"}
    if isinstance(part.get("type"), str) and part["type"] not in TYPES:
        gone |= {"type"}
    for name in ("minProperties", "maxProperties", "pattern", "patternProperties", "multipleOf"):
        if name in part and _compiled({name: part[name], **_beside(name, part)})[1] is not None:
            gone |= {name}
    if "oneOf" in part and "anyOf" not in part and _compiled({"oneOf": part["oneOf"]})[1]:
        left_out.add("oneOf")
        part["anyOf"] = part.pop("oneOf")
    left_out |= gone
    return {key: value for key, value in part.items() if key not in gone}


def _beside(name: str, part: Mapping[str, Any]) -> dict[str, Any]:
    """What else decides whether a keyword can be enforced."""
    if not name.endswith("Properties") or name == "patternProperties":
        return {}
    properties = part.get("properties")
    named = dict.fromkeys(properties, True) if isinstance(properties, dict) else {}
    return {"properties": named, "required": part.get("required", [])}


def _in_words(message: str) -> UsageError:
    """llguidance's message as one sentence with the next step."""
    keys = re.search(r"Unimplemented keys: \[(.*?)\]", message)
    form = re.search(r"Unknown format: ([^\n]*)", message)
    if keys or form:
        name = keys[1].replace('"', "'") if keys else f"'format' \"{form[1]}\"" if form else ""
        return UsageError(
            f"The JSON schema uses {name}, which cannot be enforced while an answer is written. "
            "Leave it out, and check the answer for it."
        )
    if "oneOf constraints" in message:
        return UsageError(
            "The JSON schema uses 'oneOf' with alternatives that may hold at once, which cannot "
            "be enforced during the answer. Use 'anyOf', or distinguish them by a 'const'."
        )
    if "min/maxProperties" in message:
        return UsageError(
            "The JSON schema uses 'minProperties' or 'maxProperties' with optional "
            "properties, which cannot be enforced. Leave it out, and check the answer for it."
        )
    unsatisfiable = re.search(r"Unsatisfiable schema: ([^\n]*)", message)
    if unsatisfiable:
        return UsageError(f"No answer can match the JSON schema: {unsatisfiable[1]}. Loosen it.")
    away = re.search(
        r"(?:Resource|Pointer|Anchor) '(.*?)' (?:is not present|does not exist)", message
    )
    if away:
        return UsageError(
            f"The JSON schema has a '$ref' to {away[1]!r}, which is not in it. Put it into '$defs'."
        )
    if "not disjoint" in message or "are disjoint" in message:
        return UsageError(
            "The JSON schema uses 'patternProperties' that may match the same name, which cannot "
            "be enforced. Write patterns that exclude each other."
        )
    if "recursion limit" in message:
        return too_large("it is nested too deeply")
    if "too large" in message or "too big" in message or "fuel" in message:
        return too_large("what it allows cannot be worked out within bounds")
    pattern = re.search(r"(?:error: |lookarounds not supported yet; )([^\n]*)", message)
    if pattern:
        return UsageError(
            f"The JSON schema uses a 'pattern' that cannot be enforced: {pattern[1]}. "
            "Write it without, or check the answer for it."
        )
    message = re.sub(r"^at \d+\(\d+\): |failed to [^:]*: ", "", message)
    first = next((line.strip() for line in message.splitlines() if line.strip()), "no cause given")
    return UsageError(f"The JSON schema cannot be enforced: {first[:300]}. Change what it names.")
