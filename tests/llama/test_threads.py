"""Thread options, chunks of watched prompts, and the load of other processes."""

import importlib
import os
from collections.abc import Iterator
from types import SimpleNamespace

import psutil
import pytest

from localspec import ModelOptions, UsageError
from localspec import llama as binding
from localspec.llama.context import Context
from localspec.llama.options import MIN_CHUNK, thread_count
from localspec.llama.threads import OtherProcesses
from tests.llama.conftest import NOISE


def test_prompt_is_read_in_chunks(context: Context) -> None:
    tokens = context.filler(MIN_CHUNK * 3 + 20)
    context.clear()
    whole = context.extend(tokens)[-1].copy()
    context.clear()
    passes: list[int] = []
    context.shared.watch = lambda tokens, _seconds: passes.append(tokens)
    context.chunk = lambda: MIN_CHUNK
    parts = context.extend(tokens)[-1]
    assert passes == [64, 64, 84], "a short rest joins the last chunk"
    assert abs(whole - parts).max() < NOISE
    rows = context.extend(tokens[: MIN_CHUNK + 1], MIN_CHUNK + 1)
    assert len(rows) == MIN_CHUNK + 1, "passes with several outputs are not split"


@pytest.mark.parametrize(
    ("text", "count"), [("2", 2), (" auto", "auto"), ("-1", "auto"), ("-2", -2), ("x", "x")]
)
def test_thread_count_is_parsed(text: str, count: int | str) -> None:
    assert thread_count(text) == count


@pytest.mark.parametrize("threads", [0, -1, "x", "2"])
def test_invalid_thread_count_is_refused(threads: int | str) -> None:
    with pytest.raises(UsageError, match=r"Give 1 to 512, or auto\."):
        ModelOptions(threads=threads)


def test_openmp_waits_are_shortened_and_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, until_loaded in ((None, binding.SPINS), ("7", "7")):
        monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
        monkeypatch.delenv(binding.NAME, raising=False)
        if given is not None:
            monkeypatch.setenv(binding.NAME, given)
        importlib.reload(binding)
        assert os.environ[binding.NAME] == until_loaded
        binding.restore_waits()
        assert os.environ.get(binding.NAME) == given, "a value of the user is kept"


# Load of other processes, from readings of the cores.


@pytest.mark.parametrize(
    ("worked", "own", "found"),
    [(0.0, 0.0, 0.0), (2.0, 1.0, 1.0), (1.0, 1.05, 0.0), (None, 0.0, None)],
)
def test_load_of_other_processes(worked: float | None, own: float, found: float | None) -> None:
    work: Iterator[float | None] = iter([500.0, None if worked is None else 500.0 + worked])
    ours, clock = iter([10.0, 10.0 + own]), iter([0.0, 1.0])
    others = OtherProcesses(lambda: next(work), lambda: next(ours), lambda: next(clock))
    assert others() == (None if found is None else pytest.approx(found))


def test_niced_processes_are_load_and_zeros_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    core = SimpleNamespace(user=0.0, system=0.0, idle=0.0)
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: [core] * 64)
    time = iter([0.0, 1e12, 0.0, 1.0])
    assert OtherProcesses(clock=lambda: next(time))() is None
    core.nice = 1.0
    core.nice, others = 2.0, OtherProcesses(own=lambda: 0.0, clock=lambda: next(time))
    assert (others() or 0.0) >= 1.0, "a core, or each"
