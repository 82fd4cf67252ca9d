"""What `tools.kernel_quality` compares: the same weights in F32, and likelihoods of a text."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.options import ModelOptions
from localspec.paths import EMBEDDED_DRAFT, embedded
from tools import kernel_quality
from tools.kernel_quality import Scores, dequantize, score, text_tokens

pytestmark = pytest.mark.nightly

TOKENS = 150


def score_file(path: Path) -> Scores:
    options = ModelOptions(context=128, threads=1)
    with Model(path, options) as model, closing(Context(model, options)) as context:
        return score(context, text_tokens(model, TOKENS))


def test_dequantized_weights_give_similar_logits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_quality, "LENGTH", 100)
    source, file = embedded(EMBEDDED_DRAFT), tmp_path / "f32.gguf"
    dequantize(source, file)
    one, other = score_file(source), score_file(file)
    assert one.logits.shape == (TOKENS - 2, kernel_quality.VOCABULARY)
    apart = np.abs(one.logits - other.logits).mean()
    assert 0 < apart < 0.1, "weights in eight bits are multiplied by activations in eight"
    assert one.perplexity == pytest.approx(other.perplexity, rel=0.02)
    assert not np.array_equal(one.logits[:-1], one.logits[1:])


def test_likelihoods_of_following_tokens() -> None:
    options = ModelOptions(context=128, threads=1)
    with (
        Model(embedded(EMBEDDED_DRAFT), options) as model,
        closing(Context(model, options)) as context,
    ):
        tokens = text_tokens(model, 90)
        rows = context.extend(tokens[:10], 1)[0].astype(np.float64)
        expected = rows[tokens[10]] - np.log(np.exp(rows).sum())
        found = score(context, tokens).likelihoods[9]
    assert found == pytest.approx(expected, abs=0.1)
