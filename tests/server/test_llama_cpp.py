"""llama.cpp's endpoints, including faults that its server's tests found
(dev/llama_server_tests.md)."""

import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from localspec import Engine
from tests.server.bodies import CHAT, assistant, function, prompt_length, user
from tests.server.process import Running, module_server, serving
from tests.support.asking import GREEDY
from tests.support.retokenised import with_template

pytestmark = pytest.mark.nightly


def test_tokenize_and_detokenize(server: Running, engine: Engine) -> None:
    text = "The fox says: 媽 🤗\n"
    tokens = server.post("/tokenize", {"content": text}).json["tokens"]
    assert tokens == engine.tokenize(text)
    assert server.post("/detokenize", {"tokens": tokens}).json == {"content": text, "prompt": text}
    pieces = server.post("/tokenize", {"content": text, "with_pieces": True}).json["tokens"]
    assert [one["id"] for one in pieces] == tokens
    parts = (one["piece"] for one in pieces)
    data = (part.encode() if isinstance(part, str) else bytes(part) for part in parts)
    assert b"".join(data).decode() == text
    vocabulary = engine.model.vocabulary
    eos = server.get("/tokenizer_info").json["eos_token"]
    assert eos == vocabulary.special_text(vocabulary.eos)
    plain = {"prompt": text, "add_special_tokens": False}  # vLLM's names
    assert server.post("/tokenize", plain).json["tokens"] == tokens
    whole = server.post("/tokenize", {"prompt": text}).json["tokens"]
    assert whole == [vocabulary.bos] * vocabulary.adds_bos + tokens
    mixed = server.post("/tokenize", {"content": [text, 5, text], "add_special": True}).json
    assert mixed["tokens"] == [*whole, 5, *tokens]


def test_apply_template(server: Running, engine: Engine) -> None:
    messages = [{"role": "system", "content": "Be brief."}, user("Hi")]
    prompt = server.post("/apply-template", {"messages": messages}).json["prompt"]
    assert prompt == engine.prompts.text(messages)
    assert prompt.endswith("<|assistant|>")
    asked = {"messages": messages, "tools": [function("clock")]}
    assert "clock" in server.post("/apply-template", asked).json["prompt"]


def test_props_and_slots(server: Running) -> None:
    props = server.get("/props").json
    assert props["model_path"].endswith("tale-13m-q8_0.gguf")
    assert (props["total_slots"], props["default_generation_settings"]["n_ctx"]) == (1, 1024)
    assert props["default_generation_settings"]["params"]["temperature"] == 0.0
    assert "<|" in props["chat_template"]
    can = props["chat_template_caps"]
    assert (can["supports_tools"], can["supports_system_role"]) == (False, True)
    server.wait_until_idle()
    (slot,) = server.get("/slots").json
    assert (slot["is_processing"], slot["speculative"], slot["n_ctx"]) == (False, True, 1024)
    assert "prompt" not in slot


def test_completion_matches_the_engine(server: Running, engine: Engine) -> None:
    own = engine.generate("Once upon a time", max_tokens=12, sampling=GREEDY)
    body = {"prompt": "Once upon a time", "n_predict": 12, "n_probs": 2, "return_tokens": True}
    answer = server.post("/completion", body).json
    assert (answer["content"], answer["stop_type"]) == (own.text, "limit")
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


def test_prompt_formats(server: Running, engine: Engine) -> None:
    text = "Once upon a time"
    tokens = server.post("/tokenize", {"content": text, "add_special": True}).json["tokens"]
    mixed = [*tokens[:-1], engine.token_bytes(tokens[-1]).decode()]
    shapes: list[Any] = [text, tokens, mixed, {"prompt_string": text}]
    told = [server.post("/completion", {"prompt": shape, "n_predict": 6}) for shape in shapes]
    texts = [reply.json["content"] for reply in told]
    assert len(set(texts)) == 1
    both = server.post("/completion", {"prompt": shapes[:2], "n_predict": 6}).json
    assert [one["content"] for one in both] == texts[:2]
    assert [one["index"] for one in both] == [0, 1]
    error = server.post("/completion", {"prompt": {"text": text}}).json["error"]
    assert (error["param"], error["code"]) == ("prompt.prompt_string", 400)


def test_stop_types_and_response_fields(server: Running) -> None:
    body = {"prompt": "Once upon a time", "n_predict": 30}
    text = server.post("/completion", body).json["content"]
    word = server.post("/completion", {**body, "stop": [text[10:15]]}).json
    assert (word["stop_type"], word["stopping_word"]) == ("word", text[10:15])
    nothing = server.post("/completion", {**body, "n_predict": 0}).json
    assert (nothing["content"], nothing["tokens_predicted"]) == ("", 0)
    assert nothing["timings"]["predicted_n"] == 0
    grammar = server.post("/completion", {**body, "grammar": 'root ::= " yes"'}).json
    assert (grammar["content"], grammar["stop_type"]) == (" yes", "eos")
    fields = ["content", "timings/prompt_n"]
    assert [*server.post("/completion", {**body, "response_fields": fields}).json] == fields


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_end_with_the_text(server: Running, stream: bool) -> None:
    """Those of a stop string's tokens are left out, as by llama.cpp; the end token has one."""
    body = {"prompt": "Once upon a time", "n_predict": 12, "n_probs": 1, "stream": stream}

    def told(**more: Any) -> tuple[str, list[str]]:
        events = server.post("/completion", {**body, **more}).events
        entries = [one for part in events for one in part.get("completion_probabilities", ())]
        return "".join(one["content"] for one in events), [one["token"] for one in entries]

    text, _ = told()
    _, (*before, last) = told(stop=[text[12:22]])
    assert text.startswith(begun := "".join(before))
    assert len(begun) < 12 <= len(begun + last)
    _, (*before, last) = told(grammar='root ::= " yes"')
    assert ("".join(before), last) == (" yes", "")


@pytest.mark.parametrize("stream", [False, True])
def test_least_indentation(server: Running, stream: bool) -> None:
    """As llama.cpp, it cuts the line off where its text begins."""
    body = {"prompt": "Once", "grammar": r'root ::= "a\n  bc\n de\n   fg"', "stream": stream}
    body["n_probs"] = 1
    for least, end, kind in ((0, 16, "eos"), (1, 16, "eos"), (2, 8, "limit"), (3, 4, "limit")):
        told = server.post("/completion", {**body, "n_indent": least, "return_tokens": True}).events
        assert "".join(one["content"] for one in told) == "a\n  bc\n de\n   fg"[:end]
        assert told[-1]["stop_type"] == kind
        assert stream or told[-1]["tokens_predicted"] == len(told[-1]["tokens"])
        rows = [row["token"] for one in told for row in one.get("completion_probabilities", ())]
        assert "".join(rows) == "a\n  bc\n de\n   fg"[:end]


def test_drafts_and_seeds_by_request(server: Running) -> None:
    body = {"prompt": "a fox and a fox and a fox and a", "n_predict": 12}
    drafted, plain = (
        server.post("/completion", body | more).json for more in ({}, {"speculative.n_max": 0})
    )
    assert drafted["content"] == plain["content"]
    assert ("draft_n" in drafted["timings"], "draft_n" in plain["timings"]) == (True, False)
    body |= {"temperature": 1.5, "seed": 2**32 - 1, "top_k": 2**31 - 1}
    drawn = {server.post("/completion", body).json["content"] for _ in "abcd"}
    assert len(drawn) > 1, "llama.cpp's -1 as an unsigned number"


def test_logit_bias_in_llama_cpp_format(server: Running) -> None:
    body: dict[str, Any] = {"prompt": "Once upon a time", "n_predict": 1}
    said = server.post("/completion", body).json["content"]
    for bias in ([[said, False]], [[said, -1000]], {said: -1000}, {said: False}):
        assert server.post("/completion", {**body, "logit_bias": bias}).json["content"] != said
    doubled = {**body, "logit_bias": [[5, 1.5], [5, -1], [6, False], [6, -1]]}
    settings = server.post("/completion", doubled).json["generation_settings"]
    assert [one["bias"] for one in settings["logit_bias"]] == [0.5, None]
    for bias in ([[said]], [[said, "x"]], [[1.5, 1]], [[said, True, 1]]):
        assert server.post("/completion", {**body, "logit_bias": bias}).status == 400


def test_infill_needs_a_model_with_infill_tokens(server: Running) -> None:
    suffix = {"prompt": "a", "suffix": "b"}
    asked = {"/infill": {"input_suffix": "b"}, "/v1/completions": suffix, "/api/generate": suffix}
    for path, body in asked.items():
        reply = server.post(path, body)
        assert (reply.status, b"no tokens for filling" in reply.body) == (501, True)


@pytest.fixture(scope="module")
def coder(tmp_path_factory: pytest.TempPathFactory, draft_path: Path) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("coder")
    model = with_template(folder / "coder.gguf", draft_path, filling=["!", "?", "."])
    with serving(folder, "-m", str(model), "-d", "none", "-c", "256", "-t", "1") as running:
        yield running


def test_infill(coder: Running) -> None:
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
    same = {"temperature": 0, "stream": False, "prompt": "a = ", "suffix": "\nb = a"}
    few = {"input_prefix": same["prompt"], "input_suffix": same["suffix"], "n_predict": 4}
    answer = coder.post("/infill", {**same, **few, "prompt": ""}).json
    told = coder.post("/v1/completions", {**same, "max_tokens": 4, "echo": True}).json
    assert told["choices"][0]["text"] == "a = " + answer["content"]
    assert told["usage"]["prompt_tokens"] == answer["tokens_evaluated"]
    told = coder.post("/api/generate", {**same, "options": {"num_predict": 4, "temperature": 0}})
    assert told.json["response"] == answer["content"]
    assert "insert" in coder.post("/api/show", {}).json["capabilities"]
    for extra in ({}, {"filename": "ok"}, {"filename": 1, "text": "x"}):
        assert coder.post("/infill", {**body, "input_extra": [extra]}).status == 400


def test_metrics_are_valid_prometheus_text(server: Running) -> None:
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
    for known in ("prompt_tokens", "tokens_predicted", "spec_decode_num_draft_tokens"):
        assert server.metric(f"llamacpp:{known}_total") > 0, known
    assert server.metric("localspec:answers_total") > 0

    def drafted(name: str) -> int:
        (count,) = re.findall(rf'localspec:{name}_tokens_total\{{drafter="ngram"\}} (\d+)', text)
        return int(count)

    assert 0 < drafted("accepted") <= drafted("tested") <= drafted("drafted")
    by_position = re.findall(r'_accepted_tokens_per_pos_total\{position="\d+"\} (\d+)', text)
    assert len(by_position) > 1
    assert sum(map(int, by_position)) == server.metric("localspec:accepted_tokens_total")


SAID, BEGUN = user("Tell me a story."), assistant("a")

small = module_server(
    *("-c", "128", "-t", "1", "--drafter", "none", "-d", "none", "-n", "5"),
    *("--alias", "tale,fox", "--tags", "small,chat", "--cors", "localhost"),
    *("--no-slots", "--no-ui"),
)
"""Sampled by itself, plain decoding, and short answers unless somebody says otherwise."""


def test_generation_settings_are_returned(server: Running, engine: Engine) -> None:
    body = {"prompt": "Once upon", "n_predict": 2, "ignore_eos": True, "logprobs": 101}
    told = server.post("/completion", body).json
    assert len(told["completion_probabilities"][0]["top_logprobs"]) == 101
    settings = told["generation_settings"]
    biased = {one["token"]: one["bias"] for one in settings["logit_bias"]}
    vocabulary = engine.model.vocabulary
    assert biased == dict.fromkeys(filter(vocabulary.ends, range(vocabulary.size)))
    assert settings["ignore_eos"] is True
    assert (settings["typical_p"], settings["mirostat"]) == (1.0, 0)
    assert told["prompt"] == "<|endoftext|>Once upon"


def test_post_sampling_probabilities(server: Running) -> None:
    body = {"prompt": "Once upon", "n_predict": 8, "n_probs": 3, "seed": 1, "temperature": 0.8}
    body |= {"post_sampling_probs": True, "ignore_eos": True, "top_k": 2, "top_p": 1.0, "min_p": 0}
    told = server.post("/completion", body).json
    found = told["completion_probabilities"]
    assert len(found) == 8
    for one in found:
        tops = {top["id"]: top["prob"] for top in one["top_probs"]}
        assert len(tops) == 2, "top_k leaves two tokens"
        assert sum(tops.values()) == pytest.approx(1.0)
        assert tops[one["id"]] == one["prob"] > 0
    assert told["generation_settings"]["post_sampling_probs"] is True
    streamed = server.post("/completion", {**body, "stream": True}).events
    ids = [one["id"] for part in streamed[:-1] for one in part["completion_probabilities"]]
    assert ids == [token for part in streamed for token in part["tokens"]]
    assert len(ids) == 8
    certain = server.post("/completion", {**body, "temperature": 0}).json
    found = [(one["prob"], len(one["top_probs"])) for one in certain["completion_probabilities"]]
    assert found == [(1.0, 1)] * 8


def test_full_context(small: Running) -> None:
    body = {"prompt": "Once upon a time", "ignore_eos": True}
    full = small.post("/completion", {**body, "n_predict": 4000}).json
    assert full["truncated"] is True
    assert full["tokens_evaluated"] + full["tokens_predicted"] == 128
    assert small.post("/completion", {**body, "n_predict": 3}).json["truncated"] is False
    reply = small.post("/completion", {"prompt": "fox " * 200})
    assert "exceeds the available context size" in reply.error()
    error = reply.json["error"]
    assert (error["type"], error["n_ctx"]) == ("exceed_context_size_error", 128)
    assert error["code"] == "context_length_exceeded"
    asked = {"max_tokens": 3, "messages": [user("fox " * 200)]}
    why = rf"prompt is too long: \d{{3}} tokens > {error['n_ctx']} maximum\. The request of "
    assert re.match(why, small.post("/v1/messages", asked).error())


def test_default_length_limit(small: Running) -> None:
    body = {"prompt": "Once upon a time", "ignore_eos": True}
    for limit, count in ({}, 5), ({"n_predict": -1}, 5), ({"n_predict": 9}, 9):
        assert small.post("/completion", body | limit).json["tokens_predicted"] == count
    usage = small.post(CHAT, {"messages": [SAID]}).json["usage"]
    assert usage["completion_tokens"] <= 5


def test_aliases_and_tags(small: Running) -> None:
    (model,) = small.get("/v1/models").json["data"]
    assert model["id"] == "fox", "the first by the alphabet, as with llama-server"
    assert (model["aliases"], model["tags"]) == (["fox", "tale"], ["chat", "small"])
    assert small.get("/v1/models/fox").json == small.get("/v1/models/tale").json == model
    assert small.get("/v1/models/tale-13m-q8_0").status == 404
    assert small.post("/completion", {"prompt": "x"}).json["model"] == "fox"


def test_disabled_endpoints(small: Running, server: Running) -> None:
    assert "--no-slots" in small.get("/slots").error(501)
    assert "--no-ui" in small.get("/events").error(404)
    assert small.get("/").body == b"localspec is running\n"
    assert server.get("/slots").status == server.get("/").status == 200


def test_uncached_prompts_are_reproducible(small: Running) -> None:
    """Passes of one shape give the same bits; what an earlier answer left in the cache comes from
    passes of other shapes."""
    for prompt in ("I believe the meaning of life is", "The fox said: " * 8):
        body = {"prompt": prompt, "seed": 7, "temperature": 1.0, "n_predict": 60}
        first = small.post("/completion", {**body, "cache_prompt": False}).json
        small.post("/completion", {**body, "seed": 8})
        again = small.post("/completion", {**body, "cache_prompt": False}).json
        assert (again["timings"]["cache_n"], again["content"]) == (0, first["content"])
        cached = small.post("/completion", {**body, "n_predict": 1}).json
        assert cached["timings"]["cache_n"] > 0


def test_assistant_prefill_is_continued(server: Running) -> None:
    begun = assistant("Once upon a time, there was")
    body = {"messages": [SAID, begun], "max_tokens": 8, "verbose": True}
    answer = server.post(CHAT, body).json
    prompt = "<|user|>Tell me a story.<|end|><|assistant|>Once upon a time, there was"
    assert answer["__verbose"]["prompt"] == f"<|endoftext|>{prompt}"
    raw = server.post("/completion", {"prompt": prompt, "n_predict": 8}).json["content"]
    assert answer["choices"][0]["message"]["content"] == raw
    assert server.post("/apply-template", {"messages": [SAID, begun]}).json["prompt"] == prompt
    claude = server.post("/v1/messages", {"messages": [SAID, begun], "max_tokens": 8}).json
    assert claude["content"][0]["text"] == raw


def test_prefill_in_several_parts(server: Running) -> None:
    def prompt(*messages: Any, **more: Any) -> str:
        body = {"messages": messages, **more}
        return str(server.post("/apply-template", body).json["prompt"])

    parts = [{"type": "text", "text": text} for text in ("Once", "upon")]
    begun = [user(parts), assistant(parts)]
    assert prompt(*begun) == "<|user|>Once\nupon<|end|><|assistant|>Once\n\nupon"
    assert prompt(SAID, BEGUN, assistant("b")).endswith("<|assistant|>a\n\nb")
    assert "<|assistant|>Once\nupon<|end|>" in prompt(*begun, SAID), "a complete message"
    assert prompt(SAID, add_generation_prompt=False) == "<|user|>Tell me a story.<|end|>"


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [SAID, BEGUN], "add_generation_prompt": True, "continue_final_message": True},
        *({"messages": [SAID], "continue_final_message": True}, {"messages": [BEGUN]}),
    ],
)
def test_invalid_prefills(server: Running, body: dict[str, Any]) -> None:
    assert server.post(CHAT, body).status == 400


def test_input_tokens_endpoints(server: Running) -> None:
    whole = server.post(CHAT, {"messages": [SAID], "max_tokens": 1}).json
    for path in ("/chat/completions/input_tokens", "/v1/chat/completions/input_tokens"):
        counted = server.post(path, {"messages": [SAID]}).json
        assert counted["input_tokens"] == whole["usage"]["prompt_tokens"]
    vllm = server.post("/tokenize", {"messages": [SAID]}).json
    assert vllm["count"] == len(vllm["tokens"]) == whole["usage"]["prompt_tokens"]
    assert vllm["max_model_len"] == 1024


def test_timings_per_token(server: Running) -> None:
    body = {"messages": [SAID], "max_tokens": 6, "stream": True, "unknown": {"a": [1]}}
    body |= {"timings_per_token": True, "stream_options": {"include_usage": True}}
    first, *later = server.post(CHAT, body).events
    assert "timings" not in first
    assert all("predicted_per_second" in one["timings"] for one in later)
    assert later[-1]["choices"] == []


def test_t_max_predict_ms_ends_after_a_line(small: Running) -> None:
    body = {"prompt": "x", "grammar": 'root ::= "a\\n" [a-z]*', "n_predict": 100}
    late = small.post("/completion", {**body, "t_max_predict_ms": 0.001}).json
    assert (late["content"][:2], late["stop_type"]) == ("a\n", "limit")
    assert late["tokens_predicted"] < 100
    one_line = {**body, "grammar": "root ::= [a-z]*", "t_max_predict_ms": 0.001, "ignore_eos": True}
    assert small.post("/completion", one_line).json["tokens_predicted"] == 100


@pytest.mark.parametrize("path", ["/rerank", "/lora-adapters", "/props", "/api/push"])
def test_unsupported_endpoints_give_a_reason(server: Running, path: str) -> None:
    reply = server.post(path, {})
    assert (reply.status, reply.headers["X-Should-Retry"]) == (501, "false")
    error = reply.json["error"]
    assert len(error if path.startswith("/api") else error["message"]) > 20


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        *(("http://localhost:5173", True), ("https://127.0.0.1", True), ("http://[::1]:3", True)),
        *(("http://localhost.evil.example", False), ("http://notlocalhost", False)),
        *(("http://192.168.1.7", False), ("file://localhost", False), ("null", False)),
    ],
)
def test_cors_localhost(small: Running, origin: str, allowed: bool) -> None:
    reply = small.request("OPTIONS", "/completion", headers={"Origin": origin})
    assert reply.status == (200 if allowed else 403)
    assert reply.headers.get("access-control-allow-origin") == (origin if allowed else None)


THINKS = (
    "{{ date_string }}/{{ datetime }}/[{{ thinking }}{{ thinking_budget }}]"
    "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|assistant|>' }}{% if not enable_thinking %}{{ '<think></think>' }}{% endif %}{% endif %}"
)


def test_think_options_and_template_arguments(tmp_path: Path) -> None:
    from tools.llama_server.models import DRAFT, model_file

    model = model_file(DRAFT, tmp_path, template=THINKS)
    for flag, thinks in (("--think", True), ("--no-think", False)):
        with serving(tmp_path, "-m", str(model), "-d", "none", "-c", "128", flag) as server:

            def prompt(server: Running = server, **more: Any) -> str:
                body = {"messages": [SAID], **more}
                return str(server.post("/apply-template", body).json["prompt"])

            assert prompt().endswith("<|assistant|>") is thinks
            assert ("[]" if thinks else "[False0]") in prompt()
            for said in (True, False):
                asked = prompt(chat_template_kwargs={"enable_thinking": said})
                assert asked.endswith("<|assistant|>") is said
                assert ("[True]" if said else "[False0]") in asked
            before, told, after = datetime.now(), prompt(), datetime.now()
            days = [moment.strftime("%d %b %Y/%b %d %Y/") for moment in (before, after)]
            assert told.startswith(tuple(days))
            path, on = "/v1/messages/count_tokens", {"type": "enabled", "budget_tokens": 1024}
            wishes: Any = ({}, {"thinking": {"type": "disabled"}}, {"thinking": on})
            counts = [prompt_length(server, path, messages=[SAID], **wish) for wish in wishes]
            assert (counts[0] < counts[1]) is thinks
            assert counts[2] < counts[1]


def test_samplers_missing_from_the_list_are_off(server: Running) -> None:
    body = {"prompt": "Once upon a time", "temperature": 0.01, "n_predict": 1, "n_probs": 1}
    body |= {"post_sampling_probs": True}
    lists: Any = ("edskypmxt", ["temperature"], ["top_k"], "mx", [])
    told = [server.post("/completion", {**body, "samplers": names}).json for names in lists]
    found = [one["completion_probabilities"][0]["top_probs"][0]["prob"] for one in told]
    assert found[0] == found[1] == 1 > found[3] > found[2] > found[4]
