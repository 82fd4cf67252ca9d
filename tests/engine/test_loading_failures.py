"""Loading that fails, wherever it does, leaves no model and no cache in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

import localspec
from localspec import DraftMismatch, ModelInvalid, ModelOptions, NativeError
from localspec.llama import model, shared_context
from localspec.llama.model import Model
from tests.support import ggufs, retokenised

LOADING = import_module("localspec.loading.load")
OPTIONS = ModelOptions(context=256, threads=1)


class Alive:
    """What llama.cpp has handed out and not been given back."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.made = 0
        self.left: list[int] = []
        for make in ("llama_model_load_from_file", "llama_init_from_model"):
            patch.setattr(llama_cpp, make, self._counts(getattr(llama_cpp, make)))
        for free in ("llama_model_free", "llama_free"):
            patch.setattr(llama_cpp, free, self._discounts(getattr(llama_cpp, free)))

    def _counts(self, make: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            handle = make(*arguments)
            if handle:
                self.made += 1
                self.left.append(handle)
            return handle

        return counted

    def _discounts(self, free: Callable[..., Any]) -> Callable[..., Any]:
        def counted(handle: Any) -> None:
            self.left.remove(handle)
            free(handle)

        return counted


@pytest.fixture
def alive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Alive]:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    with Model(localspec.paths.embedded(localspec.paths.EMBEDDED_DRAFT), OPTIONS):
        pass  # whatever the first model of a process does besides
    counted = Alive(monkeypatch)
    yield counted
    assert counted.made > 0, "or nothing was tested"
    assert counted.left == []


def raises(error: BaseException, after: int = 0) -> Callable[..., Any]:
    """Something that fails, once it was asked so often."""
    calls = 0

    def fail(*_: object, **__: object) -> Any:
        nonlocal calls
        calls += 1
        if calls > after:
            raise error
        return None

    return fail


STOPS = [KeyboardInterrupt(), MemoryError(), NativeError("no")]


@pytest.mark.parametrize("error", STOPS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    ("place", "part", "made"),
    [
        (model, "Vocabulary", 1),
        (Model, "_read_metadata", 1),
        (shared_context, "Batch", 2),
        (shared_context, "HiddenStates", 2),
        (LOADING, "Engine", 4),
        (LOADING, "ProfileStore", 4),
    ],
)
def test_a_part_that_cannot_be_made(
    place: object,
    part: str,
    made: int,
    error: BaseException,
    alive: Alive,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`made`: how many models and contexts were open."""
    monkeypatch.setattr(place, part, raises(error))
    with pytest.raises(type(error)):
        localspec.load(options=OPTIONS)
    assert alive.made == made


def test_draft_model_of_another_vocabulary(alive: Alive, tmp_path: Path, draft_path: Path) -> None:
    digits = retokenised.bytewise(tmp_path / "digits.gguf", draft_path, kept="0123456789")
    with pytest.raises(DraftMismatch):
        localspec.load(draft=digits, options=OPTIONS)
    swapped = ggufs.tiny_llama(tmp_path / "swapped.gguf", swap_tokens=(300, 301))
    with pytest.raises(DraftMismatch, match=r"token 300 .*--cross-vocabulary auto, .*--draft none"):
        localspec.load(
            draft=swapped, options=ModelOptions(context=256, threads=1, cross_vocabulary="off")
        )
    assert alive.made == 6


@pytest.mark.parametrize("error", [*STOPS, ModelInvalid("no")], ids=lambda e: type(e).__name__)
def test_draft_model_without_room_for_its_cache(
    error: BaseException, alive: Alive, monkeypatch: pytest.MonkeyPatch, draft_path: Path
) -> None:
    real = llama_cpp.llama_init_from_model
    fail = raises(error, after=1)

    def second_fails(*arguments: Any) -> Any:
        fail()
        return real(*arguments)

    monkeypatch.setattr(llama_cpp, "llama_init_from_model", second_fails)
    with pytest.raises(type(error)):
        localspec.load(draft=draft_path, options=OPTIONS)


def test_stopped_while_the_draft_model_is_read(alive: Alive) -> None:
    def stop(fraction: float) -> None:
        if fraction > 0.9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        localspec.load(options=OPTIONS, progress=stop)
