"""Images in requests, in the words of three protocols."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import localspec
from localspec import Engine, SamplingParams
from tests.server.process import Running, serving
from tests.support.ggufs import tiny_llama
from tests.support.images import POSITIONS, png, projector

pytestmark = pytest.mark.nightly

TEXT = "Tell me a story about that."
COUNT = 16
IMAGE = base64.b64encode(png(1)).decode()


@pytest.fixture(scope="module")
def chaos(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model of random weights and its projector: whatever is in the prompt changes the text."""
    folder = tmp_path_factory.mktemp("chaos")
    return tiny_llama(folder / "model.gguf"), projector(folder / "mmproj.gguf", 64)


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory, chaos: tuple[Path, Path]) -> Iterator[Running]:
    model, eye = map(str, chaos)
    said = ("-m", model, "-d", "none", "-c", "512", "-t", "1", "--temp", "0", "--mmproj", eye)
    with serving(tmp_path_factory.mktemp("seeing"), *said, "--drafter", "none") as running:
        yield running


@pytest.fixture(scope="module")
def reference(chaos: tuple[Path, Path]) -> Iterator[Engine]:
    model, eye = chaos
    with localspec.load(model, context=512, threads=1, draft="none", mmproj=eye) as opened:
        yield opened


def said_by(engine: Engine, *messages: dict[str, Any]) -> tuple[str, int]:
    """What it says, and how long the prompt is; bytes in a content are images."""
    told = [
        message
        if isinstance(message["content"], str)
        else {**message, "content": [part_of(part) for part in message["content"]]}
        for message in messages
    ]
    found = engine.chat(told, max_tokens=COUNT, sampling=SamplingParams(temperature=0))
    return found.text, found.stats.prompt_tokens


def part_of(part: bytes | str) -> dict[str, Any]:
    if isinstance(part, bytes):
        return {"type": "image", "image": part}
    return {"type": "text", "text": part}


def user(*content: bytes | str) -> dict[str, Any]:
    return {"role": "user", "content": content}


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


def test_openai(seeing: Running, reference: Engine) -> None:
    text, tokens = said_by(reference, user(png(1), TEXT))
    url = f"data:image/png;base64,{IMAGE}"
    ways = ("DATA:image/png;BASE64,", "data:;base64,", "data:image/png;charset=utf-8;base64,")
    for written in (url, *(way + IMAGE for way in ways)):
        reply = asked(seeing, "/v1/chat/completions", openai(written))
        assert reply["choices"][0]["message"]["content"] == text
        assert reply["usage"]["prompt_tokens"] == tokens
    # The same image is not read again, and its positions count.
    assert reply["timings"]["cache_n"] == tokens - 1
    count = asked(seeing, "/v1/chat/completions/input_tokens", openai(url))
    assert count["input_tokens"] == tokens > POSITIONS
    assert "vision" in asked(seeing, "/api/show", {})["capabilities"]


def test_images_may_be_large(seeing: Running) -> None:
    body = openai(f"data:image/png;base64,{IMAGE}") | {"user": "x" * 6_000_000}
    asked(seeing, "/v1/chat/completions", body)


MIXED = ("Once there was", png(1), "who met", png(2), TEXT)


@pytest.fixture(scope="module")
def mixed(reference: Engine) -> tuple[str, int]:
    """What is said of two images between texts, which is another thing in another order."""
    first = said_by(reference, user(*MIXED))
    for other in ((0, 3, 2, 1, 4), (1, 3, 0, 2, 4), (0, 2, 4, 1, 3)):
        assert said_by(reference, user(*(MIXED[place] for place in other)))[0] != first[0]
    return first


def encoded(image: bytes) -> str:
    return base64.b64encode(image).decode()


def test_parts_keep_their_places(seeing: Running, mixed: tuple[str, int]) -> None:
    def parts(image: str, text: str) -> list[dict[str, Any]]:
        return [
            {"type": text, "text": part}
            if isinstance(part, str)
            else {"type": image, "image_url": f"data:image/png;base64,{encoded(part)}"}
            for part in MIXED
        ]

    body = {"messages": [{"role": "user", "content": parts("image_url", "text")}]}
    reply = asked(seeing, "/v1/chat/completions", {**body, "max_tokens": COUNT})
    assert reply["choices"][0]["message"]["content"] == mixed[0]
    assert reply["usage"]["prompt_tokens"] == mixed[1]
    body = {"input": [{"role": "user", "content": parts("input_image", "input_text")}]}
    reply = asked(seeing, "/v1/responses", {**body, "max_output_tokens": COUNT})
    assert reply["output"][-1]["content"][0]["text"] == mixed[0]
    content = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": encoded(part)},
        }
        for part in MIXED
    ]
    body = {"messages": [{"role": "user", "content": content}]}
    reply = asked(seeing, "/v1/messages", {**body, "max_tokens": COUNT})
    assert reply["content"][0]["text"] == mixed[0]
    count = asked(seeing, "/v1/messages/count_tokens", body)
    assert count["input_tokens"] == mixed[1]


def test_an_image_that_a_tool_gives_is_seen(seeing: Running) -> None:
    def tokens(*content: dict[str, Any]) -> int:
        use = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "a", "content": [*content]}
        turns = [("user", TEXT), ("assistant", [use]), ("user", [result])]
        body = {"messages": [{"role": role, "content": said} for role, said in turns]}
        found = asked(seeing, "/v1/messages/count_tokens", body)["input_tokens"]
        assert isinstance(found, int)
        return found

    text = {"type": "text", "text": TEXT}
    image = {"type": "image", "source": {"type": "base64", "data": IMAGE}}
    assert tokens(text, image) >= tokens(text) + POSITIONS


def test_ollamas_images_come_first_and_in_order(seeing: Running, reference: Engine) -> None:
    system = {"role": "system", "content": "You tell stories."}
    first = said_by(reference, system, user(png(1), png(2), TEXT))
    assert said_by(reference, system, user(png(2), png(1), TEXT))[0] != first[0]
    assert said_by(reference, user(png(1), png(2), TEXT))[0] != first[0]
    images = [encoded(png(1)), encoded(png(2))]
    more = {"stream": False, "options": {"num_predict": COUNT}}
    messages = [
        {"role": "system", "content": "You tell stories."},
        {"role": "user", "content": TEXT, "images": images},
    ]
    reply = asked(seeing, "/api/chat", {"messages": messages, **more})
    assert (reply["message"]["content"], reply["prompt_eval_count"]) == first
    body = {"prompt": TEXT, "system": "You tell stories.", "images": images, **more}
    reply = asked(seeing, "/api/generate", body)
    assert (reply["response"], reply["prompt_eval_count"]) == first


def _anthropic(source: dict[str, str] | None) -> dict[str, Any]:
    content = [{"type": "image", "source": source}, {"type": "text", "text": TEXT}]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": COUNT}


_ANYWHERE = {"type": "url", "url": "https://example.com/fox.png"}
_BROKEN = {"type": "base64", "media_type": "image/png", "data": "%%%"}
_SHOWN = [{"type": "image_url", "image_url": f"data:image/png;base64,{IMAGE}"}]


@pytest.mark.parametrize(
    ("path", "body", "why"),
    [
        ("/v1/chat/completions", openai("https://e.com/fox.png"), "The server fetches nothing"),
        ("/v1/chat/completions", openai("file:///etc/passwd"), "The server fetches nothing"),
        ("/v1/chat/completions", openai("data:;base64,%%%"), "not valid base64"),
        ("/v1/chat/completions", openai("data:;base64,bm8gaW1hZ2U="), "cannot be read"),
        ("/v1/messages", _anthropic(_ANYWHERE), "send the image, in a source of type base64"),
        ("/v1/messages", _anthropic(_ANYWHERE), "The server fetches nothing"),
        ("/v1/messages", _anthropic(None), "The server fetches nothing"),
        ("/v1/messages", _anthropic(_BROKEN), "not valid base64"),
        ("/api/generate", {"prompt": TEXT, "images": ["%%%"]}, "not valid base64"),
        ("/api/generate", {"prompt": TEXT, "images": [IMAGE], "raw": True}, "Leave raw out"),
        (
            "/api/chat",
            {"messages": [{"role": "user", "content": TEXT}], "images": [IMAGE]},
            "Images go with a message",
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "system", "content": _SHOWN}, {"role": "user", "content": "x"}]},
            "text only",
        ),
    ],
)
def test_what_no_protocol_takes(seeing: Running, path: str, body: dict[str, Any], why: str) -> None:
    reply = seeing.request("POST", path, body)
    assert reply.status == 400, reply.body
    assert why in json.dumps(reply.json["error"])
