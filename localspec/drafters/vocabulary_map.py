"""Rows of a draft model in the token ids of a target with another vocabulary.

Timor et al. 2025 (arXiv 2502.05202):

* On the intersection (TLI): a shared token keeps its probability. The probability of a token that
  only the draft model has goes to the first target token of its spelling.
* Through text (SLEM): see `localspec.drafters.mapped_cache`.

Either way q is a function of the text, so that speculative sampling is lossless."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from localspec.decoding.sampling import Row
from localspec.drafters.byte_vocabulary import CLOSES, OPENS, ByteVocabulary, SortedTokens, control
from localspec.errors import DraftMismatch
from localspec.llama.vocabulary import TokenBytes, Vocabulary

FLOOR = -1e4
"""Logit, relative to the best one, of a token that the draft model lacks. Not minus infinity, as a
grammar may allow no other."""
LEAST_LOGIT = 12.0
"""Distance from the best logit at which a draft token that the target lacks is ignored."""
MOST_LOOSE = 64
"""Most of those considered in one row."""
SPARE = 1.15
LEAST_INSIDE = 0.02
"""Least probability, relative to the best token, of a token inside which the text may end."""
LEAST_COVERED = 0.5
"""Minimum share of the sample text that a draft model must have tokens for."""
SAMPLE = """\
Anna looked out of the window. "Is it going to rain today?" she asked, and her brother shrugged: \
he didn't know. They had planned to visit the old lighthouse, about 12 kilometres away.

def total(values, start=0):
    # Adds them up; returns None where there are none.
    return sum(v * 2 for v in values) + start if values else None

1. In 2024 the temperature rose by 0.75 °C (from 14.98 °C), according to https://example.org/data.
2. Nevertheless, unexpectedly few measurements were unavailable.
{"name": "Zoë", "tags": ["a", "b"], "count": 3}
"""
"""Text of several kinds, on which two vocabularies are compared."""


class VocabularyMap:
    """A mapping from a draft model's vocabulary to the target's.

    `sample`: an ordinary text; `bos`: the draft token that its texts begin with, -1 for none;
    `dropped`: a target token that the draft model does not read if it lacks it.

    Attributes:
        same: int32 [target tokens], the draft token with the same bytes, or -1.
        written: by target token, the text that the draft model reads for it.
        shared: the share of target tokens that the draft model has as well.
        covered: the share of the sample that the draft model has tokens for.
        sample: target tokens of the sample.
    """

    def __init__(
        self,
        target: ByteVocabulary,
        draft: ByteVocabulary,
        *,
        sample: bytes = b"",
        bos: int = -1,
        dropped: int = -1,
    ) -> None:
        self.target, self.draft, self.bos = target, draft, bos
        self.same: npt.NDArray[np.int32] = np.array(
            [draft.ids.get(spelled, -1) for spelled in target.spelled], np.int32
        )
        self.shared = float((self.same >= 0).sum()) / max(1, sum(map(bool, target.spelled)))
        # Of several tokens with the same bytes, only one is proposed.
        proposed = np.array([*target.ids.values()], np.int64)
        met = self.same[proposed] >= 0
        self._ours, lacking = proposed[met], proposed[~met]
        self._theirs = self.same[self._ours]
        self.written = [
            self._for_draft(token, spelled, dropped) for token, spelled in enumerate(target.spelled)
        ]
        theirs = set(self._theirs.tolist())
        loose = [token for token, s in enumerate(draft.spelled) if s and token not in theirs]
        self._loose = SortedTokens(loose, draft.spelled)
        self._lacking = SortedTokens(lacking.tolist(), target.spelled)
        self._nexts: dict[tuple[int, int], int] = {}
        self.sample = [token for token, _ in target.encode(sample)]
        draft_sample = draft.encode(sample)
        self._longer = len(draft_sample) / max(1, len(self.sample))
        covered = sum(len(draft.spelled[token]) for token, _ in draft_sample)
        self.covered = covered / max(1, len(sample))

    def _for_draft(self, token: int, spelled: bytes, dropped: int) -> bytes:
        if self.same[token] >= 0 or not spelled.startswith(OPENS):
            return spelled
        # Of a control token that the draft model lacks, it reads the name.
        return b"" if token == dropped else spelled[len(OPENS) : -len(CLOSES)]

    def room(self, tokens: int) -> int:
        return tokens if self._longer <= 1.0 else int(tokens * self._longer * SPARE) + 8

    def shared_part(self, tokens: Sequence[int]) -> float:
        """The share of these target tokens that the draft model has as well, 0 … 1."""
        return float((self.same[np.asarray(tokens, np.int64)] >= 0).mean()) if len(tokens) else 1.0

    def may_grow(self, text: bytes) -> bool:
        """Whether this text is a proper prefix of a target token that the draft model lacks."""
        return len(self._lacking.beyond(text)) > 0

    def on_shared(self, row: Row) -> Row:
        ours = np.full(len(self.same), -np.inf, np.float32)
        ours[self._ours] = row[self._theirs]
        if len(self._loose.tokens):
            self._spread(row, self._loose.tokens, 0, ours)
        return _floored(ours)

    def inside(self, row: Row, start: bytes) -> tuple[Row, float] | None:
        """The row where the text ends inside a token of the draft model: logits over the target's
        tokens, and the odds of such a token against one that ends here; None if no token begins
        so. `row`: of the draft model, before that token; `start`: the beginning of the token."""
        ids = self._loose.beyond(start)
        if not len(ids):
            return None
        ours = np.full(len(self.same), -np.inf, np.float32)
        mass = self._spread(row, ids, len(start), ours)
        ends = self.draft.ids.get(start)
        if not mass > 0.0:
            return None
        alone = 0.0 if ends is None else float(np.exp(row[ends] - row.max()))
        return _floored(ours), mass / max(alone, LEAST_INSIDE)

    def _spread(
        self, row: Row, ids: npt.NDArray[np.int64], start: int, ours: npt.NDArray[np.float32]
    ) -> float:
        """Add the logits of these draft tokens to the target tokens that continue them after
        `start` bytes; returns their probability relative to the row's best token."""
        best = float(row.max())
        logits = row[ids]
        near = (logits > best - LEAST_LOGIT).nonzero()[0]
        if len(near) > MOST_LOOSE:
            near = near[np.argpartition(logits[near], -MOST_LOOSE)[-MOST_LOOSE:]]
        mass = 0.0
        for draft, logit in zip(ids[near].tolist(), logits[near].tolist(), strict=True):
            token = self.next_token(draft, start)
            if token >= 0:
                ours[token] = np.logaddexp(ours[token], np.float32(logit))
                mass += float(np.exp(logit - best))
        return mass

    def next_token(self, draft: int, start: int = 0) -> int:
        """The target token that continues a draft token's spelling after `start` bytes, or -1."""
        key = (draft, start)
        if key not in self._nexts:
            spelled = self.draft.spelled[draft]
            pieces = self.target.encode(spelled)
            begins = dict(zip((0, *(end for _, end in pieces)), pieces, strict=False))
            found = begins[start][0] if start in begins else self.target.first(spelled[start:])
            self._nexts[key] = found
        return self._nexts[key]


def _floored(row: Row) -> Row:
    best = row.max()
    if best == -np.inf:
        return np.zeros_like(row)
    floored: Row = np.maximum(row, best + np.float32(FLOOR))
    return floored


def match(target: Vocabulary, draft: Vocabulary) -> VocabularyMap:
    """The map from a draft model's tokens to a target's.

    Control tokens match by name, and by role: beginning of text, end of turn, end of text. A
    DraftMismatch if the draft model has no tokens for ordinary text.
    """
    mine, other = target.token_bytes(), draft.token_bytes()
    ours, theirs = _spelled(mine), _spelled(other)
    named = set(ours)
    roles = (target.bos, draft.bos), (target.eot, draft.eot), (target.eos, draft.eos)
    for our, their in roles:
        if min(our, their) >= 0 and theirs[their] not in named and ours[our] not in theirs:
            theirs[their] = ours[our]
    made = VocabularyMap(
        ByteVocabulary(ours, target.tokenize, second_best=mine.single_bytes),
        ByteVocabulary(theirs, draft.tokenize, second_best=other.single_bytes),
        sample=SAMPLE.encode(),
        bos=draft.bos if draft.adds_bos else -1,
        dropped=target.bos,
    )
    if made.covered < LEAST_COVERED:
        raise DraftMismatch(
            "The draft model's vocabulary differs from the model's, and lacks tokens for ordinary "
            "text. Choose another draft model, or pass --draft none."
        )
    return made


def _spelled(vocabulary: TokenBytes) -> list[bytes]:
    return [
        control(piece) if token in vocabulary.controls else piece
        for token, piece in enumerate(vocabulary.pieces)
    ]
