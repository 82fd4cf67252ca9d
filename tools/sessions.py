"""What a conversation that was kept saves: opening it again, next to decoding it.

    python -m tools.sessions [--scale A] [--tokens 8000]

A prompt of so many tokens is decoded, what was read is saved, and another engine opens it and goes
on: once with the file out of the system's page cache, as after a restart of the machine, then with
it there. Loading the models and measuring what passes cost are left out on both sides. Greedy
answers behind it are compared with those of the engine that decoded it.

Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from time import perf_counter

import localspec
from localspec.bench.scale import scaled_pair

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
    said = parser.parse_args()
    target, draft = scaled_pair(said.scale)
    options = localspec.ModelOptions(context=said.tokens + 512)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kept.session"
        with localspec.load(target, draft=draft, options=options) as engine:
            prompt = _prompt(engine, said.tokens)
            decoded, stats = _first_token(engine, prompt)
            print(f"{stats.prompt_tokens} tokens, {options.context} of context, {engine.threads}")
            began = perf_counter()
            engine.save_session(path)
            saving = perf_counter() - began
            wanted = _answer(engine, prompt)
        print(f"decoding            {decoded:9.3f} s")
        print(f"saving              {saving:9.3f} s  ({path.stat().st_size / 1e6:.0f} MB)")
        for number in range(1 + TIMES):
            if not number:
                _out_of_the_page_cache(path)
            with localspec.load(target, draft=draft, options=options) as engine:
                engine.calibrate()
                began = perf_counter()
                found = engine.open_session(path)
                opening = perf_counter() - began
                seconds, stats = _first_token(engine, prompt)
                seconds += opening
                same = _answer(engine, prompt) == wanted
            assert not found.notices, found.notices
            assert stats.cached_tokens == stats.prompt_tokens - 1, stats.notices
            print(
                f"opening, {'from disk' if not number else 'in memory'} {seconds:9.3f} s  "
                f"{decoded / seconds:6.1f} x faster, "
                f"{'the same answer' if same else 'ANOTHER ANSWER'}"
            )


def _prompt(engine: localspec.Engine, count: int) -> str:
    """A text of about so many tokens."""
    text, number = "", 0
    one = len(engine.tokenize(SENTENCE.format(*WORDS[:2])))
    for number in range(count // one):
        text += SENTENCE.format(WORDS[number % 11], WORDS[(number * 7 + number // 11) % 11])
    return text


def _first_token(engine: localspec.Engine, prompt: str) -> tuple[float, localspec.GenerationStats]:
    """Seconds until the first token, without those that measuring took."""
    stats = engine.generate(prompt, max_tokens=1, sampling=GREEDY).stats
    return stats.prompt_seconds - stats.calibration_seconds, stats


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
