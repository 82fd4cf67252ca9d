"""Toy models of different vocabularies, for a target with the tokens "a", "b" and "ab".

Their tokens are those of `tests.support.toys`: three, and START.
"""

from collections.abc import Sequence

from localspec.decoding.sources import Cache
from localspec.drafters.byte_vocabulary import ByteVocabulary, control
from localspec.drafters.heterogeneous import HeterogeneousDraftModel
from localspec.drafters.mapped_cache import MappedCache
from localspec.drafters.vocabulary_map import VocabularyMap
from tests.support.toys import START

TARGET = (b"a", b"b", b"ab", control(b"start"))
VOCABULARIES: dict[str, Sequence[bytes]] = {
    "other ids": (b"ab", b"a", b"b", control(b"start")),
    "finer": (b"b", b"a", b"c", control(b"start")),
    "coarser": (b"b", b"a", b"abb", control(b"start")),
    "longer": (b"aba", b"bb", b"b", control(b"begin")),
    "half foreign": (b"x", b"ab", b"yz", control(b"start")),
    "foreign": (b"x", b"y", b"z", control(b"begin")),
}
"""Spellings of a draft model's tokens."""
WAYS = ("text", "shared")


def heterogeneous(
    cache: Cache, spelled: Sequence[bytes], *, way: str = "auto"
) -> HeterogeneousDraftModel:
    """A draft model with these spellings, for the target."""
    mapping = VocabularyMap(ByteVocabulary(TARGET), ByteVocabulary(spelled), sample=b"abab")
    return HeterogeneousDraftModel(MappedCache(cache, mapping), START + 1, way=way)
