"""Measure tokens per second of all answers together, for 1, 2, 4 and 8 clients.

    python -m tools.parallel [MODEL.gguf | --scale A] [--clients 1 2 4 8] [--tokens 48]
                             [--llama-server llama.cpp/build/bin/llama-server]

Every client requests one answer after the other until a round is complete; prompts count, and no
prefix is cached. Arms alternate: `plain` shares passes without drafts, `auto` drafts where that
pays, `alone` is an engine for one answer at a time, whose clients wait for each other, and `server`
is llama-server with a slot for each client, plain and with its default drafts by the draft model.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import TypeAlias

import localspec
from localspec import Drafting, Engine, ModelOptions, SamplingParams
from localspec.bench.llama_server import SERVER_CONFIGURATIONS, LlamaServer
from localspec.bench.samples import BenchPrompt, PeerSetup, Question
from localspec.bench.scale import scaled_pair
from localspec.bench.suites import prompt_tokens
from localspec.llama.cores import default_threads

PROMPTS = Path(__file__).parents[1] / "tests" / "data" / "prompts.jsonl"
GREEDY = SamplingParams(temperature=0)
REQUESTS = 12
SERVER = {"server": "plain", "server drafts": "draft 3 (default)"}

Ask: TypeAlias = Callable[[str], tuple[int, int]]
"""Answers a prompt; returns the numbers of generated and drafted tokens."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("model", nargs="?")
    options.add_argument("--draft", default="auto")
    options.add_argument("--scale", help="a pair of localspec.bench.scale, instead of a model")
    options.add_argument("--clients", nargs="+", type=int, default=[1, 2, 4, 8])
    options.add_argument("--tokens", type=int, default=48)
    options.add_argument("--requests", type=int, default=REQUESTS)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--threads", type=int)
    options.add_argument("--context", type=int, default=2048)
    options.add_argument("--arms", nargs="+", help="those of localspec; alone, plain, auto")
    options.add_argument("--llama-server", type=Path, help="its program; two more arms")
    args = options.parse_args()
    prompts = [json.loads(line)["prompt"] for line in PROMPTS.read_text().splitlines()]
    model = ModelOptions(context=args.context, threads=args.threads or "auto")
    pair = (args.model, args.draft) if args.scale is None else scaled_pair(args.scale)
    with ExitStack() as opened:
        together = opened.enter_context(
            localspec.load(pair[0], draft=pair[1], options=model, parallel=max(2, *args.clients))
        )
        arms: dict[str, Ask] = {}
        if args.arms is None or "alone" in args.arms:
            alone = opened.enter_context(localspec.load(pair[0], draft=pair[1], options=model))
            arms["alone"] = asker(alone, Drafting(), args.tokens)
        for name, drafting in (("plain", Drafting(drafter="none")), ("auto", Drafting())):
            if args.arms is None or name in args.arms:
                arms[name] = asker(together, drafting, args.tokens)
        for ask in arms.values():  # measures, and learns
            run(ask, prompts[-4:], 1)
        servers = [] if args.llama_server is None else [*SERVER]
        if together.draft_path is None:
            servers = servers[:1]
        names = [*arms, *servers]
        print(f"{'clients':>8}" + "".join(f"{name:>15}" for name in names) + "  drafted by auto")
        for clients in args.clients:
            speeds: dict[str, list[float]] = {name: [] for name in names}
            drafted = 0
            for turn in range(args.rounds):
                first = turn * args.requests
                asked = [prompts[n % len(prompts)] for n in range(first, first + args.requests)]
                # The first one rotates: the machine's speed drifts.
                for place in range(len(names)):
                    name = names[(place + turn) % len(names)]
                    if name in arms:
                        speed, tokens = run(arms[name], asked, clients)
                        drafted += tokens if name == "auto" else 0
                    else:
                        with llama_server(args, name, together, clients) as ask:
                            speed, _ = run(ask, asked, clients)
                    speeds[name].append(speed)
            cells = "".join(f"{median(found):15.1f}" for found in speeds.values())
            print(f"{clients:8}{cells}{drafted:17}", flush=True)
            for name in names:
                if name != "auto" and "auto" in names:
                    found = [a / b for a, b in zip(speeds["auto"], speeds[name], strict=True)]
                    print(f"{'':8} auto ÷ {name}: {median(found):.2f}", [f"{r:.2f}" for r in found])


def asker(engine: Engine, drafting: Drafting, tokens: int) -> Ask:
    def ask(prompt: str) -> tuple[int, int]:
        stream = engine.stream(
            prompt, max_tokens=tokens, sampling=GREEDY, drafting=drafting, reuse=False
        )
        stats = stream.completion().stats
        return stats.generated_tokens, stats.drafted

    return ask


@contextmanager
def llama_server(
    args: argparse.Namespace, name: str, engine: Engine, clients: int
) -> Iterator[Ask]:
    """Run a llama-server with the same models and a slot for each client."""
    server = LlamaServer(
        args.llama_server,
        SERVER[name],
        SERVER_CONFIGURATIONS[SERVER[name]],
        PeerSetup(
            target=engine.model.path,
            draft=engine.draft_path,
            tokenize=lambda text: prompt_tokens(engine, text),
            piece=engine.model.vocabulary.piece,
            threads=args.threads or default_threads(),
            context=args.context,
        ),
        slots=clients,
    )

    def ask(prompt: str) -> tuple[int, int]:
        asked = BenchPrompt(id=prompt, suite="", text=prompt)
        sample = server.generate(Question(asked, 0.0, 0, args.tokens))
        return len(sample.token_ids), sample.drafted or 0

    try:
        server.start()
        ask("Once upon a time")  # its first pass is slow
        yield ask
    finally:
        server.close()
        sleep(0.2)  # until it is gone


def run(ask: Ask, prompts: Sequence[str], clients: int) -> tuple[float, int]:
    """Tokens per second of all answers, and the tokens that were drafted."""
    with ThreadPoolExecutor(clients) as pool:
        started = perf_counter()
        answers = list(pool.map(ask, prompts))
        seconds = perf_counter() - started
    tokens, drafted = (sum(counts) for counts in zip(*answers, strict=True))
    return tokens / seconds, drafted


if __name__ == "__main__":
    main()
