"""`Engine` on the built-in pair."""

import copy
import gc
import json
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import localspec
from localspec import (
    AsyncEngine,
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
from localspec.errors import WrongType
from localspec.llama import compute_thread
from localspec.prompting.marked_text import unmarked
from localspec.prompting.template import ChatTemplate
from tests.cli.process import run_python
from tests.support import ggufs
from tests.support.asking import ENDLESS, PLAIN, WAYS, ask, assistant, generate, tokens_of, user
from tests.support.greedy import CLEAR
from tests.support.patches import fail_with
from tests.support.sessions import make_drafts_cheap, module_pair
from tests.support.together import together

FOX = [user("Tell me a story about a fox.")]


def untyped(value: object) -> Any:
    return value


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


small = module_pair(context=128)


def test_statistics_add_up(engine: Engine) -> None:
    make_drafts_cheap(engine)
    stream = ask(engine, FOX, count=100)
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
    for count in ("drafted", "tested", "accepted"):
        parts = [getattr(figures, count) for figures in stats.by_drafter.values()]
        assert getattr(stats, count) == sum(parts)
    spent = stats.draft_seconds + stats.verify_seconds + stats.overhead_seconds
    assert spent == pytest.approx(stats.decode_seconds)
    assert min(stats.draft_seconds, stats.verify_seconds, stats.overhead_seconds) > 0
    json.dumps(stats.as_dict())


def test_second_chat_turn_decodes_only_new_tokens(engine: Engine) -> None:
    first = ask(engine, FOX, WAYS["model"], 40).completion()
    turns = [*FOX, assistant(first.text), user("More.")]
    second = ask(engine, turns, WAYS["model"], 40).completion()
    # The template's own tokens around the new turn, and the last token of the first answer.
    assert second.stats.prompt_tokens - second.stats.cached_tokens <= 8
    engine.clear()
    assert ask(engine, turns, WAYS["model"], 40).completion().text == second.text


def test_another_prompt_reuses_only_the_common_prefix(engine: Engine) -> None:
    generate(engine, "The king said", count=10)
    other = ask(engine, "The queen said", count=10)
    tokens = tokens_of(other)
    engine.clear()
    assert other.stats.cached_tokens == 2  # BOS and "The"
    assert generate(engine, "The queen said", count=10) == tokens


def test_seed_repeats_a_sampled_answer_and_is_reported(engine: Engine) -> None:
    first = engine.chat(FOX, max_tokens=60)
    sampling = SamplingParams(seed=first.stats.seed)
    for drafting in (Drafting(), Drafting(drafter="model"), Drafting(drafter="none")):
        again = engine.chat(FOX, max_tokens=60, sampling=sampling, drafting=drafting)
        assert again.text == first.text
    assert engine.chat(FOX, max_tokens=60, sampling=SamplingParams(seed=7)).text != first.text


def test_end_of_generation_token_ends_the_answer(engine: Engine) -> None:
    stream = ask(engine, FOX, count=None)
    ids = tokens_of(stream)
    assert stream.finish_reason == "stop"
    assert engine.model.vocabulary.ends(ids[-1])
    assert not any(engine.model.vocabulary.ends(token) for token in ids[:-1])
    assert "<|" not in stream.text


@pytest.mark.parametrize("chunks", [0, 1])
def test_cancel_ends_the_stream(engine: Engine, chunks: int) -> None:
    stream = ask(engine, FOX, count=60)
    for _ in range(chunks):
        next(stream)
    stream.cancel()
    assert stream.completion().finish_reason == "cancelled"
    assert stream.stats.generated_tokens < (60 if chunks else 1)


def test_ids_and_numbers_of_any_library_are_accepted(engine: Engine) -> None:
    ids = [engine.model.vocabulary.bos, *engine.tokenize(CLEAR)]
    plain = ask(engine, CLEAR, count=8).completion().text
    zero, eight, seed = map(untyped, (np.float32(0), np.int64(8), np.int64(3)))
    for prompt in map(untyped, (ids, tuple(ids), np.array(ids), iter(ids))):
        sampling = SamplingParams(temperature=zero, seed=seed)
        assert engine.stream(prompt, max_tokens=eight, sampling=sampling).completion().text == plain
    assert (engine.logits(untyped(np.array(ids))) == engine.logits(ids)).all()
    assert engine.token_bytes(untyped(np.int64(ids[1]))) == engine.token_bytes(ids[1])
    engine.learn({}, patience=True)
    assert generate(engine, iter(FOX), count=8) == generate(engine, FOX, count=8)
    assert Drafting(sampled=untyped(np.bool_(0))) == Drafting(sampled=False)


def test_answer_continues_a_last_message_of_the_assistant(engine: Engine) -> None:
    whole = ask(engine, FOX, count=20).completion().text
    begun = whole[: whole.index(" ", 15)]
    rest = ask(engine, [*FOX, assistant(begun)], count=20).completion().text
    assert f"{begun}{rest}".startswith(whole)


def test_text_of_enumerations_is_read_by_its_value(engine: Engine) -> None:
    class Text(str, Enum):
        ROLE = "user"
        GRAMMAR = 'root ::= " xyz"'

    role, grammar = Text.ROLE, Text.GRAMMAR
    assert engine.generate("One", grammar=grammar).text == " xyz"
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
    prompts = ChatTemplate(template, bos="", eos="", name="model")
    assert unmarked(prompts.render([{"role": role, "content": "x"}])).startswith("user: x")


@pytest.mark.parametrize("name", ["temperature", "seed"])
@pytest.mark.parametrize(
    "value",
    [
        np.str_("1"),
        np.complex64(1),
        np.datetime64("2026-01-01"),
        np.array("x"),
        Decimal("sNaN"),
        memoryview(b"1"),
    ],
)
def test_what_is_no_number_is_refused(name: str, value: object) -> None:
    with pytest.raises(WrongType, match=rf"{name} is .*\. Give a (whole )?number"):
        SamplingParams(**untyped({name: value}))


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda engine: engine.token_bytes(-1), "no token -1"),
        (lambda engine: engine.token_bytes(10**9), "no token 1000000000"),
        (lambda engine: engine.tokenize(b"x"), "text is b'x'. Give text"),
        (lambda engine: engine.logits([-1]), "no token -1"),
        (lambda engine: engine.logits([]), "no tokens"),
        (lambda engine: engine.likelihood([10**9]), "no token"),
        (lambda engine: engine.learn({}, patience=np.float32("nan")), "patience is nan"),
        (lambda engine: engine.likelihood([1], -1), "alternatives is -1"),
        (lambda engine: engine.first_wrong([1], ["x"]), "whole numbers"),
        (lambda engine: engine.first_wrong([], [1]), "no tokens"),
        (lambda engine: engine.generate(np.array(5)), "prompt is 5. Give text"),
        (lambda engine: engine.generate(memoryview(b"x")), "prompt is <memory"),
        (lambda engine: engine.learn({"a": [None]}), "text is None"),
        (lambda engine: engine.open_session(None), "path is None"),
        (lambda engine: engine.save_session("s", {1}), "not valid JSON"),
        (pickle.dumps, "sent to another process"),
        (copy.deepcopy, "cannot be copied"),
        (lambda engine: copy.copy(engine.stream("x")), "Stream cannot be copied"),
        (lambda engine: copy.copy(AsyncEngine(engine)), "AsyncEngine cannot be copied"),
        (lambda engine: copy.copy(AsyncEngine(engine).stream("x")), "AsyncStream cannot be copied"),
        (lambda engine: engine.chat("x"), "Message 0 has no role"),
        (lambda engine: engine.chat({"role": "user"}), r"Write \[{'role'"),
        *(
            (
                lambda engine, part=part: engine.chat([{"role": "user", "content": [part]}]),
                f"A part of a message is {named}. Give parts of type text or image",
            )
            for part, named in (("x", "'x'"), ({"type": "image_url"}, "'image_url'"), ({}, "{}"))
        ),
        (lambda engine: engine.learn({"a": 5}), "a is 5. Give a sequence"),
        (lambda engine: engine.generate("x", regex="\ud800"), "expression contains a lone"),
        (lambda engine: engine.generate("x", grammar="\ud800"), "grammar contains a lone"),
    ],
)
def test_arguments_of_other_types(
    engine: Engine, call: Callable[[Engine], object], names: str
) -> None:
    with pytest.raises(LocalspecError, match=names):
        call(engine)


def test_closed_engine_raises_instead_of_reading_freed_memory() -> None:
    pair = localspec.load(context=128)
    stream = pair.stream("Once", max_tokens=50)
    next(stream)
    pair.close()
    assert stream.finish_reason == "cancelled"
    for use in (
        lambda: pair.stream("Once"),
        lambda: pair.tokenize("Once"),
        lambda: pair.learn({"a": ["b"]}),
        lambda: pair.logits([1]),
        lambda: pair.prompts.text(FOX),
        lambda: pair.model.vocabulary.tokenize("x"),
        lambda: pair.model.vocabulary.piece(7_000),
        lambda: pair.model.chat_template,
        lambda: pair.calibrate(),
    ):
        with pytest.raises(UsageError, match=r"is closed\. Load"):
            use()
    pair.close()
    assert pair.context_length == 128


@pytest.mark.parametrize("parallel", [1, 2])
def test_unreferenced_engine_is_freed(parallel: int) -> None:
    """By the compute thread, at once and without the garbage collector."""
    with no_garbage_collection():
        engine = localspec.load(options=ModelOptions(context=128), parallel=parallel)
        models = [engine.model, engine.draft]
        stream = engine.stream(FOX, max_tokens=60)
        next(stream)
        del engine
        assert next(stream).text
        del stream
        for _ in range(2):  # for the answer, then for the engine
            compute_thread.settle(60)
    for model in models:
        assert model is not None
        with pytest.raises(UsageError, match="model is closed"):
            assert model.handle


def test_failed_stream_counts_as_cancelled_after_close(engine: Engine) -> None:
    engine.forget()  # so that it fails while costs are measured after its prompt
    fails = fail_with(ZeroDivisionError())
    stream = engine.stream("The fox sat. " * 99, max_tokens=4, progress=fails, reuse=False)
    for read in (lambda: next(stream), stream.completion):
        with pytest.raises(ZeroDivisionError):
            read()
    assert next(stream, None) is None
    stream.close()
    assert stream.finish_reason == "cancelled"
    assert engine.logits(range(5, 90)).size, "its progress is not reported again"


def test_unreferenced_stream_frees_the_engine(engine: Engine) -> None:
    waited, held, go_on = list[bool](), threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        waited.append(go_on.wait(5))

    with no_garbage_collection():
        for _chunk in engine.stream(FOX, max_tokens=60):
            compute_thread.post(hold)
            held.wait(60)
            break
        go_on.set()
        assert engine.chat(FOX, max_tokens=2).text
    assert waited == [True], "a finalizer does not wait for that thread, which may need a lock"


def test_unreferenced_streams_of_several_threads_free_the_engine() -> None:
    started = threading.Barrier(2)
    with localspec.load(context=256, parallel=2) as pair:

        def stream_then_chat() -> str:
            next(pair.stream(FOX, max_tokens=60))
            started.wait()
            return pair.chat(FOX, max_tokens=2).text

        with no_garbage_collection():
            answers = together([stream_then_chat, stream_then_chat])
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
import warnings; warnings.simplefilter("ignore")  # Python 3.12 warns of forks beside threads
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
def test_no_answer_outlives_the_compute_thread(last: str) -> None:
    """Neither in a forked process, which lacks that thread, nor at the exit of Python."""
    ended = run_python(BEGUN + last)
    assert (ended.code, ended.out, ended.err) == (0, "False\n", "")


def test_several_threads_may_read_one_answer(engine: Engine) -> None:
    expected = generate(engine, FOX, count=40)
    stream = ask(engine, FOX, count=40)
    parts = together([lambda: tokens_of(stream)] * 3)
    assert sum(len(part) for part in parts if isinstance(part, list)) == len(expected)
    assert stream.context[-len(expected) :] == expected


def test_another_thread_may_close_a_stream(engine: Engine) -> None:
    stream, reading = ask(engine, FOX, count=900, shift=ContextShift()), threading.Event()

    def read() -> None:
        for _ in stream:
            reading.set()

    def close() -> None:
        reading.wait(60)
        stream.close()

    assert together([read, close]) == [None, None]
    assert stream.finish_reason == "cancelled"
    assert generate(engine, FOX, count=3)


def test_second_stream_in_the_same_thread_is_refused(engine: Engine) -> None:
    """It would deadlock: only this thread can finish the first one."""
    with engine.stream(FOX, max_tokens=30) as first:
        next(first)
        with pytest.raises(EngineBusy, match="close"):
            next(engine.stream(FOX))
    assert engine.chat(FOX, max_tokens=3).text


def test_concurrent_calls_are_serialized(engine: Engine) -> None:
    expected = generate(engine, FOX, count=30)
    assert together([partial(generate, engine, FOX, count=30)] * 6) == [expected] * 6


def test_without_wait_a_busy_engine_raises() -> None:
    with localspec.load(options=ModelOptions(context=128), wait=False) as engine:
        with engine.stream(FOX, max_tokens=30) as stream:
            next(stream)
            (error,) = together([partial(engine.chat, FOX, max_tokens=3)])
            assert isinstance(error, EngineBusy)
        assert engine.chat(FOX, max_tokens=3).text


def test_prompt_longer_than_the_context(small: Engine) -> None:
    with pytest.raises(ContextOverflow, match="--ctx") as caught:
        small.generate("a fox " * 200)
    assert caught.value.available == 128
    assert caught.value.needed > 128
    sent = pickle.loads(pickle.dumps(caught.value))  # as a pool of processes does
    assert (str(sent), sent.needed) == (str(caught.value), caught.value.needed)
    with pytest.raises(ContextOverflow):
        small.chat([user("a fox " * 200)], overflow="drop_oldest")


def test_answer_ends_where_the_context_is_full(small: Engine) -> None:
    answer = small.generate("One day a fox", sampling=ENDLESS)
    assert answer.finish_reason == "length"
    assert answer.stats.prompt_tokens + answer.stats.generated_tokens == 128
    assert any("128 tokens is full" in notice for notice in answer.stats.notices)


def test_oldest_turns_are_dropped_on_request(small: Engine) -> None:
    turns = [{"role": role, "content": "Be kind."} for role in ("developer", "system")]
    for i in range(8):
        turns.append(user(f"Tell me about animal number {i}, please do."))
        turns.append(assistant("It is a very nice animal that lives in the wood."))
    turns.append(user("And the fox?"))
    # Without drafts, which depend on timing, and so decide between tied tokens.
    answer = ask(small, turns, PLAIN, 20, overflow="drop_oldest").completion()
    assert answer.stats.prompt_tokens <= 128 - 20
    (notice,) = answer.stats.notices
    assert "oldest" in notice
    dropped = int(notice.split("oldest first: ")[1].rstrip("."))
    kept = [*turns[:2], *turns[2 + dropped :]]
    assert kept[2]["role"] == "user"
    assert ask(small, kept, PLAIN, 20).completion().text == answer.text


def test_lossy_rules_accept_more_and_are_reported(engine: Engine) -> None:
    lossy = Drafting(drafter="model", depth=4, rule="top-k", threshold=8)
    exact, loose = (ask(engine, FOX, way, 100).completion().stats for way in (WAYS["model"], lossy))
    assert exact.lossless
    assert not loose.lossless
    assert loose.rule == "top-k"
    assert loose.acceptance_rate > exact.acceptance_rate


def test_padding_tokens_of_a_draft_model_are_never_proposed(tmp_path: Path) -> None:
    draft = ggufs.tiny_llama(tmp_path / "padded.gguf", vocab_size=8400)
    with localspec.load(draft=draft, options=ModelOptions(context=256)) as engine:
        stream = engine.stream(FOX, max_tokens=40, drafting=Drafting(drafter="model", depth=6))
        drafts = [t for chunk in stream if chunk.step for t in chunk.step.tree.tokens]
        assert drafts
        assert max(drafts) < 8192


def test_missing_draft_model_is_reported(target_path: Path) -> None:
    with localspec.load(target_path, draft=None, options=ModelOptions(context=256)) as engine:
        assert engine.draft is None
        assert engine.why_no_draft
        make_drafts_cheap(engine)  # else the reason would be that passes are too short
        stats = ask(engine, FOX, count=20).completion().stats
        assert any("no draft model" in reason for reason in stats.reasons)
        with pytest.raises(UsageError, match="needs a draft model"):
            engine.chat(FOX, drafting=Drafting(drafter="cascade"))


@pytest.mark.parametrize(
    ("prompt", "options", "names"),
    [
        (FOX, {"max_tokens": 0}, "max-tokens is 0"),
        (FOX, {"logprobs": -1}, "logprobs is -1"),
        (FOX, {"stop": [""]}, "stop string is empty"),
        (FOX, {"grammar": "root ::= nothing"}, "nothing"),
        (FOX, {"grammar": 'root ::= "a"', "json_schema": "{}"}, "cannot be combined"),
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
        ([{"role": "user", "content": np.array(["a", "b"])}], {}, "content of message 0 is array"),
        ([{"role": "user", "content": "x", "tool_calls": [np.zeros(2)]}], {}, "0 are malformed"),
        ([{"role": "user", "content": "x", "tool_calls": "f"}], {}, "tool calls of message 0"),
        ([{"role": "user", "content": [{"type": np.zeros(2)}]}], {}, "A part of a message"),
        (FOX, {"overflow": np.zeros(2)}, "error, drop_oldest"),
        ([{"role": "user", "content": [{"type": "image"}]}], {}, "image is None"),
        (FOX, {"max_tokens": "4"}, "max-tokens is '4'. Give a whole number or None"),
        (FOX, {"stop": 5}, "stop is 5. Give text or a sequence or None"),
        (FOX, {"stop": [None]}, "stop is None. Give text"),
        (FOX, {"stop_after": "("}, "stop-after is not a regular expression: missing"),
        (FOX, {"sampling": {"seed": 1}}, "Give a SamplingParams or None"),
        (FOX, {"json_schema": dict}, "Give text or a dictionary or None"),
        (FOX, {"reuse": "no"}, "reuse is 'no'. Give True or False"),
        (FOX, {"progress": 5}, "progress is 5. Give a plain function or None"),
    ],
)
def test_invalid_arguments_are_refused_at_the_call(
    engine: Engine, prompt: object, options: dict[str, object], names: str
) -> None:
    with pytest.raises(UsageError, match=names):
        engine.stream(prompt, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: SamplingParams(top_k=untyped("5")), "top-k is '5'. Give a whole number"),
        (lambda: SamplingParams(temperature=untyped(None)), "temperature is None. Give a number"),
        (lambda: SamplingParams(logit_bias=untyped({1: "x"})), "logit-bias is .* each token id"),
        (lambda: ModelOptions(mmproj=""), "mmproj is empty. Leave it out"),
        (lambda: SamplingParams(temperature=10**400), "temperature has more than 300 digits"),
        (lambda: ModelOptions(context=10**5000), "context has more than 300 digits"),
        (lambda: SamplingParams(logit_bias={2**70: 1}), "for each token"),
        (lambda: SamplingParams(logit_bias={1: 10**400}), "for each token id"),
        (lambda: SamplingParams(logit_bias=untyped({1.5: 1})), "for each token id"),
        (lambda: Drafting(drafter=untyped(["x"])), "no drafter"),
        (lambda: ContextShift(keep=untyped("x")), "keep is 'x'. Give a whole number"),
        (lambda: Drafting(depth=untyped(2.5)), "depth is 2.5. Give a whole number or None"),
        (lambda: ModelOptions(exact=untyped("no")), "exact is 'no'. Give True or False"),
        (lambda: ModelOptions(lora=untyped([("x", 1.0)])), "lora is .*Give text or a path"),
        (lambda: ModelOptions(rpc=untyped(None)), "rpc is None"),
        (lambda: localspec.load(untyped(b"x")), "model is b'x'. Give text or a path"),
        (lambda: localspec.load(drafting=untyped("none")), "drafting is 'none'. Give a Drafting"),
        (lambda: localspec.load(draft=untyped(5)), "draft is 5. Give text or a path or None"),
        (lambda: localspec.load(progress=untyped(5)), "progress is 5. Give a plain function"),
        (lambda: localspec.load_async(progress=untyped(5)), "progress is 5. Give a plain function"),
        (lambda: localspec.load(wait=untyped("no")), "wait is 'no'. Give True or False"),
        (lambda: localspec.AsyncEngine(untyped(5)), "engine is 5. Give an Engine"),
        (lambda: Drafting(rule=untyped(["x"])), "rule is .*Give text"),
        (lambda: Drafting(drafter="magic"), "no drafter 'magic'.*cascade"),
        (lambda: Drafting(drafter=untyped(np.zeros(2))), "no drafter"),
        (lambda: ModelOptions(kernels=untyped(np.zeros(2))), "Choose one of auto"),
        (lambda: Drafting(depth=0), "depth is 0.*--drafter none"),
        (lambda: Drafting(width=0), "width is 0"),
        (lambda: ModelOptions(context=-1), "context is -1"),
        (lambda: ModelOptions(gpu_layers=-2), "gpu-layers is -2"),
        (lambda: ModelOptions(parallel=0), "parallel"),
        (lambda: ModelOptions(parallel=33), "parallel"),
        (lambda: ModelOptions(parallel_chunk=8), "parallel"),
        (lambda: ModelOptions(kv_type_k="q3"), "kv-type-k is 'q3'"),
        (lambda: ModelOptions(kv_type_v="q8_0", flash_attention="off"), "flash attention"),
        (lambda: ModelOptions(exact=True, flash_attention="off"), "needs flash attention"),
        (lambda: ModelOptions(flash_attention="maybe"), "auto, off, on|auto, on, off"),
    ],
)
def test_invalid_options_are_refused(make: Callable[[], object], names: str) -> None:
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
        text = ask(engine, FOX, count=12).completion().text
    assert text.startswith("Once upon a time")


def test_rpc_without_a_backend_is_refused() -> None:
    import llama_cpp

    assert not llama_cpp.llama_supports_rpc(), "this build has RPC; test it with a server"
    with pytest.raises(UsageError, match="GGML_RPC=on"):
        localspec.load(options=ModelOptions(rpc=("localhost:50052",)))
