"""The draft model's cache in target ids: reading, and rows."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.decoding.sampling import Rows
from localspec.drafters.byte_vocabulary import ByteVocabulary, control
from localspec.drafters.mapped_cache import MappedCache
from localspec.drafters.vocabulary_map import VocabularyMap
from tests.support.toys import ToyCache, ToyModel, examples

LETTERS = [b"h", b"o", b"u", b"s", b"e", b" ", control(b"begin")]
WORDS = [b"house", b"houses", b" ", b"he", b"so", b"x", control(b"bos")]


class OneTextModel(ToyModel):
    """Predicts one text, each token with 0.9."""

    def __init__(self, vocabulary: ByteVocabulary, text: bytes) -> None:
        self.vocabulary, self.text, self.size = vocabulary, text, len(vocabulary.spelled)

    def spelled(self, tokens: Sequence[int]) -> bytes:
        found = b"".join(self.vocabulary.spelled[token] for token in tokens)
        return found.removeprefix(control(b"begin"))

    def logits(self, contexts: Sequence[Sequence[int]]) -> Rows:
        rows = np.full((len(contexts), self.size), np.log(0.1 / (self.size - 1)), np.float32)
        for row, read in zip(rows, map(self.spelled, contexts), strict=True):
            if self.text.startswith(read) and len(read) < len(self.text):
                row[self.vocabulary.encode(self.text[len(read) :])[0][0]] = np.log(0.9)
        return rows


class RecordingCache(ToyCache):
    """Records the tokens of each pass; `fails`: whether the next one is interrupted halfway."""

    model: OneTextModel
    fails = False

    def __init__(self, model: OneTextModel, *, recurrent: bool) -> None:
        super().__init__(model, recurrent=recurrent)
        self.reads: list[list[int]] = []

    def spelled(self) -> bytes:
        return self.model.spelled(self.tokens)

    def extend(self, tokens: Sequence[int], outputs: int = 1) -> Rows:
        self.reads.append(list(tokens))
        if self.fails:
            self.fails = False
            super().extend(tokens[:1])
            raise KeyboardInterrupt
        return super().extend(tokens, outputs)


def cache_of(
    target: Sequence[bytes],
    draft: Sequence[bytes],
    text: bytes,
    *,
    bos: int = -1,
    by_text: bool = False,
    recurrent: bool = False,
) -> tuple[MappedCache, RecordingCache]:
    vocabulary = ByteVocabulary(draft)
    inner = RecordingCache(OneTextModel(vocabulary, text), recurrent=recurrent)
    cache = MappedCache(
        inner, VocabularyMap(ByteVocabulary(target), vocabulary, bos=bos, dropped=6)
    )
    cache.by_text = by_text
    return cache, inner


def ids(vocabulary: Sequence[bytes], *texts: bytes) -> list[int]:
    return [vocabulary.index(text) for text in texts]


def test_continued_word_is_read_again_without_the_text_before() -> None:
    target, draft = [b"hou", b"se", b" a"], [b"house", b"h", b"o", b"u", b"s", b"e", b" a"]
    cache, inner = cache_of(target, draft, b"")
    cache.extend([2, 2, 0])
    assert inner.spelled() == b" a ahou"
    cache.extend([1])
    assert inner.tokens == ids(draft, b" a", b" a", b"house")
    assert [len(read) for read in inner.reads] == [5, 1]
    cache, inner = cache_of([b"a", b"hou", b"se"], [b"a", b"ahou", b"house", b"ahouse"], b"")
    cache.extend([0, 1])
    assert inner.tokens == [1]
    cache.extend([2])
    assert inner.tokens == [3], "the last token is replaced by a longer one"


def test_draft_model_begins_with_its_own_bos() -> None:
    cache, inner = cache_of(WORDS, LETTERS, b"house ", bos=6)
    cache.extend([6, 3])
    assert inner.tokens == ids(LETTERS, control(b"begin"), b"h", b"e")
    cache.clear()
    cache.extend([3])
    assert inner.tokens == ids(LETTERS, control(b"begin"), b"h", b"e")


def test_interrupted_pass_is_repeated() -> None:
    cache, inner = cache_of(WORDS, LETTERS, b"house ")
    cache.extend([3])
    inner.fails = True
    with pytest.raises(KeyboardInterrupt):
        cache.extend([0, 2])
    assert cache.tokens == [3]
    assert len(inner.tokens) == 3, "a part was read"
    cache.extend([4])
    assert cache.tokens == [3, 4]
    assert inner.spelled() == b"heso"


def test_text_that_does_not_fit_gives_zero_rows() -> None:
    cache, inner = cache_of(WORDS, LETTERS, b"house ")
    inner.capacity = 8
    assert cache.capacity == 7
    cache.extend([0])
    assert cache.capacity < 3, "five of its tokens to one of the target's"
    rows = cache.extend([0, 2, 0], 2)
    assert rows.shape == (2, len(WORDS))
    assert (rows == 0).all()
    assert cache.capacity == 0
    assert len(inner.tokens) <= 8
    cache.truncate(1)
    assert cache.capacity > 0
    assert (cache.extend([2]) != 0).any()


tokens = st.integers(0, 5)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("cut"), tokens),
        st.tuples(st.just("add"), st.lists(tokens, min_size=1, max_size=4)),
    ),
    max_size=12,
)
SPELLED = [b"a", b"b", b"ab", b" ", b" a", b"ba", b"aba", b"abab", b"c", b"  "]


@examples(150)
@given(
    target=st.permutations(SPELLED).map(lambda spelled: spelled[:6]),
    draft=st.permutations(SPELLED).map(lambda spelled: [*spelled[:6], b"b", b"a", b" "]),
    text=st.lists(st.sampled_from(SPELLED), max_size=6).map(b"".join),
    by_text=st.booleans(),
    recurrent=st.booleans(),
    steps=steps,
    outputs=st.integers(0, 4),
)
def test_draft_model_always_reads_the_same_text(
    target: list[bytes],
    draft: list[bytes],
    text: bytes,
    by_text: bool,
    recurrent: bool,
    steps: list[tuple[str, object]],
    outputs: int,
) -> None:
    """Up to the start of the last token, or with the draft model's continuation."""
    cache, inner = cache_of(target, draft, text, by_text=by_text, recurrent=recurrent)
    known: list[int] = []
    for what, value in steps:
        if what == "cut":
            assert isinstance(value, int)
            del known[value:]
            cache.truncate(value)
        else:
            assert isinstance(value, list)
            known += value
            rows = cache.extend(value, min(outputs, len(value)))
            assert rows.shape == (min(outputs, len(value)), len(target))
            assert np.isfinite(rows).all()
        assert cache.tokens == known
        whole = b"".join(target[token] for token in known)
        spelled = bytes(ch for ch in whole if ch in b"".join(draft))
        read = inner.spelled()
        assert spelled.startswith(read) or read.startswith(spelled)
        assert by_text or len(read) <= len(spelled), "only drafts through text read ahead"


def expected(cache: MappedCache, rows: Rows) -> bytes:
    return cache.mapping.target.spelled[int(rows[-1].argmax())]


def test_composed_token_is_read_only_once() -> None:
    cache, inner = cache_of(WORDS, LETTERS, b" house houses ", by_text=True)
    rows = cache.extend([2])
    assert expected(cache, rows) == b"house"
    assert inner.spelled() == b" house", "one of the passes was needed anyway"
    weights = np.exp(rows[0] - np.logaddexp.reduce(rows[0]))
    assert 0.5 < weights[0] < 0.75, "0.9 to the 5th"
    passes = len(inner.reads)
    assert expected(cache, cache.extend([0])) == b" "
    assert len(inner.reads) == passes, "the row after the word is known"
    assert expected(cache, cache.extend([2])) == b"houses"
    assert Counter(map(len, inner.reads)) == Counter({1: len(inner.reads)})
    assert inner.spelled() == b" house house", "the last letter is read on demand"


def test_long_draft_token_covers_several_target_tokens() -> None:
    target, draft = [b"un", b"believ", b"able", b" "], [b"unbelievable", b" ", b"un", b"b"]
    cache, inner = cache_of(target, draft, b" unbelievable ")
    for token, follows in ((3, b"un"), (0, b"believ"), (1, b"able")):
        assert expected(cache, cache.extend([token])) == follows
    assert inner.reads == [[1]]
    assert expected(cache, cache.extend([2])) == b" "
    assert inner.reads == [[1], [0]], "now that it is complete it is read"
