"""What a conversation that was kept saves: opening it again, next to decoding it.

    python -m tools.sessions [--scale A] [--tokens 8000] [--folder FOLDER]

A prompt of so many tokens is decoded, what was read is saved, and another engine opens it and goes
on: once with the file out of the system's page cache, as after a restart of the machine, then with
it there. Loading the models and measuring what passes cost are left out on both sides. Greedy
answers behind it are compared with those of the engine that decoded it.

Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from time import perf_counter

import localspec
from localspec.bench.scale import scaled_pair
from localspec.files import write_atomically
from localspec.llama.library import default_threads

GREEDY = localspec.SamplingParams(temperature=0)
PLAIN = localspec.Drafting(drafter="none")
SENTENCE = "One day the {} went to the river and found a {} there, and was happy. "
WORDS = ("fox", "bear", "bird", "cat", "dog", "ball", "boat", "girl", "boy", "frog", "tree")
ANSWER = 12
TIMES = 2


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", default="A", help="see localspec bench --help")
    parser.add_argument("--tokens", type=int, default=8000, help="of the conversation")
    parser.add_argument("--folder", type=Path, help="where the session stays, for another run")
    said = parser.parse_args()
    target, draft = scaled_pair(said.scale)
    # A count that is fixed: trying others would take time on one side alone.
    options = localspec.ModelOptions(context=said.tokens + 512, threads=default_threads())
    load = partial(localspec.load, target, draft=draft, options=options)
    with ExitStack() as opened:
        folder = said.folder or Path(opened.enter_context(tempfile.TemporaryDirectory()))
        path = folder / f"{said.scale}-{said.tokens}.session"
        if not path.with_suffix(".json").exists():
            _decode(load, path, said.tokens)
        known = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        tell = partial(print, flush=True)
        tell(f"{known['tokens']} tokens of {options.context}, {known['threads']}")
        tell(f"decoding            {known['decoding']:9.3f} s")
        tell(f"saving              {known['saving']:9.3f} s, {path.stat().st_size / 1e6:.0f} MB")
        for number in range(1 + TIMES):
            if not number:
                _out_of_the_page_cache(path)
            with load() as engine:
                engine.calibrate()
                began = perf_counter()
                found = engine.open_session(path)
                opening = perf_counter() - began
                seconds, stats = _first_token(engine, known["prompt"])
                seconds += opening
                same = _answer(engine, known["prompt"]) == known["answer"]
            assert not found.notices, found.notices
            assert stats.cached_tokens == stats.prompt_tokens - 1, stats.notices
            tell(
                f"opening, {'from disk' if not number else 'in memory'}  {seconds:9.3f} s, "
                f"{known['decoding'] / seconds:.1f} x faster, "
                f"{'the same answer' if same else 'ANOTHER ANSWER'}"
            )


def _decode(load: Callable[[], localspec.Engine], path: Path, tokens: int) -> None:
    """Decode a conversation, and keep it with what that took."""
    with load() as engine:
        prompt = _prompt(engine, tokens)
        engine.calibrate()
        decoding, stats = _first_token(engine, prompt)
        began = perf_counter()
        engine.save_session(path)
        known = {
            "tokens": stats.prompt_tokens,
            "threads": engine.threads,
            "decoding": decoding,
            "saving": perf_counter() - began,
            "prompt": prompt,
            "answer": _answer(engine, prompt),
        }
    write_atomically(path.with_suffix(".json"), json.dumps(known))


def _prompt(engine: localspec.Engine, count: int) -> str:
    """A text of so many tokens, or a few more."""
    text, number = "", 0
    while len(engine.tokenize(text)) < count:
        for _ in range(5):
            text += SENTENCE.format(WORDS[number % 11], WORDS[(number * 7 + number // 11) % 11])
            number += 1
    return text


def _first_token(engine: localspec.Engine, prompt: str) -> tuple[float, localspec.GenerationStats]:
    """Seconds until the first token, without those that measuring took."""
    began = perf_counter()

    def progress(done: int, total: int) -> None:
        print(f"{done} of {total}: {perf_counter() - began:.1f} s", file=sys.stderr)

    stream = engine.stream(prompt, max_tokens=1, sampling=GREEDY, progress=progress)
    stats = stream.completion().stats
    return stats.prompt_seconds, stats


def _answer(engine: localspec.Engine, prompt: str) -> str:
    return engine.generate(prompt, max_tokens=ANSWER, sampling=GREEDY, drafting=PLAIN).text


def _out_of_the_page_cache(path: Path) -> None:
    """Where the system can be asked for that."""
    if not hasattr(os, "posix_fadvise"):
        return
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    main()
