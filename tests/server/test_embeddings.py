"""Embeddings in all protocols, and models that only make embeddings."""

from collections.abc import Iterator
from contextlib import closing
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from llama_cpp import LLAMA_POOLING_TYPE_MEAN, Llama

from localspec import Engine, ModelOptions
from localspec.errors import Cancelled
from localspec.llama.embeddings import MAX_LENGTH, EmbeddingModel
from tests.cli.process import finished
from tests.server.bodies import BODIES, CHAT
from tests.server.process import Running, serving, wait_until
from tests.support import ggufs

pytestmark = pytest.mark.nightly

FOX, HEN = "The quick fox ran over the hill.", "My mother baked a cake for us."


def test_openai_client(client: openai.OpenAI, engine: Engine) -> None:
    reply = client.embeddings.create(model="any", input=[FOX, HEN])  # base64, by itself
    assert [one.index for one in reply.data] == [0, 1]
    assert reply.usage.prompt_tokens == len(engine.tokenize(FOX)) + len(engine.tokenize(HEN)) + 2
    for one, text in zip(reply.data, (FOX, HEN), strict=True):
        plain = client.embeddings.create(model="any", input=text, encoding_format="float")
        np.testing.assert_allclose(plain.data[0].embedding, one.embedding, atol=1e-5)


def test_all_protocols_return_the_same_vector(server: Running) -> None:
    one = server.post("/v1/embeddings", {"input": FOX}).json["data"][0]["embedding"]
    tokens = server.post("/tokenize", {"content": FOX, "add_special": True}).json["tokens"]
    formed = {"input": FOX, "encoding_format": "float"}
    asked: Any = [
        ("/embeddings", formed, ("data", 0, "embedding")),
        ("/v1/embeddings", {"input": tokens}, ("data", 0, "embedding")),
        ("/v1/embeddings", {"input": [HEN, FOX]}, ("data", 1, "embedding")),
        ("/embedding", {"content": FOX}, (0, "embedding", 0)),
        ("/embeddings", {"input": [FOX]}, (0, "embedding", 0)),
        ("/api/embed", {"input": [FOX, HEN]}, ("embeddings", 0)),
        ("/api/embeddings", {"prompt": FOX}, ("embedding",)),
    ]
    for path, body, place in asked:
        other = reduce(getitem, place, server.post(path, body).json)
        np.testing.assert_allclose(other, one, atol=1e-5)
    another = server.post("/v1/embeddings", {"input": HEN}).json["data"][0]["embedding"]
    assert float(np.dot(one, another)) < 0.999


def test_embeddings_leave_the_prompt_cache_intact(server: Running) -> None:
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
        *(("/v1/embeddings", {"input": ""}, 200), ("/api/embed", {"input": []}, 200)),
        *(("/v1/embeddings", {"input": bad}, 400) for bad in ([], [99999999], [[-1]], {"a": 1})),
        ("/v1/embeddings", {"input": ["x"] * 3000}, 400),
        ("/v1/embeddings", {"input": "x", "dimensions": 3}, 400),
        *(("/v1/embeddings", {}, 400), ("/embedding", {}, 400), ("/api/embed", {}, 200)),
        ("/embedding", {"content": "x", "embd_normalize": -1}, 400),
        ("/api/embed", {"input": "fox " * 3000}, 200),
        ("/api/embed", {"input": "fox " * 3000, "truncate": False}, 400),
        ("/api/embed", {"input": "x", "dimensions": 3}, 400),
        ("/api/embeddings", {"prompt": ""}, 200),
    ],
)
def test_valid_and_invalid_inputs(
    server: Running, path: str, body: dict[str, Any], status: int
) -> None:
    reply = server.post(path, body)
    assert reply.status == status
    assert reply.json.get("prompt_eval_count", 0) <= MAX_LENGTH
    if body.get("dimensions") or "fox" in str(body):  # what to do about it
        assert status == 200 or ". " in str(reply.json["error"])
    server.wait_until_idle()


def test_embeddings_are_refused_when_the_queue_is_full(tmp_path: Path) -> None:
    long = {"prompt": "Once", "n_predict": 1500, "ignore_eos": True, "stream": True}
    with serving(tmp_path, "-c", "2048", "-t", "1", "--max-queue", "0") as server:
        with server.send("/completion", long):
            wait_until(lambda: not server.idle, "it answers")
            reply = server.post("/v1/embeddings", {"input": FOX})
        assert reply.status == 429
        assert int(reply.headers["retry-after"]) >= 1
        server.wait_until_idle()
        assert server.post("/v1/embeddings", {"input": FOX}).status == 200


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ggufs.tiny_bert(tmp_path_factory.mktemp("bert") / "bert.gguf")


def test_cancelled_embedding(bert: Path) -> None:
    options = ModelOptions(threads=1)
    with closing(EmbeddingModel(bert, options)) as model, pytest.raises(Cancelled):
        model.embed([5], lambda: True)


@pytest.fixture(scope="module")
def embedding(bert: Path) -> Iterator[Running]:
    with serving(bert.parent, "-m", str(bert), "-t", "1") as running:
        yield running


def test_vectors_match_llama_cpp(
    server: Running, embedding: Running, target_path: Path, bert: Path
) -> None:
    """Mean pooling, with a text model and with an embedding model."""
    texts = [FOX, HEN, f"{FOX} {HEN} " * 6]
    for running, path in ((server, target_path), (embedding, bert)):
        options = {"n_ctx": 512, "n_threads": 1, "pooling_type": LLAMA_POOLING_TYPE_MEAN}
        reference = Llama(str(path), embedding=True, verbose=False, **options)
        told = running.post("/v1/embeddings", {"input": texts}).json["data"]
        for text, one in zip(texts, told, strict=True):
            assert np.linalg.norm(one["embedding"]) == pytest.approx(1.0, abs=1e-5)
            assert np.dot(reference.embed(text, normalize=True), one["embedding"]) > 0.9999
        reference.close()


@pytest.mark.parametrize(
    "path",
    [
        *(CHAT, "/v1/completions", "/v1/responses", "/v1/messages", "/completion", "/infill"),
        *("/api/chat", "/api/generate"),
    ],
)
def test_embedding_model_refuses_to_generate_text(embedding: Running, path: str) -> None:
    error = embedding.post(path, BODIES[path]).error()
    assert "bert makes only embeddings" in error
    assert "/v1/embeddings" in error


def test_embedding_model_is_reported(embedding: Running) -> None:
    (told,) = embedding.get("/v1/models").json["data"]
    assert (told["id"], told["status"]["value"]) == ("bert", "loaded")
    assert told["meta"]["n_embd"] == 64
    assert embedding.get("/health").status == 200
    (tag,) = embedding.get("/api/tags").json["models"]
    assert (tag["details"]["family"], tag["capabilities"]) == ("bert", ["embedding"])
    assert embedding.get("/api/ps").json["models"][0]["context_length"] == 512
    assert embedding.get("/metrics").status == 200
    assert embedding.get("/props").status == 400
    assert "bert is loaded. It makes only embeddings." in embedding.log.read_text()
    error = embedding.post("/v1/embeddings", {"input": "fox " * 3000}).error()
    assert "exceeds the available context size (512 tokens)" in error


def test_embedding_model_beside_a_chat_model(bert: Path, tmp_path: Path) -> None:
    more = ("-m", str(bert), "-m", str(ggufs.tiny_llama(tmp_path / "long.gguf", context=1 << 15)))
    with serving(tmp_path, "-m", "demo", *more, "--alias", "chat", "-t", "1") as both:
        assert "num_ctx 8192" in both.post("/api/show", {"model": "long"}).json["parameters"]
        shown = both.post("/api/show", {"model": "bert"}).json["capabilities"]
        assert shown == both.get("/api/tags").json["models"][1]["capabilities"] == ["embedding"]
        assert len(both.get("/api/ps").json["models"]) == 1, "it is not loaded for that"
        assert len(both.post("/v1/embeddings", {"model": "bert", "input": FOX}).json["data"]) == 1
        body = {"model": "chat", "prompt": "Once", "max_tokens": 3}
        assert both.post("/v1/completions", body).json["choices"][0]["text"]
        assert both.post("/v1/completions", {**body, "model": "bert"}).status == 400


def test_embedding_model_refuses_a_session(bert: Path, tmp_path: Path) -> None:
    session = str(tmp_path / "a.session")
    done = finished("serve", "--port", "0", "-m", str(bert), "--session", session)
    assert done.code == 2
    assert "Leave out --session" in " ".join(done.err.split())
