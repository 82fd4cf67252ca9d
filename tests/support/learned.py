"""Datastores for tests, in whatever LOCALSPEC_HOME is."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.identity import fingerprint
from localspec.retrieval.datastore import Datastore
from localspec.retrieval.learner import LearnedVocabulary, learn


def learned(*texts: Sequence[int], size: int = 1000) -> Datastore:
    """One that consists of these texts."""
    name = fingerprint({"texts": [list(text) for text in texts], "size": size})[:24]
    learn(LearnedVocabulary(name, size, "toy"), {"texts": texts})
    datastore = Datastore(lambda: name, size)
    assert datastore.refresh() == []
    return datastore
