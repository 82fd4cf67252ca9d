"""Failures of loading and closing are reported, and leave no model and no cache in memory."""

import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

import localspec
from localspec import DraftMismatch, LocalspecError, ModelInvalid, ModelOptions, NativeError
from localspec.llama import hidden, model, native_context
from localspec.llama.model import Model
from localspec.sessions.sessions import Sessions
from tests.engine.conftest import ModelFiles
from tests.support import block_heads, ggufs, heads, mtp, retokenised
from tests.support.gguf_files import write_gguf
from tests.support.patches import fail_with

LOADING = import_module("localspec.loading.load")
OPTIONS = ModelOptions(context=256, threads=1)


class Unfreed:
    """Models and contexts of llama.cpp that were not freed."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.made, self.handles = 0, list[int]()
        for make in ("llama_model_load_from_file", "llama_init_from_model"):
            patch.setattr(llama_cpp, make, partial(self._make, getattr(llama_cpp, make)))
        for free in ("llama_model_free", "llama_free"):
            patch.setattr(llama_cpp, free, partial(self._free, getattr(llama_cpp, free)))

    def _make(self, make: Callable[..., Any], *arguments: Any) -> Any:
        handle = make(*arguments)
        if handle:
            self.made += 1
            self.handles.append(handle)
        return handle

    def _free(self, free: Callable[..., Any], handle: Any) -> None:
        self.handles.remove(handle)
        free(handle)


@pytest.fixture
def unfreed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Unfreed]:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    with Model(localspec.paths.embedded(localspec.paths.EMBEDDED_DRAFT), OPTIONS):
        pass  # allocations of the first model of a process
    counted = Unfreed(monkeypatch)
    yield counted
    assert counted.made > 0
    assert counted.handles == []


STOPS = [KeyboardInterrupt(), MemoryError(), NativeError("no")]


@pytest.mark.parametrize("error", STOPS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    ("place", "part", "made"),
    [
        (model, "Vocabulary", 1),
        (llama_cpp, "llama_model_meta_count", 1),
        (native_context, "Batch", 2),
        (native_context, "HiddenStates", 2),
        (LOADING, "Engine", 4),
        (LOADING, "ProfileStore", 4),
        (Sessions, "keep", 4),
    ],
)
def test_failing_part(
    place: Any, part: str, made: int, error: Any, unfreed: Unfreed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`made`: how many models and contexts were open."""
    monkeypatch.setattr(place, part, fail_with(error))
    with pytest.raises(type(error)):
        localspec.load(options=OPTIONS).close()
    assert unfreed.made == made


def test_draft_model_of_another_vocabulary_is_refused(
    unfreed: Unfreed, tmp_path: Path, draft_path: Path
) -> None:
    digits = retokenised.bytewise(tmp_path / "digits.gguf", draft_path, kept="0123456789")
    with pytest.raises(DraftMismatch, match=r"ordinary text.*--draft none"):
        localspec.load(draft=digits, options=OPTIONS)
    swapped = ggufs.tiny_llama(tmp_path / "swapped.gguf", swap_tokens=(300, 301))
    with pytest.raises(DraftMismatch, match=r"token 300 .*--cross-vocabulary auto, .*--draft none"):
        localspec.load(
            draft=swapped, options=ModelOptions(context=256, threads=1, cross_vocabulary="off")
        )
    assert unfreed.made == 6


@pytest.mark.parametrize("error", [*STOPS, ModelInvalid("no")], ids=lambda e: type(e).__name__)
def test_draft_model_without_memory_for_its_cache(
    error: BaseException, unfreed: Unfreed, monkeypatch: pytest.MonkeyPatch, draft_path: Path
) -> None:
    second_fails = fail_with(error, after=1, before=llama_cpp.llama_init_from_model)
    monkeypatch.setattr(llama_cpp, "llama_init_from_model", second_fails)
    with pytest.raises(type(error)):
        localspec.load(draft=draft_path, options=OPTIONS)


def test_interrupt_while_the_draft_model_is_loaded(unfreed: Unfreed) -> None:
    stop = fail_with(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        localspec.load(options=OPTIONS, progress=lambda at: stop() if at > 0.9 else None)


def test_interrupt_while_a_model_is_read(unfreed: Unfreed, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is raised in the caller, not in a callback of llama.cpp, where ctypes would drop it."""
    load, threads, caller = llama_cpp.llama_model_load_from_file, [], threading.get_ident()

    def interrupted(*arguments: Any) -> Any:
        threads.append(threading.get_ident())
        signal.pthread_kill(caller, signal.SIGINT)
        return load(*arguments)

    monkeypatch.setattr(llama_cpp, "llama_model_load_from_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        localspec.load(options=OPTIONS, progress=lambda _: threads.append(threading.get_ident()))
    assert threads[0] != caller
    assert {*threads[1:]} <= {caller}
    unfreed.made += 1  # it may have ended at once


MARKOV = {"markov": True}
D2T = {"d2t": (5, 9000)}
NEXTN = "blk.2.nextn.{}.weight"
# Changed arguments of the head, the error, and part of its message.
FAULTS: dict[str, list[tuple[dict[str, Any], type[LocalspecError], str]]] = {
    "eagle": [
        ({"width": 512}, DraftMismatch, "512 numbers .* has 384"),
        ({"layers": (1, 3, 6)}, DraftMismatch, "layers up to 6, .* layers 0 to 5"),
        ({"layers": (1, 3)}, ModelInvalid, "target_layers is invalid"),
        ({"block_count": 2}, ModelInvalid, "2 layers instead of one"),
        ({"target_hidden_size": 0}, ModelInvalid, "lacks eagle3.target_hidden_size"),
        (D2T, ModelInvalid, "d2t names tokens"),
        ({"attention.head_count_kv": 4}, ModelInvalid, "sizes of its attention"),
        ({"rope.dimension_count": 66}, ModelInvalid, "rope.dimension_count is invalid"),
        ({"feed_forward_length": 128}, ModelInvalid, "cannot be opened"),
    ],
    "medusa": [
        ({"embedding_length": 512}, DraftMismatch, "its states or its vocabulary differ"),
        ({"vocab_size": 9000}, DraftMismatch, "vocabulary differ"),
        ({"target_vocabulary": "0" * 24}, DraftMismatch, "vocabulary differ"),
        ({"head_count": 4}, ModelInvalid, "medusa.output.weight is missing"),
        ({"head_count": 99}, ModelInvalid, "medusa.head_count or"),
        ({"block_count": None}, ModelInvalid, "medusa.block_count is invalid"),
        ({"vocab_size": 6}, ModelInvalid, "d2t names tokens"),
    ],
    "block": [
        ({"layers": ()}, ModelInvalid, "target_layers is invalid"),
        ({"layers": (1, 2)}, DraftMismatch, "layers up to 2, .* layers 0 to 1"),
        ({"size": 1}, ModelInvalid, "block size is 1"),
        (MARKOV | {"size": None}, ModelInvalid, "lacks dflash.block_s"),
        ({"mask": None}, ModelInvalid, "no mask token"),
        ({"mask": 9000}, ModelInvalid, "no mask token"),
        (D2T, ModelInvalid, "d2t names tokens"),
        ({"d2t": (5, 6), "without": "output.weight"}, ModelInvalid, "output.weight is missing"),
        ({"attention.head_count_kv": 4}, ModelInvalid, "sizes of its attention"),
        ({"attention.key_length": 16}, ModelInvalid, "rope.dimension_count is invalid"),
        ({"rope.dimension_count": 66}, ModelInvalid, "rope.dimension_count is invalid"),
        ({"embedding_length": None}, ModelInvalid, "lacks dflash.embedding_length"),
        ({"feed_forward_length": 128}, ModelInvalid, "cannot be opened"),
        ({"without": "fc.weight"}, ModelInvalid, "cannot be opened"),
        (MARKOV | {"without": "markov_w2.weight"}, ModelInvalid, "opened"),
    ],
    "mtp": [
        ({"layers": 3}, DraftMismatch, "with 3 layers and states of 64"),
        ({"dim": 32}, DraftMismatch, "states of 32 numbers.* states of 64"),
        ({"swap_tokens": (300, 301)}, DraftMismatch, "vocabulary differs: token 300"),
        ({"count": 2}, ModelInvalid, "computes only one"),
        ({"without": NEXTN.format("eh_proj")}, ModelInvalid, "eh_proj.*missing"),
        ({"without": NEXTN.format("hnorm")}, ModelInvalid, "hnorm.* is missing"),
        ({"without": "blk.2.ffn_gate_inp.weight"}, ModelInvalid, "inp.* is missing"),
        ({"without": "blk.2.attn_q.weight"}, ModelInvalid, "cannot be opened"),
        ({"wide": 3}, ModelInvalid, "eh_proj.* of another shape"),
    ],
}


@pytest.fixture(scope="module")
def glm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mtp.glm(tmp_path_factory.mktemp("glm") / "target.gguf")


HeadFiles = dict[str, tuple[Callable[..., Path], Path | None]]


@pytest.fixture
def head_files(tiny_pair: ModelFiles, glm: Path) -> HeadFiles:
    """What writes heads of each kind, and their target; None for the built-in one."""
    tiny_block = partial(block_heads.block, depth=1, target=tiny_pair.target, layers=(0, 1))
    return {
        "eagle": (heads.eagle, None),
        "medusa": (heads.medusa, None),
        "block": (tiny_block, tiny_pair.target),
        "markov": (partial(tiny_block, markov=True), tiny_pair.target),
        "mtp": (partial(mtp.glm, trunk=False), glm),
    }


def check_refused(
    target: Path | None, draft: Path, error: type[Exception], message: str, **options: Any
) -> None:
    with pytest.raises(error, match=message) as caught:
        localspec.load(target, draft=draft, options=OPTIONS, **options)
    assert str(caught.value).count(". ") >= 1, "a next step"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "number"), [(kind, n) for kind, some in FAULTS.items() for n in range(len(some))]
)
def test_invalid_head_is_refused(
    tmp_path: Path, unfreed: Unfreed, head_files: HeadFiles, kind: str, number: int
) -> None:
    changed, error, message = FAULTS[kind][number]
    make, target = head_files[kind]
    check_refused(target, make(tmp_path / "head.gguf", **changed), error, message)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["eagle", "medusa", "block", "markov", "mtp"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_truncated_head_is_refused(
    tmp_path: Path, unfreed: Unfreed, head_files: HeadFiles, kind: str, share: float
) -> None:
    make, target = head_files[kind]
    path = make(tmp_path / "head.gguf")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    check_refused(target, path, ModelInvalid, "[Dd]ownload it again")


@pytest.mark.nightly
@pytest.mark.parametrize(
    "make", [partial(heads.eagle, layers=(0, 1, 1)), partial(block_heads.block, layers=(0, 1))]
)
def test_head_of_another_model_is_refused(
    tmp_path: Path, unfreed: Unfreed, tiny_pair: ModelFiles, make: Callable[..., Path]
) -> None:
    head, target = tmp_path / "head.gguf", tiny_pair.target
    check_refused(target, make(head), DraftMismatch, "384 numbers .* has 64")
    other = ggufs.tiny_llama(tmp_path / "other.gguf", swap_tokens=(300, 301))
    check_refused(target, make(head, other), DraftMismatch, "vocabulary differs: token 300")
    longer = ggufs.tiny_llama(tmp_path / "longer.gguf", vocab_size=8200)
    message = r"vocabulary of 8200 tokens, .* one of 8192"
    check_refused(target, make(head, longer), DraftMismatch, message)


@pytest.mark.nightly
@pytest.mark.parametrize("make", [heads.eagle, heads.medusa, block_heads.block])
def test_target_without_hidden_states_is_refused(
    tmp_path: Path, unfreed: Unfreed, monkeypatch: pytest.MonkeyPatch, make: Callable[..., Path]
) -> None:
    path = make(tmp_path / "head.gguf")
    if make is heads.medusa:
        check_refused(None, path, DraftMismatch, r"Leave out --parallel \(parallel=1\)", parallel=2)
    monkeypatch.setattr(hidden, "LAYER_INPUTS", frozenset())
    monkeypatch.setattr(hidden, "NO_FINAL", frozenset({"llama"}))
    check_refused(None, path, NativeError, r"architecture llama.*--draft none")


@pytest.mark.nightly
def test_head_of_another_architecture_is_refused(
    tmp_path: Path, unfreed: Unfreed, tiny_pair: ModelFiles
) -> None:
    layer = mtp.glm(tmp_path / "layer.gguf", trunk=False)
    check_refused(tiny_pair.target, layer, DraftMismatch, r"model: glm4moe with .* is llama")
    other = write_gguf(tmp_path / "other.gguf", "gemma4-assistant", {"general.name": "x"}, {})
    check_refused(None, other, ModelInvalid, r"architecture gemma4-assistant.*--draft none")
