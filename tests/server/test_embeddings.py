"""Vectors of texts, in all protocols."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from localspec import Engine, ModelOptions
from localspec.llama.embeddings import Embedder
from localspec.loading.beside import embedder_beside
from tests.server.process import PATIENCE, Running, serving, wait_until

pytestmark = pytest.mark.nightly

FOX, HEN = "The quick fox ran over the hill.", "My mother baked a cake for us."


@pytest.fixture(scope="module")
def embedder(engine: Engine) -> Iterator[Embedder]:
    made = embedder_beside(engine, ModelOptions(threads=1))
    yield made
    made.close()


def test_the_mean_of_what_every_token_is_made_into(embedder: Embedder, engine: Engine) -> None:
    from localspec.llama.context import Context

    tokens = engine.tokenize(f"{FOX} {HEN} " * 6)
    assert len(tokens) > 64
    context = Context(engine.model, ModelOptions(context=512, threads=1))
    try:
        context.want_hidden((engine.model.layers,))
        rows = []
        for token in tokens:
            context.extend([token])
            rows.append(context.hidden(1)[engine.model.layers][0].copy())
    finally:
        context.close()
    mean = np.mean(rows, axis=0)
    found = embedder.embed(tokens)
    assert found.shape == (engine.model.output_width,)
    assert np.linalg.norm(found) == pytest.approx(1.0, abs=1e-5)
    assert float(found @ (mean / np.linalg.norm(mean))) > 0.9999


def test_openais_client(client: openai.OpenAI, engine: Engine, embedder: Embedder) -> None:
    reply = client.embeddings.create(model="any", input=[FOX, HEN])  # base64, by itself
    assert [one.index for one in reply.data] == [0, 1]
    assert reply.usage.prompt_tokens == len(engine.tokenize(FOX)) + len(engine.tokenize(HEN)) + 2
    vocabulary = engine.model.vocabulary
    for one, text in zip(reply.data, (FOX, HEN), strict=True):
        own = embedder.embed(vocabulary.tokenize(text, special=False, add_bos=True))
        np.testing.assert_allclose(one.embedding, own, atol=1e-3)
    plain = client.embeddings.create(model="any", input=FOX, encoding_format="float")
    np.testing.assert_allclose(plain.data[0].embedding, reply.data[0].embedding, atol=1e-6)


def test_all_protocols_give_the_same(server: Running) -> None:
    one = server.post("/v1/embeddings", {"input": FOX}).json["data"][0]["embedding"]
    tokens = server.post("/tokenize", {"content": FOX, "add_special": True}).json["tokens"]
    others = [
        server.post("/v1/embeddings", {"input": tokens}).json["data"][0]["embedding"],
        server.post("/v1/embeddings", {"input": [HEN, FOX]}).json["data"][1]["embedding"],
        server.post("/embedding", {"content": FOX}).json[0]["embedding"][0],
        server.post("/embeddings", {"input": [FOX]}).json[0]["embedding"][0],
        server.post("/api/embed", {"input": [FOX, HEN]}).json["embeddings"][0],
        server.post("/api/embeddings", {"prompt": FOX}).json["embedding"],
    ]
    for other in others:
        np.testing.assert_allclose(other, one, atol=1e-5)
    another = server.post("/v1/embeddings", {"input": HEN}).json["data"][0]["embedding"]
    assert float(np.dot(one, another)) < 0.999


def test_answers_do_not_change_beside_them(server: Running) -> None:
    body = {"prompt": "Once upon a time there was a fox", "n_predict": 8, "seed": 1}
    server.post("/completion", body)
    before = server.post("/completion", body).json
    server.post("/v1/embeddings", {"input": [FOX, HEN]})
    after = server.post("/completion", body).json
    assert after["content"] == before["content"]
    assert after["timings"]["cache_n"] == before["timings"]["cache_n"] > 0
    server.wait_until_idle()


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/embeddings", {"input": "fox " * 3000}, 400),
        ("/v1/embeddings", {"input": []}, 200),
        ("/v1/embeddings", {"input": ""}, 200),
        ("/v1/embeddings", {"input": [99999999]}, 400),
        ("/v1/embeddings", {"input": [[-1]]}, 400),
        ("/v1/embeddings", {"input": ["x"] * 300}, 400),
        ("/v1/embeddings", {"input": "x", "dimensions": 3}, 400),
        ("/v1/embeddings", {"input": {"a": 1}}, 400),
        ("/v1/embeddings", {}, 400),
        ("/embedding", {}, 400),
        ("/api/embed", {"input": "fox " * 3000}, 200),
        ("/api/embed", {"input": "fox " * 3000, "truncate": False}, 400),
        ("/api/embed", {}, 200),
    ],
)
def test_what_can_be_asked(server: Running, path: str, body: dict[str, Any], status: int) -> None:
    reply = server.post(path, body)
    assert reply.status == status
    if body.get("dimensions") or "fox" in str(body):  # what to do about it
        assert status == 200 or ". " in str(reply.json["error"])
    server.wait_until_idle()


def test_they_queue_like_answers(tmp_path: Path) -> None:
    long = {"prompt": "Once upon a time", "n_predict": 400, "ignore_eos": True}
    with serving(tmp_path, "-c", "512", "-t", "1", "--max-queue", "0") as server:
        answering = threading.Thread(target=server.post, args=("/completion", long))
        answering.start()
        wait_until(lambda: not server.idle, "it answers")
        reply = server.post("/v1/embeddings", {"input": FOX})
        answering.join(PATIENCE)
        assert reply.status == 429
        assert int(reply.headers["retry-after"]) >= 1
        server.wait_until_idle()
        assert server.post("/v1/embeddings", {"input": FOX}).status == 200
