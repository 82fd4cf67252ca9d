"""Retrieval: continuations of the text's longest suffix in learned texts."""

import math

from localspec.drafters.copying import CopyingSource
from localspec.retrieval.datastore import Datastore

PRIORS = {
    "greedy": (-0.74, 0.36, 1.11, 0.59, 0.0),
    "sampled": (-1.12, 0.48, 0.95, 0.3, 0.0),
}
"""Those of the n-gram drafter, and one for the number of occurrences."""


class RetrievalSource(CopyingSource):
    """Copies from learned texts of the target's vocabulary, as they are when an answer begins."""

    name = "retrieval"
    priors = PRIORS

    def __init__(self, datastore: Datastore) -> None:
        self.texts, self.size = datastore.now, datastore.size

    def features(self, length: int, count: int, total: int, streak: int) -> tuple[float, ...]:
        common = super().features(length, count, total, streak)
        return (*common, min(1.0, math.log2(count) / 10))
