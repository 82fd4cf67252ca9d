"""Parallel answers share cells and slots: reuse, eviction, waiting and refusals."""

import threading
from functools import partial

import pytest

import localspec
from localspec import Drafting, Engine, EngineBusy, ModelOptions
from localspec.llama import compute_thread
from localspec.stream import Stream
from tests.engine.test_parallel import LONG, all_free
from tests.support import inside
from tests.support.asking import ENDLESS, PLAIN, WAYS, ask, generate, tokens_of
from tests.support.patches import record_calls
from tests.support.sessions import drafting_pair, module_pair
from tests.support.together import together

pytestmark = pytest.mark.nightly


parallel = module_pair(context=2048, parallel=4, parallel_chunk=64)
small = module_pair(context=256, batch=128, parallel=4)


def test_common_prefix_of_kept_texts_is_reused(parallel: Engine) -> None:
    parallel.clear()
    drafting = Drafting(drafter="model", depth=3)
    first = ask(parallel, LONG, drafting, 8)
    text = first.completion().text
    ends = (" And then", " But", " Mom")
    streams = [ask(parallel, LONG + text + end, drafting, 8) for end in ends]
    together([stream.completion for stream in streams])
    length = first.stats.prompt_tokens
    assert all(stream.stats.cached_tokens >= length for stream in streams)
    parallel.clear()
    again = ask(parallel, LONG + text + ends[0], drafting, 8)
    assert again.completion().text == streams[0].text
    assert again.stats.cached_tokens == 0


@pytest.mark.parametrize("full", ["cells", "sequences"])
def test_least_recently_used_text_is_evicted(small: Engine, parallel: Engine, full: str) -> None:
    engine, texts, times = (small, 12, 4) if full == "cells" else (parallel, 20, 1)
    text = "The fox and the bird and the bear went to the river. " * times
    for number in range(texts):
        assert generate(engine, f"{number}. {text}", count=20)
    assert 0 < len(inside.drafts_of_kept_texts(engine)) < texts
    newest = ask(engine, f"{texts - 1}. {text}", count=4).completion().stats
    assert newest.cached_tokens == newest.prompt_tokens - 1
    oldest = ask(engine, f"0. {text}", count=4).completion().stats
    assert oldest.cached_tokens < oldest.prompt_tokens // 2


@pytest.mark.parametrize("way", ["none", "model", "model tree"])
def test_answers_that_do_not_fit_take_turns(kernels: None, small: Engine, way: str) -> None:
    """Four that fill three quarters of the cache each: the younger ones give up their cells."""
    prompts = ["Once upon a time", "She went to the", "The sun was hot", "Tom ran"]
    alone = [generate(small, prompt, WAYS[way], count=180) for prompt in prompts]
    small.clear()
    found = together([partial(generate, small, prompt, WAYS[way], count=180) for prompt in prompts])
    assert found == alone
    assert all_free(small)


def test_each_answer_may_fill_the_context(small: Engine) -> None:
    for prompt in ("Once upon a time", "Tom"):
        stream = small.stream(prompt, sampling=ENDLESS)
        assert stream.completion().finish_reason == "length"
        assert len(stream.context) == 256


def test_draft_model_reads_the_end_of_texts_longer_than_its_cache() -> None:
    with localspec.load(options=ModelOptions(context=1024), parallel=16) as pair:
        part = inside.slots(pair).all[0].draft_cache
        assert part is not None
        stream = ask(pair, "Once upon a time", WAYS["model"], 600, sampling=ENDLESS)
        later = [chunk.step for chunk in stream if len(stream.context) > part.capacity + 20]
    assert len(later) > 8
    assert sum(step.accepted for step in later if step is not None) > 8


def test_auto_drafts_for_sixteen_parallel_answers() -> None:
    with drafting_pair(context=256, parallel=16) as pair:
        assert pair.parallel > 1
        plain = generate(pair, "Once upon a time", PLAIN, count=8)
        streams = [ask(pair, "Once upon a time", count=8, reuse=False) for _ in range(16)]
        release = threading.Event()
        compute_thread.post(release.wait)
        for stream in streams:
            stream.begin(lambda: None)
        release.set()
        found = together([partial(tokens_of, stream) for stream in streams])
        assert found == [plain] * 16
        assert sum(stream.stats.drafted for stream in streams) > 0
        assert all_free(pair)


def test_calibration_waits_while_paused_answers_hold_the_cache() -> None:
    """This answer is decoded without it; the next one calibrates."""
    with localspec.load(options=ModelOptions(context=256), parallel=2) as pair:
        assert pair.parallel > 1
        paused = ask(pair, "The fox and the bird went to the river. " * 20, PLAIN, None)
        next(paused)

        answer = partial(generate, pair, "Once upon a time", count=8)
        (tokens,) = together([answer])
        paused.close()
        assert tokens == answer()
        assert pair.profile.target, "measured"


def test_answers_without_reuse_are_not_kept(parallel: Engine) -> None:
    """Kept texts make every pass slower."""
    kept = inside.slots(parallel).kept
    kept.clear()
    for reuse in (False, True):
        stream = ask(parallel, "She went to the", count=4, reuse=reuse)
        stream.completion()
        assert (kept.known(stream.context) > 0) == reuse


def test_waiting_for_a_slot_can_be_cancelled(small: Engine) -> None:
    def stream() -> Stream:
        return ask(small, "Once upon a time", count=200)

    held = [stream() for _ in range(4)]
    for one in held:
        next(one)
    with pytest.raises(EngineBusy, match="thread is already reading 4 answers"):
        next(stream())
    waiting = stream()
    ended = threading.Thread(target=list, args=(waiting,))
    ended.start()
    while not inside.slots(small).waiting:
        pass
    waiting.cancel()
    ended.join(30)
    assert not ended.is_alive()
    assert waiting.finish_reason == "cancelled"
    for one in held:
        one.close()
    assert all_free(small)


def test_one_thread_may_alternate_between_answers(small: Engine) -> None:
    prompts = ("Once upon a time", "She went")
    wanted = [generate(small, prompt, PLAIN, count=12) for prompt in prompts]
    streams = [ask(small, prompt, PLAIN, 12) for prompt in prompts]
    got: list[list[int]] = [[], []]
    for _ in range(12):
        for tokens, stream in zip(got, streams, strict=True):
            chunk = next(stream, None)
            tokens += [] if chunk is None else chunk.token_ids
    for stream in streams:
        stream.close()
    assert got == wanted


def test_short_requests_overtake_prompts(parallel: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for two passes with a chunk at most, and for one chunk that was requested before."""
    passes = record_calls(monkeypatch, inside.shared_contexts(parallel)[0], "decode")
    short, counts = ask(parallel, "Once upon a time", count=2, reuse=False), list[int]()

    def progress(done: int, _: int) -> None:
        if done > 128 and not counts:
            counts.append(len(passes))
            short.begin(lambda: counts.append(len(passes)))

    ask(parallel, LONG * 3, count=2, reuse=False, progress=progress).completion()
    before, first, *_ = counts
    assert len(passes) - first > 5, "the long prompt was read further"
    read = sum(len(part.tokens) for (parts,) in passes[before:first] for part in parts)
    assert read <= (2 + 2 + 1) * 64 + 8
    assert first - before <= 4
    assert short.completion().stats.generated_tokens == 2
