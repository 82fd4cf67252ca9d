"""Whatever a body holds, it is answered or refused in words, with a status below 500. The fields
are those of the records that read them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from localspec.server import app, embeddings
from localspec.server.anthropic import wire as anthropic
from localspec.server.llama_cpp import completion, infill, texts
from localspec.server.ollama import models
from localspec.server.ollama import wire as ollama
from localspec.server.openai import chat_wire, completions, responses_wire
from tests.server.process import Running

pytestmark = pytest.mark.nightly

SAYS = {"messages": [{"role": "user", "content": "Hi"}]}
SHORT = {"max_tokens": 2}
OPTIONS = {"options": {"num_predict": 2}}
READ: dict[str, tuple[type[BaseModel], dict[str, Any]]] = {
    "/v1/chat/completions": (chat_wire.ChatRequest, SAYS | SHORT),
    "/v1/chat/completions/input_tokens": (chat_wire.CountRequest, SAYS),
    "/v1/completions": (completions.CompletionRequest, {"prompt": "Once"} | SHORT),
    "/v1/responses": (responses_wire.ResponsesRequest, {"input": "Hi", "max_output_tokens": 2}),
    "/v1/embeddings": (embeddings.EmbeddingsRequest, {"input": "Hi"}),
    "/embedding": (embeddings.LlamaRequest, {"content": "Hi"}),
    "/api/embed": (embeddings.OllamaRequest, {"input": "Hi"}),
    "/api/embeddings": (embeddings.OllamaRequest, {"prompt": "Hi"}),
    "/v1/messages": (anthropic.MessagesRequest, SAYS | SHORT),
    "/v1/messages/count_tokens": (anthropic.Conversation, SAYS),
    "/api/chat": (ollama.ChatRequest, SAYS | OPTIONS),
    "/api/generate": (ollama.GenerateRequest, {"prompt": "Hi"} | OPTIONS),
    "/api/show": (models.ShowRequest, {"model": ""}),
    "/completion": (completion.Completion, {"prompt": "Once", "n_predict": 2}),
    "/infill": (infill.Infill, {"input_prefix": "a", "input_suffix": "b", "n_predict": 2}),
    "/tokenize": (texts.TokenizeRequest, {"content": "Hi"}),
    "/detokenize": (texts.DetokenizeRequest, {"tokens": [1]}),
    "/apply-template": (texts.TemplateRequest, SAYS),
}
SAME = {
    *("/chat/completions", "/chat/completions/input_tokens", "/embeddings", "/completions"),
    "/slots/{number:int}",  # needs --slot-save-path
}

LEAVES = st.one_of(
    st.sampled_from(
        (None, True, "", "\0", "\ud800", "\x1b[0m", "<|im_end|>", -1, 0, 2**70, 10**400)
    ),
    st.sampled_from((1e-320, 5e-324, -0.0, 1e308, -1e308, float("nan"), float("inf"))),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


def test_every_endpoint_is_tried() -> None:
    posts = {path for method, path, _ in app.ENDPOINTS if method == "POST"}
    assert posts == {*READ} | SAME


@settings(
    max_examples=250,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_odd_values_of_fields(server: Running, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(READ)))
    record, body = READ[path]
    names = st.sampled_from(sorted(field.alias or n for n, field in record.model_fields.items()))
    odd = data.draw(st.dictionaries(names, VALUES, min_size=1, max_size=2))
    reply = server.post(path, body | odd)
    assert reply.status < 500 or reply.status == 501, reply.body
    assert b"Internal" not in reply.body


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xff",
        b"\0",
        b"null",
        b'"a"',
        b"{" * 100_000,
        b'{"prompt": "a", "prompt": "b", "n_predict": 1}',
        b'{"prompt": "a", "n_predict": ' + b"9" * 5000 + b"}",
        b'{"prompt": "\\ud800", "n_predict": 1}',
        b'{"prompt": "a", "n_predict": 1e5}',
        b"\xef\xbb\xbf" + json.dumps({"prompt": "a", "n_predict": 1}).encode(),
    ],
)
def test_odd_bodies(server: Running, raw: bytes) -> None:
    assert server.request("POST", "/completion", raw=raw).status in (200, 400)
