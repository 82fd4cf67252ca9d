"""Measure the time of localspec's own work, everything except native passes.

    python -m tools.overhead [--quick]

1. Time per step at depth 4, greedy, on the built-in pair, whose passes are the shortest.
2. Time per verified row at temperature 0.8, top-k 40, top-p 0.95, over 152,000 tokens.
3. Time of a mask over 152,000 tokens, along an answer to a schema of 20 properties; and the speed
   of such answers relative to free ones, SmolLM2 without and with drafts.
4. Time of the policy per step with learning, if every step is planned; built-in pair.

Run it on an idle machine: the figures are microseconds. `localspec bench --peers` compares plain
decoding with llama-cpp-python's `Llama`.
"""

import argparse
import json
import platform
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import llama_cpp

import localspec
from localspec import Drafting, GenerationStats, ModelOptions, SamplingParams, Stream
from localspec.decoding.acceptance import GreedyMatch
from localspec.decoding.loop import Drafter, speculate
from localspec.drafters.composition import compose
from localspec.grammars.grammar import Grammar
from localspec.hub.packages import NAME as SMOLLM2
from localspec.hub.resolution import resolve
from localspec.llama.cores import default_threads
from localspec.llama.vocabulary import Vocabulary
from tests.support import ggufs
from tests.support.sessions import a_session, make_drafts_cheap

GREEDY = SamplingParams(temperature=0)
NAMES = [f"p{number}" for number in range(20)]
TEXTS = {name: {"type": "string", "maxLength": 12} for name in NAMES}
SCHEMA = {"type": "object", "properties": TEXTS, "required": NAMES}
DEPTH_4 = Drafting(drafter="model", depth=4)
FOX = [{"role": "user", "content": "Tell me a story about a fox."}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the repetitions")
    rounds = 3 if parser.parse_args().quick else 30
    print(
        f"localspec {localspec.__version__}, llama-cpp-python {llama_cpp.__version__}, "
        f"{default_threads()} threads, {platform.processor() or platform.machine()}, "
        f"Python {platform.python_version()}"
    )
    with tempfile.TemporaryDirectory() as folder:
        per_step(rounds)
        per_row(Path(folder), rounds)
    with_schema(rounds)
    per_plan(rounds)


def report(what: str, values: list[float], unit: str) -> None:
    """Print the median and the middle half of the values."""
    low, middle, high = statistics.quantiles(values, n=4)
    print(f"{what:58}{middle:9.3f} {unit}  ({low:.3f} – {high:.3f})", flush=True)


def per_step(rounds: int) -> None:
    with localspec.load(options=ModelOptions(context=1024)) as engine:
        for name, drafting in ("plain", Drafting(drafter="none")), ("depth 4", DEPTH_4):
            costs = []
            for _ in range(rounds + 1):
                stats = run(engine.stream(FOX, max_tokens=200, sampling=GREEDY, drafting=drafting))
                costs.append(1e6 * stats.overhead_seconds / (stats.target_passes - 1))
            report(f"overhead per step, greedy, {name}", costs[1:], "µs")


def per_row(folder: Path, rounds: int) -> None:
    path = ggufs.tiny_llama(folder / "wide.gguf", vocab_size=152_000)
    sampling = SamplingParams(temperature=0.8, top_k=40, top_p=0.95, min_p=0.0, seed=1)
    with localspec.load(path, draft=path, options=ModelOptions(context=512)) as engine:
        costs = []
        for _ in range(rounds + 1):
            asked = engine.stream("Once", max_tokens=100, sampling=sampling, drafting=DEPTH_4)
            stats = run(asked)
            rows = stats.drafted + stats.target_passes - 1
            costs.append(1e6 * stats.overhead_seconds / rows)
        report("overhead per verified row, T = 0.8, 152,000 tokens", costs[1:], "µs")
        per_mask(engine.model.vocabulary)


def per_mask(vocabulary: Vocabulary) -> None:
    answer = json.dumps({name: f"A fox, {name}." for name in NAMES}).encode()
    grammar, costs = Grammar.from_schema(vocabulary, SCHEMA), list[float]()
    for token in vocabulary.tokenize(answer):
        started = perf_counter()
        grammar.advance(token)
        grammar._mask()
        costs.append(1e6 * (perf_counter() - started))
    report("mask per row, schema of 20 properties, 152,000 tokens", costs, "µs")


def with_schema(rounds: int) -> None:
    """Compare the speed of answers to a schema with that of free ones, which have other texts."""
    with localspec.load(resolve(SMOLLM2), options=ModelOptions(context=1024)) as engine:
        for name in ("none", "auto"):
            asked: Any = {"max_tokens": 200, "sampling": GREEDY, "drafting": Drafting(drafter=name)}
            ratios = []
            for _ in range(rounds + 1):
                free = run(engine.stream(FOX, **asked))
                guided = run(engine.stream(FOX, **asked, json_schema=SCHEMA))
                ratios.append(guided.tokens_per_second / free.tokens_per_second)
            report(f"speed with that schema / without, {name}", ratios[1:], "×")


def time_drafter(drafter: Drafter, spent: list[float]) -> None:
    """Collect the seconds in which a drafter plans and learns."""

    def timed(work: Callable[[Any], Any], argument: Any) -> Any:
        started, done = perf_counter(), work(argument)
        spent.append(perf_counter() - started)
        return done

    vars(drafter).update({w.__name__: partial(timed, w) for w in (drafter.plan, drafter.observe)})


def per_plan(rounds: int) -> None:
    """Time the policy with assumed costs, because drafting the built-in pair would not pay."""
    for name, draft in (("with the draft model", "auto"), ("without", None)):
        with localspec.load(draft=draft, options=ModelOptions(context=1024)) as engine:
            make_drafts_cheap(engine)
            slot = engine.slots.all[0]
            prompt = engine.tokenize(f"<|user|>{FOX[0]['content']}<|end|><|assistant|>")
            costs = []
            for _ in range(rounds + 1):
                session = a_session(engine, prompt, 200, GREEDY)
                parts, rule = (slot.parts, engine.profile, slot.limits), GreedyMatch()
                drafter = compose(Drafting(), *parts, session, rule)
                time_drafter(drafter, spent := list[float]())
                slot.cache.reuse(prompt)
                drafter.begin(prompt)
                count = sum(1 for _ in speculate(session, drafter, rule, slot.cache))
                costs.append(1e6 * sum(spent) / count)
            report(f"policy per step, learning included, {name}", costs[1:], "µs")


def run(stream: Stream) -> GenerationStats:
    return stream.completion().stats


if __name__ == "__main__":
    main()
