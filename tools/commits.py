"""Compare the speed of several commits, × plain decoding, interleaved in one run.

    python -m tools.commits TARGET DRAFT --arm new=. --arm old=../old
        [--arm alone=.,--draft=none] [--arm stock=.,--kernels=off] [--arm steady=.,--plain]
        [--arm fixed=.,--depth=3]
        [--prompts questions public] [--per-suite 2] [-n 64] [--temp 0] [-c 4096]

Each arm is a checkout in a separate process with an empty cache folder: a first session. All read a
prompt, then answer it in turns of TURN seconds; the first arm rotates. Plain decoding, with the
first arm's checkout and kernels, is one of them. A figure is the geometric mean over the suites of
tokens per second after the first token; "whole" includes the seconds until it. `,--draft=FILE` sets
an arm's draft model, or none; `,--kernels=off` its LOCALSPEC_KERNELS; `,--plain` turns drafts off;
`,--depth=N` lets the draft model draft N tokens at each step.
All use as many threads as there are cores: `-t auto` would mistake the others for a busy machine.
"""

import argparse
import json
import math
import os
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from statistics import fmean
from time import perf_counter, sleep
from typing import Any, NamedTuple

PLAIN = "plain"
VARIABLE = "LOCALSPEC_KERNELS"
NO_DRAFT = "none"
TURN, SETTLING = 0.3, 5.0
"""Seconds of a turn, plus the rest of its last step; and seconds in which idle engines move their
weights into huge pages."""


class Figures(NamedTuple):
    """Seconds until the first token, tokens per second after it, tokens, steps, steps with a draft,
    and a checksum of the text.
    """

    prompt: float
    speed: float
    tokens: int
    steps: int
    drafted: int
    text: int

    def whole(self, tokens: int) -> float:
        return self.prompt + (tokens - 1) / self.speed


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("target")
    options.add_argument("draft", help=f"a file, or '{NO_DRAFT}'")
    flags = "[,--draft=FILE][,--kernels=WHICH][,--plain][,--depth=N]"
    options.add_argument("--arm", action="append", default=[], help=f"NAME=CHECKOUT{flags}")
    options.add_argument("--prompts", nargs="+", default=["questions"])
    options.add_argument("--per-suite", type=int, default=2)
    options.add_argument("-n", "--max-tokens", type=int, default=64)
    options.add_argument("--temp", type=float, default=0.0)
    options.add_argument("-c", "--ctx", type=int, default=4096)
    options.add_argument("--answer", help=argparse.SUPPRESS)
    args = options.parse_args()
    args.target, args.draft = str(Path(args.target).resolve()), draft_file(args.draft)
    if args.answer is not None:
        answer(args.target, args.draft, json.loads(args.answer))
        return
    arms = dict(one.split("=", 1) for one in args.arm)
    if not arms:
        options.error("Name at least one checkout: --arm new=.")
    ways = {name: way(name, where) for name, where in arms.items()}
    first = next(iter(ways.values()))
    plain = argparse.Namespace(**{**vars(first), "plain": True, "depth": None, "draft": None})
    compare(args, {PLAIN: plain, **ways})


def way(name: str, where: str) -> argparse.Namespace:
    """What an arm's words mean; exits if they cannot be read."""
    words = argparse.ArgumentParser(prog=f"--arm {name}", add_help=False, allow_abbrev=False)
    words.add_argument("checkout")
    words.add_argument("--draft", type=draft_file)
    words.add_argument("--kernels")
    words.add_argument("--plain", action="store_true")
    words.add_argument("--depth", type=int)
    return words.parse_args(where.split(","))


def draft_file(name: str) -> str:
    return name if name == NO_DRAFT else str(Path(name).resolve())


def compare(args: argparse.Namespace, arms: Mapping[str, argparse.Namespace]) -> None:
    """Run all arms alternately, and print a report."""
    from localspec.bench.suites import load_suites

    prompts = load_suites([*map(Path, args.prompts)], per_suite=args.per_suite)
    found: dict[str, list[dict[str, Figures]]] = {}
    with ExitStack() as opened:
        ask = {name: opened.enter_context(arm(args, name, where)) for name, where in arms.items()}
        names = list(arms)
        sleep(SETTLING)
        for number, prompt in enumerate(prompts):
            text: Any = list(prompt.messages) or prompt.text
            turn = number % len(names)
            order = names[turn:] + names[:turn]
            for name in order:
                ask[name]([text, number + 1])  # reads it, and generates the first token
            row: dict[str, Figures] = {}
            while len(row) < len(order):
                for name in [name for name in order if name not in row]:
                    if (complete := ask[name](None)) is not None:
                        row[name] = Figures(*complete)
            if not all(one.steps for one in row.values()):
                print(f"{prompt.id}: answered with one token, left out")
                continue
            found.setdefault(prompt.suite, []).append(row)
            speed = row[PLAIN].speed
            ratios = (f"{n} {row[n].speed / speed:.3f} ({row[n].tokens})" for n in names[1:])
            tokens = row[PLAIN].tokens
            print(f"{prompt.id}: {speed:.1f} tok/s ({tokens}), × {', '.join(ratios)}", flush=True)
    for name in names[1:]:
        report(name, found, args.max_tokens)


def report(name: str, found: Mapping[str, Sequence[Mapping[str, Figures]]], tokens: int) -> None:
    after_first = {
        suite: [math.log(row[name].speed / row[PLAIN].speed) for row in rows]
        for suite, rows in found.items()
    }
    whole = {
        suite: [math.log(row[PLAIN].whole(tokens) / row[name].whole(tokens)) for row in rows]
        for suite, rows in found.items()
    }
    print(f"\n{name:18} {'':4}  whole")
    for suite in found:
        middle = [math.exp(fmean(logs[suite])) for logs in (after_first, whole)]
        print(f"  {suite:16} {middle[0]:.2f}  {middle[1]:.2f}")
    print(f"  {'all (95%)':16} {mean_text(after_first)}  {mean_text(whole)}")
    lowest = [math.exp(min(map(min, logs.values()))) for logs in (after_first, whole)]
    print(f"  {'lowest':16} {lowest[0]:.2f}  {lowest[1]:.2f}")
    all_rows = [row for rows in found.values() for row in rows]
    same = (
        f"{other}'s in {sum(row[name].text == row[other].text for row in all_rows)}"
        for other in all_rows[0]
        if other != name
    )
    print(f"  of {len(all_rows)} texts, equal to {', '.join(same)}")
    mine = [row[name] for row in all_rows]
    plain = [row[PLAIN] for row in all_rows]
    steps, drafted = sum(one.steps for one in mine), sum(one.drafted for one in mine)
    first = sum(one.prompt for one in mine) / sum(one.prompt for one in plain)
    print(f"  drafted in {drafted / max(1, steps):.0%} of {steps} steps; prompts × {first:.2f}")


def mean_text(logs: Mapping[str, Sequence[float]]) -> str:
    """The mean over the suites as text, with its interval."""
    import numpy as np

    from localspec.bench.summary import mean_interval

    middle = math.exp(fmean(fmean(suite) for suite in logs.values()))
    interval = mean_interval([np.array(suite) for suite in logs.values()])
    sure = "" if interval is None else f" ({interval[0]:.2f}–{interval[1]:.2f})"
    return f"{middle:.3f}{sure}"


@contextmanager
def arm(
    args: argparse.Namespace, name: str, chosen: argparse.Namespace
) -> Iterator[Callable[[Any], Any]]:
    """A function that sends requests to a checkout in another process."""
    from localspec.bench.child import Child

    drafting: dict[str, Any] = {"drafter": "none"} if chosen.plain else {}
    if chosen.depth is not None:
        drafting |= {"drafter": "model", "depth": chosen.depth}
    settings = {
        "drafting": drafting,
        "ctx": args.ctx,
        "tokens": args.max_tokens,
        "temp": args.temp,
    }
    command = [sys.executable, str(Path(__file__).resolve()), args.target]
    command += [chosen.draft or args.draft, "--answer", json.dumps(settings)]
    with tempfile.TemporaryDirectory() as home:
        environment = os.environ | {
            "LOCALSPEC_HOME": home,
            "PYTHONPATH": str(Path(chosen.checkout).resolve()),
        }
        if chosen.kernels is not None:
            environment[VARIABLE] = chosen.kernels
        with closing(Child(name, command, environment=environment, piped=True)) as child:
            opened = child.receive("opened")
            file, seconds, notices = opened["file"], opened["seconds"], opened["notices"]
            print(f"{name}: {file}, open in {seconds:.1f} s; {notices}")
            yield lambda what: child.ask(what, "answered")


def answer(target: str, draft: str, settings: Mapping[str, Any]) -> None:
    """In the child: answer the prompts on stdin with the checkout's localspec, a line per turn."""
    import localspec

    began = perf_counter()
    engine = localspec.load(
        target,
        draft=None if draft == NO_DRAFT else draft,
        context=settings["ctx"],
        threads=os.cpu_count() or 1,
    )
    engine.take_turns()  # no step ahead, during another arm's turn
    ready = {
        "seconds": perf_counter() - began,
        "file": localspec.__file__,
        "notices": list(engine.notices),
    }
    print(json.dumps(ready), flush=True)
    drafting = localspec.Drafting(**settings["drafting"])
    for line in sys.stdin:
        text, seed = json.loads(line)
        sampling = localspec.SamplingParams(temperature=settings["temp"], seed=seed)
        stream = engine.stream(
            text, max_tokens=settings["tokens"], sampling=sampling, drafting=drafting
        )
        next(stream)  # the prompt's token
        print("null", flush=True)
        steps: list[Any] = []
        for _ in sys.stdin:
            if not decode(stream, steps):
                break
            print("null", flush=True)
        stats = stream.stats
        figures = Figures(
            stats.prompt_seconds,
            stats.tokens_per_second,
            stats.generated_tokens,
            len(steps),
            sum(bool(step.drafted) for step in steps),
            zlib.crc32(stream.text.encode()),
        )
        print(json.dumps(figures), flush=True)


def decode(stream: Any, steps: list[Any]) -> bool:
    """Decode for TURN seconds; whether the answer is unfinished."""
    until = perf_counter() + TURN
    for chunk in stream:
        if chunk.step is not None:
            steps.append(chunk.step)
        if perf_counter() >= until:
            return True
    return False


if __name__ == "__main__":
    main()
