"""Who makes which passes for whom, over lanes that only write down what they are asked for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from localspec.decoding.sampling import Rows
from localspec.errors import Cancelled, NativeError
from localspec.llama.native_context import CacheFull
from localspec.llama.shared_context import PassPart
from localspec.policy.worth import Bid
from localspec.scheduling import rounds
from localspec.scheduling.members import DRAFT, TARGET, Displaced, Member, Request
from localspec.scheduling.rounds import Rounds

PATIENCE = 60.0
"""Seconds until a test that hangs fails."""


class NotedLane:
    """A cache whose rows say which token they are for."""

    batch, rows = 512, 64

    def __init__(self) -> None:
        self.passes: list[list[int]] = []
        self.undone: list[list[int]] = []
        self.fails: Callable[[Sequence[PassPart]], Exception | None] = lambda parts: None
        self.meanwhile: Callable[[], None] = lambda: None

    def decode(self, parts: Sequence[PassPart], padding: int = 0) -> list[Rows]:
        self.meanwhile()
        error = self.fails(parts)
        if error is not None:
            raise error
        self.passes.append([token for part in parts for token in part.tokens])
        return [
            np.array([[float(token)] for token in part.tokens], np.float32)[-part.outputs :]
            for part in parts
        ]

    def undo(self, parts: Sequence[PassPart]) -> None:
        self.undone.append([token for part in parts for token in part.tokens])

    def cancel(self) -> None: ...

    def resume(self) -> None: ...


def part(*tokens: int, outputs: int = 1) -> PassPart:
    return PassPart(tokens, range(len(tokens)), ((0,),), outputs)


class Table:
    """Rounds, and answers that take turns in threads of their own."""

    def __init__(self, **options: object) -> None:
        self.draft, self.target = NotedLane(), NotedLane()
        self.rounds = Rounds((self.draft, self.target), cells=100, **options)  # type: ignore[arg-type]
        # Nobody is given up: the tests say who comes back.
        self.rounds._grace = PATIENCE
        self.cells: dict[Member, int] = {}
        self.errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def member(self, cells: int = 1) -> Member:
        member = self.rounds.join(lambda: self.cells[member])
        self.cells[member] = cells

        def displace() -> None:
            self.cells[member] = 0

        member.displace = displace
        return member

    def start(self, *work: Callable[[], object]) -> None:
        """Run each in a thread of its own."""

        def run(one: Callable[[], object]) -> None:
            try:
                one()
            except BaseException as error:
                self.errors.append(error)

        for one in work:
            thread = threading.Thread(target=run, args=(one,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def end(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "somebody waits for ever"


def inside_together(table: Table, members: Sequence[Member]) -> Callable[[], None]:
    """Nobody asks for a pass before all of them are there, as if each had come in time."""
    barrier = threading.Barrier(len(members))
    for member in members:
        table.rounds._coming.add(member)  # as `enter` does, before it waits for the floor

    def wait() -> None:
        barrier.wait(PATIENCE)

    return wait


def test_an_answer_alone_makes_its_own_passes_at_once() -> None:
    table = Table()
    member = table.member()
    with table.rounds.inside(member):
        rows, _ = table.rounds.decode(member, TARGET, part(5, 6, outputs=2))
    assert rows.tolist() == [[5.0], [6.0]]
    assert table.target.passes == [[5, 6]]
    assert member.alone


def test_those_who_wait_are_served_together_and_get_their_own_rows() -> None:
    table = Table()
    members = [table.member() for _ in range(5)]
    together = inside_together(table, members)
    got: dict[int, list[float]] = {}

    def answer(number: int) -> None:
        member = members[number]
        together()
        for step in range(4):
            with table.rounds.inside(member):
                token = 10 * step + number
                rows, _ = table.rounds.decode(member, TARGET, part(token))
                got.setdefault(number, []).append(float(rows[0, 0]))
        table.rounds.part(member)

    table.start(*(lambda n=n: answer(n) for n in range(5)))
    table.end()
    assert table.errors == []
    assert [sorted(found) for found in table.target.passes] == [
        [10 * step + number for number in range(5)] for step in range(4)
    ]
    assert got == {n: [10.0 * step + n for step in range(4)] for n in range(5)}


def test_draft_passes_come_first_and_are_shared_level_by_level() -> None:
    table = Table()
    members = [table.member() for _ in range(3)]
    together = inside_together(table, members)

    def answer(number: int) -> None:
        member = members[number]
        together()
        with table.rounds.inside(member):
            for level in range(number):
                table.rounds.decode(member, DRAFT, part(10 * level + number))
            table.rounds.decode(member, TARGET, part(number))
        table.rounds.part(member)

    table.start(*(lambda n=n: answer(n) for n in range(3)))
    table.end()
    assert [sorted(found) for found in table.draft.passes] == [[1, 2], [12]]
    assert [sorted(found) for found in table.target.passes] == [[0, 1, 2]]


def test_bids_are_decided_once_all_have_drafted() -> None:
    decided: list[tuple[list[float], list[int]]] = []

    def grant(bids: Sequence[Request], beside: Sequence[Request]) -> None:
        decided.append(
            (
                sorted(one.bid.reaches[0] for one in bids if one.bid is not None),
                [one.tokens for one in beside],
            )
        )
        for one in bids:
            assert one.bid is not None
            one.granted = round(10 * one.bid.reaches[0]), 0.5

    table = Table(grant=grant)
    members = [table.member() for _ in range(3)]
    together = inside_together(table, members)
    granted: dict[int, tuple[int, float]] = {}

    def answer(number: int) -> None:
        member = members[number]
        together()
        with table.rounds.inside(member):
            for _ in range(number):
                table.rounds.decode(member, DRAFT, part(9))
            if number:
                bid = Bid([number / 10], 0, 1.0, 1.0)
                granted[number] = table.rounds.bid(member, bid, 0)
            table.rounds.decode(member, TARGET, part(*[number] * (2 + number)))
        table.rounds.part(member)

    table.start(*(lambda n=n: answer(n) for n in range(3)))
    table.end()
    assert table.errors == []
    assert decided == [([0.1, 0.2], [2])]
    assert granted == {1: (1, 0.5), 2: (2, 0.5)}
    assert [sorted(found) for found in table.target.passes] == [[0, 0, 1, 1, 1, 2, 2, 2, 2]]


def test_a_consumer_who_does_not_come_back_is_given_up() -> None:
    table = Table()
    table.rounds._grace = 1e-4
    busy, paused = table.member(), table.member()
    done = threading.Event()

    def pauses() -> None:
        with table.rounds.inside(paused):
            pass
        done.set()

    table.start(pauses)
    assert done.wait(PATIENCE)
    with table.rounds.inside(busy):
        for token in range(3):
            table.rounds.decode(busy, TARGET, part(token))
    assert table.target.passes == [[0], [1], [2]]
    assert paused.late
    assert table.rounds.others(busy) == []


def test_prompts_are_read_in_pieces_beside_steps() -> None:
    """A piece of one prompt at a time, in the order in which they came."""
    table = Table(chunk=64)
    members = [table.member() for _ in range(3)]
    together = inside_together(table, members)

    def reads(number: int) -> None:
        together()
        with table.rounds.inside(members[number]):
            for _ in range(2):
                assert table.rounds.chunk(members[number]) == 64
                table.rounds.decode(members[number], TARGET, part(*[number] * 64, outputs=0))
        table.rounds.part(members[number])

    def steps() -> None:
        together()
        for _ in range(4):
            with table.rounds.inside(members[2]):
                table.rounds.decode(members[2], TARGET, part(2))
        table.rounds.part(members[2])

    table.start(lambda: reads(0), lambda: reads(1), steps)
    table.end()
    assert table.errors == []
    read = [sum(token != 2 for token in found) for found in table.target.passes]
    assert read == [64, 64, 64, 64], "never both at once"
    assert all(found.count(2) == 1 for found in table.target.passes), "no step waits"
    assert {found[-1] for found in table.target.passes[:2]} == {0, 1}, "in turns"


def test_where_they_may_not_share_passes_steps_and_prompts_take_turns() -> None:
    table = Table(chunk=64, mixed=False)
    members = [table.member() for _ in range(3)]
    together = inside_together(table, members)

    def reads() -> None:
        together()
        with table.rounds.inside(members[0]):
            assert members[0].reading
            for outputs in (0, 0, 1):
                table.rounds.decode(members[0], TARGET, part(*[9] * 64, outputs=outputs))
                assert members[0].reading == (not outputs), "until its first row"
        table.rounds.part(members[0])

    def steps(number: int) -> None:
        together()
        for _ in range(4):
            with table.rounds.inside(members[number]):
                table.rounds.decode(members[number], TARGET, part(number))
                assert not members[number].reading
        table.rounds.part(members[number])

    table.start(reads, lambda: steps(1), lambda: steps(2))
    table.end()
    assert table.errors == []
    kinds = ["".join(sorted({str(token) for token in found})) for found in table.target.passes]
    assert kinds == ["9", "12", "9", "12", "9", "12", "12"]


def test_a_cancelled_member_leaves_and_the_others_go_on() -> None:
    """It is cancelled during a pass for both, which ends as if nothing were; the next is without
    it."""
    table = Table()
    going, stopped = table.member(), table.member()
    together = inside_together(table, [going, stopped])
    table.target.meanwhile = lambda: table.rounds.cancel(stopped)

    def answer(member: Member, token: int) -> None:
        together()
        try:
            for step in range(3):
                with table.rounds.inside(member):
                    table.rounds.decode(member, TARGET, part(token + step))
        finally:
            table.rounds.part(member)

    table.start(lambda: answer(going, 10), lambda: answer(stopped, 20))
    table.end()
    assert [type(error) for error in table.errors] == [Cancelled]
    assert [sorted(found) for found in table.target.passes] == [[10, 20], [11], [12]]


def test_a_cancel_reaches_who_waits_for_the_others() -> None:
    table = Table()
    waits, slow = table.member(), table.member()
    asked = threading.Event()
    ready = inside_together(table, [slow])

    def asks() -> None:
        with table.rounds.inside(waits):
            asked.set()
            table.rounds.decode(waits, TARGET, part(1))

    table.start(asks)  # `slow` is on its way, so this waits
    assert asked.wait(PATIENCE)
    while not table.rounds._pending:
        pass
    table.rounds.cancel(waits)
    table.end()
    assert [type(error) for error in table.errors] == [Cancelled]
    assert table.target.passes == []
    del ready


def test_a_failing_part_is_found_and_the_others_are_served() -> None:
    table = Table()

    def fails(parts: Sequence[PassPart]) -> Exception | None:
        return NativeError("bad") if any(1 in one.tokens for one in parts) else None

    table.target.fails = fails
    members = [table.member() for _ in range(3)]
    together = inside_together(table, members)
    got = []

    def answer(number: int) -> None:
        together()
        try:
            with table.rounds.inside(members[number]):
                got.append(table.rounds.decode(members[number], TARGET, part(number))[0].item())
        finally:
            table.rounds.part(members[number])

    table.start(*(lambda n=n: answer(n) for n in range(3)))
    table.end()
    assert sorted(got) == [0.0, 2.0]
    assert [str(error) for error in table.errors] == ["bad"]
    assert sorted(table.target.undone[0]) == [0, 1, 2]
    assert table.target.undone[1:] == [[1]]


@pytest.mark.parametrize("kept", [2, 0])
def test_a_full_cache_drops_what_is_kept_and_then_the_youngest(kept: int) -> None:
    left = [kept]

    def make_room(lane: int) -> bool:
        left[0] -= 1
        return left[0] >= 0

    table = Table(make_room=make_room)
    old, young = table.member(), table.member()
    full = [3]

    def fails(parts: Sequence[PassPart]) -> Exception | None:
        full[0] -= 1
        return CacheFull("full") if full[0] > 0 else None

    table.target.fails = fails
    together = inside_together(table, [old, young])
    displaced = []

    def answer(member: Member, token: int) -> None:
        together()
        with table.rounds.inside(member):
            try:
                table.rounds.decode(member, TARGET, part(token))
            except Displaced:
                displaced.append(token)
        table.rounds.part(member)

    table.start(lambda: answer(old, 1), lambda: answer(young, 2))
    table.end()
    if kept:
        assert displaced == []
        assert [sorted(found) for found in table.target.passes] == [[1, 2]]
    else:
        assert displaced == [2]
        assert [1] in table.target.passes or table.errors
        assert table.cells[young] == 0


def test_who_was_displaced_waits_until_there_is_room() -> None:
    table = Table()
    old, young = table.member(cells=80), table.member(cells=0)
    with table.rounds.inside(old):
        pass
    came = threading.Event()
    order = []

    def waits() -> None:
        with table.rounds.inside(young):
            came.set()
            table.rounds.wait_for_room(young, 40)
            order.append("room")

    table.rounds.enter(old)
    table.start(waits)
    while young not in table.rounds._coming:
        pass
    table.rounds.leave(old)
    assert came.wait(PATIENCE)
    with table.rounds.inside(old):
        order.append("old")
        table.cells[old] = 20
    table.end()
    assert order == ["old", "room"]
    assert table.errors == []


def test_cells_of_a_paused_answer_are_given_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "PAUSED", 1e-3)
    table = Table()
    paused, comes = table.member(cells=80), table.member(cells=0)
    with table.rounds.inside(paused):
        pass
    with table.rounds.inside(comes):
        table.rounds.wait_for_room(comes, 40)
    assert table.cells[paused] == 0


def test_it_is_measured_without_the_others() -> None:
    table = Table()
    measured, other = table.member(), table.member()
    table.rounds._coming.add(other)  # somebody else is on the way, and not waited for
    with table.rounds.inside(measured), table.rounds.direct(measured):
        table.rounds.decode(measured, TARGET, part(1, 2, 3))
        assert table.rounds.chunk(measured) == NotedLane.batch
    assert table.target.passes == [[1, 2, 3]]


@pytest.mark.nightly
def test_measured_passes_wait_until_others_have_looked_at_their_rows() -> None:
    """Those are views, which the next pass overwrites; two who measure do not wait for ever."""
    table = Table()
    measured, again, other = (table.member() for _ in range(3))
    order: list[str] = []
    other.inside = True  # it was given rows, and did not get the floor yet

    def look() -> None:
        with table.rounds.inside(other):
            order.append("looked")

    def measure(member: Member) -> None:
        with table.rounds.inside(member), table.rounds.direct(member):
            order.append("measured")

    threads = [
        threading.Thread(target=measure, args=(one,), daemon=True) for one in (measured, again)
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 1.0
    while not (measured.request and again.request) and time.monotonic() < deadline:
        time.sleep(0.001)
    threads.append(threading.Thread(target=look))
    threads[-1].start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert order == ["looked", "measured", "measured"]
