"""A thousand answers, eight at once, some cancelled: nothing grows, none gets tokens of another.

    python -m tools.parallel_soak [--answers 1000] [--at-once 8] [--slice 100] [--tokens 24]

The embedded pair, greedy, drafted in every way, prompts of its own suite. What each prompt is
answered with alone is the measure: an answer among others, or the beginning of one that was
cancelled, is the same, or leaves it where two tokens nearly tie (a pass of another size rounds
otherwise), which is counted; one that leaves it anywhere else has got something that is not its
own. One in ten is cancelled at a random token. After each slice nobody has a seat, no sequence id
of an answer holds a cell, and memory is looked at.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter

import psutil

import localspec
from localspec import Drafting, ModelOptions, SamplingParams
from localspec.llama.target import shared_prefix
from localspec.parallel_engine import ParallelEngine

PROMPTS = Path(__file__).parents[1] / "tests" / "data" / "prompts.jsonl"
GREEDY = SamplingParams(temperature=0)
DRAFTINGS = (
    Drafting(),
    Drafting(drafter="model", depth=3),
    Drafting(drafter="ngram", width=3, depth=2),
    Drafting(drafter="none"),
)
CANCELLED = 0.1
TIE = 0.5
"""Logits closer than that may change places in a pass of another size."""


def main() -> int:
    """Answer all, and say what was found; 1 if anything was wrong."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--answers", type=int, default=1000)
    options.add_argument("--at-once", type=int, default=8)
    options.add_argument("--slice", type=int, default=100)
    options.add_argument("--tokens", type=int, default=24)
    options.add_argument("--threads", type=int)
    said = options.parse_args()
    prompts = [json.loads(line)["prompt"] for line in PROMPTS.read_text().splitlines()][:48]
    model = ModelOptions(context=2048, threads=said.threads or "auto", parallel=said.at_once)
    wrong: list[str] = []
    with localspec.load(options=model) as engine:
        assert isinstance(engine, ParallelEngine)
        expected = {
            prompt: answer(engine, prompt, DRAFTINGS[-1], said.tokens) for prompt in prompts
        }
        lock, seen = threading.Lock(), Counter[str]()

        def one(number: int) -> None:
            dice = random.Random(number)
            prompt, drafting = dice.choice(prompts), dice.choice(DRAFTINGS)
            cancelled_at = dice.randrange(said.tokens) if dice.random() < CANCELLED else -1
            context, tokens = answer(engine, prompt, drafting, said.tokens, cancelled_at)
            whole = expected[prompt][1]
            with lock:
                seen["cancelled"] += len(tokens) < len(whole)
                seen["answered"] += 1
            apart = parts(engine, context, whole, tokens)
            if apart is None:
                return
            with lock:
                seen["parted at a tie"] += apart < TIE
                if apart >= TIE:
                    wrong.append(f"{prompt[:40]!r} leaves its answer, {apart:.2f} apart")

        print(f"{'answers':>8}{'seconds':>9}{'MiB':>7}{'kept':>6}{'ids held':>9}  so far")
        for first in range(0, said.answers, said.slice):
            started = perf_counter()
            with ThreadPoolExecutor(said.at_once) as clients:
                list(clients.map(one, range(first, min(said.answers, first + said.slice))))
            gc.collect()
            memory = psutil.Process().memory_info().rss / 2**20
            held = ids_held(engine)
            if held or engine._seats.taken:
                wrong.append(f"{held} ids and {engine._seats.taken} seats are held after {first}")
            print(
                f"{min(said.answers, first + said.slice):8}{perf_counter() - started:9.1f}"
                f"{memory:7.0f}{len(engine._seats.kept):6}{held:9}  {dict(seen)}",
                flush=True,
            )
        engine._seats.kept.clear()
        left = sum(
            shared.longest(number) > 0
            for shared in engine._seats.shared
            for number in range(shared.answers * shared.leaves + shared.kept)
        )
        if left:
            wrong.append(f"{left} sequence ids hold cells after the kept texts went")
    print("\n".join(wrong) or "no answer was another's, and nothing was left")
    return int(bool(wrong))


def parts(
    engine: localspec.Engine, context: list[int], whole: list[int], tokens: list[int]
) -> float | None:
    """How far apart in logits the two tokens are where an answer to a prompt leaves the whole one;
    None where it is that or its beginning."""
    same = shared_prefix(whole, tokens)
    if same == len(tokens):
        return None
    row = engine.logits([*context, *tokens[:same]])
    return abs(float(row[whole[same]] - row[tokens[same]])) if same < len(whole) else TIE


def answer(
    engine: localspec.Engine, prompt: str, drafting: Drafting, count: int, cancelled_at: int = -1
) -> tuple[list[int], list[int]]:
    """The tokens of a prompt and of its answer, cancelled when so many have come."""
    stream = engine.stream(prompt, max_tokens=count, sampling=GREEDY, drafting=drafting)
    before = [*stream.context]
    tokens: list[int] = []
    for chunk in stream:
        tokens += chunk.token_ids
        if 0 <= cancelled_at <= len(tokens):
            stream.cancel()
    return before, tokens


def ids_held(engine: ParallelEngine) -> int:
    """Sequence ids of answers that hold cells; those of kept texts may."""
    return sum(
        shared.longest(number) > 0
        for shared in engine._seats.shared
        for number in range(shared.answers * shared.leaves)
    )


if __name__ == "__main__":
    raise SystemExit(main())
