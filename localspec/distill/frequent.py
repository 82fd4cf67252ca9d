"""The frequent part of a target's vocabulary, for a smaller output matrix.

FR-Spec (Zhao et al. 2025, section 3.2). A head reads all tokens, and predicts only these. A draft
model's file has only these tokens, as its vocabulary: it reads other tokens as the pieces that
spell them, and never drafts them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.distill.network import ABSENT
from localspec.distill.trace import Trace, TraceRecord
from localspec.distill.weights import Fact, tokenizer_of
from localspec.errors import UsageError
from localspec.gguf.file import Array, GGUFFile, Value

Tokens = npt.NDArray[np.int64]
BPE = "gpt2"
"""tokenizer.ggml.model of byte pair encoding (Sennrich et al. 2016)."""
ORDINARY = 1
"""tokenizer.ggml.token_type of tokens that are neither control, nor a byte, nor unknown."""
_TOKENS, _TYPES, _MERGES = (f"tokenizer.ggml.{name}" for name in ("tokens", "token_type", "merges"))


class KeptTokens:
    """Some tokens of a target. `weight` [target tokens]: expected frequency of each. `kept`: target
    ids, ascending; a token's index is its id in the draft, or its row in a head. `own`: [target
    tokens], that id or row, -1 if left out; `spare`: ids or rows, the rarest first."""

    def __init__(self, kept: Iterable[int], weight: npt.NDArray[Any]) -> None:
        self.kept: Tokens = np.array(sorted(kept), np.int64)
        self.own: Tokens = np.full(len(weight), -1, np.int64)
        self.own[self.kept] = np.arange(len(self.kept))
        self.spare: Tokens = np.argsort(weight[self.kept], kind="stable")

    def __len__(self) -> int:
        return len(self.kept)

    def map_record(self, record: TraceRecord) -> TraceRecord:
        """An answer restricted to these tokens. The probability of others goes to `rest`; if one of
        them follows, the likeliest of these takes its place."""
        own = self.own[record.ids]
        gone = own < 0
        ids = np.where(gone, np.resize(self.spare, own.shape[1]), own)
        log_p = np.where(gone, np.float32(ABSENT), record.log_p)
        missed = np.where(gone, np.exp(record.log_p), 0.0).sum(axis=1)
        rest = (record.rest + missed).astype(np.float32)
        likeliest = np.take_along_axis(ids, log_p.argmax(axis=1)[:, None], 1)[:, 0]
        said = self.own[record.answer]
        following = np.where(said < 0, likeliest, said)
        return replace(record, ids=ids, log_p=log_p, rest=rest, following=following)


class FrequentPart(KeptTokens):
    """Control tokens, letters, and frequent tokens with all tokens from which they are merged:
    `size` in all. A UsageError if `size` is too small, or for tokenizers other than BPE."""

    def __init__(self, file: GGUFFile, weight: npt.NDArray[Any], size: int) -> None:
        tokens, merges = file.array(_TOKENS), file.array(_MERGES)
        if file.text("tokenizer.ggml.model") != BPE or tokens is None or merges is None:
            raise UsageError(
                f"{file.path} has no BPE tokenizer, and --vocabulary supports no other kind. "
                "Leave it out: the draft then has all tokens."
            )
        self._file = file
        self._ids = {text: token for token, text in enumerate(tokens.all_bytes())}
        self._parts = _parts(merges, self._ids)
        named = (value for key, value in file.metadata.items() if key.endswith("_token_id"))
        marks = {int(value) for value in named if isinstance(value, int)}
        types = file.array(_TYPES) or ()
        marks |= {token for token, kind in enumerate(types) if kind != ORDINARY}
        first = marks & set(range(len(tokens))) | set(range(len(tokens))) - self._parts.keys()
        if size < len(first):
            raise UsageError(
                f"--vocabulary is {size:,}, and the letters and marks of {file.path.name} are "
                f"{len(first):,} tokens. Give more."
            )
        kept = set(first)
        for token in np.argsort(-weight, kind="stable").tolist():
            if len(kept) == size:
                break
            needed = set(self._needed(token)) - kept
            if len(kept) + len(needed) <= size:
                kept |= needed
        super().__init__(kept, weight)

    def _needed(self, token: int) -> Iterator[int]:
        yield token
        for part in self._parts.get(token, ()):
            yield from self._needed(part)

    def spell(self, token: int) -> tuple[int, ...]:
        """The draft's ids that spell a token of the target."""
        own = int(self.own[token])
        if own >= 0:
            return (own,)
        left, right = self._parts[token]
        return self.spell(left) + self.spell(right)

    def map_record(self, record: TraceRecord) -> TraceRecord:
        """An answer in the draft's tokens; within a spelled token, the next piece is certain."""
        kept = super().map_record(record)
        answer = [self.spell(token) for token in record.answer.tolist()]
        rows = np.repeat(np.arange(len(answer)), [len(pieces) for pieces in answer])
        written = _flat(answer)
        inner = np.append(False, rows[1:] == rows[:-1])
        ids, log_p, rest = kept.ids[rows], kept.log_p[rows], kept.rest[rows]
        ids[inner], log_p[inner], rest[inner] = np.resize(self.spare, ids.shape[1]), ABSENT, 0.0
        ids[inner, 0], log_p[inner, 0] = written[inner], 0.0
        prompt = _flat([self.spell(token) for token in record.prompt.tolist()])
        return replace(record, prompt=prompt, answer=written, ids=ids, log_p=log_p, rest=rest)

    def tokenizer(self) -> list[Fact]:
        facts = (
            (key, kind, self._restrict(key, value)) for key, kind, value in tokenizer_of(self._file)
        )
        return [(key, kind, value) for key, kind, value in facts if value is not None]

    def _restrict(self, key: str, value: Value) -> Value | None:
        if isinstance(value, Array):
            if key == _MERGES:
                return value.select(
                    [n for n, merge in enumerate(value.all_bytes()) if self._has(merge)]
                )
            return value.select(self.kept.tolist()) if len(value) == len(self.own) else value
        if key.endswith("_token_id") and isinstance(value, int):
            return int(self.own[value]) if 0 <= value < len(self.own) else None
        return value

    def _has(self, merge: bytes) -> bool:
        left, _, right = merge.partition(b" ")
        texts = (left, right, left + right)
        return all(
            (token := self._ids.get(text)) is not None and self.own[token] >= 0 for text in texts
        )


def weight_of_tokens(trace: Trace) -> npt.NDArray[np.float64]:
    """The expected number of each token in the answers for training: [target tokens]."""
    weight = np.zeros(trace.header.size)
    for record in map(trace.record, trace.numbers(held_back=False)):
        weight += np.bincount(record.ids.ravel(), np.exp(record.log_p).ravel(), len(weight))
    return weight


def _parts(merges: Array, ids: dict[bytes, int]) -> dict[int, tuple[int, int]]:
    """The two tokens from which each token is merged, by its first merge."""
    found: dict[int, tuple[int, int]] = {}
    for merge in merges.all_bytes():
        left, _, right = merge.partition(b" ")
        whole = ids.get(left + right)
        if whole is not None and left in ids and right in ids:
            found.setdefault(whole, (ids[left], ids[right]))
    return found


def _flat(pieces: Sequence[tuple[int, ...]]) -> Tokens:
    return np.array([token for each in pieces for token in each], np.int64)
