"""GBNF grammars and JSON schemas as constraints on what may follow."""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from localspec.decoding.distribution import Ids
from localspec.errors import UsageError
from localspec.llama import library
from localspec.llama.grammar_limits import require_bounded
from localspec.llama.schema_keywords import UNENFORCED
from localspec.llama.vocabulary import Vocabulary

_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
"""Memory layout of llama_token_data."""


class Grammar:
    """llama.cpp's grammar sampler at one place in the text; a `decoding.sampling.Constraint`.

    Raises:
        UsageError: the grammar does not parse; the message says where.
    """

    __slots__ = ("_handle",)

    def __init__(self, vocabulary: Vocabulary, gbnf: str, root: str = "root") -> None:
        if "\0" in gbnf or not gbnf.strip():
            raise UsageError("The grammar is empty or has a NUL in it. Give GBNF text.")
        require_bounded(gbnf)
        with _PARSING:  # the complaints, and standard error, are those of the whole process
            library.forget_complaints()
            with _captured_stderr() as said:
                self._handle: Any = llama_cpp.llama_sampler_init_grammar(
                    vocabulary.handle, gbnf.encode("utf-8", "replace"), root.encode()
                )
            complaint = library.complaint()
        if not self._handle:
            first = next((line for line in "".join(said).splitlines() if line.strip()), "")
            cause = first.rpartition("error parsing grammar: ")[2] or complaint
            raise UsageError(
                f"The grammar is not valid GBNF: {cause}. "
                "See grammars/README.md of llama.cpp for the syntax."
            )

    @classmethod
    def from_json_schema(cls, vocabulary: Vocabulary, schema: str) -> Grammar:
        """A grammar of the JSON texts that a JSON schema describes.

        Raises:
            UsageError: not JSON, or a schema that a grammar cannot hold the answer to.
        """
        from llama_cpp.llama_grammar import json_schema_to_gbnf

        try:
            parsed = json.loads(schema)
            if not isinstance(parsed, dict):
                raise UsageError("A JSON schema is an object. Wrap it in { }.")
            for keyword in _unenforced(parsed):
                raise UsageError(
                    f"The JSON schema uses '{keyword}', which a grammar cannot enforce. "
                    "Leave it out, and check the answer for it."
                )
            _require_patterns_end(parsed)
            gbnf = json_schema_to_gbnf(json.dumps(_at_its_root(parsed)))
        except UsageError:
            raise
        except json.JSONDecodeError as error:
            raise UsageError(
                f"The JSON schema is not JSON: {error}. Pass a file or an object."
            ) from None
        except Exception as error:  # the converter raises whatever it trips over
            raise UsageError(
                f"The JSON schema cannot be turned into a grammar: {error}. "
                "Leave out the keyword it names."
            ) from None
        # The converter lets control characters into strings, which JSON does not.
        return cls(vocabulary, gbnf.replace(r'[^"\\] |', r'[^"\\\x7F\x00-\x1F] |'))

    def allowed(self, ids: Ids) -> npt.NDArray[np.bool_]:
        candidates = np.zeros(len(ids), _CANDIDATE)
        candidates["id"] = ids
        array = llama_cpp.llama_token_data_array(
            data=candidates.ctypes.data_as(ctypes.POINTER(llama_cpp.llama_token_data)),
            size=len(ids),
            selected=-1,
            sorted=False,
        )
        started = perf_counter()
        llama_cpp.llama_sampler_apply(self._handle, ctypes.byref(array))
        _require_quick(started)
        found: npt.NDArray[np.bool_] = candidates["logit"] == 0.0
        return found

    def advance(self, token: int) -> None:
        # llama.cpp throws through C frames, and so ends the process, on a token it does not allow.
        if not self.allowed(np.array([token], np.int32))[0]:
            raise ValueError(f"token {token} is not allowed here")
        started = perf_counter()
        llama_cpp.llama_sampler_accept(self._handle, token)
        _require_quick(started)

    def fork(self) -> Grammar:
        copy = Grammar.__new__(Grammar)
        copy._handle = llama_cpp.llama_sampler_clone(self._handle)
        return copy

    def __del__(self) -> None:
        handle, self._handle = getattr(self, "_handle", None), None
        if handle and llama_cpp is not None:
            llama_cpp.llama_sampler_free(handle)


_PARSING = threading.Lock()
_PATIENCE = 5.0
"""Seconds of a look at the grammar after which an answer is given up; usually it is a hundredth of
one. Where the text can be derived in too many ways, every further token takes longer."""
_DEFINITIONS = ("$defs", "definitions")
_NAMED = ("properties", *_DEFINITIONS)
_DATA = ("const", "default", "enum", "examples")


def _unenforced(schema: Any) -> Iterator[str]:
    """Keywords in a schema that the conversion to a grammar passes over in silence."""
    if isinstance(schema, list):
        for part in schema:
            yield from _unenforced(part)
    elif isinstance(schema, dict):
        for key, value in schema.items():
            if key in UNENFORCED:
                yield key
            elif key in _NAMED and isinstance(value, dict):
                yield from _unenforced(list(value.values()))
            elif key not in _DATA:
                yield from _unenforced(value)


def _require_quick(started: float) -> None:
    if perf_counter() - started > _PATIENCE:
        raise UsageError(
            "The grammar leaves too many ways to derive the answer. Make it less ambiguous."
        )


def _at_its_root(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema itself, where its root is nothing but a reference into its definitions: the
    conversion does not look into them there, and finds no reference inside them."""
    for _ in range(len(schema) + 8):
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        target: Any = schema
        for name in reference.split("/")[1:]:
            target = target.get(name) if isinstance(target, dict) else None
        if not isinstance(target, dict):
            break
        kept = {key: value for key, value in schema.items() if key in _DEFINITIONS}
        schema = {**target, **kept}
    return schema


_PATTERN = re.compile(r"\\.|\[(?:[^\]\\]|\\.)*\]|\{[^}]*\}|[]{}[]", re.DOTALL)


def _require_patterns_end(schema: Any) -> None:
    """Refuse the regular expressions that the conversion never comes to the end of: those with a
    bracket that nothing opens, or that follows nothing."""
    level = [schema]
    while level:
        further: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                further.extend(one.values())
                pattern = one.get("pattern")
                if isinstance(pattern, str):
                    for found in _PATTERN.finditer(pattern[1:-1]):
                        if found[0] in ("]", "}", "{", "["):
                            raise UsageError(
                                f"The pattern /{pattern[:80]}/ has a stray '{found[0]}'. "
                                "Escape it with a backslash."
                            )
            elif isinstance(one, list):
                further.extend(one)
        level = further


@contextmanager
def _captured_stderr() -> Iterator[list[str]]:
    """What native code prints to file descriptor 2 meanwhile.

    llama.cpp's grammar parser reports errors with fprintf, past the log callback.
    """
    said: list[str] = []
    sys.stderr.flush() if sys.stderr is not None else None
    try:
        kept = os.dup(2)
    except OSError:  # no stderr at all: nothing to protect
        yield said
        return
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield said
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            said.append(file.read().decode("utf-8", "replace"))
