"""Datastores for tests, in LOCALSPEC_HOME."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.identity import fingerprint
from localspec.retrieval.datastore import Datastore
from localspec.retrieval.learner import LearnedVocabulary, learn


def learned(*texts: Sequence[int], size: int = 1000) -> Datastore:
    name = fingerprint({"texts": [list(text) for text in texts], "size": size})[:24]
    learn(LearnedVocabulary(name, size, "toy"), {"texts": texts})
    datastore = Datastore(lambda: name, size)
    assert datastore.refresh() == []
    return datastore
