"""Choice of thread counts on simulated machines under various loads."""

import math
import random
import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.llama.threads import GAP, Threads

Load = Callable[[float], float]  # other processes that want a core each, by the time


@dataclass
class Kind:
    """A machine and a model: seconds of a pass on one thread, the gain of two, and the factors of
    two threads that share cores with one and with two other processes."""

    one: float = 0.018
    gain: float = 1.75
    shared: tuple[float, float] = (10.0, 3.0)
    cores: int = 2
    noise: float = 0.05

    def seconds(self, threads: int, load: float) -> float:
        speed = 1.0 + (self.gain - 1.0) * (threads - 1)
        seconds = self.one / speed
        crowd = (threads + load) / self.cores
        if crowd <= 1.0:
            return seconds
        if threads == 1:
            return seconds * crowd
        return seconds * self.shared[0 if load < 1.5 else 1]


HERE = Kind()  # as measured: 55 and 96 passes a second, 6 beside one other process, 32 beside two
FLAT = Kind(one=0.0073, gain=1.03, shared=(3.0, 60.0))
"""137 and 141 passes a second, 47 beside one process, 2.4 beside two."""
LARGE = Kind(one=0.18, gain=1.85)
EIGHT = Kind(cores=8, gain=1.8)
KINDS = [HERE, FLAT, LARGE, EIGHT]


@dataclass
class Machine:
    """A clock, and the use by other processes over the last quarter of a second."""

    kind: Kind
    load: Load
    seed: int = 0
    now: float = 0.0
    _seen: deque[tuple[float, float]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._span = self._used = 0.0

    def others(self) -> float | None:
        return self._used / self._span if self._seen else 0.0

    def run(self, threads: int) -> float:
        load = self.load(self.now)
        seconds = self.kind.seconds(threads, load) * math.exp(
            self._random.gauss(0.0, self.kind.noise)
        )
        self._pass(seconds, min(load, load * self.kind.cores / (threads + load)))
        return seconds

    def _pass(self, seconds: float, used: float) -> None:
        self.now += seconds
        self._seen.append((seconds, used))
        self._span += seconds
        self._used += seconds * used
        while self._span - self._seen[0][0] > 0.25:
            gone, used = self._seen.popleft()
            self._span -= gone
            self._used -= gone * used


def simulated(kind: Kind, load: Load, seed: int = 0) -> tuple[Machine, Threads]:
    machine, cores = Machine(kind, load, seed), kind.cores
    return machine, Threads(
        [cores, max(1, cores // 2), 1], others=machine.others, clock=lambda: machine.now
    )


def run_pass(machine: Machine, chosen: Threads, hiccup: float = 0.0) -> None:
    chosen.record_pass(1, machine.run(chosen.count) + hiccup)
    chosen.apply()


def drive(machine: Machine, chosen: Threads, until: float) -> tuple[int, list[tuple[float, int]]]:
    """Make passes until a time; returns their number, and start and thread count of each."""
    done, history = 0, []
    while machine.now < until:
        history.append((machine.now, chosen.count))
        run_pass(machine, chosen)
        done += 1
    return done, history


def best_fixed(kind: Kind, load: Load, until: float) -> int:
    found = []
    for count in {kind.cores, max(1, kind.cores // 2), 1}:
        machine, done = Machine(kind, load), 0
        while machine.now < until:
            machine.run(count)
            done += 1
        found.append(done)
    return max(found)


def switches(history: list[tuple[float, int]]) -> int:
    return sum(a[1] != b[1] for a, b in pairwise(history))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("load", [0.0, 1.0, 2.0, 7.0])
def test_steady_machine_is_used_as_with_the_best_fixed_count(kind: Kind, load: float) -> None:
    machine, chosen = simulated(kind, lambda _: load)
    chosen.begin()
    done, history = drive(machine, chosen, 60.0)
    assert done >= 0.9 * best_fixed(kind, lambda _: load, 60.0)
    assert switches(history) <= 24


@pytest.mark.parametrize("kind", [HERE, FLAT, LARGE])
@pytest.mark.parametrize("load", [1.0, 2.0])
def test_load_is_noticed_within_ten_passes(kind: Kind, load: float) -> None:
    machine, chosen = simulated(kind, lambda t: load if t > 20.0 else 0.0)
    drive(machine, chosen, 20.0)
    assert chosen.count == 2, "an idle machine is used"
    counts = []
    for _ in range(14):
        counts.append(chosen.count)
        run_pass(machine, chosen)
    assert 1 in counts[:11]
    assert counts[-1] == 1


@settings(max_examples=20)
@given(
    kind=st.sampled_from([HERE, LARGE, EIGHT]),
    load=st.sampled_from([1.0, 2.0, 8.0]),
    lasts=st.floats(3.0, 100.0),
    seed=st.integers(0, 99),
)
def test_full_speed_within_two_seconds(kind: Kind, load: float, lasts: float, seed: int) -> None:
    end = 10.0 + lasts
    machine, chosen = simulated(kind, lambda t: load if 10.0 < t < end else 0.0, seed=seed)
    drive(machine, chosen, end)
    _, history = drive(machine, chosen, machine.now + 4.0)
    late = [n for when, n in history if when > end + 2.0]
    assert late.count(kind.cores) >= 0.85 * len(late)


@pytest.mark.nightly
def test_flickering_load_causes_no_oscillation() -> None:
    """Sixty loads with periods of 0.1 to 20 seconds cause few changes. The speed is at least 0.65
    times that with the best fixed count, and 0.95 times in half of the cases."""
    random_load, shares = random.Random(5), []
    for seed in range(60):
        kind = random_load.choice(KINDS)
        period = math.exp(random_load.uniform(math.log(0.1), math.log(20.0)))
        busy, load = random_load.uniform(0.1, 0.9) * period, random_load.choice([1.0, 2.0])

        def flicker(
            t: float, period: float = period, busy: float = busy, load: float = load
        ) -> float:
            return load if t % period < busy else 0.0

        done, history = drive(*simulated(kind, flicker, seed), 60.0)
        assert switches(history) <= 48
        shares.append(done / best_fixed(kind, flicker, 60.0))
    assert min(shares) >= 0.65
    assert statistics.median(shares) >= 0.95


@pytest.mark.parametrize("kind", [HERE, FLAT, LARGE])
def test_two_processes_do_not_oscillate(kind: Kind) -> None:
    """Each sees the other's threads as a load."""
    machines: list[Machine] = []
    chosen: list[Threads] = []

    def load_of(other: int) -> Load:
        return lambda _: float(chosen[other].count)

    for number in range(2):
        machine, threads = simulated(kind, load_of(1 - number), seed=number)
        machines.append(machine)
        chosen.append(threads)
    done, moves = [0, 0], 0
    while min(machine.now for machine in machines) < 60.0:
        number = 0 if machines[0].now <= machines[1].now else 1
        before = chosen[number].count
        run_pass(machines[number], chosen[number])
        moves += chosen[number].count != before
        done[number] += 1
    assert min(done) >= 0.4 * best_fixed(kind, lambda _: 0.0, 60.0)
    assert moves <= 24


def test_slow_passes_of_an_idle_machine_change_nothing() -> None:
    """Single delays; throttling by heat or battery, where no count is better than before."""
    kind = Kind()
    machine, chosen = simulated(kind, lambda _: 0.0)
    drive(machine, chosen, 20.0)
    for number in range(100):
        run_pass(machine, chosen, 0.3 if number % 25 == 24 else 0.0)
        assert chosen.count == 2
    kind.one *= 1.6
    _, history = drive(machine, chosen, 80.0)
    assert {n for _, n in history} == {2}


@pytest.mark.parametrize(
    ("load", "why"),
    [
        (None, "all usable cores"),
        (0.1, "no other program needs a core"),
        (0.9, "other processes use 0.9 cores"),
    ],
)
def test_reason_is_the_load_that_was_measured(load: float | None, why: str) -> None:
    """An unknown one changes nothing."""
    chosen = Threads([2, 1], others=lambda: load)
    for seconds in (0.01,) * 20 + (1.0,) * 20 if load is None else (0.01,):
        chosen.record_pass(1, seconds)
    assert chosen.why == f"2 of 2: {why}"


@pytest.mark.parametrize(("load", "count"), [(0.0, 2), (1.0, 1)])
def test_answer_after_a_pause_starts_with_a_fitting_count(load: float, count: int) -> None:
    time, used = 0.0, 1.0
    chosen = Threads([2, 1], others=lambda: used, clock=lambda: time)
    for _ in range(20):
        time += 0.1
        chosen.record_pass(1, 0.1 if chosen.count == 2 else 0.02)
        chosen.apply()
    assert "1 of 2: other processes use 1.0 cores" in chosen.why
    used = load
    chosen.begin()
    assert chosen.count == 1, "there was no pause"
    time += 2 * GAP
    chosen.begin()
    assert chosen.count == count
