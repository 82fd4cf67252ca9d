"""JSON schemas: accepted and rejected answers, and refused schemas."""

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from localspec import UsageError
from localspec.grammars.grammar import Grammar
from localspec.grammars.intended_schema import parse_schema
from localspec.grammars.json_schema import make_enforceable
from localspec.llama.vocabulary import Vocabulary
from localspec.server.tools import Tool, ToolChoice, call_format
from tests.support.schemas import allows_value, check_texts, suite, walk


def text_of(pattern: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "pattern": pattern, **more}


DECIMAL = text_of(r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", allOf=[{"maxLength": 9}, {"title": "T"}])
ADDRESS = r"[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
ADDRESS = rf"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*){ADDRESS}"
NOTHING = {"not": {}, "title": "T"}
NULL: Any = {
    "type": "array",
    "maxItems": "2",
    "nullable": True,
    "items": {"enum": ["x"], "nullable": True},
}
KEYS = {"$defs": {"E": {"enum": ["a", "b"], "title": "E", "type": "string"}}}


def needs(*names: str) -> dict[str, Any]:
    return {"required": [*names]}


def flags(*objects: str) -> list[str]:
    """Objects in which the named flags, of one letter each, are true."""
    return ["{" + ",".join(f'"{name}":true' for name in one) + "}" for one in objects]


def named(kind: Any, **more: Any) -> dict[str, Any]:
    """An object with a discriminator, without a type."""
    return {"properties": {"kind": kind, **more}, "required": ["kind"]}


ONE, TWO = named({"$ref": "#/$defs/1"}, v={"type": "null"}), named({"enum": [2, 3]})
EITHER = {"$defs": {"1": {"const": 1}, "two": TWO}, "oneOf": [ONE, {"$ref": "#/$defs/two"}]}
CLOSED = {"additionalProperties": False}
DRAFTS = "http://json-schema.org/draft"
LONG = {"default": 0.12345678901234568}
DOUBLED = {f"{i}": {"allOf": [{"$ref": f"#/$defs/{i + 1}"}] * 2} for i in range(40)}
VERSIONS = {"oneOf": [named({"const": "1.0"}), named({"const": "1"})]}
OR = [{"properties": {name: {}}, "required": [name]} for name in "ab"]
WORDS = '"What is the meaning of life, and who knows it, and if nobody does, why?"'
BOTH = {"properties": {"a": {}, "b": {}}, "required": ["b"]}
FLAG = {"type": "boolean"}
FLAGS = {"type": "object", "properties": {"a": FLAG, "b": FLAG, "c": FLAG}}
LIST: Any = {"type": "array"}
NULLS, ENDLESS = {**LIST, "items": {"type": "null"}}, {**LIST, "items": {"$ref": "#"}}
LEAP = {"enum": ["2023-02-29", "2024-02-29", "1900-02-29", "2000-02-29"], "format": "date"}
MANY = {f"p{number}": FLAG for number in range(1_901)}
UUID = "123e4567-e89b-42d3-a456-426614174000"
SPAN = (
    r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$"
)
A, B = ({"type": "object", "properties": {name: {}}, "required": [name]} for name in "ab")
SHUT, ALSO = {**A, **CLOSED}, {"$ref": "#/$defs/a"}
EXTENDED = {"a": SHUT, "b": {**B, **CLOSED, "allOf": [ALSO]}}
NESTED = {"$defs": {"a/b": {"type": "integer"}, "c~d": {"type": "null"}}}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"enum": ["C:\\temp"]}, [r'"C:\\temp"'], [r'"C:\temp"']),
        ({"enum": ["a\nb", 'a"b']}, [r'"a\nb"', r'"a\"b"'], ['"a\nb"', '"a"b"']),
        ({"properties": MANY, "required": ["p0"]}, ['{"p0":true,"p1900":false}'], ["{}"]),
        (text_of("^[a-z]+$", maxLength=3), ['"abc"', '"a"'], ['"abcd"', '""', '"A"']),
        ({"type": "object", "required": ["id"]}, ['{"id":1}', '{"id":1,"x":2}'], ['{"x":1}', "{}"]),
        ({"required": ["id"]}, ['{"id": "a"}'], ['{"x":1}', "{}"]),
        (text_of(r"^\d{4}$"), ['"2026"'], ['"202"', '"20266"', '"abcd"']),
        (text_of(r"\S"), ['"a"', '" a "'], ['""', '"  "']),
        (text_of(r"^(?:\S+\s+){0,49}\S+$", minLength=1, maxLength=500), [WORDS], ['""', '"a "']),
        (text_of(r"^a\.b$"), ['"a.b"'], ['"axb"']),
        (text_of("^a|b$"), ['"ax"', '"xb"'], ['"xax"']),
        (text_of("^.$"), ['"a"', '"é"', r'"\""'], ['""', '"ab"']),
        (text_of("^[^a]{3}$"), ['"bcd"'], ['"bad"', '"bc"']),
        (text_of(r"^[^/\\]+$"), ['"ab\\n"'], [r'"a\\b"', '"/"']),
        (text_of('^[^-"]$'), ['"a"', r'"\\"'], [r'"\""', '"-"']),
        ({"patternProperties": {r"^[^\\]$": {}}} | CLOSED, ['{"a":1}'], [r'{"\\":1}']),
        ({**text_of("^a$"), "$schema": "https://json.schemastore.org/x"}, ['"a"'], ['"b"']),
        ({"$schema": f"{DRAFTS}/2020-12/schema#"}, ["1"], ["x"]),
        ({"$schema": f"{DRAFTS}-07/schema#", "prefixItems": [FLAG]}, ["[true]"], ["[1]"]),
        ({"$recursiveAnchor": True, "type": "integer"}, ["1"], ['"a"']),
        (VERSIONS, ['{"kind":"1"}', '{"kind":"1.0"}'], ['{"kind":1}']),
        (text_of("^a}$"), ['"a}"'], ['"a"']),
        (text_of(r"^{{\w{2}\{,3}[[~~&&]$"), ['"{{ab{,3}["', '"{{ab{,3}&"'], ['"{{a{,3}["']),
        (text_of(r"\Aa{,2}\Z"), ['""', '"aa"'], ['"aaa"', '"a{,2}"']),  # of pydantic
        (text_of(r"^\<\é[\>\'\ü]$"), ['"<é>"', '"<éü"'], ['"é"', '"<é\\\\"']),
        (text_of(r"^[^][a]+[^]*[\s-+--]$"), ['"bc],"', '"b-"'], ['"a],"', '"[]-"', '"b/"']),
        (text_of(r"^[^]\cJ$"), [r'"\n\n"', r'"J\n"'], ['"aJ"']),
        (text_of(r"\Aa\\Z\Z"), [r'"a\\Z"'], ['"a"', r'"a\\ZZ"']),
        ({"anyOf": [DECIMAL, {"type": "null"}]}, ['"-.5"', '"2"'], ['""', '"-"', '"1.5.5"']),
        (NULL, ['["x",null]'], ["null", '["y"]', '["x","x","x"]']),
        ({"type": "list", "items": {"type": ["Int", "dict"]}}, ["[1,{}]"], ["[1.5]", "[[]]", "1"]),
        ({"type": "ARRAY", "items": {"allOf": [NULL], "nullable": True}}, ["[null,[]]"], ["[1]"]),
        (text_of(ADDRESS, format="email"), ['"a.b@c-d.ef"'], ['"a..b@c.de"', '"a.@c.de"', '"a@b"']),
        ({"anyOf": [NOTHING, {"items": NOTHING}]}, ["[]"], ["[1]"]),
        ({**KEYS, "propertyNames": {"$ref": "#/$defs/E"}}, ['{"b":1}'], ['{"c":1}']),
        ({"propertyNames": {"enum": ["a", 5, {}]}}, ['{"a":1}', "{}"], ['{"5":1}']),
        (
            {"propertyNames": {"maxLength": 3}, "additionalProperties": FLAG},
            ['{"abc":true}'],
            ['{"abcd":true}', '{"a":1}'],
        ),
        ({"propertyNames": {"anyOf": [{"const": "a"}, {"enum": ["b"]}]}}, ['{"b":1}'], ['{"c":1}']),
        ({"propertyNames": {"format": "uuid"}}, [f'{{"{UUID}":1}}'], ['{"a":1}']),
        ({"patternProperties": {"^x-": FLAG}}, ['{"x-a":true}'], ['{"a":true}', '{"x-a":1}']),
        ({**FLAGS, "unevaluatedProperties": False}, ['{"a":true}'], ['{"d":true}']),
        ({"propertyNames": {"maxLength": 1}, "unevaluatedProperties": FLAG}, ["{}"], ['{"a":1}']),
        (
            {"$defs": {"D": FLAGS}, "$ref": "#/$defs/D", "unevaluatedProperties": False},
            ['{"a":true}'],
            ['{"d":true}', '{"a":1}'],
        ),
        ({"prefixItems": [FLAG], "unevaluatedItems": False}, ["[true]"], ["[true,true]", "[1]"]),
        ({"items": [FLAG], "unevaluatedItems": False}, ["[true]"], ["[true,true]", "[1]"]),
        ({"prefixItems": [FLAG], "additionalItems": False}, ["[true]"], ["[true,true]", "[1]"]),
        ({"allOf": [{"properties": {"a": {}}}], "additionalProperties": FLAG}, ["{}"], ['{"a":1}']),
        ({"allOf": [{"prefixItems": [{}]}], "items": FLAG}, ["[true]", "[]"], ["[1]", "[true,1]"]),
        (
            {"allOf": [{"additionalProperties": FLAG}], "patternProperties": {"x": {"const": 1}}},
            ['{"a":true}'],
            ['{"x":1}', '{"a":1}'],
        ),
        ({**FLAGS, "maxProperties": 3}, ['{"a":true}'], ['{"d":true}']),
        ({**FLAGS, **needs("a"), "minProperties": 2}, flags("ac", "abc"), flags("a", "b", "ad")),
        ({**FLAGS, "oneOf": [needs("a"), needs("b")]}, flags("a", "bc"), flags("ab", "c", "")),
        (
            {**FLAGS, "oneOf": [needs("a", "b"), needs("c")]},
            *(flags("ab", "ac", "c"), flags("a", "", "abc")),
        ),
        (
            {**FLAGS, "dependentRequired": {"a": ["b"]}, "not": needs("b", "c")},
            *(flags("ab", "c", ""), flags("a", "bc")),
        ),
        ({**FLAGS, "dependencies": {"a": ["b"]}}, ['{"b":true}'], ['{"a":true}']),
        ({"$id": "#here", "type": "boolean"}, ["true"], ["1"]),
        (LEAP, ['"2024-02-29"', '"2000-02-29"'], ['"2023-02-29"', '"1900-02-29"']),
        ({"format": "date-time"}, ['"2026-01-31T10:00:00.5Z"'], ['"2026-04-31T10:00:00Z"']),
        (
            {"type": "string", "format": "uuid4"},
            [f'"{UUID}"'],
            ['"a"', f'"{UUID[:14]}1{UUID[15:]}"'],
        ),
        ({"type": "string", "contentEncoding": "base64"}, ['"YWI="', '""'], ['"YWI"', '"*"']),
        (text_of(r"^\d\d:\d\d$", format="time"), ['"13:21"'], ['"13:21:00"', '"1:2"']),
        (text_of(r"^\d+-\d+-\d+$", format="date"), ['"2026-01-02"'], ['"2026-13-02"', '"1-2-3"']),
        (text_of(r"^\uD83D\ude00[\b]\0$"), [r'"😀\b\u0000"'], ['"😀b0"']),
        (text_of(r"^[\x00-[]$"), ['"A"', r'"\n"', r'"\""'], [r'"\\"', '"]"']),
        (text_of(r"^(?=.*[A-Z)])(?=.*\d|$).{4,}$"), ['"Abc1"', '")abc1"'], ['"abc1"', '"Abcd"']),
        (text_of(r"^(?!\s*$).*$"), ['"a"', '" a"'], ['""', '"  "']),
        (text_of(r"^(?![-_])(?!.*[-_]{2})[a-z_-]+$"), ['"a-b_"'], ['"-a"', '"a-_b"']),
        (
            text_of(r"^(?!.*\.\.)(?!.*[^\w.])(?!0).+$"),
            ['"1.0"', '"a."'],
            ['"a..b"', '"a-b"', '"01"'],
        ),
        (text_of(r"^(?!-)[a-z-]{1,3}(?<!-)$"), ['"a-b"', '"a"'], ['"a-"', '"-a"', '"abcd"']),
        ({"type": "string", "format": "json-pointer"}, ['""', '"/a/b~0"'], ['"a"', '"/~2"']),
        ({"format": "uri-reference"}, ['"a/b?c#d"', '"http://a.b/"'], ['"a b"', '"a#b#c"']),
        ({"anyOf": [{"format": "iri"}, {"format": "ipv6"}]}, ['"a://b"', '"::1.2.3.4"'], ['"a b"']),
        (text_of(SPAN, format="duration"), ['"P1DT2H"', '"PT3S"', '"P2W"'], ['"P"', '"P1DT"']),
        ({"type": "object", "propertyNames": {"pattern": "^..$"}}, ['{"xy":1}'], ['{"x":1}']),
        ({"patternProperties": {"^[[]$": text_of("", maxLength=1e20)}}, ['{"[":""}'], ['{"[":1}']),
        ({"$defs": {"é": {"type": ["NULL"]}}, "$ref": "#/$defs/é"}, ["null"], ["3"]),
        ({"properties": {"x": {"$ref": "#"}}}, ['{"x":{"x":{}}}'], ['{"x":1}']),
        ({"properties": {"x": {"$ref": "#/properties/x"}}}, ["{}"], ['{"x":1}']),
        ({**BOTH, "patternProperties": {"^(a)$": FLAG}}, ['{"b":1}'], ['{"a":1,"b":1}']),
        ({"oneOf": [FLAG, {"$ref": "#/$defs/a"}], "$defs": {"a": LEAP}}, ["true"], ["1"]),
        (
            {"type": "array", "prefixItems": [{"type": "integer"}, {"$ref": "#/prefixItems/0"}]},
            ["[1, 2]"],
            ['[1,"a"]'],
        ),
        ({**NESTED, "$ref": "#/$defs/a~1b"}, ["3"], ["null"]),
        ({**NESTED, "$ref": "#/$defs/c~0d"}, ["null"], ["3"]),
        ({**NESTED, "allOf": [{"$ref": "#/$defs/a~1b"}, {"title": "T"}]}, ["3"], ["{}", "null"]),
        ({"allOf": [{"type": ["object", "null"]}, {"title": "T"}]}, ["null", "{}"], ["3"]),
        ({"properties": {"$ref": {"type": "string"}}}, ['{"$ref":"a"}'], ['{"$ref":1}']),
        ({"type": "string", "maxLength": 2000}, [f'"{"a" * 2000}"'], [f'"{"a" * 2001}"']),
        (
            {"type": "integer", "minimum": 2**53 + 1, "maximum": 2**53 + 9},
            ["9007199254740994", "9007199254741000"],
            ["9007199254740992", "9007199254741002"],
        ),
        ({"type": "integer", "minimum": -(2**63), "maximum": 2**64}, ["-5", str(10**18)], ["1.5"]),
        ({"type": "number", "minimum": -1e300, "maximum": 1e300}, ["-5.5", "1"], ['"a"']),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, ["0.5", "0.1"], ["0", "0.0"]),
        ({"type": "number", "minimum": -1.5, "exclusiveMaximum": -1}, ["-1.5"], ["-1", "-1.0"]),
        ({"enum": [123456789012345, 0.1, 2**53]}, ["123456789012345", "0.1"], ["123456789012344"]),
        ({"type": "string", "format": "date"}, ['"2026-11-25"'], ['"2026-13-25"']),
        ({"type": "string", "format": "of-our-own"}, ['"x"'], ["1"]),
        ({"items": {"maxItems": 1.0, "uniqueItems": True}}, ["[[1],[1]]"], ["[[1,1]]"]),
        # Objects are closed, unless what they require or allow says otherwise.
        ({"type": "object", "properties": {"a": {}}}, ['{"a":1}', "{}"], ['{"b":1}']),
        ({"items": A, "uniqueItems": False}, ['[{"a":1}]'], ['[{"a":1,"b":1}]', "[{}]"]),
        ({**A, "required": ["b"]}, ['{"b":1}', '{"a":1,"b":1}'], ["{}"]),
        ({**A, "additionalProperties": {}}, ['{"a":1,"b":1}'], ['{"b":1}']),
        # As pydantic writes fields with defaults and inheritance, zod intersections; Swashbuckle.
        ({"allOf": [A, B]}, ['{"a":1,"b":1}'], ['{"a":1}', '{"a":1,"b":1,"c":1}']),
        ({"$defs": {"a": A}, "allOf": [ALSO, B]}, ['{"a":1,"b":1}'], ['{"b":1}', '{"b":1,"c":1}']),
        ({"allOf": [SHUT, {**B, **CLOSED}]}, ['{"a":1,"b":1}'], ['{"a":1}', '{"a":1,"b":1,"c":1}']),
        (
            {"$defs": EXTENDED, "properties": {"c": {}}, "allOf": [{"$ref": "#/$defs/b"}]},
            ['{"a":1,"b":1,"c":1}', '{"a":1,"b":1}'],
            ['{"a":1}', '{"a":1,"b":1,"d":1}'],
        ),
        (
            {"$defs": {"a": A}, "properties": {"p": {"allOf": [ALSO]}}},
            ['{"p":{"a":1}}'],
            ['{"p":{}}', '{"q":1}'],
        ),
        (True, ["1", "{}"], ["x"]),
        ({"dependentRequired": {}, "propertyNames": {"type": "string"}}, ['{"a":1}'], ["x"]),
        ({"type": "string"}, ['"fox a"'], ['"fox\n"']),
        ({"oneOf": [{"const": 1, "title": "I"}, {"const": 2}]}, ["1", "2"], ["3"]),
        (
            EITHER,
            ['{"kind":1,"v":null}', '{"kind":3}'],
            ['{"kind":2,"v":null}', '{"kind":1,"v":2}', "1"],
        ),
        ({"oneOf": [{**LIST, "items": FLAG, "minItems": 1}, NULLS]}, ["[true]", "[]"], ["[1]"]),
        ({"oneOf": [{"maxItems": 1, **LIST}, {"minItems": 2, **LIST}]}, ["[1]", "[1,1]"], ["1"]),
        ({"oneOf": [text_of("", maxLength=1), text_of("", minLength=2)]}, ['"a"', '"aa"'], ["1"]),
        (ENDLESS, ["[]", "[[],[]]"], ["[1]"]),
        ({"oneOf": OR}, ['{"a":1}', '{"b":1}'], ['{"a":1,"b":1}', "{}", "1"]),
        (
            {"properties": {"minimum": {"const": "not"}, "enum": LONG}, "required": ["minimum"]},
            ['{"minimum":"not"}'],
            ["{}", '{"minimum":3}'],
        ),
    ],
)
def test_accepted_and_rejected_answers(
    vocabulary: Vocabulary, schema: Any, right: list[str], wrong: list[str]
) -> None:
    grammar = Grammar.from_schema(vocabulary, parse_schema(json.dumps(schema)))
    check_texts(vocabulary, grammar, right, wrong)
    if isinstance(schema, dict) and schema.get("type") == "string":  # within a tool, too
        tool = Tool("t", "", {"properties": {"v": schema}, "required": ["v"]})
        for tools in ([tool], [tool, replace(tool, name="c", grammar='start: "a"')]):
            asked = call_format(ToolChoice((*tools,), must=True), None)
            lark, whole = asked.get("grammar"), parse_schema(asked["json_schema"] or {})
            called = Grammar(vocabulary, lark) if lark else Grammar.from_schema(vocabulary, whole)
            form = '{"name":"t","arguments":{"v":%s}}'
            check_texts(vocabulary, called, *([form % x for x in some] for some in (right, wrong)))
    assert "" not in {walk(vocabulary, grammar, seed) for seed in range(8)}, "it is never stuck"


@pytest.mark.parametrize(
    ("schema", "names"),
    [
        ({"not": {}}, "'not'"),
        ({"properties": {"a": {"uniqueItems": True}}}, "'uniqueItems'"),
        ({"if": {}, "then": {}}, "'if', 'then'"),
        ({"format": "regex"}, "'format' \"regex\""),
        ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, "'oneOf'"),
        ({"oneOf": [{"const": 1}, {"enum": [2, 1.0]}]}, "'oneOf'"),
        ({"oneOf": [named({}, a={}), {**OR[0], "required": ["kind"]}]}, "'oneOf'"),
        ({"oneOf": [{"type": "object", **one} for one in (OR[0], BOTH)]}, "'oneOf'"),
        ({"type": "object", "minProperties": 3}, "'minProperties'"),
        ({"properties": {"a": {}, "b": {}}, "maxProperties": 1, "minProperties": 1}, "Properties'"),
        ({"patternProperties": {"^a": {}, "b$": {}}}, "'patternProperties'"),
        (text_of("^(?!ab)c"), "look-around"),
        (text_of("["), "unclosed character class"),
        (text_of(r"\bfox\b"), r"word boundaries (\b)"),
        (text_of("/^fox$/"), "without slashes around it"),
        (text_of("^a$", minLength=2), "exclude each other"),
        ({"const": "\ud83d"}, "lone surrogate"),
        ({"type": []}, "is empty"),
        ({"propertyNames": {"pattern": "^a", "maxLength": 2}}, "'propertyNames'"),
        ({"allOf": [FLAGS, {"unevaluatedProperties": False}]}, "'unevaluatedProperties'"),
        ({"propertyNames": {"enum": ["a"]}, "patternProperties": {"b": {}}}, "'propertyNames'"),
        ({**FLAGS, "minProperties": 2, "oneOf": [{"required": ["a"]}]}, "'minProperties'"),
        (
            {"oneOf": [{"type": "array"}, {"properties": {"a": FLAG}, "minProperties": 1}]},
            "'oneOf'",
        ),
        ({"$ref": "https://example.com/x"}, "'https://example.com/x', which is not in it"),
        ({"$ref": "#/nowhere"}, "'/nowhere', which is not in it"),
        ({"$ref": "#"}, "has no end"),
        ({**ENDLESS, "minItems": 1}, "has no end"),
        ({"minItems": 2, **LIST, "prefixItems": [FLAG, {"$ref": "#"}]}, "has no end"),
        ({"type": "object", "minProperties": 1, "additionalProperties": {"$ref": "#"}}, "no end"),
        ({**needs("a"), "additionalProperties": {"$ref": "#"}}, "has no end"),
        ({"oneOf": [{"maxItems": 2, **LIST}, {"minItems": 2, **LIST}]}, "'oneOf'"),
        ({"oneOf": [{**LIST, "items": FLAG}, NULLS]}, "'oneOf'"),
        ({"oneOf": [FLAG, {"$ref": "#/$defs/a"}], "$defs": {"a": FLAG}}, "'oneOf'"),
        ({"items": {"anyOf": []}, "minItems": 1, "type": "array"}, "unsatisfiable"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "No answer can match"),
        ({"type": "nonsense"}, "the 'type' 'nonsense'"),
        ({"enum": [123456789012345678, 123456789012345679]}, "number 12345678901234567"),
        ({"properties": {"a": {"const": {"b": [2**53 + 1]}}}}, "number 9007199254740993,"),
        ({"const": 123456789.12345679}, "number 123456789.12345679,"),
        ({"type": "integer", "minimum": -(10**20), "maximum": -(10**19)}, "bound -1000000000"),
        ({"type": "number", "minimum": 5e-324}, "too close to 0"),
        ({"type": "number", "exclusiveMaximum": -1e-310}, "too close to 0"),
        (
            {"allOf": [{"type": "integer", "exclusiveMaximum": -1e19}, {"minimum": -1e20}]},
            "bound -1e+19",
        ),
        (
            {"allOf": [{"type": "object", "properties": [1]}, {"required": {"a": 1}}]},
            "must be an object",
        ),
        ({"properties": {"a": {"allOf": 1}}}, "allOf must be an array"),
        (False, "No answer can match"),
        ([], "an object"),
        ({"enum": [f"{i}" for i in range(30_000)]}, "too large"),
        ({"properties": MANY}, "1,900 properties"),
        ({"allOf": [text_of(f"a{{{i}}}") for i in range(40)]}, "more than 16 patterns"),
        ({"allOf": [{"items": text_of(f"a{{{i}}}")} for i in range(40)]}, "more than 16 patterns"),
        ({"$defs": DOUBLED, "$ref": "#/$defs/0"}, "more than 500 schemas, or itself."),
        ({"$defs": {"a": {"properties": MANY}}, "oneOf": [ALSO] * 60}, "more than 200,000 parts"),
        ({"$defs": {f"{i}": {"items": {"$ref": f"#/$defs/{i + 1}"}} for i in range(400)}}, "large"),
    ],
)
def test_refusals_name_the_cause(vocabulary: Vocabulary, schema: Any, names: str) -> None:
    with pytest.raises(UsageError, match=r"^[^\n]*$") as caught:
        Grammar.from_schema(vocabulary, parse_schema(json.dumps(schema)))
    assert names in str(caught.value)
    assert len(str(caught.value)) < 400


def test_bounds_of_schemas_within_lark(vocabulary: Vocabulary) -> None:
    """Two bounds below 64-bit integers once crashed the process."""
    schema = {"type": "integer", "minimum": -(10**20), "maximum": -(10**19)}
    for between in (" ", " // why\n"):
        with pytest.raises(UsageError, match="bound -1"):
            Grammar(vocabulary, f"start: %json{between}{json.dumps(schema)}")
    with pytest.raises(UsageError, match="number -1"):
        Grammar(vocabulary, 'start: %json {"type": "integer", "const": -1e19}')
    small = Grammar(vocabulary, 'start: %json {"type": "integer", "minimum": -1e20} "!"')
    check_texts(vocabulary, small, ["5!"], ["5"])
    spelled = Grammar(vocabulary, 'start: %json {"const": "%json {}"}')
    check_texts(vocabulary, spelled, ['"%json {}"'], [])


def test_too_deep_and_truncated_schemas_are_refused() -> None:
    for text in ("[" * 100_000, '{"items":' * 900 + "{}" + "}" * 900, '{"a": '):
        with pytest.raises(UsageError):
            Grammar.from_schema(None, parse_schema(text))  # type: ignore[arg-type]  # not used


def test_make_enforceable_drops_unsupported_keywords() -> None:
    kept = {"type": "object", "properties": {"a": {"type": "string"}}, **CLOSED}
    hard = {"properties": {"a": text_of("(?!x)", **{"not": {}})}, "dependentRequired": {"a": ["b"]}}
    assert make_enforceable(hard) == (kept, ["dependentRequired", "not", "pattern"])
    assert make_enforceable({**kept, "required": True}) == (kept, ["required"])
    large = {"properties": {"a": {"type": "integer", "enum": [2**53 + 1, 2]}}}
    kept["properties"] = {"a": {"type": "integer"}}
    assert make_enforceable(large) == (kept, ["enum"])
    one = {"a": {"$ref": "#/properties/b/anyOf/0"}, "b": {"anyOf": [FLAG]}}
    empty = {"type": "integer", "minimum": 3, "maximum": 2}
    for part in ({"$ref": "#/no"}, {"pattern": "a" * 10_001}, empty, {"items": 5}, "x"):
        broken = {**kept, "properties": {**one, "c": part}, "required": ["c"]}
        found, left_out = make_enforceable(broken)
        assert (found, len(left_out)) == ({**broken, "properties": {**one, "c": {}}}, 1)
    endless = {"properties": {"a": {"$ref": "#"}}, "required": ["a"]}
    assert make_enforceable(endless)[0] == {"type": "object"}
    named = {"properties": {"a": {"type": "object", "patternProperties": {"^(?!ab)": {}}}}}
    loose = {"type": "object", "properties": {"a": {"type": "object"}}, **CLOSED}
    assert make_enforceable(named) == (loose, ["patternProperties"])
    odd: list[Any] = [{"type": other} for other in ("array", "nothing", ["object", "null"])]
    odd += [{"allOf": [{"properties": 5}, {"type": "object"}]}, {"x": {"format": {"a": 1}}}]
    for one in (*odd, {"propertyNames": {"enum": [{}]}}):
        assert make_enforceable({"type": "object", **one})[0]["type"] == "object"


def test_references_are_local_to_a_tool(vocabulary: Vocabulary) -> None:
    refers = {"$id": "urn:x", "properties": {"v": {"$ref": "#/$defs/v"}}, "required": ["v"]}
    tools = [Tool(one, "", {"$defs": {"v": {"const": one}}, **refers}) for one in "ab"]
    schema = call_format(ToolChoice((*tools,), must=True), None)["json_schema"]
    assert schema is not None
    grammar = Grammar.from_schema(vocabulary, parse_schema(schema))
    form = '{"name":"%s","arguments":{"v":"%s"}}'
    right, wrong = ([form % (*names,) for names in some] for some in (("aa", "bb"), ("ab", "ba")))
    check_texts(vocabulary, grammar, right, wrong)


def test_official_suite(vocabulary: Vocabulary) -> None:
    counts: Counter[str] = Counter()
    wrong: list[tuple[Any, Any]] = []
    walked = 0
    for number, (schema, valid, invalid) in enumerate(suite()):
        count = len(valid) + len(invalid)
        try:
            text = schema if isinstance(schema, dict) else parse_schema(json.dumps(schema))
            grammar = Grammar.from_schema(vocabulary, text)
        except UsageError as error:
            wrong += [(schema, str(error))] if "'" not in str(error) and valid else []
            counts["refused" if valid else "right"] += count
            continue
        counts["right"] += count
        wrong += [(schema, one) for one in valid if not allows_value(vocabulary, grammar, one)]
        wrong += [(schema, one) for one in invalid if allows_value(vocabulary, grammar, one)]
        answer = walk(vocabulary, grammar, number)
        if answer is not None and r"\\p{" not in json.dumps(schema):  # which the judge cannot read
            jsonschema.Draft202012Validator(schema).validate(json.loads(answer))
            walked += 1
    assert wrong == []
    assert counts["right"] / counts.total() > 0.8
    assert walked > 100
