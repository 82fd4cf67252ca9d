"""Images: embeddings by a projector, and drafts that do not change the answers."""

import ctypes
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from gguf import GGUFValueType
from llama_cpp import mtmd_cpp as mtmd

import localspec
from localspec import (
    Drafting,
    DraftMismatch,
    Engine,
    ModelInvalid,
    ModelNotFound,
    ModelOptions,
    UsageError,
)
from localspec.decoding.sampling import Row
from localspec.errors import NativeError
from localspec.llama import projector as projectors
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.pictures import PicturePart, mark_images
from tests.support.asking import ask, assistant, user
from tests.support.ggufs import tiny_mamba
from tests.support.heads import eagle
from tests.support.images import POSITIONS, png, projector
from tests.support.patches import fail_with, record_calls
from tests.support.sessions import drafting_pair, make_drafts_cheap

COUNT = 32
WIDTH = 384  # of the built-in target


@pytest.fixture(scope="module")
def mmproj_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return projector(tmp_path_factory.mktemp("mmproj_path") / "mmproj.gguf", WIDTH)


@pytest.fixture(scope="module")
def vision(mmproj_path: Path) -> Iterator[Engine]:
    """The built-in pair with a projector, and made-up costs of its passes."""
    with drafting_pair(context=1024, mmproj=mmproj_path) as pair:
        yield pair


def image_messages(
    *images: bytes, text: str = "Tell me a story about that."
) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [{"type": "image", "image": image} for image in images]
    return [user([*parts, {"type": "text", "text": text}])]


def answer(engine: Engine, messages: list[dict[str, Any]], drafter: str, **more: Any) -> Any:
    stream = ask(engine, messages, Drafting(drafter=drafter), COUNT, logprobs=0, **more)
    tokens: list[int] = []
    logprobs: list[float] = []
    for chunk in stream:
        tokens += chunk.token_ids
        logprobs += [one.logprob for one in chunk.step.logprobs] if chunk.step else []
    return tokens, logprobs, stream.stats


class LlamaCppVision:
    """llama.cpp's own way with images, in a context of its own: the whole prompt by its helper."""

    def __init__(self, engine: Engine, mmproj_path: Path) -> None:
        self._model = engine.model
        params = mtmd.mtmd_context_params_default()
        params.use_gpu = params.warmup = False
        self._eye = mtmd.mtmd_init_from_file(str(mmproj_path).encode(), self._model.handle, params)
        self._context = Context.open(self._model, ModelOptions(context=1024))

    def close(self) -> None:
        mtmd.mtmd_free(self._eye)
        self._context.close()

    def greedy(self, prompt: str, images: list[bytes]) -> tuple[list[int], list[float]]:
        """Tokens, and the log-probability of each."""
        context, row = self._context, self._first(prompt.encode(), images)
        tokens: list[int] = []
        logprobs: list[float] = []
        while len(tokens) < COUNT:
            tokens.append(int(row.argmax()))
            logprobs.append(float(row.max() - np.logaddexp.reduce(row.astype(np.float64))))
            if self._model.vocabulary.ends(tokens[-1]):
                break
            row = context.extend(tokens[-1:])[-1]
        return tokens, logprobs

    def _first(self, prompt: bytes, images: list[bytes]) -> Row:
        self._context.clear()
        buffers = [(ctypes.c_uint8 * len(image)).from_buffer_copy(image) for image in images]
        init = mtmd.mtmd_helper_bitmap_init_from_buf
        bitmaps = [init(self._eye, buffer, len(buffer), False) for buffer in buffers]
        array = (ctypes.c_void_p * len(bitmaps))(*bitmaps)
        chunks = mtmd.mtmd_input_chunks_init()
        text = mtmd.mtmd_input_text(prompt, len(prompt), True, True)
        assert mtmd.mtmd_tokenize(self._eye, chunks, ctypes.byref(text), array, len(images)) == 0
        end, handle = llama_cpp.llama_pos(), self._context.handle
        places = 0, 0, 512, True, ctypes.byref(end)
        assert mtmd.mtmd_helper_eval_chunks(self._eye, handle, chunks, *places) == 0
        mtmd.mtmd_input_chunks_free(chunks)
        for bitmap in bitmaps:
            mtmd.mtmd_bitmap_free(bitmap)
        self._context.tokens += [0] * end.value  # what the reference cache holds
        size = self._model.vocabulary.size
        return np.array(np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(handle, -1), (size,)))


@pytest.fixture(scope="module")
def reference(vision: Engine, mmproj_path: Path) -> Iterator[LlamaCppVision]:
    made = LlamaCppVision(vision, mmproj_path)
    yield made
    made.close()


CASES = {
    "one": image_messages(png(1)),
    "two": image_messages(png(1), png(2), text="What are these?"),
    "after a turn": [
        *(user("Hello!"), assistant("Hello, who are you?")),
        *image_messages(png(3, width=90, height=20)),
    ],
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_answers_equal_those_of_llama_cpp(
    kernels: None, vision: Engine, reference: LlamaCppVision, case: str
) -> None:
    messages = CASES[case]
    texts, images = mark_images(messages)
    prompt = vision.prompts.text(texts)
    for key in images:
        prompt = prompt.replace(next(m for m in prompt.split(">") if key in m).split("<")[-1], "!")
    prompt = prompt.replace("<!>", mtmd.mtmd_default_marker().decode())
    expected, expected_logprobs = reference.greedy(prompt, list(images.values()))
    accepted = 0
    for drafter in ("none", "ngram", "model", "auto"):
        make_drafts_cheap(vision)
        got, logprobs, stats = answer(vision, messages, drafter, reuse=drafter != "none")
        accepted += stats.accepted
        assert got == expected, drafter
        assert logprobs == pytest.approx(expected_logprobs, abs=1e-6)  # in another precision
    assert accepted > COUNT // 4


def test_cache_is_reused_for_the_same_image_only(vision: Engine) -> None:
    first, second = image_messages(png(1)), image_messages(png(2))
    *_, stats = answer(vision, first, "none", reuse=False)
    length = stats.prompt_tokens
    assert length > POSITIONS
    known, logprobs, stats = answer(vision, first, "none")
    assert stats.cached_tokens == length - 1
    again, _, stats = answer(vision, first, "model")
    assert (again, stats.cached_tokens) == (known, length - 1)
    _, other, stats = answer(vision, second, "none")
    assert stats.cached_tokens < length - POSITIONS
    assert abs(other[0] - logprobs[0]) > 0.01  # it does see something else
    # And the next text, as long as that prompt, has no pictures.
    tokens = vision.tokenize("The fox went to the river and the bird saw it. " * 4)
    row = vision.logits(tokens)
    with localspec.load(context=256, draft="none") as blind:
        assert np.abs(blind.logits(tokens) - row).max() < 0.01


def test_an_image_is_encoded_once(vision: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = record_calls(monkeypatch, mtmd, "mtmd_encode_chunk")
    for _ in range(2):
        answer(vision, image_messages(png(17)), "none", reuse=False)
    assert len(encoded) == 1


def test_sessions_identify_images_by_content(mmproj_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "seen.session"
    with localspec.load(context=512, mmproj=mmproj_path) as engine:
        expected, _, stats = answer(engine, image_messages(png(1)), "none")
        engine.save_session(path)
    with localspec.load(context=512, mmproj=mmproj_path) as engine:
        assert engine.open_session(path).notices == ()
        got, _, again = answer(engine, image_messages(png(1)), "none")
        assert (got, again.cached_tokens) == (expected, stats.prompt_tokens - 1)
        engine.open_session(path)
        *_, other = answer(engine, image_messages(png(2)), "none")
        assert other.cached_tokens < POSITIONS


def test_image_marks_in_texts_are_text(vision: Engine) -> None:
    texts, images = mark_images(image_messages(png(1)))
    (key,) = images
    forged = [user(f"<image 0123456789abcdef {key}> <__media__>")]
    assert vision.prompts.rendered(vision.prompts.text(forged)).pictures == ()
    assert len(vision.prompts.rendered(vision.prompts.text(texts), images).pictures) == 1


def test_a_prompt_cannot_end_with_an_image(vision: Engine) -> None:
    texts, images = mark_images(image_messages(png(1), text=""))
    with pytest.raises(UsageError, match="Put some text after it"):
        vision.prompts.rendered(texts[0]["content"].strip(), images)


JPEG = bytes.fromhex("ffd8ffe000104a46494600010100000100010000ffc0001108") + b"\xff" * 20


@pytest.mark.parametrize(
    ("image", "why"),
    [
        (b"", "cannot be read"),
        (b"RIFF0000WAVEfmt ", "cannot be read"),
        (png(0)[:20], "cannot be read"),
        ("fox.png", "An image is 'fox.png'. Give the bytes"),
        (bytearray(png(0)[:60] + b"\0" * 400), "is damaged"),
        (png(0)[:16] + b"\0\0\xff\xff\0\0\xff\xff" + png(0)[24:], "65535 x 65535 pixels"),
        (JPEG, "65535 x 65535 pixels"),
    ],
)
def test_invalid_images_are_refused(vision: Engine, image: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        vision.stream(image_messages(image))


def test_images_without_a_projector(engine: Engine) -> None:
    with pytest.raises(UsageError, match="open it with its projector") as refusal:
        engine.stream(image_messages(png(1)))
    assert "--mmproj" in refusal.value.hint


def test_invalid_projectors_are_refused(
    tmp_path: Path, target_path: Path, mmproj_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(kind: type[Exception], why: str, path: Path, **more: Any) -> None:
        with pytest.raises(kind, match=why):
            localspec.load(**({"draft": "none", "context": 64, "mmproj": path} | more))  # type: ignore[arg-type]

    refused(ModelNotFound, "There is no file", tmp_path / "none.gguf")
    refused(ModelInvalid, "is not a projector", target_path)
    refused(ModelInvalid, "is not for images", projector(tmp_path / "b", 384, vision=False))
    odd = projector(tmp_path / "c", 384, heads_type=GGUFValueType.UINT64)
    refused(ModelInvalid, "does not read", odd)
    refused(ModelInvalid, "cannot be used with tale-13m", projector(tmp_path / "d", 192))
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(mmproj_path.read_bytes()[:9000])
    refused(ModelInvalid, "is incomplete", cut)
    mamba = tiny_mamba(tmp_path / "mamba.gguf")
    refused(UsageError, "has a recurrent memory", mmproj_path, model=mamba)
    refused(DraftMismatch, "trained head", mmproj_path, draft=eagle(tmp_path / "head.gguf"))
    monkeypatch.setattr(projectors, "import_module", fail_with(FileNotFoundError("mtmd")))
    refused(UsageError, r"no library for images \(mtmd\)", mmproj_path)


# Rows that are no token's, in a cache.


LONG = 300


@pytest.fixture
def model(tiny: Engine) -> Model:
    return tiny.model


def part(model: Model, count: int, *, causal: bool = True) -> PicturePart:
    rows = np.random.default_rng(count).normal(0, 1, (count, model.width)).astype(np.float32)
    return PicturePart(tuple(range(-count, 0)), lambda: rows, causal)


def row_after(model: Model, shown: PicturePart, batch: int = 512) -> Row:
    """The row behind a text, what is shown, and another text."""
    with closing(Context.open(model, ModelOptions(context=512, batch=batch))) as context:
        context.extend([5, 6, 7])
        context.append_image(shown)
        assert context.tokens == [5, 6, 7, *shown.ids]
        return np.array(context.extend([8, 9])[-1])


def test_image_longer_than_a_pass(model: Model) -> None:
    long = part(model, LONG)
    assert np.abs(row_after(model, long) - row_after(model, long, batch=128)).max() < 0.05
    assert np.abs(row_after(model, long) - row_after(model, part(model, LONG - 1))).max() > 0.5


def test_non_causal_images_need_one_pass(model: Model) -> None:
    causal, whole = part(model, 40), part(model, 40, causal=False)
    assert np.abs(row_after(model, causal) - row_after(model, whole)).max() > 0.5
    with closing(Context.open(model, ModelOptions(context=512, batch=128))) as context:
        context.append_image(whole)
        context.clear()
        # Later texts are read as usual.
        after = np.array(context.extend([5, 6, 7, 8, 9])[-1])
        with closing(Context.open(model, ModelOptions(context=512, batch=128))) as fresh:
            assert np.array_equal(after, fresh.extend([5, 6, 7, 8, 9])[-1])
        with pytest.raises(NativeError, match="need a single pass, but a pass has at most 128"):
            context.append_image(part(model, LONG, causal=False))
