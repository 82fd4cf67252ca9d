"""Files of drafts: weights, `-d auto`, and shapes."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from localspec import ModelOptions
from localspec.bench.scaled_gguf import Shape
from localspec.distill import kinds, weights
from localspec.distill.distill_request import DistillRequest
from localspec.distill.kinds import Draft
from localspec.distill.shape import BLOCK, choose, parse
from localspec.distill.weights import TrainingFacts
from localspec.errors import LocalspecError, ModelInvalid, UsageError
from localspec.gguf.reader import read_gguf
from localspec.gguf.vocabularies import difference
from localspec.hub.local import drafts_folder, local_models
from localspec.identity import content_identity
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.types import FILE_TYPES
from localspec.loading.draft import choose_draft
from localspec.pairing.auto import candidates
from localspec.pairing.memory import PairUse
from tests.support.ggufs import tiny_llama

OPTIONS = ModelOptions(context=64, threads=1)


def small_draft(target: Path, path: Path, right: float, *, text: str = "128x1x96") -> Path:
    """A draft of a target with random weights."""
    file = read_gguf(target)
    shape = parse(text, weights.target_shape(file))
    made = weights.initial(shape, target, 0)
    facts = TrainingFacts(content_identity(target), right, path.stem)
    weights.write(path, shape, made, weights.tokenizer_of(file), facts)
    return path


def logits(path: Path, tokens: list[int]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    with Model(path, OPTIONS) as model, closing(Context.open(model, OPTIONS)) as context:
        return np.array(context.extend(tokens, len(tokens)))


def test_llama_cpp_opens_drafts(target_path: Path, tmp_path: Path) -> None:
    path = small_draft(target_path, tmp_path / "d.gguf", 0.5)
    with Model(target_path, OPTIONS) as target, Model(path, OPTIONS) as draft:
        assert difference(target_path, path) is None
        assert target.vocabulary.fingerprint() == draft.vocabulary.fingerprint()
        assert target.vocabulary.ends(target.vocabulary.eos)
        assert (draft.layers, draft.width) == (1, 128)
    assert np.isfinite(logits(path, [5, 6, 7])).all()
    assert {tensor.type for tensor in read_gguf(path).tensors} == {"Q8_0", "F32"}


def test_copies_give_the_same_logits(draft_path: Path, tmp_path: Path) -> None:
    shape, values = weights.read(draft_path)
    tokenizer = weights.tokenizer_of(read_gguf(draft_path))
    for kind, far in (("Q8_0", 1e-3), ("Q4_0", 3.0), ("F16", 0.3)):
        path = tmp_path / f"{kind}.gguf"
        weights.write(path, shape, values, tokenizer, TrainingFacts("x", 0.5, "copy"), kind)
        assert FILE_TYPES[read_gguf(path).integer("general.file_type") or 0] == kind
        tokens = [50, 60, 70, 80]
        assert np.abs(logits(path, tokens) - logits(draft_path, tokens)).max() < far


@pytest.mark.parametrize(
    ("layers", "taken"), [(1, [0]), (4, [0, 1, 4, 5]), (8, [0, 1, 2, 3, 2, 3, 4, 5])]
)
def test_wide_draft_starts_with_outer_layers(tmp_path: Path, layers: int, taken: list[int]) -> None:
    target = tiny_llama(tmp_path / "target.gguf", layers=6)
    _, there = weights.read(target)
    facts = weights.target_shape(read_gguf(target))
    made = weights.initial(parse(f"64x{layers}x128", facts), target, 0)
    names = {"token_embd": "token_embd", "output_norm": "output_norm"}
    for layer, other in enumerate(taken):
        names |= {f"blk.{layer}.{part}": f"blk.{other}.{part}" for part in ("attn_q", "ffn_up")}
    for name, other_name in names.items():
        assert np.array_equal(made[f"{name}.weight"], there[f"{other_name}.weight"]), name


def test_a_continued_training_has_the_same_shape(
    target_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if passes over several tokens take longer this time."""
    shapes = []
    for curve in ((1.0, 1.05, 1.1, 1.15, 1.2), (1.0, 1.6, 2.2, 2.8, 3.4)):
        monkeypatch.setattr(kinds, "measured_curve", lambda *_, curve=curve: curve)
        for folder in (tmp_path / str(curve[-1]), tmp_path / "recording"):
            folder.mkdir(exist_ok=True)
            request, file = DistillRequest(target=target_path), read_gguf(target_path)
            shapes.append(Draft(request, file, None, folder, lambda _: None).shape)
    fast, first, slow, second = shapes
    assert fast != slow
    assert first == second == fast


def test_other_models_cannot_be_tuned(tmp_path: Path) -> None:
    with pytest.raises(ModelInvalid, match="cannot be trained"):
        weights.read(tiny_llama(tmp_path / "more.gguf", more=True))


def test_write_error_is_reported(draft_path: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalspecError, match=r"cannot be written.*run the same again"):
        small_draft(draft_path, tmp_path / "file" / "d.gguf", 0.5, text="64x1x32")


def test_auto_selects_the_best_draft(home: Path, target_path: Path, draft_path: Path) -> None:
    options = ModelOptions()
    assert choose_draft(target_path, options).draft == draft_path
    folder = drafts_folder() / "tale"
    small_draft(target_path, folder / "worse.gguf", 0.1)
    assert choose_draft(target_path, options).draft == draft_path
    (folder / "worse.gguf").unlink()
    small_draft(target_path, folder / "a.gguf", 0.7)
    best = small_draft(target_path, folder / "b.gguf", 0.8)
    other = small_draft(draft_path, folder / "c.gguf", 0.9)
    assert choose_draft(target_path, options).draft == best
    best.unlink()
    assert choose_draft(target_path, options).draft == folder / "a.gguf"
    assert {m.path for m in local_models() if m.source == "distilled"} == {folder / "a.gguf", other}


def test_measured_acceptance_counts_for_its_target_only(home: Path, tmp_path: Path) -> None:
    target = tiny_llama(tmp_path / "t.gguf", dim=256, heads=8, layers=8, ff=1024)
    other = tiny_llama(tmp_path / "o.gguf", dim=256, heads=8, layers=8, ff=1024, seed=1)
    draft = small_draft(target, drafts_folder() / "t" / "d.gguf", 0.83, text="32x1x32")
    models = [model for model in local_models() if model.path == draft]
    mine, others = (
        candidates(read_gguf(path), models, PairUse())[0].forecast for path in (target, other)
    )
    assert mine is not None
    assert others is not None
    assert mine.acceptance == pytest.approx(0.83)
    assert others.acceptance < 0.8


# About Llama 3.2 1 B in Q4_0.
BILLION, SIZE = Shape(128_256, 2048, 16, 8192, 32, 8, 64, rotated=64), 760_000_000
FLAT = [1.0 + 0.03 * n for n in range(9)]
STEEP = [1.0, 2.0, 2.9, 3.8, 4.7, 5.6, 6.5, 7.4, 8.3]


def test_shape_pays_with_cheap_verification() -> None:
    shape, promise = choose(BILLION, SIZE, FLAT)
    assert promise.pays
    one_token = (1 + promise.acceptance) / (promise.cost + FLAT[1])
    assert promise.speed_up > one_token  # longer drafts are better
    assert shape.parameters < BILLION.parameters / 4
    assert not choose(BILLION, SIZE, STEEP)[1].pays


def test_chosen_shapes_are_valid() -> None:
    small = Shape(8192, 384, 8, 1024, 6, 3, 64, rotated=64)
    for target, size in ((BILLION, SIZE), (small, 14_000_000)):
        for curve in (FLAT, STEEP):
            shape, _ = choose(target, size, curve)
            assert shape.width % target.head_width == shape.feed_forward % BLOCK == 0
            assert shape.heads * shape.head_width == shape.width
            assert shape.heads % shape.kv_heads == 0


def test_shape_is_parsed_or_refused() -> None:
    shape = parse("512x3x1536", BILLION)
    assert (shape.width, shape.layers, shape.feed_forward) == (512, 3, 1536)
    assert (shape.heads, shape.kv_heads, shape.vocabulary) == (8, 2, 128_256)
    for text in ("512", "512x3", "500x3x1536", "512x0x1536", "512x3x1000", "axbxc"):
        with pytest.raises(UsageError, match=r"Write width|Give a width"):
            parse(text, BILLION)
