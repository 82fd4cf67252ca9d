"""JSON schemas as llguidance grammars. Keywords that cannot be enforced are refused by name."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import lru_cache, partial
from itertools import filterfalse
from typing import Any
from urllib.parse import quote

from localspec.errors import UsageError
from localspec.grammars.intended_schema import intended
from localspec.grammars.patterns import FORMATS, MAX_PATTERN, as_rust, without_look_ahead
from localspec.grammars.schema_parts import (
    COMPOSED,
    forbid_endless,
    map_schemas,
    patterns_in,
    places_in,
    require_few_parts,
    target_of,
    too_large,
    values_in,
    without,
)

_OPTIONS = {"whitespace_pattern": "\\x20"}
"""At most one space between parts: small models may repeat line feeds endlessly."""
MAX_REFERENCES = 300
"""llguidance recurses along references; a thousand overflow its stack."""
_MAX_PATTERNS = 50
"""Property patterns of an object, which are compared pairwise."""
MAX_TOGETHER = 16
"""Patterns of one text; llguidance's time doubles with each."""
_MAX_OPTIONAL = 1_900
"""Optional properties of an object: `grammar._MAX_ITEMS` has room for four steps of each."""

_FORMATS = frozenset(
    (
        "date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid",
        "uri", "unknown", "idn-email", "idn-hostname", "iri", "iri-reference", "uri-reference",
        "uri-template", "json-pointer", "relative-json-pointer", "regex"
    )
)  # fmt: skip
_IN_ASCII = {"iri": "uri", "idn-email": "email", "idn-hostname": "hostname"}
_IDLE: dict[str, tuple[Any, ...]] = {
    "uniqueItems": (False,),
    "propertyNames": (True, {}, {"type": "string"}),
    **dict.fromkeys(("dependencies", "dependentRequired", "dependentSchemas"), ({},)),
    **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties"), (True,)),
    "$recursiveAnchor": (True, False),
}
"""Values of keywords without effect."""
_COUNTS = frozenset(("minProperties", "maxProperties"))
_BOUNDS = {"minimum": math.inf, "exclusiveMinimum": math.inf} | dict.fromkeys(
    ("maximum", "exclusiveMaximum"), -math.inf
)
_MAX_BOUND = (1 << 63) - 1024
"""The largest double below the 64-bit integers' end."""
_NEAREST = 1e-200  # llguidance nests a group per digit, up to 250
_MOST = ("maxLength", "maxItems")
_LONGEST = 1 << 31
"""A larger limit for a length has no effect, and llguidance refuses some."""
_EMBEDDED = re.compile(r"%json(?:\s|(?://|#)[^\n]*\n)*(?={)")


def grammar_of(schema: Mapping[str, Any]) -> str:
    """llguidance's grammar of a schema; a UsageError names what cannot be enforced."""
    grammar = f"start: {in_lark(_bound(schema))}"
    if fault := _fault(grammar):
        raise _error_for(fault)
    return grammar


def in_lark(schema: Mapping[str, Any]) -> str:
    """A schema as a part of a Lark grammar."""
    return f"%json {json.dumps({**schema, 'x-guidance': _OPTIONS})}"


def bound_embedded_schemas(grammar: str) -> str:
    """Drop idle keywords from the schemas within a Lark grammar; a UsageError if one is too
    large."""
    found, at = list[str](), 0
    for match in _EMBEDDED.finditer(grammar):
        if match.start() < at:
            continue
        try:
            schema, end = json.JSONDecoder().raw_decode(grammar, match.end())
        except (ValueError, RecursionError):
            continue  # llguidance reports it
        options = {name: schema[name] for name in schema.keys() & {"x-guidance"}}
        found += [grammar[at : match.end()], json.dumps({**_bound(schema), **options})]
        at = end
    return "".join([*found, grammar[at:]])


def make_enforceable(schema: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A tool's `intended` schema without keywords that cannot be enforced, as clients check
    arguments; and these keywords, or a sentence on why the whole schema was left out."""
    left_out: set[str] = set()
    try:
        found = intended(schema, of_objects=True)
        if (cause := _why_not(found)) is not None:
            root = found
            found = map_schemas(root, lambda part: _loosen(part, root, left_out))
            cause = _why_not(found)
        found = _drop_options(forbid_endless(found))  # while "#" is the tool's schema
    except RecursionError:
        cause = too_large("it is nested too deeply")
    except UsageError as error:
        cause = error
    if cause is not None:
        return {"type": "object"}, [str(cause)]
    kind = {} if found.keys() & COMPOSED else {"type": "object"}  # all arguments are
    return {**found, **kind}, sorted(left_out)


def _why_not(schema: Mapping[str, Any]) -> UsageError | None:
    """Why a schema cannot be enforced."""
    try:
        grammar_of(schema)
    except UsageError as error:
        return error
    return None


@lru_cache(maxsize=256)  # agents send the same tools with every request
def _fault(grammar: str) -> str:
    """llguidance's message about a grammar; empty if it is valid."""
    from llguidance import LLMatcher

    try:
        failed, messages = LLMatcher.validate_grammar_with_warnings(grammar)
    except ValueError as error:
        return str(error)
    return messages[0] if failed else ""


def _bound(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema without idle keywords; a UsageError if it is too large."""
    try:
        require_few_parts(schema)
        found = map_schemas(schema, _bound_part)
        if len(places_in(found)) > MAX_REFERENCES:
            raise too_large(f"it has references to more than {MAX_REFERENCES} places")
        found = forbid_endless(found)
        if patterns_in(found, found, {}) > MAX_TOGETHER:
            raise too_large(f"more than {MAX_TOGETHER} patterns apply to one text")
    except RecursionError:
        raise too_large("it is nested too deeply") from None
    return _drop_options(found)


def _drop_options(schema: Mapping[str, Any]) -> dict[str, Any]:
    # Several tools may have one $id.
    local = all(place.startswith("#") for place in places_in(schema))
    idle = {"x-guidance", *(["$id"] if local else [])}
    return {key: value for key, value in schema.items() if key not in idle}


def _bound_part(part: dict[str, Any]) -> dict[str, Any]:
    """Drop idle keywords and unknown formats; counts such as 2.0 become 2. A UsageError for what
    is too large, or what llguidance would not enforce or crash on."""
    _require_enforced(part)
    found = dict[str, Any]()
    for key, value in part.items():
        if (
            value in _IDLE.get(key, ())
            or (key in ("pattern", "format") and isinstance(value, str))  # added at the end
            or (key in _MOST and isinstance(value, int | float) and value > _LONGEST)
            or (key == "maxProperties" and _has_at_most(part, value))
            or (key == "uniqueItems" and part.get("maxItems") in (0, 1))
            or key == "$schema"  # of an older one, llguidance would ignore newer keywords
        ):
            continue
        if key == "additionalItems" and not isinstance(part.get("items"), list):
            if "prefixItems" in part:  # llguidance would drop them
                found.setdefault("items", value)
            continue
        if key == "patternProperties" and isinstance(value, dict):
            value = {as_rust(pattern, quoted=True): one for pattern, one in value.items()}
        elif key == "$ref" and str(value).startswith("#/"):
            value = quote(value, safe="#/%$!&'()*+,;=:@?~", errors="replace")
        counts = key.startswith(("min", "max")) and isinstance(value, float)
        found[key] = int(value) if counts and value.is_integer() else value
        far = isinstance(value, int | float) and (abs(value) > 1 << 53 or 0 < abs(value) < _NEAREST)
        if key in _BOUNDS and far:
            found[key] = _exact_bound(value, _BOUNDS[key])
    _exclude("exclusiveMinimum", ("maximum", "exclusiveMaximum"), 1, found)
    _exclude("exclusiveMaximum", ("minimum", "exclusiveMinimum"), -1, found)
    return _add_texts(found, part)


def _require_enforced(part: Mapping[str, Any]) -> None:
    if len(str(part.get("pattern", ""))) > MAX_PATTERN:
        raise too_large(f"a pattern is longer than {MAX_PATTERN:,} characters")
    patterns, named, required = map(part.get, ("patternProperties", "properties", "required"))
    if isinstance(patterns, dict) and len(patterns) > _MAX_PATTERNS:
        raise too_large(f"an object has more than {_MAX_PATTERNS} patternProperties")
    count = len({*map(str, required)}) if isinstance(required, list) else 0
    if isinstance(named, dict) and len(named) > count + _MAX_OPTIONAL:
        raise too_large(f"an object has more than {_MAX_OPTIONAL:,} properties that may be absent")
    least = part.get("minProperties")
    if isinstance(least, int | float) and least > count + 1:  # a repeated name would be counted
        raise UsageError(
            "The JSON schema uses 'minProperties', which cannot be enforced beyond the "
            "properties that are required and one more. Name them in 'required'."
        )
    for number in filterfalse(_is_exact, values_in([part.get("const"), part.get("enum")])):
        raise UsageError(
            f"The JSON schema has the number {str(number)[:40]}, which cannot be enforced to "
            "its last digit. Make it a string, or leave it out and check the answer for it."
        )


def _exclude(name: str, others: Sequence[str], sign: int, part: dict[str, Any]) -> None:
    """Move an excluded integer less than 1 from another bound, as llguidance would allow it."""
    given: list[Any] = [part.get(one) for one in (name, *others)]
    bound, *ends = (one if type(one) in (int, float) else math.inf for one in given)
    if bound % 1 == 0 and any(0 < (end - bound) * sign < 1 for end in ends):
        part[name] = math.nextafter(bound, sign * math.inf) if bound else sign * 1e-20


def _has_at_most(part: Mapping[str, Any], count: Any) -> bool:
    """Whether a closed object names no more properties than `count`."""
    named, closed = part.get("properties"), part.get("additionalProperties") is False
    closed &= isinstance(named, dict) and "patternProperties" not in part
    return closed and isinstance(count, int | float) and len(named or ()) <= count


def _add_texts(found: dict[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """Add `part`'s pattern, and its format unless they exclude each other: some of zod's times have
    no zone."""
    pattern, form = part.get("pattern"), part.get("format")
    given = without_look_ahead(pattern) if isinstance(pattern, str) else []
    texts = [{"pattern": as_rust(one, quoted=True)} for one in given]
    known = FORMATS.get(str(form), FORMATS.get(str(part.get("contentEncoding"))))
    form = _IN_ASCII.get(str(form), form)
    forms = [{"pattern": known}] if known else [{"format": form}] if str(form) in _FORMATS else []
    both = {"type": "string", "allOf": [*texts, *forms]}
    if texts and forms and _EXCLUSIVE in _fault(f"start: {in_lark(both)}"):
        forms = []
    if texts or forms:
        others = found.get("allOf", [])
        found["allOf"] = [*others, *texts, *forms] if isinstance(others, list) else others
    return found


def _exact_bound(bound: float, limit: float) -> int:
    """The integer nearest to a bound, towards `limit`, that a double and 64 bits can represent:
    llguidance crashes on others. A UsageError if there is none."""
    if abs(bound) < 1:
        raise UsageError(
            f"The JSON schema has the bound {bound}, which is too close to 0 to be enforced. Use 0."
        )
    near = max(-_MAX_BOUND, min(bound, _MAX_BOUND))
    if (near < bound) if limit > 0 else (near > bound):
        raise UsageError(
            f"The JSON schema has the bound {str(bound)[:40]}, which is beyond 64-bit integers. "
            "Leave it out, and check the answer for it."
        )
    found = float(near)
    if (found < near) if limit > 0 else (found > near):
        found = math.nextafter(found, limit)
    return int(found)


def _is_exact(value: Any) -> bool:
    """Whether llguidance reproduces this number: it reads doubles, with some fifteen digits, and
    crashes on integers below 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    if abs(value) > _MAX_BOUND or (isinstance(value, int) and abs(value) <= 1 << 53):
        return abs(value) <= _MAX_BOUND
    _, digits, exponent = Decimal(str(value)).normalize().as_tuple()
    return len(digits) <= 15 and -20 <= int(exponent) <= 20


def _loosen(part: dict[str, Any], root: Any, left_out: set[str]) -> dict[str, Any]:
    """Drop keywords that cannot be enforced, and all if they exclude each other. What was dropped
    is added to `left_out`. The schemas in `part` were loosened before."""
    named = part.get("properties")
    if isinstance(named, dict) and not all(isinstance(one, dict) for one in named.values()):
        left_out.add("properties")
        part["properties"] = {n: one if isinstance(one, dict) else {} for n, one in named.items()}
    gone = part.keys() & _COUNTS
    if target_of(str(part.get("$ref", "#")), root) is None:
        gone |= {"$ref"}
    found = without(part, gone)
    if _why_not_alone(found) is not None:
        if "oneOf" in found and "anyOf" not in found and _why_not_alone({"oneOf": found["oneOf"]}):
            left_out.add("oneOf")
            found["anyOf"] = found.pop("oneOf")
        gone |= {name for name in found if _why_not_alone({name: found[name]}) is not None}
        opened = {"additionalProperties"} if gone & {"properties", "patternProperties"} else set()
        found = without(found, gone | opened)
    left_out |= gone
    if (cause := _why_not_alone(found)) is not None:
        left_out.add(str(cause))
        return {}
    return found


def _why_not_alone(schema: Mapping[str, Any]) -> UsageError | None:
    """Why a part of a schema cannot be enforced, whatever it refers to."""
    return _why_not(map_schemas(schema, partial(without, names={"$ref"})))


_EXCLUSIVE = "Regex is empty"
_EXPLANATIONS = {
    _EXCLUSIVE: "The JSON schema has patterns, formats or lengths that exclude each other, so that "
    "no text matches. Loosen one of them.",
    " (?:Start|End) in regex ([^\\n]*)": "The JSON schema has the 'pattern' {}, with ^ or $ in the "
    "middle, which cannot be enforced. Write it without, and without slashes around it.",
    "Word[A-Za-z]* in regex ([^\\n]*)": "The JSON schema has the 'pattern' {} with word boundaries "
    "(\\b), which cannot be enforced. Write the characters allowed there instead.",
    "hex escape": "The JSON schema contains a lone surrogate. Give whole characters.",
    r"Unimplemented keys: \[(.*?)\]": "The JSON schema uses {}, which cannot be enforced while an "
    "answer is written. Leave it out, and check the answer for it.",
    r"Unknown format: ([^\n]*)": "The JSON schema uses 'format' \"{}\", which cannot be enforced "
    "while an answer is written. Leave it out, and check the answer for it.",
    "oneOf constraints": "The JSON schema uses 'oneOf' with alternatives that may both match, "
    "which cannot be enforced during the answer. Use 'anyOf', or distinguish them by a 'const'.",
    "min/maxProperties": "The JSON schema uses 'minProperties' or 'maxProperties' with optional "
    "properties, which cannot be enforced. Leave it out, and check the answer for it.",
    r"Unsatisfiable schema: ([^\n]*)": "No answer can match the JSON schema: {}. Loosen it.",
    "(?:Resource|Pointer|Anchor) '(.*?)' (?:is not present|does not exist)": "The JSON schema has "
    "a '$ref' to {!r}, which is not in it. Put it into '$defs'.",
    "not disjoint|are disjoint": "The JSON schema uses 'patternProperties' that may match the same "
    "name, which cannot be enforced. Write patterns that exclude each other.",
    "Invalid type: ([^\n]*)": "The JSON schema has the 'type' {!r}, which does not exist. Use "
    "string, number, integer, boolean, object, array or null.",
    "recursion limit|too large|too big|fuel": str(
        too_large("its grammar cannot be computed within bounds")
    ),
    r"(?:error: |lookarounds not supported yet; )([^\n]*)": "The JSON schema uses a 'pattern' that "
    "cannot be enforced: {}. Write it without, or check the answer for it.",
}
"""Messages for users, by pattern of llguidance's message, whose group replaces {}."""


def _error_for(message: str) -> UsageError:
    for pattern, explanation in _EXPLANATIONS.items():
        found = re.search(pattern, message)
        if found:
            parts = [part.replace('"', "'") for part in found.groups()]
            return UsageError(explanation.format(*parts))
    message = re.sub(r"^at \d+\(\d+\): |failed to [^:]*: ", "", message)
    first = next((line.strip() for line in message.splitlines() if line.strip()), "no cause given")
    return UsageError(f"The JSON schema cannot be enforced: {first[:300]}. Change what it names.")
