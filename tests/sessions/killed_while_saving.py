"""A conversation is saved over and over by children that are killed; run by test_killing.

    python -m tests.sessions.killed_while_saving FOLDER TIMES SEED

After each kill the file is opened as the next start would, and the answer goes on from it. Prints
how many of the children were in the middle of a file.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import localspec
from localspec.sessions.session_file import SessionFile

GREEDY = localspec.SamplingParams(temperature=0)
PLAIN = localspec.Drafting(drafter="none")
PROMPTS = ("Once upon a time there was a fox. " * 150, "The bear went to the river. " * 150)


def main(folder: Path, times: int, seed: int) -> None:
    """Kill, and look."""
    path, chance = folder / "killed.session", random.Random(seed)
    partly = 0
    with localspec.load(context=2048, threads=1) as engine:
        wanted = []
        for number, prompt in enumerate(PROMPTS):
            engine.generate(prompt, max_tokens=2, sampling=GREEDY, drafting=PLAIN)
            engine.save_session(folder / f"{number}.session", number)
            wanted.append(answer(engine, prompt))
        for number in range(times):
            child = os.fork()
            if not child:
                save_for_ever(engine, path, folder)
            partial = path.with_name(f"{path.name}.{child}.partial")
            time.sleep(chance.uniform(0.0, 0.04))
            while number % 5 and not partial.exists():
                pass  # most of them once a file is being written
            time.sleep(chance.choice((0.0, chance.uniform(0.0, 0.003))))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            partly += partial.exists()
            look(engine, path, wanted, number)
    print(partly)


def save_for_ever(engine: localspec.Engine, path: Path, folder: Path) -> None:
    """One conversation and the other in turns, each with what the models have read of it."""
    while True:
        for number in range(len(PROMPTS)):
            opened = SessionFile(folder / f"{number}.session")
            engine._sessions.states.restore(opened)
            for _ in range(8):
                engine.save_session(path, number)


def look(engine: localspec.Engine, path: Path, wanted: list[str], number: int) -> None:
    """Open the file, and go on."""
    for context in engine._contexts:
        context.clear()
    opened = engine.open_session(path)
    assert opened.notices == (), opened.notices
    if opened.conversation is None:
        assert not path.exists()
        assert number < 20, "never was a file complete"
        return
    got = answer(engine, PROMPTS[opened.conversation])
    assert got == wanted[opened.conversation]


def answer(engine: localspec.Engine, prompt: str) -> str:
    """What is said next, from what the caches hold."""
    done = engine.generate(prompt, max_tokens=4, sampling=GREEDY, drafting=PLAIN)
    assert done.stats.notices == [], done.stats.notices
    assert done.stats.cached_tokens == done.stats.prompt_tokens - 1, "it was decoded again"
    return done.text


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
