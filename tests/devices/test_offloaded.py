"""A device computes all layers, or some: same tokens, foretold memory, a draft beside it."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import localspec
from localspec import Cancelled, Drafting, Engine, ModelOptions, SamplingParams
from localspec.decoding.sampling import Rows
from localspec.gguf.dimensions import Use
from localspec.gguf.reader import read_gguf
from localspec.llama.context import Context
from localspec.llama.devices import devices
from localspec.llama.model import Model
from localspec.pairing.memory import place
from tests.cli.process import finished
from tests.server.process import serving
from tests.support.devices import needs_device
from tests.support.greedy import batch_noise, divergence, greedy
from tests.support.sessions import make_drafts_cheap
from tools.accelerator import Buffers

pytestmark = needs_device

COUNT = 24
MIB = 1 << 20
GREEDY = SamplingParams(temperature=0)
STORY = [{"role": "user", "content": "Tell me a story about a fox."}]
PARTS = {"all": -1, "three": 3, "output": 1, "none": 0}
"""`gpu_layers`: the embedded target has six, and the output."""
WAYS = {
    "plain": Drafting(drafter="none"),
    "ngram tree": Drafting(drafter="ngram", width=4, depth=4),
    "model": Drafting(drafter="model", depth=4),
    "model tree": Drafting(drafter="model", width=3, depth=3),
    "overlap": Drafting(drafter="auto", overlap="on"),
    "auto": Drafting(),
}


def options(layers: int = -1, **more: object) -> ModelOptions:
    return ModelOptions(context=512, threads=1, gpu_layers=layers, **more)  # type: ignore[arg-type]


def along(path: Path, layers: int, prompts: list[str], texts: list[list[int]]) -> list[Rows]:
    """Logits before each token of known texts, passes over one token each."""
    with Model(path, options(layers)) as model:
        assert model.on_device == (layers < 0)
        context = Context(model, options(layers))
        found = []
        for prompt, text in zip(prompts, texts, strict=True):
            context.clear()
            rows = [context.extend(tokens_of(model, prompt))[-1].copy()]
            rows += [context.extend([token])[-1].copy() for token in text[:-1]]
            found.append(np.array(rows))
        context.close()
    return found


def tokens_of(model: Model, prompt: str) -> list[int]:
    return model.vocabulary.tokenize(prompt, special=True, add_bos=True)


class Processor:
    """What the processor says, in passes over one token, and its logits."""

    def __init__(self, path: Path, prompts: list[str]) -> None:
        self.prompts = prompts
        with Model(path, options(0)) as model:
            context = Context(model, options(0))
            ids = [tokens_of(model, prompt) for prompt in prompts]
            self.tokens = [greedy(context, one, COUNT) for one in ids]
            self.noise = batch_noise(context, ids)
            context.close()
        self.rows = along(path, 0, prompts, self.tokens)


@pytest.fixture(scope="module")
def processor(target_path: Path, prompts: list[str]) -> Processor:
    return Processor(target_path, prompts[:7])


@pytest.fixture(scope="module")
def beside() -> Iterator[Engine]:
    """The target on the device, its draft model on the processor."""
    with localspec.load(options=options(draft_gpu_layers=0)) as engine:
        make_drafts_cheap(engine)
        yield engine


@pytest.mark.parametrize("layers", PARTS.values(), ids=PARTS)
def test_logits_are_the_processors_within_rounding(
    processor: Processor, target_path: Path, layers: int
) -> None:
    """With all layers, some, the output alone or none of them on the device."""
    found = along(target_path, layers, processor.prompts, processor.tokens)
    farthest = max(
        float(np.abs(here - there).max()) for here, there in zip(processor.rows, found, strict=True)
    )
    print(f"{layers} layers: at most {farthest:.4f} logits apart; passes: {processor.noise:.4f}")
    assert farthest < 4 * processor.noise


@pytest.mark.parametrize("way", WAYS)
def test_text_is_plain_decodings_on_the_device(
    beside: Engine, processor: Processor, way: str
) -> None:
    parted, drafted, overlapping = [], 0, 0
    context = Context(beside.model, options())
    ids = [tokens_of(beside.model, prompt) for prompt in processor.prompts]
    noise = batch_noise(context, ids[::3])
    for prompt, one in zip(processor.prompts, ids, strict=True):
        stream = beside.stream(prompt, max_tokens=COUNT, sampling=GREEDY, drafting=WAYS[way])
        chunks = list(stream)
        got = [token for chunk in chunks for token in chunk.token_ids]
        expected = greedy(context, one, COUNT)
        drafted += stream.stats.accepted
        overlapping += sum(chunk.step.plan.overlaps for chunk in chunks if chunk.step is not None)
        found = divergence(context, one, expected, got)
        if found is None:
            assert got == expected
        else:
            parted.append(found)
    context.close()
    assert [found for found in parted if abs(found[1]) > noise] == []
    assert len(parted) <= 2
    assert (drafted > 0) == (way != "plain")
    assert (overlapping > 3) == (way == "overlap")


def test_a_cancelled_pass_leaves_the_cache_as_it_was(target_path: Path) -> None:
    """A device ends the pass it is in; the chunk behind it is not begun."""
    with Model(target_path, options()) as model:
        context = Context(model, options())
        text = context.filler(500)

        def report(done: int, total: int) -> None:
            thread = threading.Thread(target=context.cancel)
            thread.start()
            thread.join()

        with pytest.raises(Cancelled):
            context.extend(text, 1, report)
        held = len(context.tokens)
        assert 0 < held < len(text)
        context.resume()
        row = context.extend(text[held:])[-1].copy()
        context.clear()
        whole = context.extend(text)[-1]
        assert float(np.abs(row - whole).max()) < 0.5
        context.close()


@pytest.mark.parametrize("layers", [-1, 6, 3, 1])
def test_memory_on_the_device_is_foretold(
    target_path: Path, caplog: pytest.LogCaptureFixture, layers: int
) -> None:
    said = Buffers()
    logger = logging.getLogger("localspec.llama")
    with caplog.at_level(logging.DEBUG, logger.name):
        logger.addHandler(said)
        try:
            with Model(target_path, options(layers)) as model:
                Context(model, options(layers)).close()
        finally:
            logger.removeHandler(said)
    [name] = [device.name for device in devices() if device.takes_layers][:1]
    told = place(read_gguf(target_path), Use.of(options(layers)), layers).device.total / MIB
    print(f"{layers}: foretold {told:.1f} MiB, llama.cpp says {said.found[name]:.1f}")
    assert told == pytest.approx(said.found[name], rel=0.1)


def test_what_the_backend_says_of_itself_reaches_nobody() -> None:
    """Drivers introduce themselves as soon as devices are asked for."""
    ran = finished("run", "--json", "--temp", "0", "-n", "8", "--ctx", "512", "Hello")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert json.loads(ran.stdout)["text"]
    ran = finished("doctor", "--quick", "--json", "--ctx", "512")
    assert (ran.returncode, ran.stderr) == (0, "")
    found = [
        device for device in json.loads(ran.stdout)["machine"]["devices"] if device["kind"] != "CPU"
    ]
    assert found
    assert all(device["total"] > 0 for device in found)


def test_the_server_answers_from_the_device(tmp_path: Path) -> None:
    with serving(tmp_path, "-c", "512", "-t", "1") as server:
        reply = server.post("/v1/chat/completions", {"messages": STORY, "max_tokens": 8})
        assert reply.status == 200
        assert reply.json["choices"][0]["message"]["content"]
        assert server.log.read_text().count("ggml_") == 0
