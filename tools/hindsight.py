"""How close `auto` is to the best greedy drafts: python -m tools.hindsight PROMPTS TARGET [DRAFT]

The bound knows each answer of TOKENS tokens. At each step it drafts nothing, or the accepted tokens
of the draft model or the n-gram drafter, whichever needs the least time to the end. Passes cost as
in the curves that `auto` measured, but those of its draft model cost the seconds that they took.
"""

import argparse
from collections.abc import Iterable, Sequence
from itertools import takewhile
from math import exp, log
from pathlib import Path
from statistics import fmean

import localspec
from localspec import Drafting, Engine, SamplingParams
from localspec.bench.suites import load_suites
from localspec.decoding.stats import GenerationStats
from localspec.drafters.ngram import NgramIndex, NgramSource

GREEDY, PLAIN = SamplingParams(temperature=0.0), Drafting(drafter="none")
TOKENS, DEEPEST = 40, 16


def agreed(expected: Iterable[int], text: Sequence[int]) -> int:
    """Number of leading tokens of a text that were expected."""
    return len([*takewhile(lambda pair: pair[0] == pair[1], zip(expected, text, strict=False))])


def bound(
    verify: Sequence[float], each: float, draft: Engine | None, prompt: list[int], answer: list[int]
) -> float:
    """Minimum seconds of an answer after its first token; `each`: those of a draft pass."""
    source, least = NgramSource(NgramIndex()), [0.0] * (len(answer) + 1)
    for at in range(len(answer) - 1, 0, -1):
        text, rest = [*prompt, *answer[:at]], answer[at : at + DEEPEST][:-1]
        source.begin(text)
        expected = source.predict(source.position_after(text, 0))
        ways = [(0.0, agreed((guess.token for guess in expected), rest))]
        if draft is not None and rest:
            with draft.stream(
                text, max_tokens=len(rest), sampling=GREEDY, drafting=PLAIN
            ) as stream:
                guesses = (token for chunk in stream for token in chunk.token_ids)
                ways.append((each, agreed(guesses, rest)))
        least[at] = min(
            least[at + count + 1] + verify[count + 1] + price * count
            for price, most in ways
            for count in range(most + 1)
        )
    return least[1]


def main(prompts: str, target: str, draft: str | None = None) -> None:
    logs, engine = list[tuple[float, float]](), localspec.load(target, draft=draft)
    drafter = None if draft is None else localspec.load(draft, draft=None)
    for item in load_suites([Path(prompts)], per_suite=1):
        text = list(item.messages) or item.text
        prompt = list(engine.prompts.tokens(text, TOKENS, "error", GenerationStats()))
        with engine.stream(prompt, max_tokens=TOKENS, sampling=GREEDY) as stream:
            chunks = [(chunk.token_ids, chunk.step) for chunk in stream if chunk.step is not None]
        answer = [token for tokens, _ in chunks for token in tokens]
        verify, costs = engine.profile.verifying(len(prompt), 63), engine.draft_costs
        each = 0.0 if costs is None else costs.seconds(1, len(prompt))
        auto = sum(verify[1 + len(step.tree.tokens)] + step.draft_seconds for _, step in chunks[1:])
        if auto:
            least, plain = bound(verify, each, drafter, prompt, answer), len(answer[1:]) * verify[1]
            logs.append((log(plain / least), log(least / auto)))
            print(f"{item.suite:16} plain {plain:.3f} s, auto {auto:.3f}, bound {least:.3f}")
    best, reached = (exp(fmean(each)) for each in zip(*logs, strict=True))
    print(f"bound {best:.2f} × plain, auto ÷ bound {reached:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("prompts", "target"):
        parser.add_argument(name)
    parser.add_argument("draft", nargs="?")
    main(**vars(parser.parse_args()))
