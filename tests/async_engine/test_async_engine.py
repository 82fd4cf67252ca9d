"""`AsyncEngine` on the built-in pair."""

import asyncio
import gc
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures.thread import _WorkItem
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import localspec
from localspec import (
    AsyncEngine,
    ContextOverflow,
    Drafting,
    Engine,
    EngineBusy,
    ModelNotFound,
    SamplingParams,
    UsageError,
    load_async,
)
from localspec.llama import compute_thread
from tests.engine.test_engine import untyped
from tests.support import inside
from tests.support.sessions import make_drafts_cheap
from tests.support.together import together

pytestmark = pytest.mark.nightly

GREEDY = SamplingParams(temperature=0)
PLAIN = Drafting(drafter="none")  # where texts are compared: a near-tie may fall either way
PROMPT = "Once upon a time"
OTHERS = ("The cat", "One day", "A bear", "Tom and", "It was")
LONG = "The fox and the bird and the bear went to the river. " * 60
PATIENCE = 60.0
Answers = Callable[[str, int], str]  # by prompt and number of tokens


@pytest.fixture
async def async_engine(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[AsyncEngine]:
    """An `AsyncEngine` over the module's engine, which outlives it."""
    monkeypatch.setattr(engine, "close", lambda: None)
    async with AsyncEngine(engine) as found:
        yield found
    assert not threads()


@pytest.fixture(scope="module")
def plain(engine: Engine) -> Answers:
    """Answers of the engine without an event loop."""
    known: dict[tuple[str, int], str] = {}

    def answer(prompt: str, count: int) -> str:
        if (prompt, count) not in known:
            found = engine.generate(prompt, max_tokens=count, sampling=GREEDY, drafting=PLAIN)
            known[prompt, count] = found.text
        return known[prompt, count]

    return answer


@pytest.fixture(autouse=True)
def _known_costs(engine: Engine, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    make_drafts_cheap(engine)
    yield
    compute_thread.settle(PATIENCE)  # an answer that was dropped ends there
    assert not inside.slots(engine).tasks
    gc.collect()  # asyncio logs unawaited tasks when they are collected
    assert not [record for record in caplog.records if record.name == "asyncio"]


def threads() -> list[str]:
    """localspec's threads, without the compute thread, which stays."""
    names = [t.name.removesuffix("_0") for t in threading.enumerate()]
    return [n for n in names if n.startswith("localspec-") and n != "localspec-compute"]


async def until(condition: Callable[[], bool]) -> None:
    """Run the loop until a condition holds."""

    async def wait() -> None:
        while not condition():
            await asyncio.sleep(0.001)

    await asyncio.wait_for(wait(), PATIENCE)


async def generate(engine: AsyncEngine, prompt: str, count: int) -> str:
    text = ""
    stream = engine.stream(prompt, max_tokens=count, sampling=GREEDY, drafting=PLAIN)
    async for chunk in stream:
        text += chunk.text
    return text


def test_parameters_equal_those_of_the_engine() -> None:
    for name in ("chat", "generate"):
        ours, theirs = (
            inspect.signature(getattr(kind, name)).parameters for kind in (AsyncEngine, Engine)
        )
        assert list(ours.values()) == list(theirs.values())
    ours, theirs = (inspect.signature(f).parameters for f in (load_async, localspec.load))
    assert list(ours.values()) == list(theirs.values())


async def test_answer_equals_the_engines(async_engine: AsyncEngine, plain: Answers) -> None:
    stream = async_engine.stream(PROMPT, max_tokens=60, sampling=GREEDY, drafting=PLAIN)
    assert (stream.text, stream.finish_reason) == ("", None)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.text for chunk in chunks) == stream.text == plain(PROMPT, 60)
    assert (stream.finish_reason, stream.stats.generated_tokens) == ("length", 60)
    assert [chunk async for chunk in stream] == [], "the stream has ended"


async def test_loop_runs_during_an_answer(async_engine: AsyncEngine) -> None:
    """Also while a long prompt is read; progress is reported in the loop's thread."""
    reports: list[tuple[int, int, int]] = []

    def progress(done: int, total: int) -> None:
        reports.append((done, total, threading.get_ident()))

    stream = async_engine.stream(LONG, max_tokens=20, sampling=GREEDY, progress=progress)
    turns = 0
    reading = asyncio.ensure_future(stream.completion())
    while not reading.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 100
    assert {thread for _, _, thread in reports} == {threading.get_ident()}
    assert reports[-1][0] == reports[-1][1]


async def test_answers_are_given_in_order(async_engine: AsyncEngine, plain: Answers) -> None:
    order: list[str] = []

    async def ask(prompt: str) -> str:
        text = await generate(async_engine, prompt, 20)
        order.append(prompt)
        return text

    texts = await asyncio.gather(*(ask(prompt) for prompt in OTHERS))
    assert order == list(OTHERS)
    assert texts == [plain(prompt, 20) for prompt in OTHERS]


@pytest.mark.parametrize("way", ["break", "exception", "cancelled", "closed"])
async def test_leaving_frees_the_engine(
    async_engine: AsyncEngine, plain: Answers, way: str
) -> None:
    stream = async_engine.stream(PROMPT, max_tokens=900, sampling=GREEDY)
    seen: list[int] = []

    async def read() -> None:
        async for _ in stream:
            if len(seen) < 5:
                seen.append(stream.stats.target_passes)
            elif way == "break":
                break
            elif way == "exception":
                raise ZeroDivisionError
            elif way == "cancelled":
                asyncio.current_task().cancel()  # type: ignore[union-attr]
            else:
                await stream.aclose()
                return

    reading = asyncio.ensure_future(read())
    with suppress(ZeroDivisionError, asyncio.CancelledError):
        await reading
    before = stream.stats.target_passes
    await until(lambda: stream.finish_reason == "cancelled")
    assert stream.stats.target_passes <= before + 1
    assert 0 < stream.stats.generated_tokens < 900
    assert await generate(async_engine, PROMPT, 24) == plain(PROMPT, 24)


async def test_task_is_cancelled_during_the_prompt(async_engine: AsyncEngine) -> None:
    stream = async_engine.stream(LONG, max_tokens=20, sampling=GREEDY)
    reading = asyncio.ensure_future(stream.completion())
    await until(lambda: bool(inside.slots(async_engine.engine).tasks))
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await until(lambda: stream.finish_reason == "cancelled")
    assert stream.text == ""


async def test_waiting_task_is_cancelled(async_engine: AsyncEngine, plain: Answers) -> None:
    async with async_engine.stream(PROMPT, max_tokens=900, sampling=GREEDY) as first:
        async for _ in first:
            second = asyncio.ensure_future(generate(async_engine, "The cat", 20))
            third = asyncio.ensure_future(generate(async_engine, "One day", 20))
            await asyncio.sleep(0.01)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            break
    assert await third == plain("One day", 20)


async def test_cancel_ends_the_iteration(async_engine: AsyncEngine) -> None:
    """Without an exception; the text so far is available."""
    stream = async_engine.stream(PROMPT, max_tokens=900, sampling=GREEDY)
    text = ""
    async for chunk in stream:
        text += chunk.text
        if len(text) > 40:
            stream.cancel()
    assert text == stream.text
    assert stream.finish_reason == "cancelled"


async def test_cancel_of_a_waiting_stream(async_engine: AsyncEngine) -> None:
    async with async_engine.stream(PROMPT, max_tokens=900, sampling=GREEDY) as running:
        async for _ in running:
            waiting = async_engine.stream("The cat", max_tokens=20)
            reading = asyncio.ensure_future(waiting.completion())
            await asyncio.sleep(0.01)
            waiting.cancel()
            assert (await asyncio.wait_for(reading, PATIENCE)).finish_reason == "cancelled"
            assert running.finish_reason is None, "the other one continues"
            break
    never = async_engine.stream("The cat")
    never.cancel()
    assert [chunk async for chunk in never] == []
    assert never.finish_reason == "cancelled"


async def test_abandoned_streams_are_freed(async_engine: AsyncEngine, plain: Answers) -> None:
    """Cancelled in passes, and with their last reference."""
    for count in range(50):
        stream = async_engine.stream(OTHERS[count % 5], max_tokens=50, sampling=GREEDY)
        if count % 2:
            await (stream.next() if count % 4 == 1 else anext(aiter(stream)))
        else:
            reading = asyncio.ensure_future(stream.completion())
            await asyncio.sleep(0.0005 * (count % 7))
            reading.cancel()
    del stream
    assert await generate(async_engine, PROMPT, 24) == plain(PROMPT, 24)
    assert threads() == ["localspec-async"]
    gc.collect()
    assert sum(isinstance(one, localspec.AsyncStream) for one in gc.get_objects()) < 5


async def test_dropped_stream_ends_while_its_thread_is_slow(
    async_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the thread had given the result, but not yet dropped the work."""
    kept, run = dict[int, tuple[Any, ...]](), _WorkItem[object].run
    monkeypatch.setattr(_WorkItem, "run", lambda *item: run(*kept.setdefault(len(kept), item)))
    for _ in range(3):
        stream = async_engine.stream(PROMPT, max_tokens=900, sampling=GREEDY)
        assert await stream.next()
        del stream


async def test_errors_are_raised_at_the_first_step(async_engine: AsyncEngine) -> None:
    with pytest.raises(TypeError, match=r"takes no .*'max_token'. Did you mean 'max_tokens'\?"):
        async_engine.stream("Once", max_token=3)  # type: ignore[call-arg]
    with pytest.raises(UsageError, match=r"progress is 'bar'. Give a plain function or None"):
        await async_engine.generate(PROMPT, progress=untyped("bar"))
    with pytest.raises(UsageError, match="max-tokens is 0"):
        await async_engine.generate(PROMPT, max_tokens=0)
    stream = async_engine.stream(LONG * 10)
    for read in (stream.next, stream.completion, stream.completion):
        with pytest.raises(ContextOverflow):
            await read()
    assert (await async_engine.generate(PROMPT, max_tokens=3)).stats.generated_tokens == 3


async def test_task_may_ask_again_after_a_generator_that_it_left(async_engine: AsyncEngine) -> None:
    async def texts() -> AsyncIterator[str]:
        async for chunk in async_engine.stream(PROMPT, max_tokens=900, sampling=GREEDY):
            yield chunk.text

    def hold_up() -> None:
        """Keep this loop from closing the generator until the engine has tried to begin."""
        after = async_engine.stream(PROMPT, max_tokens=0)
        other = threading.Thread(target=lambda: asyncio.run(ignoring(after.next())))
        other.start()
        other.join()

    async def ignoring(step: Awaitable[object]) -> None:
        with suppress(UsageError):
            await step

    async for _ in texts():
        asyncio.get_running_loop().call_soon(hold_up)
        break  # the event loop closes it later
    assert (await async_engine.generate("The cat", max_tokens=3)).stats.generated_tokens == 3


async def test_reader_of_an_answer_cannot_wait_for_another(async_engine: AsyncEngine) -> None:
    async for _ in async_engine.stream(PROMPT, max_tokens=900, sampling=GREEDY):
        with pytest.raises(EngineBusy, match="This task is already reading 1 answer"):
            await async_engine.generate("The cat")
        with pytest.raises(EngineBusy, match="This task is already reading 1 answer"):
            await async_engine.save_session(PROMPT)
        with pytest.raises(EngineBusy, match="This thread is already reading 1 answer"):
            async_engine.engine.generate("The cat")
        break
    assert (await async_engine.generate("The cat", max_tokens=3)).stats.generated_tokens == 3
    assert async_engine.engine.generate("The cat", max_tokens=3).stats.generated_tokens == 3


async def test_two_tasks_read_one_answer(async_engine: AsyncEngine, plain: Answers) -> None:
    stream = async_engine.stream(PROMPT, max_tokens=24, sampling=GREEDY)
    first, second = await asyncio.gather(stream.next(), stream.next())
    assert None not in (first, second)
    ends = await asyncio.gather(stream.completion(), stream.completion())
    assert [(end.text, end.finish_reason) for end in ends] == [(plain(PROMPT, 24), "length")] * 2


async def test_readers_learn_that_an_answer_cannot_begin(async_engine: AsyncEngine) -> None:
    stream = async_engine.stream(PROMPT, max_tokens=0)
    first, second = await asyncio.gather(stream.next(), stream.next(), return_exceptions=True)
    assert isinstance(first, UsageError)
    assert second is None
    await stream.aclose()


async def test_several_event_loops(async_engine: AsyncEngine, plain: Answers) -> None:
    def another(prompt: str) -> str:
        return asyncio.run(generate(async_engine, prompt, 20))

    wanted = [plain(prompt, 20) for prompt in OTHERS]
    loops = [partial(another, prompt) for prompt in OTHERS]
    assert await asyncio.to_thread(together, loops) == wanted


async def test_another_loop_cannot_continue_an_answer(async_engine: AsyncEngine) -> None:
    stream = async_engine.stream(PROMPT, max_tokens=900)
    reading = aiter(stream)
    await anext(reading)
    with pytest.raises(UsageError, match="Read it there"):
        await asyncio.to_thread(lambda: asyncio.run(stream.completion()))
    await stream.aclose()


async def test_closed_loop_frees_the_engine(async_engine: AsyncEngine, plain: Answers) -> None:
    kept = []

    async def begin() -> None:
        stream = async_engine.stream(PROMPT, max_tokens=900, sampling=GREEDY)
        iteration = aiter(stream)
        await anext(iteration)
        kept.append(iteration)

    await asyncio.to_thread(lambda: asyncio.run(begin()))
    assert inside.slots(async_engine.engine).tasks, "it may still be read"
    kept.clear()
    assert await generate(async_engine, PROMPT, 24) == plain(PROMPT, 24)


@pytest.mark.parametrize("parallel", [1, 2])
async def test_close_cancels_all_answers(parallel: int) -> None:
    async with load_async(context=1024, parallel=parallel) as engine:
        running = asyncio.ensure_future(engine.generate(PROMPT, max_tokens=900, sampling=GREEDY))
        waiting = asyncio.ensure_future(engine.generate("The cat", sampling=GREEDY))
        await until(lambda: len(inside.slots(engine.engine).tasks) == parallel)
    assert (await running).finish_reason == "cancelled"
    assert (await waiting).finish_reason == "cancelled"
    with pytest.raises(UsageError, match="The engine is closed"):
        await engine.generate(PROMPT)
    assert threads() == []


async def test_session_is_saved_after_the_answer(async_engine: AsyncEngine, tmp_path: Path) -> None:
    path = tmp_path / "a.session"
    answer = asyncio.ensure_future(async_engine.generate(PROMPT, max_tokens=60, sampling=GREEDY))
    await asyncio.sleep(0)
    assert await async_engine.save_session(path, ["said"]) > 0
    assert answer.done(), "after the answer"
    opened = await async_engine.open_session(path)
    assert opened.conversation == ["said"]
    assert opened.tokens > 60
    with pytest.raises(localspec.SessionError):
        await async_engine.save_session(Path("/proc/a.session"))


async def test_loop_runs_while_a_model_is_loaded() -> None:
    reports: list[tuple[float, int]] = []
    turns = 0

    def progress(part: float) -> None:
        reports.append((part, threading.get_ident()))

    loading = asyncio.ensure_future(load_async(context=256, threads=1, progress=progress))
    while not loading.done():
        await asyncio.sleep(0)
        turns += 1
    engine = await loading
    assert turns > 20
    assert reports[-1] == (1.0, threading.get_ident())
    assert engine.engine.context_length == 256
    await engine.aclose()
    await engine.aclose()
    assert threads() == []


async def test_errors_of_loading() -> None:
    with pytest.raises(ModelNotFound):
        await load_async("/nowhere/model.gguf")
    with pytest.raises(TypeError, match="Did you mean 'context'"):
        await load_async(contxt=512)  # type: ignore[call-arg]


def test_other_event_loops() -> None:
    with pytest.raises(UsageError, match="needs an asyncio event loop"):
        next(load_async().__await__())


@pytest.mark.parametrize("when", [0.0, 0.001, 0.01, 0.03, 0.06])
async def test_cancelled_loading_frees_everything(when: float) -> None:
    loading = asyncio.ensure_future(load_async(context=256))
    await asyncio.sleep(when)
    loading.cancel()
    with suppress(asyncio.CancelledError):
        await (await loading).aclose()
    await until(lambda: not threads())
