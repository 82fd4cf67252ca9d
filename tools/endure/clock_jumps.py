"""A wall clock that jumps, forth and back, up to ten years: nothing is lost, and no figure is of
another world. Run by `tools.endure`, with the library of `faults.c` loaded."""

from __future__ import annotations

import math
import random
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import localspec
from localspec.chat.conversation import ASSISTANT, USER, Conversation
from localspec.history.history import History
from tools.endure.faults import Faults, tell
from tools.endure.full_disk import forked
from tools.endure.outcome import Outcome
from tools.endure.stores import GREEDY, PLAIN, stores

YEAR = 365.25 * 86400

Jump = Callable[[], None]


def clock_jumps(home: Path, count: int, seed: int) -> Outcome:
    """So many rounds: in each, a conversation and an answer during which the clock jumps, and every
    store changed in one time and looked at in another."""
    faults, outcome = Faults(), Outcome("clock jumps", unit="trials")
    all_stores = stores(home)
    for store in all_stores:
        problem = forked(store.prepare)
        if problem is not None:
            outcome.failures.append(f"{store.name}, before: {problem}")
    engine = localspec.load(threads=1)
    wanted = engine.generate("Once", max_tokens=40, sampling=GREEDY, drafting=PLAIN).text
    trials: list[tuple[str, Callable[[Jump], None]]] = [
        ("history", partial(_talk, home)),
        ("answer", partial(_answer, engine, wanted)),
    ]
    for store in all_stores:
        trials += ((store.name, partial(_after, do)) for do in (store.change, store.look))
    for number in range(count):
        for trial, (what, do) in enumerate(trials):
            # Of each its own, as a child's throws leave its parent's dice as they were.
            dice = random.Random(f"{seed}/{number}/{trial}")
            outcome.count += 1
            problem = forked(partial(do, partial(_jump, faults, dice)))
            if problem is not None:
                outcome.failures.append(f"{what}, round {number}: {problem}")
    outcome.seen = f"{len(all_stores)} stores, conversations and answers, {count} times"
    return outcome


def _jump(faults: Faults, dice: random.Random) -> None:
    far = dice.choice((0.5, 60.0, 3600.0, 86400.0, YEAR, 10 * YEAR))
    faults.clock(dice.choice((-far, far, 0.0)))


def _after(do: Callable[[], None], jump: Jump) -> None:
    jump()
    do()


def _talk(home: Path, jump: Jump) -> None:
    """What was said stays in its order, and in the list, whatever the time was."""
    path = Path(tempfile.mkdtemp(dir=home)) / "history.db"
    said = []
    with closing(History(path)) as history:
        for number in range(3):
            jump()
            conversation = Conversation(title=str(number))
            for turn in range(4):
                jump()
                message = conversation.add(ASSISTANT if turn % 2 else USER, f"{number}.{turn}")
                assert history.save(conversation)
                assert history.write(message, conversation.id)
            said.append(conversation)
    with closing(History(path)) as history:
        assert history.count() == 3
        assert {each.title for each in history.list()} == {"0", "1", "2"}
        for conversation in said:
            found = history.load(conversation.id)
            assert found == conversation
            assert [m.content for m in found.path()] == [f"{found.title}.{n}" for n in range(4)]


def _answer(engine: localspec.Engine, wanted: str, jump: Jump) -> None:
    """The same text, and figures that are numbers."""
    stream = engine.stream("Once", max_tokens=40, sampling=GREEDY, drafting=PLAIN)
    for _ in stream:
        jump()
    assert stream.text == wanted
    stats = stream.stats.as_dict()
    odd = {
        name: value
        for name, value in stats.items()
        if isinstance(value, float) and not (math.isfinite(value) and 0 <= value < 1e6)
    }
    assert not odd, odd


if __name__ == "__main__":
    tell(clock_jumps(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
