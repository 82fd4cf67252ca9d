"""A mixture of experts that says what the model says that it was made of."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from localspec.bench.scaled_gguf import ModelShape
from localspec.decoding.sampling import Rows
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.options import ModelOptions
from localspec.paths import EMBEDDED_DRAFT, embedded
from tools import made_moe

pytestmark = pytest.mark.nightly


def logits_of(path: Path) -> Rows:
    options = ModelOptions(context=256, threads=1)
    with Model(path, options) as model, closing(Context(model, options)) as context:
        tokens = model.vocabulary.tokenize(b"Once upon a time, there was a little girl")
        rows: Rows = context.extend(tokens, len(tokens)).copy()
        return rows


@pytest.mark.parametrize(("spread", "alike"), [(0.0, True), (2.0, False)])
def test_equal_experts_compute_the_dense_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spread: float, alike: bool
) -> None:
    monkeypatch.setattr(made_moe, "SPREAD", spread)
    source, file = embedded(EMBEDDED_DRAFT), tmp_path / "moe.gguf"
    made_moe.made_moe(source, file, ModelShape(192, 3, 512, "F16"))
    apart = np.abs(logits_of(file) - logits_of(source)).max()
    assert (apart < 0.5) == alike, apart
