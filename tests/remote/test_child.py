"""A model in a child process: equal results, and recovery from lost children. Without servers, its
layers stay on this machine."""

import logging
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import psutil
import pytest

from localspec import Cancelled, Engine, ModelInvalid, ModelOptions, NativeError, ServerUnreachable
from localspec.decoding.interfaces import PassRequest
from localspec.decoding.tree import ROOT, TokenTree
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.loading.second_engine import open_embedder
from localspec.remote import servers
from localspec.remote import target as remote_target
from localspec.remote.target import RemoteContext, RemoteModel
from tests.support.ggufs import aborting_llama
from tests.support.patches import fail_with
from tests.support.toys import token_tree

pytestmark = pytest.mark.nightly

OPTIONS = ModelOptions(context=512, threads=1)
PROMPT = list(range(40, 60))
TREE = ((70, ROOT), (71, 0), (72, 0), (73, ROOT))
MISSING = ServerUnreachable("The RPC server far:1 does not answer: it is off.")


@pytest.fixture(scope="module")
def here(target_path: Path) -> Iterator[Context]:
    with Model(target_path, OPTIONS) as model, closing(Context.open(model, OPTIONS)) as context:
        yield context


@pytest.fixture(scope="module")
def model(target_path: Path) -> Iterator[RemoteModel]:
    with RemoteModel(target_path, OPTIONS) as model:
        yield model


@pytest.fixture
def there(model: RemoteModel) -> Iterator[RemoteContext]:
    context = RemoteContext(model, OPTIONS)
    yield context
    context.resume()
    context.close()


def child(model: RemoteModel) -> psutil.Process:
    """The newest child, which is started when it is missing."""
    model.child()
    return max(psutil.Process().children(), key=psutil.Process.create_time)


def test_passes_equal_local_ones(here: Context, there: RemoteContext) -> None:
    tree, chain = token_tree(*TREE), TokenTree.chain([80, 81, 82], "test")
    for context in (here, there):
        context.clear()
    assert (there.capacity, there.max_draft) == (here.capacity, here.max_draft)
    assert (there.max_leaves, there.recurrent) == (here.max_leaves, here.recurrent)

    def same(name: str, *arguments: object) -> None:
        found = (getattr(context, name)(*arguments) for context in (here, there))
        mine, other = (one if isinstance(one, dict) else {0: one} for one in found)
        assert all(np.array_equal(mine[key], other[key]) for key in mine)
        assert there.tokens == here.tokens

    same("extend", PROMPT, 3)
    same("branch", [61], tree)
    same("commit", tree, [0, 2])
    same("branch", [62], chain)
    same("commit", chain, [0])
    same("truncate", 12)
    same("extend", list(range(100, 300)))
    same("discard_branches")
    same("clear")
    same("request_hidden", (1, here.model.layers))
    same("extend", PROMPT, 2)
    same("hidden", 2)
    same("request_hidden", ())


def test_state_is_transferred(here: Context, there: RemoteContext) -> None:
    here.clear()
    here.extend(PROMPT)
    there.set_state(PROMPT, here.state())
    assert there.tokens == PROMPT
    assert np.array_equal(there.extend([70]), here.extend([70]))
    assert np.array_equal(there.state(), here.state())


def test_lost_pass_is_repeated(here: Context, there: RemoteContext, model: RemoteModel) -> None:
    here.clear()
    rows = here.extend([*PROMPT, 61])[-1].copy()
    there.extend(PROMPT)
    before = child(model)
    child(model).kill()
    assert np.allclose(there.extend([61])[-1], rows, atol=0.2)
    assert child(model) != before
    assert there.tokens == [*PROMPT, 61]
    (notice,) = there.take_notices()
    assert "was lost" in notice
    assert there.take_notices() == [], "it is reported once"


def test_two_contexts_share_a_child(there: RemoteContext, model: RemoteModel) -> None:
    second = RemoteContext(model, OPTIONS)
    there.extend(PROMPT)
    second.extend(PROMPT[:5])
    child(model).kill()
    there.extend([61])
    second.extend([62])
    assert there.tokens == [*PROMPT, 61]
    assert second.tokens == [*PROMPT[:5], 62]
    second.cancel()
    there.extend([62])
    with pytest.raises(Cancelled):
        second.extend([63])
    second.close()


def test_missing_server(
    there: RemoteContext, model: RemoteModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = there.forward(PassRequest([*PROMPT, 61], TokenTree())).rows[-1].copy()
    with monkeypatch.context() as patch:
        patch.setattr(servers, "require_answering", fail_with(MISSING))
        patch.setattr(remote_target, "PATIENCE", 0.3)
        child(model).kill()
        with pytest.raises(ServerUnreachable):
            there.forward(PassRequest([*PROMPT, 61, 62], token_tree(*TREE)))
        there.rollback(PROMPT)  # as after any answer
        assert there.tokens == []
        patch.setattr(remote_target, "PATIENCE", 3600.0)
        with pytest.raises(ServerUnreachable, match="far:1"):
            there.extend(PROMPT)  # without waiting again
    again = there.forward(PassRequest([*PROMPT, 61], TokenTree())).rows[-1]
    assert np.allclose(again, rows, atol=0.2)


def test_waiting_for_a_server_can_be_cancelled(
    there: RemoteContext, model: RemoteModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_servers: object) -> None:
        there.cancel()
        raise MISSING

    monkeypatch.setattr(servers, "require_answering", away)
    monkeypatch.setattr(remote_target, "PATIENCE", 3600.0)
    there.extend(PROMPT)
    child(model).kill()
    with pytest.raises(Cancelled):
        there.extend([61])


def test_hanging_pass_can_be_cancelled(
    there: RemoteContext, model: RemoteModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_target, "HANGS", 0.1)
    there.extend(PROMPT)
    child(model).suspend()  # as if a server hung
    timer = threading.Timer(0.1, there.cancel)
    timer.start()
    with pytest.raises(Cancelled):
        there.extend([61])
    timer.join()
    there.resume()
    there.extend([61])
    assert there.tokens == [*PROMPT, 61]


def test_prompt_can_be_cancelled_between_chunks(model: RemoteModel, there: RemoteContext) -> None:
    options = ModelOptions(context=512, threads=1, batch=128)
    context = RemoteContext(model, options)
    seen: list[tuple[int, ...]] = []

    def progress(*done: int) -> None:
        seen.append(done)
        context.cancel()

    with pytest.raises(Cancelled):
        context.extend(list(range(40, 440)), 1, progress)
    assert seen[0] == (128, 400)
    context.discard_branches()
    assert context.tokens == list(range(40, 40 + len(context.tokens)))
    assert 128 <= len(context.tokens) < 400
    context.resume()
    context.extend([7])
    context.close()


def test_embeddings_equal_local_ones(model: RemoteModel, here: Context) -> None:
    found = []
    for used, options in ((model, replace(OPTIONS, rpc=("127.0.0.1:1",))), (here.model, OPTIONS)):
        engine = cast("Engine", SimpleNamespace(model=used))
        with closing(open_embedder(engine, options)) as embedder:
            found.append(embedder.embed(PROMPT))
    assert np.allclose(found[0], found[1], atol=1e-6)


def test_errors_are_raised(there: RemoteContext) -> None:
    with pytest.raises(NativeError, match="512 tokens is full"):
        there.extend([*range(40, 40 + 600)])
    there.clear()
    there.extend(PROMPT)
    with pytest.raises(ZeroDivisionError):
        there.extend([61, 62], 1, fail_with(ZeroDivisionError()))
    there.extend([61])
    assert there.tokens == [*PROMPT, 61]


def test_cancelled_loading_leaves_no_process(target_path: Path) -> None:
    before = set(psutil.Process().children())
    with pytest.raises(Cancelled):
        RemoteModel(target_path, OPTIONS, progress=fail_with(Cancelled("Stopped while loading.")))
    assert set(psutil.Process().children()) <= before


def test_nothing_is_sent_without_room(target_path: Path) -> None:
    loaded: list[float] = []
    full = fail_with(NativeError("There is no room."))
    with pytest.raises(NativeError, match="no room"):
        RemoteModel(target_path, OPTIONS, progress=loaded.append, require_room=full)
    assert loaded == []


def test_close_ends_the_child(target_path: Path) -> None:
    model = RemoteModel(target_path, OPTIONS)
    context = RemoteContext(model, OPTIONS)
    process = child(model)
    assert process.num_fds() < 200, "keep-alive duplicates none"
    context.close()
    assert process.is_running()
    model.close()
    assert not process.is_running()


def test_aborting_file_is_refused(tmp_path: Path) -> None:
    with (
        RemoteModel(aborting_llama(tmp_path / "aborts.gguf"), OPTIONS) as model,
        pytest.raises((NativeError, ModelInvalid), match="unsupported types"),
    ):
        RemoteContext(model, OPTIONS).extend(PROMPT)


def test_log_of_the_child_is_forwarded(target_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "localspec"), RemoteModel(target_path, OPTIONS) as model:
        caplog.clear()
        RemoteContext(model, OPTIONS).close()
    assert any("llama_context" in record.getMessage() for record in caplog.records)
