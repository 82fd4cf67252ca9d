"""The controller of threads, on simulated machines: busy, idle, flickering, shared with another."""

from __future__ import annotations

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

from localspec.policy.threads import LEAST_CHUNK, ThreadController

Load = Callable[[float], float]
"""Other processes that want a core each, by the time."""


@dataclass
class Kind:
    """A machine and a model: seconds of a pass on one thread, what two bring, what two threads
    cost where they have to share their cores with one and with two others."""

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


HERE = Kind()
"""As measured: 55 and 96 passes a second, 6 beside one other process, 32 beside two."""
FLAT = Kind(one=0.0073, gain=1.03, shared=(3.0, 60.0))
"""As in the issue: 137 and 141, 47 beside one, 2.4 beside two."""
LARGE = Kind(one=0.18, gain=1.85)
EIGHT = Kind(cores=8, gain=1.8)
KINDS = [HERE, FLAT, LARGE, EIGHT]


@dataclass
class Machine:
    """The clock, and what others use as it is seen over the last quarter of a second."""

    kind: Kind
    load: Load
    sees: bool = True
    seed: int = 0
    now: float = 0.0
    _seen: deque[tuple[float, float]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._span = self._used = 0.0

    def clock(self) -> float:
        return self.now

    def others(self) -> float | None:
        if not self.sees or not self._seen:
            return None
        return self._used / self._span

    def run(self, threads: int) -> float:
        """A pass."""
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


def controller(machine: Machine) -> ThreadController:
    cores = machine.kind.cores
    return ThreadController(
        [cores, max(1, cores // 2), 1], cores=cores, others=machine.others, clock=machine.clock
    )


def drive(
    machine: Machine, until: float, chosen: ThreadController
) -> tuple[int, list[tuple[float, int]]]:
    """Passes until then, and when each began on how many threads."""
    done, history = 0, []
    while machine.now < until:
        history.append((machine.now, chosen.count))
        chosen.observe("target", 1, 100, machine.run(chosen.count))
        done += 1
    return done, history


def fixed(kind: Kind, load: Load, until: float, threads: int) -> int:
    machine = Machine(kind, load)
    done = 0
    while machine.now < until:
        machine.run(threads)
        done += 1
    return done


def best_fixed(kind: Kind, load: Load, until: float) -> int:
    counts = {kind.cores, max(1, kind.cores // 2), 1}
    return max(fixed(kind, load, until, n) for n in counts)


def switches(history: list[tuple[float, int]]) -> int:
    return sum(a[1] != b[1] for a, b in pairwise(history))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sees", [True, False])
@pytest.mark.parametrize("load", [0.0, 1.0, 2.0, 7.0])
def test_a_steady_machine_is_used_as_the_best_fixed_count_would(
    kind: Kind, sees: bool, load: float
) -> None:
    machine = Machine(kind, lambda _: load, sees=sees)
    done, history = drive(machine, 60.0, controller(machine))
    assert done >= 0.9 * best_fixed(kind, lambda _: load, 60.0)
    assert switches(history) <= 24


@pytest.mark.parametrize("kind", [HERE, FLAT, LARGE])
@pytest.mark.parametrize("sees", [True, False])
@pytest.mark.parametrize("load", [1.0, 2.0])
def test_a_load_is_noticed_within_ten_passes(kind: Kind, sees: bool, load: float) -> None:
    machine = Machine(kind, lambda t: load if t > 20.0 else 0.0, sees=sees)
    chosen = controller(machine)
    drive(machine, 20.0, chosen)
    assert chosen.count == 2 or kind is FLAT, "an idle machine is used"
    counts = []
    for _ in range(14):
        counts.append(chosen.count)
        chosen.observe("target", 1, 100, machine.run(chosen.count))
    assert 1 in counts[:11]
    assert counts[-1] == 1


@pytest.mark.parametrize("kind", [HERE, FLAT, LARGE])
@pytest.mark.parametrize("load", [1.0, 2.0])
def test_a_load_that_nobody_counts_and_that_was_always_there_is_noticed_by_the_cores_it_takes(
    kind: Kind, load: float
) -> None:
    """A niced build, a container's quota: there is no undisturbed pass to compare with."""
    machine = Machine(kind, lambda _: load)
    chosen = ThreadController([2, 1], cores=2, others=lambda: 0.0, clock=machine.clock)
    counts = []
    for _ in range(400):
        threads = chosen.count
        counts.append(threads)
        had = threads * kind.seconds(threads, 0.0) / kind.seconds(threads, load)
        chosen.observe("target", 1, 100, machine.run(threads), had)
    assert 1 in counts[:11]
    assert counts.count(1) > 0.9 * len(counts)
    assert "kept from their cores" in chosen.reason


@pytest.mark.parametrize("kind", KINDS)
def test_threads_that_have_their_cores_are_left_alone(kind: Kind) -> None:
    machine = Machine(kind, lambda _: 0.0)
    chosen = ThreadController(
        [kind.cores, kind.cores // 2, 1], cores=kind.cores, others=lambda: 0.0, clock=machine.clock
    )
    for _ in range(int(1.0 / kind.one)):
        chosen.observe("target", 1, 100, machine.run(chosen.count), 0.9 * chosen.count)
    assert chosen.count == kind.cores
    assert not chosen.trying
    assert chosen.moves == 0


@settings(max_examples=20)
@given(
    kind=st.sampled_from([HERE, LARGE, EIGHT]),
    load=st.sampled_from([1.0, 2.0, 8.0]),
    lasts=st.floats(3.0, 100.0),
    seed=st.integers(0, 99),
)
def test_full_speed_is_back_within_two_seconds(
    kind: Kind, load: float, lasts: float, seed: int
) -> None:
    end = 10.0 + lasts
    machine = Machine(kind, lambda t: load if 10.0 < t < end else 0.0, seed=seed)
    chosen = controller(machine)
    drive(machine, end, chosen)
    _, history = drive(machine, machine.now + 4.0, chosen)
    late = [n for when, n in history if when > end + 2.0]
    assert late.count(kind.cores) >= 0.85 * len(late)


def test_without_knowledge_of_others_full_speed_comes_back_all_the_same() -> None:
    machine = Machine(HERE, lambda t: 1.0 if 10.0 < t < 40.0 else 0.0, sees=False)
    chosen = controller(machine)
    drive(machine, 110.0, chosen)
    assert chosen.count == 2


def test_a_flickering_load_makes_no_oscillation() -> None:
    """Sixty loads that come and go, every tenth of a second to every twenty seconds. Moves
    stay few; against the best fixed count, 0.65 where the load's rhythm is the worst for this
    controller, and 0.95 in half of the cases."""
    random_load, shares = random.Random(5), []
    for seed in range(60):
        kind = random_load.choice(KINDS)
        period = math.exp(random_load.uniform(math.log(0.1), math.log(20.0)))
        busy, load = random_load.uniform(0.1, 0.9) * period, random_load.choice([1.0, 2.0])

        def flicker(
            t: float, period: float = period, busy: float = busy, load: float = load
        ) -> float:
            return load if t % period < busy else 0.0

        machine = Machine(kind, flicker, sees=seed % 2 == 0, seed=seed)
        done, history = drive(machine, 60.0, controller(machine))
        assert switches(history) <= 48
        shares.append(done / best_fixed(kind, flicker, 60.0))
    assert min(shares) >= 0.65
    assert statistics.median(shares) >= 0.95


@pytest.mark.parametrize("sees", [True, False])
@pytest.mark.parametrize("kind", [HERE, FLAT, LARGE])
def test_two_of_them_do_not_fight(kind: Kind, sees: bool) -> None:
    """Each sees the other's threads as a load, also while it works beside it."""
    machines: list[Machine] = []
    controllers: list[ThreadController] = []

    def load_of(other: int) -> Load:
        return lambda _: float(controllers[other].count)

    for number in range(2):
        machines.append(Machine(kind, load_of(1 - number), sees=sees, seed=number))
        controllers.append(controller(machines[number]))
    done = [0, 0]
    while min(machine.now for machine in machines) < 60.0:
        number = 0 if machines[0].now <= machines[1].now else 1
        chosen = controllers[number]
        chosen.observe("target", 1, 100, machines[number].run(chosen.count))
        done[number] += 1
    alone = best_fixed(kind, lambda _: 0.0, 60.0)
    assert min(done) >= 0.4 * alone
    assert sum(chosen.moves for chosen in controllers) <= 24


def test_a_hiccup_moves_nothing() -> None:
    machine = Machine(HERE, lambda _: 0.0)
    chosen = controller(machine)
    drive(machine, 20.0, chosen)
    for number in range(100):
        seconds = machine.run(chosen.count)
        chosen.observe("target", 1, 100, 0.3 if number % 25 == 24 else seconds)
        assert chosen.count == 2


@pytest.mark.parametrize("seed", range(6))
def test_passes_of_a_draft_model_do_not_tell_what_the_targets_cost(seed: int) -> None:
    """They are short, and as fast on one thread; the target's are not. One in 25 of those is a
    hiccup, and in between others work for a while, so that the threads move now and then."""
    kind = Kind(noise=0.1)
    machine = Machine(kind, lambda now: 2.0 if now % 12.0 < 3.0 else 0.0, seed=seed)
    chosen, chance = controller(machine), random.Random(seed)
    idle: list[int] = []
    while machine.now < 150.0:
        if machine.load(machine.now):
            machine.now = 3.0 + machine.now // 12.0 * 12.0  # nobody asks
            chosen.begin()
        for _ in range(3):
            seconds = kind.one / 30.0 * math.exp(chance.gauss(0.0, kind.noise))
            machine._pass(seconds, 0.0)
            chosen.learn("draft", 1, 100, seconds)
        hiccup = machine.run(chosen.count) if chance.random() < 0.04 else 0.0
        chosen.observe("target", 4, 100, hiccup + machine.run(chosen.count))
        idle.append(chosen.count)
    assert statistics.mean(idle) > 1.9


def test_a_machine_that_is_slower_altogether_keeps_its_threads() -> None:
    """Heat, or a battery: no count is better than before."""
    kind = Kind()
    machine = Machine(kind, lambda _: 0.0)
    chosen = controller(machine)
    drive(machine, 20.0, chosen)
    kind.one *= 1.6
    _, history = drive(machine, 80.0, chosen)
    assert switches(history) <= 16
    assert [n for _, n in history].count(2) > 0.95 * len(history)


def test_where_fewer_threads_are_faster_they_are_found_and_kept() -> None:
    """Passes so short that waiting for each other costs more than it brings."""
    machine = Machine(Kind(one=0.001, gain=0.8), lambda _: 0.0)
    chosen = controller(machine)
    drive(machine, 20.0, chosen)
    assert chosen.count == 1
    _, history = drive(machine, 80.0, chosen)
    assert [n for _, n in history].count(1) > 0.98 * len(history)


def test_one_count_is_never_left() -> None:
    chosen = ThreadController([2], cores=2, others=lambda: 2.0, clock=lambda: 0.0)
    for _ in range(50):
        chosen.observe("target", 1, 0, 1.0)
    assert (chosen.count, chosen.moves) == (2, 0)
    assert chosen.chunk("target", 0, 512) == 512


def test_a_device_reads_prompts_in_whole_chunks() -> None:
    """Short ones pay off where threads may be moved away from another process."""
    machine = Machine(HERE, lambda _: 0.0)
    chosen = ThreadController(
        [1, 2], cores=2, others=machine.others, clock=machine.clock, whole_prompts=True
    )
    assert chosen.chunk("target", 0, 512) == 512
    chosen.observe("target", 64, 0, 6.4)
    assert chosen.chunk("target", 64, 512) == 512


def test_a_session_on_a_busy_machine_begins_on_what_fits() -> None:
    machine = Machine(HERE, lambda _: 1.0)
    machine._pass(0.5, 1.0)
    chosen = controller(machine)
    chosen.begin()
    assert chosen.count == 1
    assert "1.0 cores" in chosen.reason


@pytest.mark.parametrize(("now", "count"), [(0.0, 2), (1.0, 1), (None, 1)])
def test_what_others_did_in_a_pause_is_not_what_they_do_now(now: float | None, count: int) -> None:
    time = 0.0
    chosen = ThreadController(
        [2, 1], cores=2, others=lambda: 2.0, at_once=lambda: now, clock=lambda: time
    )
    chosen.begin()
    assert chosen.count == count


def test_chunks_are_short_until_passes_are_known_and_then_about_as_long_as_a_blink() -> None:
    machine = Machine(HERE, lambda _: 0.0)
    chosen = controller(machine)
    assert chosen.chunk("target", 0, 512) == LEAST_CHUNK
    chosen.observe("target", 64, 0, 0.064)
    assert 256 <= chosen.chunk("target", 64, 512) <= 384
    chosen.observe("target", 64, 64, 6.4)
    assert chosen.chunk("target", 128, 512) == LEAST_CHUNK
