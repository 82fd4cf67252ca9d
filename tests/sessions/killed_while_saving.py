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
            begun, told = os.pipe()
            child = os.fork()
            if not child:
                save_for_ever(engine, path, folder, told)
            os.close(told)
            # Some files are complete and another one is begun, however slow the machine is; the
            # first child of all may be killed over its first file.
            for _ in range(2 + chance.randrange(3) if number else 1):
                assert os.read(begun, 1), "the child ended by itself"
            partial = path.with_name(f"{path.name}.{child}.partial")
            partly += stopped(child, partial, chance, within=bool(number % 5))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(begun)
            look(engine, path, wanted, number)
    print(partly)


def stopped(child: int, partial: Path, chance: random.Random, *, within: bool) -> bool:
    """Stop a child at some moment, which is `within` the writing of a file if that is wanted;
    returns whether it was."""
    while True:
        time.sleep(chance.choice((0.0, chance.uniform(0.0, 0.02))))
        os.kill(child, signal.SIGSTOP)
        _, status = os.waitpid(child, os.WUNTRACED)
        assert os.WIFSTOPPED(status), "the child ended by itself"
        if partial.exists() or not within:
            return partial.exists()
        os.kill(child, signal.SIGCONT)


def save_for_ever(engine: localspec.Engine, path: Path, folder: Path, told: int) -> None:
    """One conversation and the other in turns, each with what the models have read of it; `told`
    gets a byte before each file."""
    while True:
        for number in range(len(PROMPTS)):
            opened = SessionFile(folder / f"{number}.session")
            engine._sessions.states.restore(opened)
            for _ in range(8):
                os.write(told, b".")
                engine.save_session(path, number)


def look(engine: localspec.Engine, path: Path, wanted: list[str], number: int) -> None:
    """Open the file, and go on."""
    for context in engine._contexts:
        context.clear()
    opened = engine.open_session(path)
    assert opened.notices == (), opened.notices
    if opened.conversation is None:  # in the middle of the very first one
        assert not path.exists()
        assert number == 0, "what was complete is gone"
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
