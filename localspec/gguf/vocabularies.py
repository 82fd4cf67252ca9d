"""Vocabularies in files, as llama.cpp reads them (llama-vocab.cpp)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import DraftMismatch
from localspec.gguf.file import Array, GGUFFile
from localspec.gguf.reader import read_gguf
from localspec.text import printable

CONTROL, USER_DEFINED, UNUSED = 3, 4, 5
"""Types of marks, which models of one family may name differently, and of padding."""

_TURN_ENDS = """
    <|eot_id|> <|im_end|> <|end|> <end_of_turn> <|endoftext|> <|end_of_text|> <EOT> _<EOT> [EOT]
    <｜end▁of▁sentence｜> <end_of_utterance>
    """.split()
_BOS: Mapping[str, int] = {"llama": 1, "gpt2": 11, "bert": 101, "plamo2": 1}
_EOS: Mapping[str, int] = {"llama": 2, "gpt2": 11, "t5": 1, "plamo2": 2}
"""llama.cpp's default ids by tokenizer model, for files without them."""


@dataclass(frozen=True, slots=True)
class TokenDifference:
    token: int
    target: str
    draft: str


class VocabularyFacts:
    """A file's vocabulary. `model`: "gpt2" (byte-level BPE), "llama" (SentencePiece) …; `pre`: the
    pre-tokenizer; `size`: number of tokens."""

    def __init__(self, file: GGUFFile) -> None:
        self.model = printable(file.text("tokenizer.ggml.model") or "none", 40)
        self.pre = printable(file.text("tokenizer.ggml.pre") or "default", 40)
        tokens = file.array("tokenizer.ggml.tokens")
        types = file.array("tokenizer.ggml.token_type")
        self.tokens: Array | None = tokens if tokens is not None and tokens.strings else None
        self._types = types if types is not None and not types.strings else None
        self.size = 0 if self.tokens is None else len(self.tokens)
        self._file = file

    def bytes_of(self, token: int) -> bytes:
        assert self.tokens is not None
        return self.tokens.bytes_of(token) or f"[EMPTY_{token}]".encode()

    def text(self, token: int) -> str:
        """A token for messages, escaped."""
        return printable(repr(self.bytes_of(token).decode("utf-8", "replace")), 60)

    def control(self, token: int) -> bool:
        """Whether a token is a mark or was added, so that it may have another name elsewhere."""
        return self._type(token) in (CONTROL, USER_DEFINED)

    def unused(self, token: int) -> bool:
        """Whether a token is padding, or a placeholder that no text contains."""
        if self._type(token) == UNUSED:
            return True
        return b"unused" in self.bytes_of(token) and self.control(token)

    def _type(self, token: int) -> object:
        types = self._types
        return types[token] if types is not None and token < len(types) else None

    def beginning(self) -> int | None:
        return self._special("bos", _BOS)

    def end(self) -> int | None:
        return self._special("eos", _EOS)

    def turn_end(self) -> int | None:
        named = self._special("eot", {})
        if named is not None or self.tokens is None:
            return named
        found = (self.tokens.index_of(text.encode()) for text in _TURN_ENDS)
        return next((token for token in found if token is not None), None)

    def _special(self, name: str, usual: Mapping[str, int]) -> int | None:
        token = self._file.integer(f"tokenizer.ggml.{name}_token_id")
        if token is None or not 0 <= token < self.size:
            token = usual.get(self.model)
        return token if token is not None and token < self.size else None


def compare(
    target: VocabularyFacts, draft: VocabularyFacts, *, reads_all: bool = False
) -> TokenDifference | None:
    """The first id with different text; None if there is none. Marks may have other names, and
    either vocabulary may be larger; `reads_all`: whether the draft needs all tokens that the target
    uses."""
    for token, (ours, theirs) in enumerate(_token_pairs(target.tokens, draft.tokens)):
        if ours == theirs or target.bytes_of(token) == draft.bytes_of(token):
            continue
        if not (target.control(token) and draft.control(token)):
            return TokenDifference(token, target.text(token), draft.text(token))
    for token in range(draft.size, target.size) if reads_all else ():
        if not target.unused(token):
            return TokenDifference(token, target.text(token), "none")
    return None


def _token_pairs(mine: Array | None, other: Array | None) -> Iterable[tuple[bytes, bytes]]:
    """Pairs of tokens by id; empty if the shorter vocabulary is a prefix of the longer one, as is
    usual."""
    if mine is None or other is None:
        return ()
    shorter, longer = sorted((mine, other), key=len)
    if longer.raw.startswith(shorter.raw):
        return ()
    return zip(mine.all_bytes(), other.all_bytes(), strict=False)


def difference(target: Path, draft: Path) -> TokenDifference | None:
    """The first token of a target with another meaning in a draft model."""
    mine, other = (VocabularyFacts(read_gguf(path)) for path in (target, draft))
    return compare(mine, other, reads_all=True)


def require_shared(target: Path, draft: Path) -> None:
    """Raise a DraftMismatch that names the first token that differs."""
    found = difference(target, draft)
    if found is not None:
        raise DraftMismatch(
            f"The draft model's vocabulary differs: token {found.token} is {found.target} in the "
            f"target and {found.draft} in the draft. Choose a draft of the same model family, "
            "allow it with --cross-vocabulary auto, or pass --draft none."
        )
