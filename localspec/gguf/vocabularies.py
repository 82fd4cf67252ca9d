"""Vocabularies in files, as llama.cpp reads them (llama-vocab.cpp)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import DraftMismatch
from localspec.gguf.file import Array, GGUFFile
from localspec.gguf.reader import read_gguf
from localspec.text import printable

CONTROL, UNUSED = 3, 5
"""Types of control tokens (models of one family may name these differently), and of padding."""

_ENDS = frozenset(
    """
    <|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn>
    <|endoftext|> </s> <|eom_id|> <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos>
    <turn|> <|tool_response> <｜end▁of▁sentence｜> [e~[
    """.split()
)
_INFILL = frozenset(
    """
    <|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|code_prefix|> <|prefix|>
    <|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF> <|code_suffix|> <|suffix|>
    <|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID> <|code_middle|> <|middle|>
    <|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD] <|fim_repo|> <|repo_name|> <fim-repo> <REPO>
    <reponame> <|file_sep|>
    """.split()
)
_SHOWN = frozenset({"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"})
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
        """Whether llama.cpp treats a token as a control token."""
        text = self.bytes_of(token).decode("utf-8", "replace")
        if text in _SHOWN:
            return False
        if text in _ENDS or text in _INFILL:
            return not self._is_ordinary(text)
        types = self._types
        return types is not None and token < len(types) and types[token] == CONTROL

    def unused(self, token: int) -> bool:
        """Whether a token is padding, or a placeholder that no text contains."""
        types = self._types
        if types is not None and token < len(types) and types[token] == UNUSED:
            return True
        return b"unused" in self.bytes_of(token) and self.control(token)

    def _is_ordinary(self, text: str) -> bool:
        """Whether a token is an ordinary one in this model: `</s>` in Gemma 4 and PLaMo, `<|end|>`
        in gpt-oss and Solar."""
        if text == "</s>":
            return self._has("<|tool_response>") or self._has("<|plamo:eos|>")
        if text == "<|end|>":
            harmony = self._has("<|return|>") and self._has("<|call|>")
            solar = self._has("<|flush|>") and (self._has("<|call|>") or self._has("<|calls|>"))
            return harmony or solar
        return False

    def _has(self, text: str) -> bool:
        return self.find(text) is not None

    def find(self, text: str) -> int | None:
        """The id of a token, None if missing."""
        return None if self.tokens is None else self.tokens.index_of(text.encode())

    def beginning(self) -> int | None:
        return self._special("bos", _BOS)

    def end(self) -> int | None:
        return self._special("eos", _EOS)

    def turn_end(self) -> int | None:
        named = self._special("eot", {})
        if named is not None:
            return named
        found = (self.find(text) for text in _TURN_ENDS)
        return next((token for token in found if token is not None), None)

    def adds_beginning(self) -> bool | None:
        """Whether prompts begin with BOS; None if the file does not say."""
        value = self._file.metadata.get("tokenizer.ggml.add_bos_token")
        return value if isinstance(value, bool) else None

    def _special(self, name: str, usual: Mapping[str, int]) -> int | None:
        token = self._file.integer(f"tokenizer.ggml.{name}_token_id")
        if token is None or not 0 <= token < self.size:
            token = usual.get(self.model)
        return token if token is not None and token < self.size else None


@dataclass(frozen=True, slots=True)
class VocabularyComparison:
    """The first id with different text, the first control token with two names, and the number of
    these."""

    different: TokenDifference | None
    controls: TokenDifference | None
    n_controls: int


def compare(
    target: VocabularyFacts, draft: VocabularyFacts, *, reads_all: bool = False
) -> VocabularyComparison:
    """Compare two vocabularies by id. Control tokens may have other names, and either vocabulary
    may be larger; `reads_all`: whether the draft needs all tokens that the target uses."""
    controls: TokenDifference | None = None
    n_controls = 0
    for token, (ours, theirs) in enumerate(_token_pairs(target.tokens, draft.tokens)):
        if ours == theirs or target.bytes_of(token) == draft.bytes_of(token):
            continue
        found = TokenDifference(token, target.text(token), draft.text(token))
        if not (target.control(token) and draft.control(token)):
            return VocabularyComparison(found, controls, n_controls)
        controls = controls or found
        n_controls += 1
    if reads_all:
        for token in range(draft.size, target.size):
            if not target.unused(token):
                found = TokenDifference(token, target.text(token), "none")
                return VocabularyComparison(found, controls, n_controls)
    return VocabularyComparison(None, controls, n_controls)


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
    return compare(mine, other, reads_all=True).different


def require_shared(target: Path, draft: Path) -> None:
    """Raise a DraftMismatch that names the first token that differs."""
    found = difference(target, draft)
    if found is not None:
        raise DraftMismatch(
            f"The draft model's vocabulary differs: token {found.token} is {found.target} in the "
            f"target and {found.draft} in the draft. Choose a draft of the same model family, "
            "allow it with --cross-vocabulary auto, or pass --draft none."
        )


def shared_text(target: VocabularyFacts, draft: VocabularyFacts) -> float:
    """The share of the target's tokens whose text the draft has, too. "▁" equals "Ġ"."""
    if target.tokens is None or draft.tokens is None or not target.size:
        return 0.0
    mine, other = ({_plain(v.bytes_of(i)) for i in range(v.size)} for v in (target, draft))
    return len(mine & other) / len(mine)


def _plain(text: bytes) -> bytes:
    return text.replace("▁".encode(), b" ").replace("Ġ".encode(), b" ")
