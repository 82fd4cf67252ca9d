"""Datastores: lookups, changes, and failures during them."""

import errno
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st

from localspec.errors import DatastoreError
from localspec.retrieval import learner
from localspec.retrieval import manifest as manifests
from localspec.retrieval.datastore import Datastore, Snapshot
from localspec.retrieval.learner import LearnedVocabulary, forget, forget_conversations, learn
from localspec.retrieval.manifest import Manifest
from localspec.retrieval.segment import Segment, encode, write_segment
from tests.cli.process import run_python
from tests.support.patches import fail_with
from tests.support.toys import examples

pytestmark = pytest.mark.usefixtures("home")

FACTS = LearnedVocabulary("f" * 24, 1000, "toy")
known_texts = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), min_size=1, max_size=4)


def folder() -> Path:
    return manifests.root() / FACTS.fingerprint


def manifest() -> Manifest:
    found = manifests.read(folder())
    assert found is not None
    return found


def opened() -> Snapshot:
    datastore = Datastore(lambda: FACTS.fingerprint, FACTS.size)
    assert datastore.refresh() == []
    return datastore.now


def holds(text: list[int]) -> bool:
    found = list(opened().longest(text))
    return bool(found) and found[0].length == len(text)


@examples(150)
@given(
    texts=known_texts, ending=st.lists(st.integers(0, 4), max_size=8), width=st.sampled_from([2, 3])
)
def test_lookup_equals_counting(texts: list[list[int]], ending: list[int], width: int) -> None:
    path = manifests.root() / f"{width}.segment"
    stream = encode(texts, width)
    write_segment(path, stream, width)
    snapshot = Snapshot((Segment(path, len(stream) // width, width),))
    found = list(snapshot.longest(ending))
    lengths = [n for n in range(1, len(ending) + 1) if occurrences(texts, ending[-n:])]
    assert (found[0].length if found else 0) == max(lengths, default=0)
    for each in found:
        places = occurrences(texts, ending[-each.length :])
        assert each.total == len(places)
        followed = Counter(text[end] for text, end in places if end < len(text))
        assert each.followers() == dict(followed)


def occurrences(texts: list[list[int]], wanted: list[int]) -> list[tuple[list[int], int]]:
    """Texts, and the ends of occurrences in them."""
    n = len(wanted)
    return [(t, i + n) for t in texts for i in range(len(t) - n + 1) if t[i : i + n] == wanted]


def test_small_segments_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner, "SMALL", 4)
    for n in range(40):
        learn(FACTS, {f"text {n}": [[n, n + 1, n + 2]]})
    counts = [segment.count for segment in manifest().segments]
    assert sum(counts) == 40 * 4
    assert len(counts) <= 4, "about log4 of 160"
    assert all(holds([n, n + 1, n + 2]) for n in range(40))
    assert len(list(folder().glob("*.segment"))) == len(counts), "others are removed"


def test_forgotten_texts_are_deleted_from_the_disk() -> None:
    learn(FACTS, {"keep": [[1, 2, 3]], "drop": [[500, 501, 502], [503]], "stay": [[7, 8, 9]]})
    forget(folder(), ["drop"])
    assert holds([1, 2, 3])
    assert holds([7, 8, 9])
    assert list(opened().longest([501])) == []
    secret = encode([[501]], 2)[2:].tobytes()
    assert all(secret not in path.read_bytes() for path in folder().iterdir())
    forget(folder(), ["keep", "stay"])
    assert opened().tokens == 0
    assert list(folder().glob("*.segment")) == []


def test_open_datastore_sees_changes() -> None:
    datastore = Datastore(lambda: FACTS.fingerprint, FACTS.size)
    assert datastore.refresh() == []
    learn(FACTS, {"a": [[1, 2, 3]]})
    datastore.refresh()
    before = datastore.now
    assert before.tokens == 4
    forget(folder(), ["a"])
    datastore.refresh()
    assert datastore.now.tokens == 0
    assert next(before.longest([1, 2])).length == 2, "a running answer keeps its snapshot"


KILLED = """
import os, sys
from localspec.retrieval.learner import LearnedVocabulary, forget, learn
from localspec.retrieval import manifest as manifests
left, events = int(sys.argv[1]), ("open", "os.rename", "os.remove", "os.mkdir")
facts = LearnedVocabulary("f" * 24, 1000, "toy")
import filelock, numpy, pydivsufsort
def watch(event, arguments):
    global left
    if event in events and str(manifests.root()) in str(arguments[0]):
        left -= 1
        if left < 0:
            os._exit(9)
sys.addaudithook(watch)
learn(facts, {"a": [[21, 22, 23]]})
forget(manifests.root() / facts.fingerprint, ["b"])
"""


@pytest.mark.nightly
def test_kill_at_any_step_leaves_the_old_or_new_state() -> None:
    """At each opening, renaming and removal of a file."""
    stages = set()
    for steps in range(100):
        learn(FACTS, {"a": [[1, 2, 3]], "b": [[7, 8]]})
        code = run_python(KILLED, steps).code
        stage = holds([1, 2, 3]), holds([21, 22, 23]), holds([7, 8])
        assert stage in {(True, False, True), (False, True, True), (False, True, False)}
        stages.add(stage)
        if code == 0:
            break
        assert code == 9
    assert steps > 8
    assert len(stages) == 3
    learn(FACTS, {"c": [[5]]})
    left = {path.name for path in folder().iterdir()} - {".lock", manifests.FILE}
    assert left == {segment.file for segment in manifest().segments}


LEARNS = """
import sys
from localspec.retrieval.learner import LearnedVocabulary, forget_conversations, learn
first = int(sys.argv[1])
for n in range(12):
    text = [[first + n, 900, first + n, 901]]
    learn(LearnedVocabulary("f" * 24, 1000, "toy"), {f"conversation {first + n}": text})
forget_conversations([str(first)])
"""


@pytest.mark.nightly
def test_concurrent_processes_lose_nothing() -> None:
    command = [sys.executable, "-c", LEARNS]
    running = [subprocess.Popen([*command, str(first)]) for first in (100, 200)]
    assert [process.wait() for process in running] == [0, 0]
    for first in (100, 200):
        assert not holds([first, 900, first])
        for n in range(first + 1, first + 12):
            assert f"conversation {n}" in manifest().learned
            assert holds([n, 900, n, 901])


def test_lock_timeout_is_reported() -> None:
    learn(FACTS, {"a": [[1, 2, 3]]})
    with (
        FileLock(folder() / ".lock"),
        pytest.raises(DatastoreError, match=r"Another localspec process has .*Try again"),
    ):
        learn(FACTS, {"a": [[4, 5]]}, patience=0.0)
    assert holds([1, 2, 3])


@pytest.mark.parametrize("nth", range(2))
def test_full_disk_changes_nothing(monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
    """At the segment, then at the manifest."""
    learn(FACTS, {"a": [[1, 2, 3]]})
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fail_with(full, after=nth, before=Path.replace))
        with pytest.raises(DatastoreError, match=r"No space left.*Nothing has changed\. Make room"):
            learn(FACTS, {"a": [[4, 5]]})
    assert holds([1, 2, 3])
    learn(FACTS, {"a": [[4, 5]]})
    assert (holds([1, 2, 3]), holds([4, 5]), opened().tokens) == (False, True, 3)


def test_truncated_segment_is_left_out() -> None:
    learn(FACTS, {"a": [[1, 2, 3]]})
    (path,) = folder().glob("*.segment")
    path.write_bytes(path.read_bytes()[:-1])
    datastore = Datastore(lambda: FACTS.fingerprint, FACTS.size)
    (notice,) = datastore.refresh()
    assert "is damaged" in notice
    assert "learn again" in notice
    assert datastore.now.tokens == 0
    assert datastore.refresh() == [], "it is reported once"
    with pytest.raises(DatastoreError, match=r"damaged.*Remove the folder .* learn again"):
        learn(FACTS, {"b": [[4]]})
    path.unlink()
    (notice,) = Datastore(lambda: FACTS.fingerprint, FACTS.size).refresh()
    assert "is missing" in notice


def test_damaged_segment_is_read_but_not_merged() -> None:
    learn(FACTS, {"a": [[1, 2, 3, 1, 2, 4]]})
    (path,) = folder().glob("*.segment")
    whole = path.read_bytes()
    for at in range(16, len(whole)):
        for damage in (0x00, 0x7F, 0xFF):
            path.write_bytes(whole[:at] + bytes([damage]) + whole[at + 1 :])
            for each in opened().longest([1, 2]):
                assert isinstance(each.followers(), dict)
    path.write_bytes(whole[:20] + bytes([whole[20] ^ 1]) + whole[21:])
    with pytest.raises(DatastoreError, match="its checksum does not match"):
        learn(FACTS, {"b": [[4]]})


def test_datastore_of_another_vocabulary_is_reported() -> None:
    learn(FACTS, {"a": [[1, 2, 3]]})
    folder().rename(manifests.root() / ("e" * 24))
    datastore = Datastore(lambda: "e" * 24, 1000)
    (notice,) = datastore.refresh()
    assert "of another vocabulary" in notice
    assert datastore.now.tokens == 0


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 1}', '{"format": 99}'])
def test_damaged_manifest_is_reported(content: str) -> None:
    learn(FACTS, {"a": [[1, 2, 3]]})
    (folder() / manifests.FILE).write_text(content)
    (notice,) = Datastore(lambda: FACTS.fingerprint, FACTS.size).refresh()
    assert "Remove the folder" in notice
    with pytest.raises(DatastoreError, match="Remove the folder"):
        learn(FACTS, {"a": [[1]]})
    other = replace(FACTS, fingerprint="g" * 24)
    learn(other, {"conversation a": [[1]]})
    with pytest.raises(DatastoreError, match="Remove the folder"):
        forget_conversations(["a"])
    assert learn(other, {}).learned == {}, "the others forget it all the same"
