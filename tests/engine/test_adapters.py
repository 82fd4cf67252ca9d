"""LoRA adapters: their effect, drafts with them, and adapters that do not fit."""

import shutil
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import localspec
from localspec import Engine, ModelInvalid, ModelOptions, UsageError
from localspec.gguf.reader import read_gguf
from localspec.llama.options import Adapter
from localspec.pairing import auto
from localspec.self_draft.maker import facts_of
from localspec.self_draft.recipe import SelfDraftRequest
from tests.support.adapters import RANK, lora
from tests.support.asking import GREEDY, PLAIN, WAYS, ask, tokens_of
from tests.support.ggufs import tiny_llama
from tests.support.greedy import Reference
from tests.support.heads import weights
from tests.support.sessions import drafting_pair, make_drafts_cheap
from tests.support.together import together

PROMPTS = 8
STORY = "Once upon a time"


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory, target_path: Path) -> Path:
    return lora(tmp_path_factory.mktemp("lora") / "style.gguf", target_path)


@pytest.fixture(scope="module", params=[1, 4])
def adapted(request: pytest.FixtureRequest, adapter: Path) -> Iterator[Engine]:
    """The built-in pair with an adapter of the target, for so many answers at once."""
    with drafting_pair(context=2048, parallel=request.param, lora=adapter) as pair:
        yield pair


@pytest.fixture(scope="module")
def reference(adapted: Engine, prompts: list[str]) -> Reference:
    return Reference(adapted, prompts[:PROMPTS])


def answer(engine: Engine, prompt: str, way: str) -> tuple[list[int], int]:
    stream = ask(engine, prompt, WAYS[way])
    return tokens_of(stream), stream.stats.accepted


@pytest.mark.nightly
@pytest.mark.parametrize("way", ["auto", "model tree"])
def test_drafts_do_not_change_adapted_answers(
    kernels: None, adapted: Engine, reference: Reference, prompts: list[str], way: str
) -> None:
    make_drafts_cheap(adapted)
    tasks = [partial(answer, adapted, prompt, way) for prompt in prompts[:PROMPTS]]
    at_once = adapted.parallel
    found = [
        answer
        for first in range(0, PROMPTS, at_once)
        for answer in together(tasks[first : first + at_once])
    ]
    answers = [answer for answer in found if isinstance(answer, tuple)]
    assert [tokens for tokens, _ in answers] == reference.tokens, found
    assert sum(accepted for _, accepted in answers) > 15


def test_adapter_equals_merged_weights(tmp_path: Path) -> None:
    base = tiny_llama(tmp_path / "base.gguf")
    path = lora(tmp_path / "lora.gguf", base, alpha=2 * RANK)  # so that it counts twice
    merged = Path(shutil.copy(base, tmp_path / "merged.gguf"))
    matrices, added = weights(base), weights(path)
    with merged.open("r+b") as file:
        for tensor in read_gguf(base).tensors:
            if f"{tensor.name}.lora_a" in added:
                a, b = (added[f"{tensor.name}.lora_{which}"] for which in "ab")
                file.seek(tensor.offset)
                file.write((matrices[tensor.name] + 0.5 * 2 * b @ a).astype(np.float16).tobytes())

    def row(model: Path, *adapters: str | Adapter) -> np.ndarray:
        with localspec.load(model, draft="none", context=64, lora=adapters) as engine:
            return engine.logits(engine.tokenize("The fox went to the river and"))

    plain = row(base)
    assert np.abs(row(base, f"{path}:0.5") - row(merged)).max() < 0.05
    assert np.abs(row(merged) - plain).max() > 1.0
    # A half and a half are a whole; none of it is none.
    twice = row(base, f"{path}:0.5", Adapter(path, 0.5))
    assert np.abs(twice - row(base, str(path))).max() < 0.01
    assert np.array_equal(row(base, f"{path}:0"), plain)


def test_draft_models_have_own_adapters(
    tmp_path: Path, target_path: Path, draft_path: Path
) -> None:
    on_target, on_draft = (
        lora(tmp_path / f"{path.stem}-lora.gguf", path, gain=3.0)
        for path in (target_path, draft_path)
    )

    def answers(**adapters: Path) -> tuple[str, int]:
        with localspec.load(draft=draft_path, context=512, **adapters) as engine:  # type: ignore[arg-type]
            found = engine.generate(STORY, max_tokens=60, sampling=GREEDY, drafting=WAYS["model"])
        return found.text, found.stats.accepted

    text, accepted = answers()
    adapted_text, _ = answers(lora=on_target)
    assert adapted_text != text
    # A noisy draft model is wrong more often, but the text stays.
    noisy_text, noisy = answers(lora_draft=on_draft)
    assert noisy_text == text
    assert noisy < accepted


def test_adapters_have_their_own_profiles(tmp_path: Path, target_path: Path, adapter: Path) -> None:
    choices: list[tuple[str, ...]] = [(), (f"{adapter}",), (f"{adapter}:0.5",), (f"{adapter}",) * 2]
    profiles, records, session = [], [], tmp_path / "story.session"
    for number, choice in enumerate(choices):
        options = ModelOptions(context=256, lora=choice)
        with localspec.load(options=options) as engine:
            profiles.append(engine._store.path)
            if number == 1:
                engine.generate(STORY, max_tokens=4, drafting=PLAIN)
                engine.save_session(session)
            if number == 2:
                (why,) = engine.open_session(session).notices
        records.append(str(facts_of(target_path, SelfDraftRequest(), options)))
    assert len(set(profiles)) == len(set(records)) == len(choices)
    assert "had different adapters (--lora)" in why
    with localspec.load(context=256, lora=adapter) as engine:
        assert engine.open_session(session).notices == ()

    plain, with_adapter = (ModelOptions(lora=choice) for choice in choices[:2])
    auto.store_speed_up(target_path, target_path, 2.0, with_adapter)
    known = auto.measured_speed_ups
    assert (len(known(target_path, plain)), len(known(target_path, with_adapter))) == (0, 1)


def edited(edit: Callable[[bytes], bytes]) -> Callable[[Path, Path], Path]:
    def make(path: Path, base: Path) -> Path:
        path.write_bytes(edit(lora(path, base).read_bytes()))
        return path

    return make


def _integer_alpha(raw: bytes) -> bytes:
    """llama.cpp aborts on one."""
    before, key, behind = raw.partition(b"adapter.lora.alpha")
    return before + key + struct.pack("<I", 4) + behind[4:]


def _three_dimensions(path: Path, base: Path) -> Path:
    """Matrices with a third dimension, which llama.cpp does not check."""
    width, name = read_gguf(base).tensors[0].shape[0], "blk.0.attn_q.weight.lora_"
    more = {f"{name}a": (3, RANK, width), f"{name}b": (3, width, RANK)}
    return lora(path, base, ending="none", more=more)


def _embeddings(path: Path, base: Path) -> Path:
    name, rows = "token_embd.weight.lora_", read_gguf(base).array("tokenizer.ggml.tokens")
    assert rows is not None
    more = {f"{name}a": (len(rows), RANK), f"{name}b": (read_gguf(base).tensors[0].shape[0], RANK)}
    return lora(path, base, more=more)


INVALID: dict[str, tuple[Callable[[Path, Path], Path], str]] = {
    "a text": (edited(lambda _: b"no GGUF, and longer than a header of one"), "is not a GGUF file"),
    "cut short": (edited(lambda raw: raw[: len(raw) // 2]), "is incomplete"),
    "a model": (lambda _path, base: base, "is not a LoRA adapter"),
    "another kind": (partial(lora, kind="control_vector"), "is not a LoRA adapter"),
    "another architecture": (partial(lora, architecture="qwen2"), "for the architecture qwen2"),
    "half a pair": (partial(lora, without="lora_b"), "it cannot change "),
    "nothing": (partial(lora, ending="none"), "it changes nothing"),
    "a stranger": (
        partial(
            lora, more={"blk.9.attn_q.weight.lora_a": (4, 4), "blk.9.attn_q.weight.lora_b": (4, 4)}
        ),
        "it cannot change blk.9.attn_q.weight",
    ),
    "no part": (
        partial(lora, more={"blk.0.attn_q.weight": (4, 4)}),
        "it cannot change blk.0.attn_q.weight",
    ),
    "alpha of another type": (edited(_integer_alpha), "adapter.lora.alpha is not a 32-bit number"),
    "a third dimension": (_three_dimensions, "it cannot change "),
    "tied embeddings": (_embeddings, "it cannot change token_embd.weight"),
}


@pytest.mark.parametrize("what", sorted(INVALID))
def test_invalid_adapter_is_refused(tmp_path: Path, draft_path: Path, what: str) -> None:
    make, why = INVALID[what]
    path = make(tmp_path / "unfit.gguf", draft_path)
    with pytest.raises(ModelInvalid, match=why) as raised:
        localspec.load(draft_path, draft="none", lora=f"{path}:0.5")
    assert str(raised.value).startswith(str(path))
    assert str(raised.value).count("\n") == 0


def test_adapter_of_another_model(tmp_path: Path, target_path: Path, draft_path: Path) -> None:
    path = lora(tmp_path / "other.gguf", target_path)
    with pytest.raises(ModelInvalid, match=r"does not fit tale-3m.* cannot change"):
        localspec.load(draft_path, draft="none", lora=path)
    with pytest.raises(ModelInvalid, match=r"does not fit tale-3m.* cannot change"):
        localspec.load(draft=draft_path, lora_draft=path)


@pytest.mark.parametrize("draft", ["auto", "none", None])
def test_draft_adapter_needs_a_named_draft_model(adapter: Path, draft: str | None) -> None:
    with pytest.raises(UsageError, match="Name that with -d"):
        localspec.load(draft=draft, lora_draft=adapter)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("a.gguf", Adapter(Path("a.gguf"))),
        ("a.gguf:0.25", Adapter(Path("a.gguf"), 0.25)),
        ("a.gguf:-1", Adapter(Path("a.gguf"), -1.0)),
        ("C:/models/a.gguf", Adapter(Path("C:/models/a.gguf"))),
        ("a:b/c", Adapter(Path("a:b/c"))),
        ("style:2", Adapter(Path("style"), 2.0)),
    ],
)
def test_adapter_option_is_parsed(text: str, meant: Adapter) -> None:
    assert ModelOptions(lora=text).adapters == (meant,)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a.gguf:half", "'half' is not a scale"),
        ("a.gguf:", "'' is not a scale"),
        ("a.gguf:nan", "Give a number"),
        ("a.gguf:inf", "Give a number"),
        ("", "lora is empty"),
        (":0.5", "is not an adapter"),
    ],
)
def test_invalid_adapter_option_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        ModelOptions(lora=text)
