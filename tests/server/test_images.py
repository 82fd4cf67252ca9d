"""Images in requests, in the words of three protocols."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import localspec
from localspec import SamplingParams
from tests.server.process import Running, serving
from tests.support.images import POSITIONS, png, projector

TEXT = "Tell me a story about that."
COUNT = 16
IMAGE = base64.b64encode(png(1)).decode()


@pytest.fixture(scope="module")
def eye(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return projector(tmp_path_factory.mktemp("eye") / "mmproj.gguf", 384)


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory, eye: Path) -> Iterator[Running]:
    said = ("-c", "512", "-t", "1", "--temp", "0", "--drafter", "model", "--mmproj", str(eye))
    with serving(tmp_path_factory.mktemp("seeing"), *said) as running:
        yield running


@pytest.fixture(scope="module")
def expected(eye: Path) -> tuple[str, int]:
    """What the engine says without drafts, and how long the prompt is."""
    image = {"type": "image", "image": png(1)}
    messages = [{"role": "user", "content": [image, {"type": "text", "text": TEXT}]}]
    with localspec.load(context=512, threads=1, draft="none", mmproj=eye) as engine:
        found = engine.chat(messages, max_tokens=COUNT, sampling=SamplingParams(temperature=0))
    return found.text, found.stats.prompt_tokens


def asked(server: Running, path: str, body: dict[str, Any]) -> Any:
    reply = server.request("POST", path, body)
    assert reply.status == 200, reply.body
    return reply.json


def openai(url: str) -> dict[str, Any]:
    parts = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": TEXT},
    ]
    return {"messages": [{"role": "user", "content": parts}], "max_tokens": COUNT}


def test_openai(seeing: Running, expected: tuple[str, int]) -> None:
    url = f"data:image/png;base64,{IMAGE}"
    reply = asked(seeing, "/v1/chat/completions", openai(url))
    assert reply["choices"][0]["message"]["content"] == expected[0]
    assert reply["usage"]["prompt_tokens"] == expected[1]
    assert reply["timings"]["draft_n_accepted"] > 0
    # The same image is not read again, and its positions count.
    again = asked(seeing, "/v1/chat/completions", openai(url))
    assert again["timings"]["cache_n"] == expected[1] - 1
    count = asked(seeing, "/v1/chat/completions/input_tokens", openai(url))
    assert count["input_tokens"] == expected[1] > POSITIONS
    said = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": TEXT}]
    body = {"input": [{"role": "user", "content": said}], "max_output_tokens": COUNT}
    reply = asked(seeing, "/v1/responses", body)
    assert reply["output"][-1]["content"][0]["text"] == expected[0]


def test_anthropic(seeing: Running, expected: tuple[str, int]) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": IMAGE}
    content = [{"type": "image", "source": source}, {"type": "text", "text": TEXT}]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": COUNT}
    assert asked(seeing, "/v1/messages", body)["content"][0]["text"] == expected[0]


def test_ollama(seeing: Running, expected: tuple[str, int]) -> None:
    more = {"stream": False, "options": {"num_predict": COUNT}}
    message = {"role": "user", "content": TEXT, "images": [IMAGE]}
    reply = asked(seeing, "/api/chat", {"messages": [message], **more})
    assert reply["message"]["content"] == expected[0]
    reply = asked(seeing, "/api/generate", {"prompt": TEXT, "images": [IMAGE], **more})
    assert reply["response"] == expected[0]
    assert "vision" in asked(seeing, "/api/show", {})["capabilities"]


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("https://example.com/fox.png", "The server fetches nothing"),
        ("file:///etc/passwd", "The server fetches nothing"),
        ("data:image/png;base64,%%%", "no valid base64"),
        (f"data:image/png;base64,{base64.b64encode(b'no image').decode()}", "cannot be read"),
    ],
)
def test_what_is_no_image(seeing: Running, url: str, why: str) -> None:
    reply = seeing.request("POST", "/v1/chat/completions", openai(url))
    assert reply.status == 400
    assert why in reply.json["error"]["message"]


def test_a_server_without_a_projector_says_so(server: Running) -> None:
    url = f"data:image/png;base64,{IMAGE}"
    reply = server.request("POST", "/v1/chat/completions", openai(url))
    assert reply.status == 400
    assert "reads text only" in reply.json["error"]["message"]
