"""All or some layers on a device: equal tokens, predicted memory, a draft model beside it.

Few passes of the smaller built-in model: on Mesa's software driver one takes a tenth of a second.
That driver (22.3.6) crashes in passes over several tokens if the very first one was over one token,
so prompts come first.
"""

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import localspec
from localspec import Cancelled, Engine, ModelOptions
from localspec.decoding.sampling import Rows
from localspec.gguf.reader import read_gguf
from localspec.llama import library
from localspec.llama.context import Context
from localspec.llama.devices import devices
from localspec.llama.model import Model
from localspec.pairing.memory import place
from tests.cli.process import finished
from tests.server.process import serving
from tests.support.asking import WAYS, ask, tokens_of
from tests.support.buffers import logged_buffers
from tests.support.greedy import batch_noise, divergence, greedy
from tests.support.sessions import make_drafts_cheap

needs_device = pytest.mark.skipif(
    not library.accelerated(),
    reason="needs a GPU, or llama.cpp's Vulkan backend on Mesa's software driver: `make vulkan` "
    "builds it, and runs these tests with it",
)
pytestmark = [pytest.mark.nightly, needs_device]

COUNT = 12
MIB = 1 << 20
STORY = [{"role": "user", "content": "Tell me a story about a fox."}]
PARTS = {"all": -1, "two": 2, "none": 0}
"""`gpu_layers`, the output counted as one."""


def options(layers: int = -1, **more: object) -> ModelOptions:
    return ModelOptions(context=512, threads=1, gpu_layers=layers, **more)  # type: ignore[arg-type]


def rows_of(path: Path, layers: int, prompts: list[str], texts: list[list[int]]) -> list[Rows]:
    """Logits before each token of known texts, passes over one token each."""
    found: list[Rows] = []
    with (
        Model(path, options(layers)) as model,
        closing(Context.open(model, options(layers))) as context,
    ):
        assert model.on_device == (layers < 0)
        for prompt, text in zip(prompts, texts, strict=True):
            context.clear()
            rows = [context.extend(ids_of(model, prompt))[-1].copy()]
            rows += [context.extend([token])[-1].copy() for token in text[:-1]]
            found.append(np.array(rows))
    return found


def ids_of(model: Model, prompt: str) -> list[int]:
    return model.vocabulary.tokenize(prompt, special=True, add_bos=True)


class PlainDecoding:
    """Plain decoding without localspec's loop, and the noise of other passes."""

    def __init__(self, path: Path, layers: int, prompts: list[str]) -> None:
        self.prompts = prompts
        with (
            Model(path, options(layers)) as model,
            closing(Context.open(model, options(layers))) as one,
        ):
            ids = [ids_of(model, prompt) for prompt in prompts]
            self.tokens = [greedy(one, text, COUNT) for text in ids]
            self.noise = batch_noise(one, ids[:1])


@pytest.fixture(scope="module")
def processor(draft_path: Path, prompts: list[str]) -> PlainDecoding:
    return PlainDecoding(draft_path, 0, prompts[:2])


@pytest.fixture(scope="module")
def device(draft_path: Path, prompts: list[str]) -> PlainDecoding:
    return PlainDecoding(draft_path, -1, prompts[:2])


@pytest.fixture(scope="module")
def engine_with_draft(draft_path: Path) -> Iterator[Engine]:
    """A target on the device, and the same model as a draft model on the processor."""
    with localspec.load(draft_path, draft=draft_path, options=options(draft_gpu_layers=0)) as both:
        make_drafts_cheap(both)
        yield both


@pytest.mark.parametrize("layers", PARTS.values(), ids=PARTS)
def test_logits_equal_cpu_logits(processor: PlainDecoding, draft_path: Path, layers: int) -> None:
    here, there = (
        rows_of(draft_path, count, processor.prompts, processor.tokens) for count in (0, layers)
    )
    farthest = max(float(np.abs(a - b).max()) for a, b in zip(here, there, strict=True))
    print(f"{layers} layers: at most {farthest:.4f} logits apart; passes: {processor.noise:.4f}")
    assert farthest < 4 * processor.noise


@pytest.mark.parametrize("way", ["none", "model tree", "auto"])
def test_text_on_the_device(engine_with_draft: Engine, device: PlainDecoding, way: str) -> None:
    model, accepted = engine_with_draft.model, 0
    with closing(Context.open(model, options())) as context:
        for prompt, expected in zip(device.prompts, device.tokens, strict=True):
            stream = ask(engine_with_draft, prompt, WAYS[way], COUNT)
            got = tokens_of(stream)
            accepted += stream.stats.accepted
            found = divergence(context, ids_of(model, prompt), expected, got)
            if found is None:
                assert got == expected
            else:
                assert abs(found[1]) <= device.noise
    assert (accepted > 0) == (way != "none")


def test_cancelled_pass_keeps_the_cache(draft_path: Path) -> None:
    """A device ends its current pass; the next chunk is not begun."""
    short = options(batch=128)
    with Model(draft_path, short) as model, closing(Context.open(model, short)) as context:
        text = context.filler(150)

        def report(done: int, total: int) -> None:
            thread = threading.Thread(target=context.cancel)
            thread.start()
            thread.join()

        with pytest.raises(Cancelled):
            context.extend(text, 1, report)
        assert context.tokens == text[:128]
        context.resume()
        row = context.extend(text[128:])[-1].copy()
        context.clear()
        # The same chunks, so the same passes.
        assert np.array_equal(row, context.extend(text)[-1])


@pytest.mark.parametrize("layers", [-1, 3, 1])
def test_predicted_memory(target_path: Path, caplog: pytest.LogCaptureFixture, layers: int) -> None:
    found = logged_buffers(target_path, options(layers), caplog)
    name = next(device.name for device in devices() if device.takes_layers)
    predicted = place(read_gguf(target_path), options(layers), layers).device.total / MIB
    print(f"{layers}: predicted {predicted:.1f} MiB, llama.cpp {found[name]:.1f}")
    assert predicted == pytest.approx(found[name], rel=0.1)


def test_output_of_the_backend_is_suppressed() -> None:
    """Drivers print as soon as devices are listed."""
    ran = finished("run", "--json", "--temp", "0", "-n", "8", "--ctx", "512", "Hello")
    assert (ran.code, ran.err) == (0, "")
    assert ran.json["text"]
    ran = finished("doctor", "--quick", "--json", "--ctx", "512")
    assert (ran.code, ran.err) == (0, "")
    found = [device for device in ran.json["machine"]["devices"] if device["kind"] != "CPU"]
    assert found
    assert all(device["total"] > 0 for device in found)


def test_server_answers_from_the_device(tmp_path: Path) -> None:
    with serving(tmp_path, "-c", "512", "-t", "1") as server:
        reply = server.post("/v1/chat/completions", {"messages": STORY, "max_tokens": 8})
        assert reply.status == 200
        assert reply.json["choices"][0]["message"]["content"]
        assert server.log.read_text().count("ggml_") == 0
