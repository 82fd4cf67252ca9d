"""Draft models that compute the logits of chosen tokens only."""

from pathlib import Path

import numpy as np
import pytest

import localspec
from localspec.llama import chosen_outputs
from localspec.llama.chosen_outputs import ROWS, ChosenOutputs
from localspec.llama.context import Context
from tests.llama.conftest import STORY
from tests.support.asking import WAYS, ask

pytestmark = pytest.mark.usefixtures("kernels")


@pytest.fixture(autouse=True)
def _small_vocabularies_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chosen_outputs, "MIN_VOCABULARY", 1000)


def ids(chosen: ChosenOutputs) -> list[int]:
    return (chosen.tiles[:, None] * ROWS + np.arange(ROWS)).ravel().tolist()


def test_chosen_logits_are_equal(context: Context, reference: Context, tokens: list[int]) -> None:
    """In passes over one and several tokens; tokens that were read are chosen."""
    context.shared.choose_outputs()
    chosen = context.shared.chosen
    assert chosen is not None
    rare = 8000
    assert rare not in ids(chosen)
    for part, outputs in ((tokens, 1), ([rare], 1), (tokens[:5], 5)):
        few, all_of_them = context.extend(part, outputs), reference.extend(part, outputs)
        there = ids(chosen)
        assert set(part) <= set(there)
        assert np.array_equal(few[:, there], all_of_them[:, there])
        elsewhere = np.delete(few, there, axis=1)
        assert elsewhere.shape[1] > 4000
        assert (elsewhere < -1e29).all()


@pytest.mark.parametrize("parallel", [1, 2])
def test_answers_equal_plain_decoding(target_path: Path, draft_path: Path, parallel: int) -> None:
    with localspec.load(target_path, draft=draft_path, context=512, parallel=parallel) as engine:
        plain, drafted = (ask(engine, STORY, WAYS[way], 60) for way in ("none", "model"))
        assert plain.completion().text == drafted.completion().text
    assert drafted.stats.accepted > 20
