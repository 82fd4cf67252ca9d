"""Training: networks, losses, on-policy rounds and kills. It needs PyTorch, which the extra `dev`
does not install."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import log_softmax

import localspec
from localspec import ModelOptions
from localspec.distill import distillation, folders, network, training, weights
from localspec.distill.distill_request import DistillRequest
from localspec.distill.distillation import distill
from localspec.distill.frequent import KeptTokens
from localspec.distill.kinds import EagleHead, MedusaHeads, TrainingBatch
from localspec.distill.network import Labels, Output, device
from localspec.errors import LocalspecError
from localspec.gguf.reader import read_gguf
from localspec.gguf.vocabularies import difference
from localspec.hub.local import drafts_folder
from localspec.identity import content_identity
from localspec.llama.context import Context
from localspec.llama.head_caches import EagleCache
from localspec.llama.model import Model
from localspec.pairing.forecast import trained_acceptance
from tests.distill import kills
from tests.distill.traces import top_tokens
from tests.support.asking import ask
from tests.support.patches import record_calls

pytestmark = pytest.mark.nightly

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[train]'")
OPTIONS = ModelOptions(context=64, threads=1)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    torch.use_deterministic_algorithms(False)


def labels(logits: Any, k: int) -> Labels:
    ids, log_p, rest = top_tokens(np.asarray(logits, np.float32), k)
    chosen = ids[:, 0].copy()
    return Labels(*(torch.from_numpy(np.array(each)) for each in (chosen, ids, log_p, rest)))


def request_for(target: Path, *, epochs: int = 8, **options: Any) -> DistillRequest:
    """A short training on the processor."""
    return DistillRequest(
        target=target, epochs=epochs, batch=128, rate=1e-2, device="cpu", **options
    )


@pytest.mark.parametrize("which", ["target_path", "draft_path"])
def test_network_is_llama_cpps(which: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """With a file in F16, as llama.cpp rounds activations of quantized weights."""
    source = request.getfixturevalue(which)
    shape, values = weights.read(source)
    path = tmp_path / "f16.gguf"
    facts = weights.TrainingFacts("", 0.0, "f16")
    tokenizer = weights.tokenizer_of(read_gguf(source))
    weights.write(path, shape, values, tokenizer, facts, weights.F16)
    tokens = [0, 300, 5, 77, 1200, 8, 15, 4000, 23, 42]
    with Model(path, OPTIONS) as model, closing(Context.open(model, OPTIONS)) as context:
        theirs = np.array(context.extend(tokens, len(tokens)))
    given = {name: torch.from_numpy(value) for name, value in values.items()}
    with torch.no_grad():
        states = network.states(given, shape, torch.tensor([tokens, tokens[::-1]]))
        ours = (states[0] @ network.output_matrix(given, shape).T).numpy()
    assert np.abs(log_softmax(ours, axis=1) - log_softmax(theirs, axis=1)).max() < 0.1
    assert np.abs(ours - theirs).mean() < 0.01


def test_loss_is_the_divergence_over_classes() -> None:
    """Compared with numpy in 64 bits, over the k likeliest tokens and one class for all others."""
    target, draft = np.random.Generator(np.random.PCG64(0)).normal(size=(2, 6, 30)) * 2
    wanted = labels(target, 5)
    loss, found = network.divergence(torch.from_numpy(draft.astype(np.float32)), wanted, 0.25)
    p, q = (np.exp(x) / np.exp(x).sum(1, keepdims=True) for x in (target, draft))
    expected = overlap = 0.0
    for row in range(6):
        ids = wanted.ids[row].numpy()
        classes = [np.append(each[row, ids], 1 - each[row, ids].sum()) for each in (p, q)]
        expected += (classes[0] * np.log(classes[0] / classes[1])).sum()
        expected -= 0.25 * np.log(q[row, ids[0]])
        overlap += np.minimum(p[row, ids], q[row, ids]).sum()
    assert float(loss) == pytest.approx(expected, rel=1e-3)
    assert found.overlap == pytest.approx(overlap, rel=1e-4)
    assert found.agreed == (p.argmax(1) == q.argmax(1)).sum()
    same, zero = network.divergence(torch.from_numpy(target.astype(np.float32)), wanted, 0.0)
    assert float(same) == pytest.approx(0.0, abs=1e-3)
    assert zero.agreement == 1.0


def test_chunks_have_the_same_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    normal = np.random.Generator(np.random.PCG64(1)).normal
    states = torch.from_numpy(normal(size=(11, 8)).astype(np.float32))
    weights = torch.from_numpy(normal(size=(30, 8)).astype(np.float32))
    wanted, found = labels(normal(size=(11, 30)), 4), []
    for piece in (1 << 24, 30 * 4):  # all at once, and four positions at a time
        monkeypatch.setattr(network, "CHUNK", piece)
        matrix = weights.clone().requires_grad_(True)
        gradient, measured = network.chunked_loss(
            Output(states, matrix, wanted), 0.1, backward=True
        )
        found.append((gradient, matrix.grad, measured.loss))
    for one, other in zip(found[0][:2], found[1][:2], strict=True):
        assert torch.allclose(one, other, atol=1e-6)
    assert found[0][2] == pytest.approx(found[1][2], rel=1e-5)


@pytest.mark.parametrize("vocabulary", [None, 400])
def test_draft_learns_once(home: Path, vocabulary: int | None) -> None:
    target = kills.prepare(home)
    request = request_for(target, shape="64x1x64", vocabulary=vocabulary)
    steps = []
    result = distill(request, lambda progress: steps.append(progress.step), print)
    first, last = result.curve[0], result.curve[-1]
    assert (first.step, last.step) == (0, len(steps))
    assert last.held_loss < 0.75 * first.held_loss
    assert last.acceptance > first.acceptance + 0.05
    with Model(result.path, OPTIONS) as draft, Model(target, OPTIONS) as opened:
        assert (difference(target, result.path) is None) == (vocabulary is None)
        assert draft.vocabulary.size == (vocabulary or opened.vocabulary.size)
    written = result.path.stat().st_mtime_ns
    again = distill(request, lambda _: pytest.fail("a second training"), print)
    assert (again.new, again.path.stat().st_mtime_ns) == (False, written)
    if vocabulary is None:
        more = replace(request, shape=None, begun_from=result.path, rate=1e-4)
        tuned = distill(more, lambda _: None, print)
        assert tuned.curve[0].acceptance == pytest.approx(last.acceptance, abs=0.02)
    else:
        whole = distill(replace(request, vocabulary=9000), lambda _: None, print).path
        with Model(whole, OPTIONS) as all_:
            assert all_.vocabulary.size == 8192, "at most the whole vocabulary"


def test_on_policy_texts_are_the_drafts(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They make up half of the steps of the last epochs, without a loss of the drafted tokens."""
    monkeypatch.setattr(distillation, "CONTINUATION", 6)
    target = kills.prepare(home)
    calls = record_calls(monkeypatch, training.Training, "_train_step")
    lines: list[str] = []
    request = request_for(target, shape="64x1x64", epochs=3, rounds=2)
    result = distill(request, lambda _: None, lines.append)
    assert [line[:24] for line in lines] == ["On-policy round 1 of 2: ", "On-policy round 2 of 2: "]
    steps = [(records, hard) for _, _, records, hard in calls]
    each = len(steps) // 3
    assert not any(hard == 0.0 for _, hard in steps[:each])
    own = [records for records, hard in steps if hard == 0.0]
    assert all(len(record.answer) <= 6 for records in own for record in records)
    assert abs(len(own) - each) <= 2
    assert result.curve[-1].held_loss < result.curve[0].held_loss
    folder = folders.folder_of(target, content_identity(target))
    assert not list(folder.glob("run-*/round-*")), "texts are deleted after the training"


def test_killed_and_resumed_training_gives_the_same_file(tmp_path: Path) -> None:
    target = kills.prepare(tmp_path)
    out = tmp_path / "whole" / "d.gguf"
    whole, steps = kills.train(tmp_path, target, out, 0, 0)
    assert steps[0] > 10
    # A finished run starts again.
    out = tmp_path / "torn" / "d.gguf"
    torn, seen = kills.train(tmp_path, target, out, 5, 1)
    assert len(seen) == 6
    assert 0 <= seen[0] < seen[-2] <= seen[-1] == steps[0]
    assert {steps[0] // 2, -1} & {*seen[:-1]}, "one kill was in the round, maybe before a step"
    assert torn == whole


def test_a_training_without_numbers_writes_no_draft(home: Path) -> None:
    request = request_for(kills.prepare(home), shape="64x1x64", epochs=1)
    with pytest.raises(LocalspecError, match=r"not numbers. Give a lower --rate than 1e\+09"):
        distill(replace(request, rate=1e9), lambda _: None, print)
    assert not list(drafts_folder().rglob("*.gguf"))


def test_missing_devices_are_refused() -> None:
    assert device("cpu").type == "cpu"
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    for name in ("cuda", "mps"):
        if not there.get(name):
            with pytest.raises(LocalspecError, match=f"no device '{name}'.*cpu"):
                device(name)


@pytest.mark.parametrize("vocabulary", [None, 1000])
@pytest.mark.parametrize("kind", ["eagle3", "medusa"])
def test_heads_learn(kind: str, vocabulary: int | None, home: Path) -> None:
    target = kills.prepare(home)
    result = distill(request_for(target, kind=kind, vocabulary=vocabulary), lambda _: None, print)
    first, last = result.curve[0], result.curve[-1]
    assert last.held_loss < 0.8 * first.held_loss
    assert len(last.depths) == 4  # as deep as it drafts
    assert min(last.depths) > max(first.depths)
    assert np.mean(last.depths) == pytest.approx(last.agreement, abs=0.1)
    file = read_gguf(result.path)
    assert file.architecture == kind
    assert trained_acceptance(read_gguf(target), file) is None  # `-d auto` does not compare heads
    drafting = localspec.Drafting(drafter=kind.removesuffix("3"), depth=2)
    with localspec.load(target, draft=str(result.path), context=256) as engine:
        answer = ask(engine, "Once upon a time", drafting, 24).completion()
        assert answer.stats.by_drafter[drafting.drafter].drafted > 0
    assert ("d2t" in {tensor.name for tensor in file.tensors}) == (vocabulary is not None)


def test_initial_medusa_heads_equal_the_target(target_path: Path) -> None:
    heads = MedusaHeads(target_path, "", heads=2)
    heads.begin(torch.from_numpy)
    tensors = {name: torch.from_numpy(value) for name, value in heads.initial().items()}
    tokens = torch.tensor([[0, 300, 5, 77, 1200, 8]])
    wanted = labels(np.random.Generator(np.random.PCG64(0)).normal(size=(4, 50)), 3)
    batch = TrainingBatch(tokens, torch.arange(1, 5), torch.arange(3, -1, -1), wanted)
    with torch.no_grad():
        found = heads.outputs(tensors, batch)
        last = network.states(heads.frozen, heads.shape, tokens)[0]
    for head, output in enumerate(found):
        count = 4 - (head + 1)
        assert torch.allclose(output.states, last[1 : 1 + count], atol=1e-5)
        assert (output.labels.following == wanted.following[head + 1 :]).all()


@pytest.mark.parametrize("kept", [None, np.arange(7, 8000, 3)])
def test_eagle_head_is_trained_as_it_drafts(
    target_path: Path, tmp_path: Path, kept: npt.NDArray[np.int64] | None
) -> None:
    """After drafted tokens it attends to the target's states of the text before them."""
    known, drafted = 41, 3
    text = np.random.default_rng(3).integers(300, 8000, known + drafted + 1).tolist()
    part = None if kept is None else KeptTokens(kept, np.zeros(8192))
    eagle = EagleHead(read_gguf(target_path), part, weights.F16)
    layers, initial = eagle.layers, eagle.initial()
    file = tmp_path / "head.gguf"
    eagle.write(file, initial, weights.TrainingFacts("", 0.0, "head"))
    with (
        Model(target_path, OPTIONS) as target,
        closing(Context.open(target, OPTIONS)) as context,
        Model(file, OPTIONS) as head,
        closing(EagleCache(head, context.handle, OPTIONS)) as cache,
    ):
        context.request_hidden(layers)
        context.extend(text[: known - 1], known - 1)
        hidden = context.hidden(known - 1)
        cache.begin(text[:known])
        cache.feed(text[:known], np.concatenate([hidden[i] for i in layers], 1))
        theirs = [cache.extend(text[len(cache.tokens) : known])[-1].copy()]
        theirs += [cache.extend([token])[-1].copy() for token in text[known : known + drafted]]
    eagle.begin(torch.from_numpy)
    tensors = {name: torch.from_numpy(each.copy()) for name, each in initial.items()}
    wanted = labels(np.random.default_rng(0).normal(size=(drafted + 3, 50)), 3)
    places = torch.arange(known - 2, known + drafted + 1)
    batch = TrainingBatch(torch.tensor([text]), places, torch.arange(drafted + 2, -1, -1), wanted)
    with torch.no_grad():
        ours = [one.states[0] @ one.matrix.T for one in eagle.outputs(tensors, batch)]
    for row, logits in zip(theirs, ours, strict=True):
        chosen = row if kept is None else row[kept]
        assert np.corrcoef(chosen, logits.numpy())[0, 1] > 0.999
