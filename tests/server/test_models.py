"""Several models in one server."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from localspec import ModelOptions, paths
from localspec.cli.serve import needs
from tests.server.bodies import ASK, BODIES, CHAT
from tests.server.process import Running, module_server, serving_program, wait_until

pytestmark = pytest.mark.nightly

LARGE, SMALL = "tale-13m-q8_0", "tiny"

two = module_server(
    *("-m", str(paths.embedded(paths.EMBEDDED_TARGET)), "--alias", LARGE),
    *("-m", str(paths.embedded(paths.EMBEDDED_DRAFT)), "--alias", SMALL, "-d", "none", "-c", "256"),
)
"""The first under its file's name, the second under one of its own."""
one = module_server(
    *("-m", str(paths.embedded(paths.EMBEDDED_DRAFT)), "-d", "none", "-c", "256", "-t", "1")
)


def loaded_models(server: Running) -> list[str]:
    models = server.get("/v1/models").json["data"]
    return [model["id"] for model in models if model["status"]["value"] == "loaded"]


def vocabulary(server: Running, model: str) -> Any:
    return server.get(f"/v1/models/{model}").json.get("meta")


def test_a_model_is_loaded_on_request(two: Running, draft_path: Path) -> None:
    of_codex = two.get("/v1/models?client_version=1").json
    told = [(x["id"], x["display_name"], x["type"]) for x in of_codex["data"] + of_codex["models"]]
    assert told == [(name, name, "model") for name in (LARGE, SMALL)]
    assert loaded_models(two) == [LARGE]
    assert vocabulary(two, SMALL) is None
    tags = two.get("/api/tags").json["models"]
    assert [tag["name"] for tag in tags] == [LARGE, SMALL]
    assert tags[1]["size"] == draft_path.stat().st_size
    body = {"prompt": "Once upon a time", "max_tokens": 3, "temperature": 0}
    for name in (SMALL, LARGE):
        assert two.post("/v1/completions", {**body, "model": name}).json["model"] == name
    assert sorted(loaded_models(two)) == sorted([LARGE, SMALL])
    assert vocabulary(two, SMALL)["n_embd"] < vocabulary(two, LARGE)["n_embd"]
    assert len(two.get("/api/ps").json["models"]) == 2
    # By its reference, and the first one where nobody says which.
    assert two.post("/v1/completions", {**body, "model": str(draft_path)}).json["model"] == SMALL
    assert two.post("/v1/completions", body).json["model"] == LARGE
    before = two.metric("llamacpp:tokens_predicted_total")  # the first one's
    two.post("/v1/completions", {**body, "model": SMALL})
    assert two.metric("llamacpp:tokens_predicted_total") == before > 0
    for name in (SMALL, LARGE):  # or by the address, as where there is no body
        assert two.get(f"/props?model={name}").json["model_alias"] == name
        assert two.post(f"/v1/completions?model={name}", body).json["model"] == name


@pytest.mark.parametrize(
    ("path", "member", "more"),
    [("/api/generate", "response", {}), ("/api/chat", "message", {"messages": []})],
)
@pytest.mark.parametrize("zero", [0, 0.0, "0", "0s", "0h0m0s", "0ms"])
def test_ollama_clients_can_unload_a_model(
    one: Running, path: str, member: str, more: dict[str, Any], zero: Any
) -> None:
    names = loaded_models(one)
    assert len(names) == 1
    gone = one.post(path, {"model": names[0], **more, "keep_alive": zero}).json
    assert (gone["model"], gone["done_reason"]) == (names[0], "unload")
    assert member in gone
    assert loaded_models(one) == []
    assert one.get("/api/ps").json == {"models": []}
    assert [tag["name"] for tag in one.get("/api/tags").json["models"]] == names
    assert one.get("/health").status == 200
    assert one.post("/completion", {"prompt": "A fox", "n_predict": 1}).status == 200
    assert loaded_models(one) == names
    asked = {"model": names[0], "prompt": "A", "messages": ASK, "options": {"num_predict": 1}}
    assert one.post(path, {**asked, "keep_alive": zero}).events[-1]["done_reason"] == "length"
    wait_until(lambda: not loaded_models(one), "the model is unloaded after its answer")
    assert one.post("/completion", {"prompt": "A fox", "n_predict": 1}).status == 200


@pytest.mark.parametrize(
    "path", [CHAT, "/v1/responses", "/completion", "/tokenize", "/api/show", "/api/pull"]
)
def test_unknown_model(two: Running, path: str) -> None:
    error = two.post(path, {**BODIES[path], "model": "gpt-99"}).error(404)
    assert "gpt-99" in error
    assert SMALL in error
    assert two.get("/events?model=gpt-99").status == 404


TIGHT = """
def offer(name):
    path = pathlib.Path(name)
    def opener(progress):
        if not path.name.startswith("tale"):
            raise MemoryError
        return load(path, draft=None, context=2048, threads=1, progress=progress)
    return host(opener, path, needs=lambda: 1 << 60)

start(*map(offer, sys.argv[1:]))
"""


def memory_limited_server(*files: Path) -> AbstractContextManager[Running]:
    return serving_program(TIGHT, *map(str, files))


def test_an_idle_model_is_unloaded_for_another(target_path: Path, draft_path: Path) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 3}
    with memory_limited_server(target_path, draft_path) as server:
        for path in (draft_path, target_path, draft_path):
            assert server.post("/v1/completions", {**body, "model": path.stem}).status == 200
            assert loaded_models(server) == [path.stem]


def test_remote_layers_need_no_local_memory(target_path: Path) -> None:
    here = needs(target_path, ModelOptions(context=256))
    there = needs(target_path, ModelOptions(context=256, rpc=("one:50052",)))
    assert 0 < there < here - target_path.stat().st_size // 2


def test_a_busy_model_is_not_unloaded(target_path: Path, draft_path: Path) -> None:
    long = {"prompt": "Once upon a time", "ignore_eos": True}
    with memory_limited_server(target_path, draft_path) as server:

        def ask(path: Path, tokens: int) -> Any:
            body = {**long, "model": path.stem, "max_tokens": tokens}
            return server.post("/v1/completions", body).json["usage"]["completion_tokens"]

        with ThreadPoolExecutor() as pool:
            first = pool.submit(ask, target_path, 600)
            wait_until(lambda: not server.idle, "the first one answers")
            second = pool.submit(ask, draft_path, 2)
        assert (first.result(), second.result()) == (600, 2)
        assert loaded_models(server) == [draft_path.stem]


def test_a_model_that_fails_to_load_does_not_affect_others(
    target_path: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"no model")
    body = {"prompt": "Once upon a time", "max_tokens": 2}
    with memory_limited_server(target_path, broken) as server:
        for _ in range(2):
            assert server.post("/v1/completions", {**body, "model": "broken"}).status == 503
            # None is loaded now, and the first is as soon as it is asked for.
            assert loaded_models(server) == []
            assert server.states(1)[0]["context"] == 0
            assert server.get("/health").status == 200
            assert server.get("/api/ps").json["models"] == []
            assert len(server.get("/api/tags").json["models"]) == 2
            assert server.post("/v1/completions", body).json["model"] == target_path.stem
            assert server.states(1)[0]["context"] == 2048


def test_requests_wait_for_a_model_that_is_being_unloaded(
    target_path: Path, draft_path: Path
) -> None:
    """Each is answered, whatever the order in which models are asked for and unloaded."""

    def ask(number: int) -> int:
        name = (target_path, draft_path)[number % 2].stem
        if number % 3:
            body = {"prompt": "Once upon a time", "max_tokens": 2, "model": name}
            return server.post("/v1/completions", body).status
        return server.post("/api/generate", {"model": name, "keep_alive": 0}).status

    with memory_limited_server(target_path, draft_path) as server, ThreadPoolExecutor(12) as pool:
        assert set(pool.map(ask, range(96))) == {200}


def test_an_unloaded_model_does_not_seem_to_be_loading(one: Running) -> None:
    name = loaded_models(one)[0]
    one.post("/api/generate", {"model": name, "keep_alive": 0})
    told = f"{name} is not loaded now. The next request for an answer loads it."
    assert one.get("/props").error(503) == told
    assert one.post("/completion", {"prompt": "A fox", "n_predict": 1}).status == 200
