"""The embedding API, on the embedded pair."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import localspec
from localspec import (
    ContextOverflow,
    ContextShift,
    Drafting,
    Engine,
    EngineBusy,
    LocalspecError,
    ModelOptions,
    SamplingParams,
    UsageError,
)
from localspec.llama import compute_thread
from tests.support import ggufs
from tests.support.asking import PLAIN, WAYS, asked, said, tokens_of
from tests.support.greedy import CLEAR
from tests.support.sessions import drafting_pair, make_drafts_cheap
from tests.support.together import together

FOX = [{"role": "user", "content": "Tell me a story about a fox."}]


def of_any_type(value: object) -> Any:
    return value


@pytest.fixture(scope="module")
def small() -> Iterator[Engine]:
    """A pair with room for 128 tokens."""
    with drafting_pair(context=128) as pair:
        yield pair


def test_statistics_add_up(engine: Engine) -> None:
    make_drafts_cheap(engine)
    stream = asked(engine, FOX, count=100)
    chunks = list(stream)
    stats = stream.stats
    sources = [source for chunk in chunks for source in chunk.sources]
    assert len(sources) == stats.generated_tokens == sum(len(c.token_ids) for c in chunks)
    assert stats.accepted == sum(source != "target" for source in sources)
    assert stats.accepted == sum(stats.accepted_per_position)
    assert stats.tested == sum(stats.tested_per_position)
    assert stats.accepted <= stats.tested <= stats.drafted
    assert stats.generated_tokens == stats.accepted + sources.count("target")
    assert stats.target_passes == sum(chunk.step is not None for chunk in chunks)
    by_drafter = stats.by_drafter.values()
    assert stats.drafted == sum(drafter.drafted for drafter in by_drafter)
    assert stats.accepted == sum(drafter.accepted for drafter in by_drafter)
    spent = stats.draft_seconds + stats.verify_seconds + stats.overhead_seconds
    assert spent == pytest.approx(stats.decode_seconds)
    assert min(stats.draft_seconds, stats.verify_seconds, stats.overhead_seconds) > 0
    json.dumps(stats.as_dict())


def test_second_chat_turn_decodes_only_what_is_new(engine: Engine) -> None:
    first = asked(engine, FOX, WAYS["model"], 40).completion()
    turns = [
        *FOX,
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "More."},
    ]
    second = asked(engine, turns, WAYS["model"], 40).completion()
    # The template's own tokens around the new turn, and the last token of the first answer.
    assert second.stats.prompt_tokens - second.stats.cached_tokens <= 8
    engine.clear()
    assert asked(engine, turns, WAYS["model"], 40).completion().text == second.text


def test_another_prompt_shares_nothing_but_its_beginning(engine: Engine) -> None:
    said(engine, "The king said", count=10)
    other = asked(engine, "The queen said", count=10)
    tokens = tokens_of(other)
    engine.clear()
    assert other.stats.cached_tokens == 2  # BOS and "The"
    assert said(engine, "The queen said", count=10) == tokens


def test_seed_repeats_a_sampled_answer_and_is_reported(engine: Engine) -> None:
    drafting = Drafting(drafter="model")
    first = engine.chat(FOX, max_tokens=60, drafting=drafting)
    assert first.stats.seed is not None
    sampling = SamplingParams(seed=first.stats.seed)
    again = engine.chat(FOX, max_tokens=60, sampling=sampling, drafting=drafting)
    assert again.text == first.text
    assert engine.chat(FOX, max_tokens=60, sampling=SamplingParams(seed=7)).text != first.text


def test_end_of_generation_token_ends_the_answer(engine: Engine) -> None:
    stream = asked(engine, FOX, count=None)
    ids = tokens_of(stream)
    assert stream.finish_reason == "stop"
    assert engine.model.vocabulary.ends(ids[-1])
    assert not any(engine.model.vocabulary.ends(token) for token in ids[:-1])
    assert "<|" not in stream.text


def test_leaving_the_iteration_keeps_the_text_and_frees_the_engine(engine: Engine) -> None:
    with asked(engine, FOX, count=60) as stream:
        for _, _chunk in zip(range(5), stream, strict=False):
            pass
    assert stream.finish_reason == "cancelled"
    whole = asked(engine, FOX, count=60).completion().text
    assert stream.text
    assert whole.startswith(stream.text)


def test_cancel_between_chunks_ends_the_stream(engine: Engine) -> None:
    stream = asked(engine, FOX, count=60)
    next(stream)
    stream.cancel()
    list(stream)  # what was made before
    assert stream.finish_reason == "cancelled"
    assert stream.stats.generated_tokens < 60


def test_cancel_before_the_first_chunk(engine: Engine) -> None:
    stream = engine.stream(FOX)
    stream.cancel()
    assert stream.completion().finish_reason == "cancelled"
    assert stream.stats.generated_tokens == 0


def test_token_ids_and_numbers_of_any_library_are_taken(engine: Engine) -> None:
    ids = [engine.model.vocabulary.bos, *engine.tokenize(CLEAR)]
    plain = asked(engine, CLEAR, count=8).completion().text
    zero, eight, seed = map(of_any_type, (np.float32(0), np.int64(8), np.int64(3)))
    for prompt in map(of_any_type, (ids, tuple(ids), np.array(ids), iter(ids))):
        sampling = SamplingParams(temperature=zero, seed=seed)
        assert engine.stream(prompt, max_tokens=eight, sampling=sampling).completion().text == plain
    array = of_any_type(np.array(ids))
    assert (engine.logits(array) == engine.logits(ids)).all()
    assert engine.token_bytes(array[1]) == engine.token_bytes(ids[1])
    assert said(engine, iter(FOX), count=8) == said(engine, FOX, count=8)


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda engine: engine.token_bytes(-1), "no token -1"),
        (lambda engine: engine.token_bytes(10**9), "no token 1000000000"),
        (lambda engine: engine.tokenize(b"x"), "text is b'x'. Give text"),
        (lambda engine: engine.logits([-1]), "no token -1"),
        (lambda engine: engine.logits([]), "no tokens"),
        (lambda engine: engine.likelihood([10**9]), "no token"),
        (lambda engine: engine.likelihood([1], -1), "alternatives is -1"),
        (lambda engine: engine.first_wrong([1], ["x"]), "whole numbers"),
        (lambda engine: engine.learn({"a": [None]}), "text is None"),
        (lambda engine: engine.open_session(None), "path is None"),
        (lambda engine: engine.save_session("s", {1}), "not of JSON values"),
        (pickle.dumps, "sent to another process"),
        (copy.deepcopy, "cannot be copied"),
    ],
)
def test_arguments_of_other_types_are_refused(
    engine: Engine, call: Callable[[Engine], object], names: str
) -> None:
    with pytest.raises(LocalspecError, match=names):
        call(engine)


def test_nothing_of_a_closed_engine_reads_freed_memory() -> None:
    with localspec.load(options=ModelOptions(context=128)) as pair:
        pass
    for use in (
        lambda: pair.learn({"a": ["b"]}),
        lambda: pair.logits([1]),
        lambda: pair.prompts.text(FOX),
        lambda: pair.model.vocabulary.tokenize("x", special=False, add_bos=False),
        lambda: pair.model.vocabulary.piece(7_000),
        lambda: pair.model.chat_template,
        lambda: pair.calibrate(),
    ):
        with pytest.raises(UsageError, match=r"is closed\. Load"):
            use()
    assert pair.context_length == 128


@pytest.mark.parametrize("parallel", [1, 2])
def test_an_engine_that_nobody_holds_is_freed(parallel: int) -> None:
    """By the thread that computes, at once and without the garbage collector."""
    gc.disable()
    try:
        engine = localspec.load(options=ModelOptions(context=128), parallel=parallel)
        models = [engine.model, engine.draft]
        stream = engine.stream(FOX, max_tokens=60)
        next(stream)
        del engine
        assert next(stream).text
        del stream
        compute_thread.settle(60)
    finally:
        gc.enable()
    for model in models:
        assert model is not None
        with pytest.raises(UsageError, match="model is closed"):
            assert model.handle


def test_what_failed_counts_as_cancelled_once_it_is_closed(engine: Engine) -> None:
    def fails(done: int, of: int) -> None:
        raise ZeroDivisionError

    stream = engine.stream(FOX, max_tokens=4, progress=fails, reuse=False)
    with pytest.raises(ZeroDivisionError):
        next(stream)
    assert next(stream, None) is None
    stream.close()
    assert stream.finish_reason == "cancelled"


def test_a_stream_that_nobody_holds_holds_up_nobody(engine: Engine) -> None:
    gc.disable()
    try:
        for _chunk in engine.stream(FOX, max_tokens=60):
            break
        assert engine.chat(FOX, max_tokens=2).text
    finally:
        gc.enable()


def test_nor_do_those_that_several_threads_left() -> None:
    left = threading.Barrier(2)
    with localspec.load(context=256, parallel=2) as pair:

        def ask() -> str:
            next(pair.stream(FOX, max_tokens=60))
            left.wait()
            return pair.chat(FOX, max_tokens=2).text

        gc.disable()
        try:
            answers = together([ask, ask])
        finally:
            gc.enable()
    assert all(isinstance(answer, str) for answer in answers), answers


BEGUN = """
import atexit, os, sys
here = os.getpid()  # after all that localspec registers:
atexit.register(lambda: os.getpid() == here and print(stream.runs))
import localspec
engine = localspec.load(context=512)
stream = engine.stream("Once", max_tokens=400)
next(stream)
"""
FORKED = """
child = os.fork()
if not child:
    try:
        {}
    except localspec.UsageError:
        pass
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
stream.completion()
"""


@pytest.mark.nightly
@pytest.mark.parametrize(
    "last",
    [
        *("", "engine.me = engine", "del engine", FORKED.format("sys.exit()")),
        *map(FORKED.format, ("list(stream)", "engine.clear()", "engine.close()")),
    ],
)
def test_no_answer_outlives_its_thread(last: str) -> None:
    """Neither in a forked process, which lacks that thread, nor while Python ends it."""
    ended = subprocess.run(
        [sys.executable, "-c", BEGUN + last], capture_output=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"False\n", b"")


def test_several_threads_may_read_one_answer(engine: Engine) -> None:
    expected = said(engine, FOX, count=40)
    stream = asked(engine, FOX, count=40)
    parts = together([lambda: tokens_of(stream)] * 3)
    assert sum(len(part) for part in parts if isinstance(part, list)) == len(expected)
    assert stream.context[-len(expected) :] == expected


def test_another_thread_may_close_an_answer_that_is_read(engine: Engine) -> None:
    stream, reading = asked(engine, FOX, count=900, shift=ContextShift()), threading.Event()

    def read() -> None:
        for _ in stream:
            reading.set()

    def close() -> None:
        reading.wait(60)
        stream.close()

    assert together([read, close]) == [None, None]
    assert stream.finish_reason == "cancelled"
    assert said(engine, FOX, count=3)


def test_second_stream_in_the_same_thread_is_refused(engine: Engine) -> None:
    """Waiting would be for ever: only this thread can finish the first one."""
    with engine.stream(FOX, max_tokens=30) as first:
        next(first)
        with pytest.raises(EngineBusy, match="close"):
            next(engine.stream(FOX))
    assert engine.chat(FOX, max_tokens=3).text


def test_calls_from_many_threads_wait_for_each_other(engine: Engine) -> None:
    expected = said(engine, FOX, count=30)
    assert together([partial(said, engine, FOX, count=30)] * 6) == [expected] * 6


def test_an_engine_that_does_not_wait_says_it_is_busy() -> None:
    with localspec.load(options=ModelOptions(context=128), wait=False) as engine:
        with engine.stream(FOX, max_tokens=30) as stream:
            next(stream)
            (error,) = together([partial(engine.chat, FOX, max_tokens=3)])
            assert isinstance(error, EngineBusy)
        assert engine.chat(FOX, max_tokens=3).text


def test_close_while_a_stream_is_open() -> None:
    engine = localspec.load(options=ModelOptions(context=128))
    stream = engine.stream(FOX, max_tokens=50)
    next(stream)
    engine.close()
    assert stream.finish_reason == "cancelled"
    with pytest.raises(UsageError, match="closed"):
        engine.stream("Once")
    with pytest.raises(UsageError, match="closed"):
        engine.tokenize("Once")
    engine.close()


def test_prompt_longer_than_the_context(small: Engine) -> None:
    with pytest.raises(ContextOverflow, match="--ctx") as caught:
        small.generate("a fox " * 200)
    assert caught.value.available == 128
    assert caught.value.needed > 128
    sent = pickle.loads(pickle.dumps(caught.value))  # as a pool of processes does
    assert (str(sent), sent.needed) == (str(caught.value), caught.value.needed)
    with pytest.raises(ContextOverflow):
        small.chat([{"role": "user", "content": "a fox " * 200}], overflow="drop_oldest")


def test_answer_that_fills_the_context_ends_there_and_says_so(small: Engine) -> None:
    answer = small.generate(
        "One day a fox", sampling=SamplingParams(temperature=0, logit_bias={0: -1e9, 4: -1e9})
    )
    assert answer.finish_reason == "length"
    assert answer.stats.prompt_tokens + answer.stats.generated_tokens == 128
    assert any("128 tokens is full" in notice for notice in answer.stats.notices)


def test_oldest_turns_are_dropped_on_request(small: Engine) -> None:
    turns = [{"role": "system", "content": "Be kind."}]
    for i in range(8):
        turns += [
            {"role": "user", "content": f"Tell me about animal number {i}, please do."},
            {"role": "assistant", "content": "It is a very nice animal that lives in the wood."},
        ]
    turns.append({"role": "user", "content": "And the fox?"})
    with pytest.raises(ContextOverflow):
        small.chat(turns, max_tokens=20)
    # Plainly: what is drafted follows the clock, and with it which of two tied tokens wins.
    answer = asked(small, turns, PLAIN, 20, overflow="drop_oldest").completion()
    assert answer.stats.prompt_tokens <= 128 - 20
    (notice,) = answer.stats.notices
    assert "oldest" in notice
    dropped = int(notice.split("oldest ")[1].split()[0])
    kept = [turns[0], *turns[1 + dropped :]]
    assert kept[1]["role"] == "user"
    assert asked(small, kept, PLAIN, 20).completion().text == answer.text


def test_lossy_rules_accept_more_and_say_they_are_lossy(engine: Engine) -> None:
    lossy = Drafting(drafter="model", depth=4, rule="top-k", threshold=8)
    exact, loose = (
        asked(engine, FOX, way, 100).completion().stats for way in (WAYS["model"], lossy)
    )
    assert exact.lossless
    assert not loose.lossless
    assert loose.rule == "top-k"
    assert loose.acceptance_rate > exact.acceptance_rate


def test_draft_with_padding_tokens_is_fine_and_never_proposes_them(tmp_path: Path) -> None:
    draft = ggufs.tiny_llama(tmp_path / "padded.gguf", vocab_size=8400)
    with localspec.load(draft=draft, options=ModelOptions(context=256)) as engine:
        stream = engine.stream(FOX, max_tokens=40, drafting=Drafting(drafter="model", depth=6))
        drafts = [t for chunk in stream if chunk.step for t in chunk.step.tree.tokens]
        assert drafts
        assert max(drafts) < 8192


def test_without_a_draft_model_the_reason_is_given(target_path: Path) -> None:
    with localspec.load(target_path, draft=None, options=ModelOptions(context=256)) as engine:
        assert engine.draft is None
        assert engine.why_no_draft
        make_drafts_cheap(engine)  # where passes are too short to plan, that is the reason
        stats = asked(engine, FOX, count=20).completion().stats
        assert any("no draft model" in reason for reason in stats.reasons)
        with pytest.raises(UsageError, match="needs a draft model"):
            engine.chat(FOX, drafting=Drafting(drafter="cascade"))


def test_loading_reports_progress_and_stops_on_an_exception() -> None:
    seen: list[float] = []
    localspec.load(options=ModelOptions(context=128), progress=seen.append).close()
    assert seen[-1] == 1.0

    def stop(_fraction: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        localspec.load(options=ModelOptions(context=128), progress=stop)


@pytest.mark.parametrize(
    ("prompt", "options", "names"),
    [
        (FOX, {"max_tokens": 0}, "max-tokens is 0"),
        (FOX, {"max_tokens": -3}, "max-tokens is -3"),
        (FOX, {"logprobs": -1}, "logprobs is -1"),
        (FOX, {"stop": [""]}, "stop string is empty"),
        (FOX, {"grammar": "root ::= nothing"}, "nothing"),
        (FOX, {"grammar": 'root ::= "a"', "json_schema": "{}"}, "exclude each other"),
        (FOX, {"json_schema": "{"}, "not JSON"),
        (FOX, {"json_schema": {"enum": {1, 2}}}, "not JSON: Object of type set"),
        (FOX, {"json_schema": '{"const": NaN}'}, "not JSON: NaN is not a JSON value"),
        (FOX, {"json_schema": '{"type": "array", "uniqueItems": true}'}, "'uniqueItems'"),
        (FOX, {"overflow": "forget"}, "error, drop_oldest"),
        ([], {}, "no messages"),
        ([{"content": "hi"}], {}, "no role"),
        ([{"role": "user"}], {}, "no content"),
        ([{"role": "user", "content": 5}], {}, "content of message 0 is 5. Give text or"),
        (None, {}, r"prompt is None. Give text or a sequence\."),
        (b"Once", {}, "prompt is b'Once'"),
        ([1.5], {}, "no role"),
        ([1, 2**31], {}, "no token 2147483648"),
        ([1, "x"], {}, "whole numbers"),
        ([{"role": "user", "content": [{"type": "image"}]}], {}, "cannot be read"),
        (FOX, {"max_tokens": "4"}, "max-tokens is '4'. Give a whole number or None"),
        (FOX, {"stop": 5}, "stop is 5. Give text or a sequence or None"),
        (FOX, {"stop": [None]}, "stop is None. Give text"),
        (FOX, {"stop_after": "("}, "stop-after is not a regular expression: missing"),
        (FOX, {"sampling": {"seed": 1}}, "Give a SamplingParams or None"),
        (FOX, {"json_schema": dict}, "Give text or a dictionary or None"),
        (FOX, {"reuse": "no"}, "reuse is 'no'. Give True or False"),
        (FOX, {"progress": 5}, "progress is 5. Give a function or None"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_the_call(
    engine: Engine, prompt: object, options: dict[str, object], names: str
) -> None:
    with pytest.raises(UsageError, match=names):
        engine.stream(prompt, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: SamplingParams(top_k=of_any_type("5")), "top-k is '5'. Give a whole number"),
        (
            lambda: SamplingParams(temperature=of_any_type(None)),
            "temperature is None. Give a number",
        ),
        (
            lambda: SamplingParams(logit_bias=of_any_type({1: "x"})),
            "logit-bias is .* for each token id",
        ),
        (lambda: Drafting(drafter=of_any_type(["x"])), "no drafter"),
        (lambda: ContextShift(keep=of_any_type("x")), "keep is 'x'. Give a whole number"),
        (lambda: Drafting(depth=of_any_type(2.5)), "depth is 2.5. Give a whole number or None"),
        (lambda: ModelOptions(exact=of_any_type("no")), "exact is 'no'. Give True or False"),
        (lambda: ModelOptions(lora=of_any_type([("x", 1.0)])), "lora is .*Give text or a path"),
        (lambda: ModelOptions(rpc=of_any_type(None)), "rpc is None"),
        (lambda: localspec.load(of_any_type(b"x")), "model is b'x'. Give text or a path"),
        (
            lambda: localspec.load(drafting=of_any_type("none")),
            "drafting is 'none'. Give a Drafting",
        ),
        (lambda: localspec.load(draft=of_any_type(5)), "draft is 5. Give text or a path or None"),
        (lambda: localspec.load(progress=of_any_type(5)), "progress is 5. Give a function"),
        (lambda: Drafting(drafter="magic"), "no drafter 'magic'.*cascade"),
        (lambda: Drafting(depth=0), "depth is 0.*--drafter none"),
        (lambda: Drafting(depth=-1), "depth is -1"),
        (lambda: Drafting(width=0), "width is 0"),
        (lambda: ModelOptions(context=-1), "context of -1"),
        (lambda: ModelOptions(threads=0), "threads is 0"),
        (lambda: ModelOptions(gpu_layers=-2), "gpu-layers is -2"),
        (lambda: ModelOptions(parallel=0), "parallel"),
        (lambda: ModelOptions(parallel=33), "parallel"),
        (lambda: ModelOptions(parallel_chunk=8), "parallel"),
        (lambda: ModelOptions(kv_type_k="q3"), "no KV cache type 'q3'"),
        (lambda: ModelOptions(kv_type_v="q8_0", flash_attention="off"), "flash attention"),
        (lambda: ModelOptions(exact=True, flash_attention="off"), "needs flash attention"),
        (lambda: ModelOptions(flash_attention="maybe"), "auto, off, on|auto, on, off"),
    ],
)
def test_options_out_of_range_are_refused(make: object, names: str) -> None:
    assert callable(make)
    with pytest.raises(UsageError, match=names):
        make()


@pytest.mark.parametrize(
    "options",
    [
        ModelOptions(context=128, kv_type_k="q8_0", kv_type_v="q8_0"),
        ModelOptions(context=128, kv_type_k="f32", kv_type_v="f32"),
        ModelOptions(context=128, flash_attention="off"),
        ModelOptions(context=128, mmap=False),
        ModelOptions(context=128, mlock=True),
        ModelOptions(context=128, threads=1, batch=128),
        ModelOptions(context=128, gpu_layers=0),
    ],
    ids=str,
)
def test_every_option_of_a_model_works(options: ModelOptions) -> None:
    with localspec.load(options=options) as engine:
        text = asked(engine, FOX, count=12).completion().text
    assert text.startswith("Once upon a time")


def test_rpc_without_a_backend_for_it_is_explained() -> None:
    import llama_cpp

    assert not llama_cpp.llama_supports_rpc(), "this build has RPC; test it with a server"
    with pytest.raises(UsageError, match="GGML_RPC=on"):
        localspec.load(options=ModelOptions(rpc=("localhost:50052",)))
