"""How many greedy answers equal plain decoding's in every token, with `--exact` and without, and
what that costs.

    python -m tools.exact_answers [-m MODEL] [-d DRAFT] [--prompts 100] [--tokens 48]

Plain and drafted answers of both engines to the same prompts, in turns, each from an empty cache.
Equality is told of the plain decoding with the same options. Speed is that of generation alone,
summed over the prompts. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from contextlib import suppress

import localspec
from localspec import Drafting, ModelOptions
from localspec.bench.prompt_texts import prompt_for
from localspec.bench.suites import SETS, load_suites
from localspec.errors import ContextOverflow
from localspec.verify.subject import GREEDY, PLAIN, Subject

CONTEXT = 1024
LONGEST = 700
"""Tokens of a prompt."""


def main() -> None:
    """Print a line for each engine and way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", help="default the embedded pair")
    parser.add_argument("-d", "--draft", default="auto")
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--depth", type=int, default=2, help="of the drafts that are always made")
    given = parser.parse_args()
    ways = {
        "plain": PLAIN,
        "auto": Drafting(),
        f"depth {given.depth}": Drafting(
            drafter="ngram" if given.draft == "none" else "model", depth=given.depth
        ),
    }
    speeds: dict[str, float] = {}
    for exact in (False, True):
        options = ModelOptions(context=CONTEXT, exact=exact)
        with localspec.load(given.model, draft=given.draft, options=options) as engine:
            subject = Subject(engine, lambda text: None)
            prompts = _prompts(subject, given.prompts)
            for drafting in ways.values():  # kernels and cost curves are warm then
                subject.answer(prompts[0], given.tokens, drafting)
            _answers(subject, prompts, given.tokens, ways, exact, speeds)


def _answers(
    subject: Subject,
    prompts: list[tuple[int, ...]],
    most: int,
    ways: dict[str, Drafting],
    exact: bool,
    speeds: dict[str, float],
) -> None:
    """One engine."""
    equal, tested = defaultdict[str, int](int), defaultdict[str, int](int)
    tokens, seconds = defaultdict[str, int](int), defaultdict[str, float](float)
    for number, prompt in enumerate(prompts):
        order = list(ways)[:: 1 if number % 2 else -1]
        said = {}
        for name in order:
            subject.engine.clear()
            said[name] = subject.answer(prompt, most, ways[name], sampling=GREEDY)
            tokens[name] += sum(len(step.tokens) for step in said[name].steps[1:])
            seconds[name] += sum(step.seconds for step in said[name].steps[1:])
            tested[name] += said[name].tested
        for name in ways:
            equal[name] += said[name].tokens == said["plain"].tokens
    for name in ways:
        what = f"{name}{' --exact' if exact else ''}"
        speeds[what] = tokens[name] / seconds[name]
        line = f"{what:20}{speeds[what]:9.1f} tok/s, {speeds[what] / speeds['plain']:.2f} x plain"
        if name != "plain":
            line += f"; {equal[name]} of {len(prompts)} equal, {tested[name]} drafts tested"
        print(line, flush=True)


def _prompts(subject: Subject, count: int) -> list[tuple[int, ...]]:
    """Of the questions and stories of `localspec bench`, the kinds mixed."""
    found = []
    for prompt in load_suites([SETS["questions"], SETS["stories"]]):
        with suppress(ContextOverflow):  # it is among those that are too long anyway
            tokens = tuple(subject.tokens(prompt_for(subject.engine, prompt)))
            if len(tokens) <= LONGEST:
                found.append(tokens)
    if len(found) < count:
        raise SystemExit(f"There are {len(found)} prompts. Ask for as many with --prompts.")
    return found[:count]


if __name__ == "__main__":
    main()
