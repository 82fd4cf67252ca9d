"""A pair so small that a pass takes a tenth of a millisecond."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import localspec
from localspec import Engine, ModelOptions
from localspec.llama.quantize import quantize
from tests.policy.measuring import Clock
from tests.support import ggufs
from tests.support.agreed_time import agree_on_time

TINY_OPTIONS = ModelOptions(context=512, threads=1, kv_type_k="f32", kv_type_v="f32")


class ModelFiles(NamedTuple):
    target: Path
    draft: Path


@pytest.fixture(scope="session")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    """Random weights, and a draft model that is often right. Both are of 16 bits, so that rows are
    the same in passes over several tokens."""
    return _pair(tmp_path_factory.mktemp("tiny"), dim=64)


def _pair(folder: Path, dim: int) -> ModelFiles:
    target, rough = ggufs.tiny_llama(folder / "target.gguf", dim=dim), folder / "rough.gguf"
    quantize(target, rough, "Q4_0", 1)
    quantize(rough, folder / "draft.gguf", "F16", 1, again=True)
    return ModelFiles(target, folder / "draft.gguf")


@pytest.fixture(scope="session")
def exact_pair(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    """The same with heads of a size that localspec's kernels take, where these work."""
    return _pair(tmp_path_factory.mktemp("exact"), dim=128)


def module_tiny(files: str, **options: Any) -> Any:
    """A fixture: one of these pairs, by its name, opened for all tests of a module."""

    @pytest.fixture(scope="module")
    def pair(request: pytest.FixtureRequest) -> Iterator[Engine]:
        target, draft = request.getfixturevalue(files)
        with localspec.load(target, draft=draft, options=TINY_OPTIONS, **options) as opened:
            yield opened

    return pair


tiny, tiny_exact = module_tiny("tiny_pair"), module_tiny("exact_pair")


@pytest.fixture(scope="module")
def tiny_clock(tiny: Engine) -> Clock:
    """What times the tiny pair; nothing but its passes moves it."""
    return agree_on_time(tiny)
