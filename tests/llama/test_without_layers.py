"""Passes without some layers equal those of a file without them."""

from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from localspec import ModelOptions
from localspec.bench.scale import scale_model
from localspec.bench.scaled_gguf import ModelShape
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.quantize import quantize
from localspec.llama.without_layers import WithoutLayers
from tests.support.sessions import module_model

OPTIONS = ModelOptions(threads=1, gpu_layers=0, context=256)
LEFT_OUT = (2, 4)


model = module_model("target_path", OPTIONS)


@pytest.fixture(scope="module")
def text(model: Model) -> list[int]:
    words = "Once upon a time, there was a little fox who lived in the woods. One day, the fox"
    return model.vocabulary.tokenize(words, add_bos=True)


def chosen(model: Model, text: list[int]) -> npt.NDArray[np.int64]:
    with closing(Context.open(model, OPTIONS)) as context:
        best: npt.NDArray[np.int64] = context.extend(text, len(text)).argmax(axis=1)
    return best


def test_layers_left_out_equal_a_file(model: Model, text: list[int], tmp_path: Path) -> None:
    path = tmp_path / "fewer.gguf"
    quantize(model.path, path, None, 1, leave_out=LEFT_OUT, name="fewer")
    with Model(path, OPTIONS) as fewer, closing(WithoutLayers(model, OPTIONS)) as passes:
        assert (fewer.layers, fewer.name) == (model.layers - len(LEFT_OUT), "fewer")
        assert fewer.metadata["general.file_type"] == model.metadata["general.file_type"]
        choices = passes.choices(text, LEFT_OUT)
        assert (choices == chosen(fewer, text)).all()
        assert (choices != chosen(model, text)).any()
        # Layers left out before are used again.
        assert (passes.choices(text, ()) == chosen(model, text)).all()


def test_idle_layers_have_no_influence(draft_path: Path, tmp_path: Path, text: list[int]) -> None:
    path = tmp_path / "padded.gguf"
    scale_model(draft_path, path, ModelShape(192, 7, 512, "F16"))
    with Model(path, OPTIONS) as padded, closing(WithoutLayers(padded, OPTIONS)) as passes:
        influences = passes.influences(text)
    assert influences.keys() == set(range(1, 7))
    idle = [layer for layer, influence in influences.items() if influence < 1e-5]
    assert idle == [3, 4, 5, 6]
