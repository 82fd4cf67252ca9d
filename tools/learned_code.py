"""What drafts out of a learned repository bring for code of the same repository, side by side.

    python -m tools.learned_code MODEL FOLDER [--prompts 12] [-n 64]

Every second Python file of FOLDER is learned, in a data folder of its own; the beginnings of others
are gone on with as they are, without a chat template, greedily and without a draft model. All arms
answer a prompt one after the other, in one engine, and who is first rotates. Acceptance and tokens
a pass depend on the files alone; times plain decoding is measured behind the first token.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from localspec import Drafting, Engine, SamplingParams, load
from localspec.decoding.stats import GenerationStats

ARMS = {
    "plain": Drafting(drafter="none"),
    "ngram": Drafting(drafter="ngram"),
    "retrieval": Drafting(drafter="retrieval"),
    "auto": Drafting(),
}
CONTEXT = 2048
LETTERS = 2400
"""Of a file that are shown; what is behind them is not. A file is twice as long at least."""


@dataclass(slots=True)
class Sums:
    """Of one arm, over all prompts."""

    ratios: list[float] = field(default_factory=list)
    tested: int = 0
    accepted: int = 0
    tokens: int = 0
    passes: int = 0

    def add(self, stats: GenerationStats, plain: float) -> None:
        """Count an answer, beside plain decoding of the same prompt in tokens per second."""
        self.ratios.append(stats.tokens_per_second / plain)
        self.tested += stats.tested
        self.accepted += stats.accepted
        self.tokens += stats.generated_tokens - 1
        self.passes += stats.target_passes - 1

    def told(self) -> str:
        """In words."""
        logs = [math.log(ratio) for ratio in self.ratios]
        rate = self.accepted / self.tested if self.tested else 0.0
        return (
            f"{math.exp(fmean(logs)):.2f} × plain · {self.tokens / max(1, self.passes):.2f} tokens "
            f"a pass · {self.accepted} of {self.tested} accepted ({rate:.0%})"
        )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("model")
    options.add_argument("folder", type=Path)
    options.add_argument("--prompts", type=int, default=12)
    options.add_argument("-n", "--tokens", type=int, default=64)
    given = options.parse_args()
    files = sorted(given.folder.rglob("*.py"))
    learned = files[::2]
    others = [text for file in files[1::2] if len(text := file.read_text("utf-8")) > 2 * LETTERS]
    step = max(1, len(others) // given.prompts)
    with tempfile.TemporaryDirectory() as home:
        os.environ["LOCALSPEC_HOME"] = home
        command = (sys.executable, "-m", "localspec", "learn", "-m", given.model)
        subprocess.run([*command, *map(str, learned)], check=True)
        with load(given.model, draft=None, context=CONTEXT) as engine:
            compare(engine, [text[:LETTERS] for text in others[::step]], given.tokens)


def compare(engine: Engine, prompts: list[str], tokens: int) -> None:
    """Answer all prompts in all ways, and print what came."""
    sums = {name: Sums() for name in ARMS}
    names = list(ARMS)
    for number, prompt in enumerate(prompts):
        turned = names[number % len(names) :] + names[: number % len(names)]
        found = {name: answered(engine, prompt, ARMS[name], tokens) for name in turned}
        for name, stats in found.items():
            sums[name].add(stats, found["plain"].tokens_per_second)
    print(f"{len(prompts)} prompts, {tokens} tokens each")
    for name, each in sums.items():
        print(f"{name}: {each.told()}")


def answered(engine: Engine, prompt: str, drafting: Drafting, tokens: int) -> GenerationStats:
    """One answer, without anything that is kept of another one."""
    sampling = SamplingParams(temperature=0)
    engine.clear()
    return engine.generate(prompt, max_tokens=tokens, sampling=sampling, drafting=drafting).stats


if __name__ == "__main__":
    main()
