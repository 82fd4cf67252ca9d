import ctypes
import hashlib
import operator
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import groupby
from typing import Any

import llama_cpp

from localspec.errors import UsageError

_MOST_MARKS = 256
"""Special tokens in a text that llama.cpp tokenizes in one call, at most about."""


def require_open(handle: Any) -> Any:
    """The handle; a UsageError if it is None, as llama.cpp would read freed memory."""
    if handle is None:
        raise UsageError("The model is closed. Load it again.")
    return handle


@dataclass(frozen=True, slots=True)
class SpecialToken:
    """A token that llama.cpp matches in a text before all others. `control`: only on request.
    `strips_left`, `strips_right`: whether it drops white space on that side."""

    id: int
    control: bool
    strips_left: bool
    strips_right: bool


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """Bytes by token, of a control token its name; `controls`: tokens that are not text;
    `single_bytes`: tokens of one byte."""

    pieces: Sequence[bytes]
    controls: frozenset[int]
    single_bytes: frozenset[int]


class Vocabulary:
    """The tokens of a model; `bos` and `eos` are -1 if missing, `eot` is `eos` if no token
    ends a turn; `never`: those that no answer may have, such as the end of an image."""

    def __init__(self, handle: Any) -> None:
        self.native: Any = handle  # None once its model is closed
        self.size: int = llama_cpp.llama_vocab_n_tokens(handle)
        self.bos: int = llama_cpp.llama_vocab_bos(handle)
        self.eos: int = llama_cpp.llama_vocab_eos(handle)
        turn: int = llama_cpp.llama_vocab_eot(handle)
        self.eot = turn if turn >= 0 else self.eos
        self.adds_bos: bool = llama_cpp.llama_vocab_get_add_bos(handle)
        count = ctypes.c_int32()
        never = llama_cpp.llama_vocab_get_suppress_tokens(handle, ctypes.byref(count))
        self.never: list[int] = [never[i] for i in range(count.value)]
        # Hot path: `piece` and `ends` are called for every token of an answer.
        self.piece = cache(self._piece)
        self.ends = cache(self._ends)
        self._marks = cache(self._find_marks)
        self._using = threading.RLock()  # around changes of the next two
        self._calls = 0  # native calls in progress, which other threads may make
        self._free: Callable[[], object] | None = None  # for the last of them

    def close(self, free: Callable[[], object]) -> None:
        """Refuse further calls, and `free` the model; after tokenizations in other threads."""
        with self._using:
            self.native = None
            self._free = free
            self._free_unused()

    def _free_unused(self) -> None:
        if self._free is not None and not self._calls:
            self._free()
            self._free = None

    @contextmanager
    def _held(self) -> Iterator[Any]:
        with self._using:
            handle = self.handle
            self._calls += 1
        try:
            yield handle
        finally:
            with self._using:
                self._calls -= 1
                self._free_unused()

    @property
    def handle(self) -> Any:
        return require_open(self.native)

    def check_ids(self, tokens: Sequence[int]) -> list[int]:
        """The caller's token ids; a UsageError for an unknown one, on which llama.cpp would
        abort."""
        try:
            found = [*map(operator.index, tokens)]
        except TypeError:
            raise UsageError(
                "Token ids are whole numbers. Look them up with Engine.tokenize()."
            ) from None
        for token in found:
            if not 0 <= token < self.size:
                raise UsageError(f"There is no token {token}. Ids go from 0 to {self.size - 1}.")
        return found

    def tokenize(
        self, text: str | bytes, *, special: bool = False, add_bos: bool = False
    ) -> list[int]:
        """Token ids of a text, or of its UTF-8; lone surrogates become question marks. `special`:
        read texts such as `<|…|>` as control tokens. `add_bos`: add BOS and other tokens as the
        metadata require."""
        data = text if isinstance(text, bytes) else text.encode("utf-8", "replace")
        # llama.cpp takes quadratic time in the number of special tokens.
        marks: list[int] = []
        if data.count(b"<") + data.count(b"[") > _MOST_MARKS:
            marks = [one.start() for one in self._marks(special).finditer(data)]
        if not (cuts := marks[_MOST_MARKS::_MOST_MARKS]):
            return self._tokenize(data, special, add_bos)
        added = self._tokenize(b"", special, add_bos)
        found = added[: self.adds_bos]
        for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            found += self._tokenize(data[begin:end], special, False)
        return found + added[self.adds_bos :]

    def _tokenize(self, data: bytes, special: bool, add_bos: bool) -> list[int]:
        capacity = len(data) + 8
        while True:
            tokens = (ctypes.c_int32 * capacity)()
            with self._held() as handle:
                count = llama_cpp.llama_tokenize(
                    handle, data, len(data), tokens, capacity, add_bos, special
                )
            if count >= 0:
                return list(tokens[:count])
            capacity = -count

    def _find_marks(self, special: bool) -> re.Pattern[bytes]:
        """A pattern of special tokens before which a text can be cut without changing its tokens,
        apart from those that no text has: none is within another, or changes the text before it."""
        known = [text for text, one in self.special_tokens.items() if special or not one.control]
        inner = [text[1:] for text in known if set(text[1:]) & set("<[")]
        marks = sorted(
            text.encode()
            for text in known
            if text[0] in "<[" and not self.special_tokens[text].strips_left
            if not any(text in other for other in inner)
        )
        # Grouped by their beginnings, as Gemma has 6,000 of them, and HTML many `<`.
        groups = [
            re.escape(begin) + b"(?:" + b"|".join(re.escape(mark[3:]) for mark in group) + b")"
            for begin, group in groupby(marks, lambda mark: mark[:3])
        ]
        return re.compile(b"|".join(groups) or b"(?!)")

    @cached_property
    def adds_space(self) -> bool:
        """Whether a space is added before a text, and after each special token."""
        return b"".join(map(self.piece, self.tokenize("a"))).startswith(b" ")

    @cached_property
    def special_tokens(self) -> dict[str, SpecialToken]:
        """Control tokens and user-defined ones, by spelling."""
        attribute = llama_cpp.llama_vocab_get_attr
        control = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
        special = control | llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED
        found = {}
        for token in range(self.size):
            kind = attribute(self.handle, token)
            if kind & special:
                found[self.text(token)] = SpecialToken(
                    token,
                    control=bool(kind & control),
                    strips_left=bool(kind & llama_cpp.LLAMA_TOKEN_ATTR_LSTRIP),
                    strips_right=bool(kind & llama_cpp.LLAMA_TOKEN_ATTR_RSTRIP),
                )
        found.pop("", None)
        return found

    def _piece(self, token: int, *, special: bool = False) -> bytes:
        """Bytes of a token, possibly part of a character; of control tokens only if `special`."""
        buffer = ctypes.create_string_buffer(64)
        n = llama_cpp.llama_token_to_piece(self.handle, token, buffer, 64, 0, special)
        if n < 0:
            buffer = ctypes.create_string_buffer(-n)
            n = llama_cpp.llama_token_to_piece(self.handle, token, buffer, -n, 0, special)
        return buffer.raw[:n]

    def text(self, token: int) -> str:
        """The token as spelled in the vocabulary."""
        raw = llama_cpp.llama_vocab_get_text(self.handle, token)
        return (raw or b"").decode("utf-8", "replace")

    def _ends(self, token: int) -> bool:
        """Whether the token ends an answer (EOS, end of turn …)."""
        return bool(llama_cpp.llama_vocab_is_eog(self.handle, token))

    def controls_in(self, texts: Sequence[str]) -> dict[int, str]:
        """Control tokens that are spelled by one of these texts, with the text."""
        found = [(self.special_tokens.get(text), text) for text in texts]
        return {token.id: text for token, text in found if token is not None and token.control}

    def infill_tokens(self) -> dict[str, int]:
        """Fill-in-the-middle tokens that exist, by name: "pre", "suf", "mid", "rep", "sep"."""
        found = {
            name: getattr(llama_cpp, f"llama_vocab_fim_{name}")(self.handle)
            for name in ("pre", "suf", "mid", "rep", "sep")
        }
        return {name: int(token) for name, token in found.items() if token >= 0}

    def fingerprint(self) -> str:
        """A hexadecimal digest of all tokens, without padding at the end."""
        text, attribute = llama_cpp.llama_vocab_get_text, llama_cpp.llama_vocab_get_attr
        size = self.size
        while size and attribute(self.handle, size - 1) & llama_cpp.LLAMA_TOKEN_ATTR_UNUSED:
            size -= 1
        digest = hashlib.sha256()
        for token in range(size):
            digest.update((text(self.handle, token) or b"") + b"\0")
        return digest.hexdigest()[:24]

    def token_bytes(self) -> TokenBytes:
        attribute = llama_cpp.llama_vocab_get_attr
        not_text = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
        kinds = [attribute(self.handle, token) for token in range(self.size)]
        controls = frozenset(token for token, kind in enumerate(kinds) if kind & not_text)
        return TokenBytes(
            [self.piece(token, special=token in controls) for token in range(self.size)],
            controls,
            frozenset(n for n, kind in enumerate(kinds) if kind & llama_cpp.LLAMA_TOKEN_ATTR_BYTE),
        )

    def special_text(self, token: int) -> str:
        """A control token as text, for chat templates; empty for -1."""
        return self.piece(token, special=True).decode("utf-8", "replace") if token >= 0 else ""
