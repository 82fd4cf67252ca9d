"""Keywords of JSON schemas that no grammar can hold an answer to.

Apart from `localspec.llama.grammar`, so that they can be read without loading llama.cpp.
"""

from __future__ import annotations

UNENFORCED = frozenset(
    [
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "uniqueItems",
        "contains",
        "minContains",
        "maxContains",
        "minProperties",
        "maxProperties",
        "propertyNames",
        "patternProperties",
        "dependentRequired",
        "dependentSchemas",
        "unevaluatedItems",
        "unevaluatedProperties",
        "not",
        "if",
        "then",
        "else",
    ]
)
