"""Tokens per second of all answers together, for 1, 2, 4 and 8 clients, with and without drafts.

    python -m tools.parallel [MODEL.gguf | --scale A] [--clients 1 2 4 8] [--tokens 48]

Every client asks for one answer after the other, prompts included, until all of a round's are
written. Arms take turns: `plain` shares passes and never drafts, `auto` drafts where that pays,
and `alone` is an engine for one answer at a time, whose clients wait for each other.
"""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

import localspec
from localspec import Drafting, Engine, ModelOptions, SamplingParams
from localspec.bench.scale import scaled_pair

PROMPTS = Path(__file__).parents[1] / "tests" / "data" / "prompts.jsonl"
GREEDY = SamplingParams(temperature=0)
REQUESTS = 12


def main() -> None:
    """Measure all arms and print a table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("model", nargs="?")
    options.add_argument("--draft", default="auto")
    options.add_argument("--scale", help="a pair of localspec.bench.scale, instead of a model")
    options.add_argument("--clients", nargs="+", type=int, default=[1, 2, 4, 8])
    options.add_argument("--tokens", type=int, default=48)
    options.add_argument("--requests", type=int, default=REQUESTS)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--threads", type=int)
    options.add_argument("--context", type=int, default=4096)
    said = options.parse_args()
    prompts = [json.loads(line)["prompt"] for line in PROMPTS.read_text().splitlines()]
    model = ModelOptions(context=said.context, threads=said.threads or "auto")
    pair = (said.model, said.draft) if said.scale is None else scaled_pair(said.scale)
    with (
        localspec.load(pair[0], draft=pair[1], options=model) as alone,
        localspec.load(
            pair[0], draft=pair[1], options=model, parallel=max(2, *said.clients)
        ) as together,
    ):
        arms = {
            "alone": (alone, Drafting()),
            "plain": (together, Drafting(drafter="none")),
            "auto": (together, Drafting()),
        }
        for engine, drafting in arms.values():  # measures, and learns
            run(engine, drafting, prompts[:2], said.tokens, 1)
        print(
            f"{'clients':>8}" + "".join(f"{name:>9}" for name in arms) + "  auto ÷ plain  drafted"
        )
        for clients in said.clients:
            speeds: dict[str, list[float]] = {name: [] for name in arms}
            drafted = 0
            for turn in range(said.rounds):
                first = turn * said.requests
                asked = [prompts[n % len(prompts)] for n in range(first, first + said.requests)]
                # Each goes first in turns: the machine's speed drifts.
                for place in range(len(arms)):
                    name = [*arms][(place + turn) % len(arms)]
                    engine, drafting = arms[name]
                    speed, tokens = run(engine, drafting, asked, said.tokens, clients)
                    speeds[name].append(speed)
                    drafted = tokens if name == "auto" else drafted
            pairs = zip(speeds["auto"], speeds["plain"], strict=True)
            ratio = median(auto / plain for auto, plain in pairs)
            told = "".join(f"{median(found):9.1f}" for found in speeds.values())
            print(f"{clients:8}{told}{ratio:14.2f}{drafted:9}", flush=True)


def run(
    engine: Engine, drafting: Drafting, prompts: Sequence[str], tokens: int, clients: int
) -> tuple[float, int]:
    """Tokens per second of all answers, and the tokens that were drafted."""
    left, counts = [*reversed(prompts)], [0, 0]
    lock = threading.Lock()

    def client() -> None:
        while True:
            with lock:
                if not left:
                    return
                prompt = left.pop()
            stream = engine.stream(prompt, max_tokens=tokens, sampling=GREEDY, drafting=drafting)
            stats = stream.completion().stats
            with lock:
                counts[0] += stats.generated_tokens
                counts[1] += stats.drafted

    threads = [threading.Thread(target=client) for _ in range(clients)]
    started = perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return counts[0] / (perf_counter() - started), counts[1]


if __name__ == "__main__":
    main()
