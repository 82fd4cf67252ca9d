"""Datastores for tests, in LOCALSPEC_HOME."""

from collections.abc import Sequence

from localspec.identity import fingerprint
from localspec.retrieval.datastore import Datastore
from localspec.retrieval.learner import LearnedVocabulary, learn


def learned(*texts: Sequence[int]) -> Datastore:
    name = fingerprint({"texts": [list(text) for text in texts]})[:24]
    learn(LearnedVocabulary(name, 1000, "toy"), {"texts": texts})
    datastore = Datastore(lambda: name, 1000)
    assert datastore.refresh() == []
    return datastore
