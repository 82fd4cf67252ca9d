"""Images in requests, in the formats of three protocols."""

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import localspec
from localspec import Engine, SamplingParams
from tests.server.bodies import CHAT, assistant, prompt_length, tool_call, user
from tests.server.process import Running, serving
from tests.support.ggufs import tiny_llama
from tests.support.images import POSITIONS, png, projector

pytestmark = pytest.mark.nightly

TEXT = "Tell me a story about that."
COUNT = 16
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"


@pytest.fixture(scope="module")
def model_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model of random weights and its projector: any change of the prompt changes the text."""
    folder = tmp_path_factory.mktemp("model_files")
    return tiny_llama(folder / "model.gguf"), projector(folder / "mmproj.gguf", 64)


@pytest.fixture(scope="module")
def vision(
    tmp_path_factory: pytest.TempPathFactory, model_files: tuple[Path, Path]
) -> Iterator[Running]:
    model, eye = map(str, model_files)
    options = ("-m", model, "-d", "none", "-c", "512", "-t", "1", "--temp", "0", "--mmproj", eye)
    with serving(tmp_path_factory.mktemp("vision"), *options, "--drafter", "none") as running:
        yield running


@pytest.fixture(scope="module")
def reference(model_files: tuple[Path, Path]) -> Iterator[Engine]:
    model, eye = model_files
    with localspec.load(model, context=512, threads=1, draft="none", mmproj=eye) as opened:
        yield opened


def encoded(image: bytes) -> str:
    return base64.b64encode(image).decode()


def linked(image: bytes) -> str:
    return f"data:image/png;base64,{encoded(image)}"


def source(image: bytes) -> dict[str, str]:
    return {"type": "base64", "media_type": "image/png", "data": encoded(image)}


IMAGES: dict[str, Callable[[bytes], dict[str, Any]]] = {
    CHAT: lambda image: {"type": "image_url", "image_url": linked(image)},
    RESPONSES: lambda image: {"type": "input_image", "image_url": linked(image)},
    MESSAGES: lambda image: {"type": "image", "source": source(image)},
    "engine": lambda image: {"type": "image", "image": image},
}


def message(to: str, *content: bytes | str) -> dict[str, Any]:
    """A message in the format of a protocol, or of the engine; bytes are images."""
    text = "input_text" if to == RESPONSES else "text"
    return user(
        [
            {"type": text, "text": part} if isinstance(part, str) else IMAGES[to](part)
            for part in content
        ]
    )


def generate(engine: Engine, *messages: dict[str, Any]) -> tuple[str, int]:
    """Return the answer's text and the number of prompt tokens."""
    found = engine.chat(messages, max_tokens=COUNT, sampling=SamplingParams(temperature=0))
    return found.text, found.stats.prompt_tokens


def post(server: Running, path: str, body: dict[str, Any]) -> Any:
    reply = server.post(path, body)
    assert reply.status == 200, reply.body
    return reply.json


def openai(url: str) -> dict[str, Any]:
    image = {"type": "image_url", "image_url": {"url": url}}
    return {"messages": [user([image, {"type": "text", "text": TEXT}])], "max_tokens": COUNT}


def test_openai_image_urls(vision: Running, reference: Engine) -> None:
    text, tokens = generate(reference, message("engine", png(1), TEXT))
    url = linked(png(1))
    ways = ("DATA:image/png;BASE64,", "data:;base64,", "data:image/png;charset=utf-8;base64,")
    lines, bare = base64.encodebytes(png(1)).decode(), encoded(png(1)).rstrip("=")
    others = [f"{ways[1]}{said}" for said in (lines, bare, quote(bare), f" {lines}")]
    others += [ways[1] + base64.urlsafe_b64encode(png(1)).decode()]
    for written in (url, *(way + encoded(png(1)) for way in ways), *others):
        reply = post(vision, CHAT, openai(written))
        assert reply["choices"][0]["message"]["content"] == text
        assert reply["usage"]["prompt_tokens"] == tokens
    # The same image is not read again, and its positions count.
    assert reply["timings"]["cache_n"] == tokens - 1
    assert prompt_length(vision, f"{CHAT}/input_tokens", **openai(url)) == tokens > POSITIONS
    assert "vision" in post(vision, "/api/show", {})["capabilities"]


def test_large_bodies_with_images_are_accepted(vision: Running) -> None:
    post(vision, CHAT, openai(linked(png(1))) | {"user": "x" * 6_000_000})


MIXED = ("Once there was", png(1), "who met", png(2), TEXT)


@pytest.fixture(scope="module")
def mixed(reference: Engine) -> tuple[str, int]:
    """The answer to two images between texts; any other order gives another answer."""
    first = generate(reference, message("engine", *MIXED))
    for order in ((0, 3, 2, 1, 4), (1, 3, 0, 2, 4), (0, 2, 4, 1, 3)):
        other = message("engine", *(MIXED[place] for place in order))
        assert generate(reference, other)[0] != first[0]
    return first


def test_text_and_images_keep_their_order(vision: Running, mixed: tuple[str, int]) -> None:
    chat = post(vision, CHAT, {"messages": [message(CHAT, *MIXED)], "max_tokens": COUNT})
    assert (chat["choices"][0]["message"]["content"], chat["usage"]["prompt_tokens"]) == mixed
    body = {"input": [message(RESPONSES, *MIXED)], "max_output_tokens": COUNT}
    assert post(vision, RESPONSES, body)["output"][-1]["content"][0]["text"] == mixed[0]
    body = {"messages": [message(MESSAGES, *MIXED)]}
    claude = post(vision, MESSAGES, {**body, "max_tokens": COUNT})
    assert claude["content"][0]["text"] == mixed[0]
    assert prompt_length(vision, f"{MESSAGES}/count_tokens", **body) == mixed[1]


@pytest.mark.parametrize(
    ("path", "later"),
    [
        *((MESSAGES, []), (RESPONSES, []), (CHAT, []), (CHAT, [user("So?")])),
        (CHAT, [assistant("A fox."), user("So?")]),
    ],
)
def test_images_in_tool_results_are_read(vision: Running, path: str, later: list[Any]) -> None:
    def tokens(*content: Any) -> int:
        called = {
            CHAT: assistant(None, tool_calls=[tool_call("look", id="a")]),
            MESSAGES: assistant([{"type": "tool_use", "id": "a", "name": "look", "input": {}}]),
            RESPONSES: {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"},
        }
        result = {
            CHAT: {"role": "tool", "content": [*content]},
            MESSAGES: user([{"type": "tool_result", "tool_use_id": "a", "content": [*content]}]),
            RESPONSES: {"type": "function_call_output", "call_id": "a", "output": [*content]},
        }
        turns = [user(TEXT), called[path], result[path], *later]
        count = f"{path}/{'count' if path == MESSAGES else 'input'}_tokens"
        return prompt_length(vision, count, messages=turns, input=turns)

    assert tokens(IMAGES[path](png(1))) >= tokens() + POSITIONS


def test_ollama_images_come_first_and_in_order(vision: Running, reference: Engine) -> None:
    system = {"role": "system", "content": "You tell stories."}
    first = generate(reference, system, message("engine", png(1), png(2), TEXT))
    other = message("engine", png(2), png(1), TEXT)
    assert generate(reference, system, other)[0] != first[0]
    assert generate(reference, message("engine", png(1), png(2), TEXT))[0] != first[0]
    images = [encoded(png(1)), encoded(png(2))]
    more = {"stream": False, "options": {"num_predict": COUNT}}
    reply = post(vision, "/api/chat", {"messages": [system, user(TEXT, images=images)], **more})
    assert (reply["message"]["content"], reply["prompt_eval_count"]) == first
    body = {"prompt": TEXT, "system": system["content"], "images": images, **more}
    reply = post(vision, "/api/generate", body)
    assert (reply["response"], reply["prompt_eval_count"]) == first
    body["images"] = [base64.encodebytes(png(1)).decode(), linked(png(2))]
    assert post(vision, "/api/generate", body)["response"] == first[0]


def _anthropic(source: dict[str, str] | None) -> dict[str, Any]:
    return {"messages": [user([{"type": "image", "source": source}])], "max_tokens": COUNT}


_ANYWHERE = {"type": "url", "url": "https://example.com/fox.png"}
_BROKEN = source(b"") | {"data": "%%%"}
_IN_SYSTEM = [{**message(CHAT, png(1)), "role": "system"}, user("x")]
_IMAGE = encoded(png(1))


@pytest.mark.parametrize(
    ("path", "body", "why"),
    [
        (CHAT, openai("https://e.com/fox.png"), "The server fetches nothing"),
        (CHAT, openai("file:///etc/passwd"), "The server fetches nothing"),
        (CHAT, openai("data:;base64,%%%"), "not valid base64"),
        (CHAT, openai("data:;base64,bm8gaW1hZ2U="), "cannot be read"),
        (MESSAGES, _anthropic(_ANYWHERE), "nothing: send the image in a source of type base64"),
        (MESSAGES, _anthropic(None), "The server fetches nothing"),
        (MESSAGES, _anthropic(_BROKEN), "not valid base64"),
        ("/api/generate", {"prompt": TEXT, "images": ["%%%"]}, "not valid base64"),
        ("/api/generate", {"prompt": TEXT, "images": [_IMAGE], "raw": True}, "Leave raw out"),
        ("/api/chat", {"messages": [user(TEXT)], "images": [_IMAGE]}, "Images go with a message"),
        (CHAT, {"messages": _IN_SYSTEM}, "text only"),
    ],
)
def test_invalid_images_are_refused(
    vision: Running, path: str, body: dict[str, Any], why: str
) -> None:
    assert why in vision.post(path, body).error()
