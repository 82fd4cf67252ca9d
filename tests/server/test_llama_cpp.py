"""What clients of llama.cpp's own server find here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localspec import Engine, SamplingParams
from tests.server.bodies import function, user
from tests.server.process import Running, serving
from tests.support.retokenised import outfitted

pytestmark = pytest.mark.nightly


def test_tokens_and_back(server: Running, engine: Engine) -> None:
    text = "The fox says: 媽 🤗\n"
    tokens = server.post("/tokenize", {"content": text}).json["tokens"]
    assert tokens == engine.tokenize(text)
    assert server.post("/detokenize", {"tokens": tokens}).json == {"content": text, "prompt": text}
    pieces = server.post("/tokenize", {"content": text, "with_pieces": True}).json["tokens"]
    assert [one["id"] for one in pieces] == tokens
    data = b"".join(
        one["piece"].encode() if isinstance(one["piece"], str) else bytes(one["piece"])
        for one in pieces
    )
    assert data.decode() == text
    marks = {"content": "<|end|>"}
    assert len(server.post("/tokenize", marks).json["tokens"]) == 1
    assert len(server.post("/tokenize", {**marks, "parse_special": False}).json["tokens"]) > 1
    vocabulary = engine.model.vocabulary
    eos = server.get("/tokenizer_info").json["eos_token"]
    assert eos == vocabulary.special_text(vocabulary.eos)
    plain = {"prompt": text, "add_special_tokens": False}  # vLLM's names
    assert server.post("/tokenize", plain).json["tokens"] == tokens
    whole = server.post("/tokenize", {"prompt": text}).json["tokens"]
    assert whole == [vocabulary.bos] * vocabulary.adds_bos + tokens


def test_the_template(server: Running, engine: Engine) -> None:
    messages = [{"role": "system", "content": "Be brief."}, user("Hi")]
    prompt = server.post("/apply-template", {"messages": messages}).json["prompt"]
    assert prompt == engine.prompts.text(messages)
    assert prompt.endswith("<|assistant|>")
    asked = {"messages": messages, "tools": [function("clock")]}
    assert "clock" in server.post("/apply-template", asked).json["prompt"]


def test_props(server: Running) -> None:
    props = server.get("/props").json
    assert props["model_path"].endswith("tale-13m-q8_0.gguf")
    assert props["total_slots"] == 1
    assert props["default_generation_settings"]["n_ctx"] == 1024
    assert props["default_generation_settings"]["params"]["temperature"] == 0.0
    assert "<|" in props["chat_template"]


def test_slots_show_no_text(server: Running) -> None:
    server.wait_until_idle()
    (slot,) = server.get("/slots").json
    assert (slot["is_processing"], slot["speculative"]) == (False, True)
    assert slot["n_ctx"] == 1024
    assert "prompt" not in slot


def test_a_completion(server: Running, engine: Engine) -> None:
    own = engine.generate(
        "Once upon a time", max_tokens=12, sampling=SamplingParams(temperature=0.0)
    )
    body = {"prompt": "Once upon a time", "n_predict": 12, "n_probs": 2, "return_tokens": True}
    answer = server.post("/completion", body).json
    assert answer["content"] == own.text
    assert answer["stop_type"] == "limit"
    assert answer["tokens_predicted"] == answer["timings"]["predicted_n"] == 12
    assert answer["tokens_evaluated"] == own.stats.prompt_tokens
    assert b"".join(map(engine.token_bytes, answer["tokens"])).decode() == own.text
    assert len(answer["completion_probabilities"]) == 12
    assert len(answer["completion_probabilities"][0]["top_logprobs"]) == 2
    assert answer["generation_settings"]["n_predict"] == 12
    streamed = server.post("/completion", {**body, "stream": True}).events
    assert "".join(one["content"] for one in streamed) == own.text
    assert [one["stop"] for one in streamed] == [False] * (len(streamed) - 1) + [True]
    assert [token for one in streamed for token in one["tokens"]] == answer["tokens"]


def test_prompts_of_all_shapes(server: Running, engine: Engine) -> None:
    text = "Once upon a time"
    tokens = server.post("/tokenize", {"content": text, "add_special": True}).json["tokens"]
    mixed = [*tokens[:-1], engine.token_bytes(tokens[-1]).decode()]
    shapes: list[Any] = [text, tokens, mixed, {"prompt_string": text}]
    texts = [
        server.post("/completion", {"prompt": shape, "n_predict": 6}).json["content"]
        for shape in shapes
    ]
    assert len(set(texts)) == 1
    both = server.post("/completion", {"prompt": shapes[:2], "n_predict": 6}).json
    assert [one["content"] for one in both] == texts[:2]
    assert [one["index"] for one in both] == [0, 1]


def test_why_it_ended(server: Running) -> None:
    body = {"prompt": "Once upon a time", "n_predict": 30}
    text = server.post("/completion", body).json["content"]
    word = server.post("/completion", {**body, "stop": [text[10:15]]}).json
    assert (word["stop_type"], word["stopping_word"]) == ("word", text[10:15])
    nothing = server.post("/completion", {**body, "n_predict": 0}).json
    assert (nothing["content"], nothing["tokens_predicted"]) == ("", 0)
    grammar = server.post("/completion", {**body, "grammar": 'root ::= " yes"'}).json
    assert (grammar["content"], grammar["stop_type"]) == (" yes", "eos")


def test_fields_that_are_asked_for(server: Running) -> None:
    body = {"prompt": "x", "n_predict": 1, "response_fields": ["content", "timings/prompt_n"]}
    assert set(server.post("/completion", body).json) == {"content", "timings/prompt_n"}


def test_a_bias_in_llama_cpps_way(server: Running) -> None:
    body: dict[str, Any] = {"prompt": "Once upon a time", "n_predict": 1}
    said = server.post("/completion", body).json["content"]
    for bias in ([[said, False]], [[said, -1000]], {said: -1000}):
        assert server.post("/completion", {**body, "logit_bias": bias}).json["content"] != said
    for bias in ([[said]], [[said, "x"]], [[1.5, 1]], [[said, True, 1]]):
        assert server.post("/completion", {**body, "logit_bias": bias}).status == 400


def test_a_model_without_tokens_for_it_does_not_fill_in(server: Running) -> None:
    reply = server.post("/infill", {"input_prefix": "a", "input_suffix": "b"})
    assert reply.status == 501
    assert reply.json["error"]["type"] == "not_supported_error"


@pytest.fixture(scope="module")
def coder(tmp_path_factory: pytest.TempPathFactory, draft_path: Path) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("coder")
    model = outfitted(folder / "coder.gguf", draft_path, filling=["!", "?", "."])
    with serving(folder, "-m", str(model), "-d", "none", "-c", "256", "-t", "1") as running:
        yield running


def test_filling_in(coder: Running) -> None:
    body = {
        "input_prefix": "def fox():\n",
        "input_suffix": "\nfox()\n",
        "prompt": "    return",
        "input_extra": [{"filename": "hen.py", "text": "HEN = 1\n"}],
        "n_predict": 4,
    }
    answer = coder.post("/infill", body).json
    at = [answer["prompt"].index(part) for part in ("HEN", "def fox", "    return", "\nfox()")]
    assert at == sorted(at)
    assert answer["tokens_predicted"] <= 4
    long = {**body, "input_prefix": "a = 1\n" * 500, "input_suffix": "b = 2\n" * 500}
    answer = coder.post("/infill", long).json
    assert answer["tokens_evaluated"] < 256
    for extra in ({}, {"filename": "ok"}, {"filename": 1, "text": "x"}):
        assert coder.post("/infill", {**body, "input_extra": [extra]}).status == 400


def test_metrics_are_what_prometheus_reads(server: Running) -> None:
    server.post("/v1/completions", {"prompt": "The fox, the fox, the fox, the", "max_tokens": 20})
    text = server.get("/metrics").body.decode()
    name = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
    label = r'\w+="[^"]*"'
    for line in text.splitlines():
        assert re.fullmatch(
            rf"# (HELP {name} .+|TYPE {name} (counter|gauge))"
            rf"|{name}(\{{{label}(,{label})*\}})? [-+.e\d]+",
            line,
        ), line
    for known in (
        "llamacpp:prompt_tokens_total",
        "llamacpp:tokens_predicted_total",
        "llamacpp:spec_decode_num_draft_tokens_total",
        "localspec:answers_total",
    ):
        assert server.metric(known) > 0, known


def test_drafts_are_counted_by_drafter_and_position_together(server: Running) -> None:
    server.post("/v1/completions", {"prompt": "The fox, the fox, the fox, the", "max_tokens": 20})
    text = server.get("/metrics").body.decode()
    accepted, tested = (
        {
            (drafter, int(position)): int(count)
            for drafter, position, count in re.findall(
                rf'localspec:{name}_tokens_total\{{drafter="(.+)",position="(\d+)"\}} (\d+)', text
            )
        }
        for name in ("accepted", "tested")
    )
    assert accepted["ngram", 0] > 0
    assert accepted.keys() <= tested.keys()
    assert all(0 <= count <= tested[one] for one, count in accepted.items())
    by_position = re.findall(r'_accepted_tokens_per_pos_total\{position="(\d+)"\} (\d+)', text)
    assert len(by_position) > 1
    for position, count in by_position:
        assert sum(n for (_, at), n in accepted.items() if at == int(position)) == int(count)
