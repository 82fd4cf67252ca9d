"""How often drafts are right, by depth, side by side: `python -m tools.acceptance -m MODEL --raw
PROMPTS.jsonl DRAFT [DRAFT ...]`. Counts alone, so it does not matter what else the machine does.

Every step has a chain of `--depth` tokens of the draft, whether that pays or not. Passes are those
of the answer alone, and the first token of it comes with the prompt's.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path

from localspec import Drafting, Engine, ModelOptions, SamplingParams, load
from localspec.decoding.stats import add_counts
from localspec.distill.prompts import read_prompts
from localspec.prompting.prompt import Prompt


@dataclass(slots=True)
class Counts:
    """Of all answers of one draft.

    Attributes:
        tested, accepted: by depth, from 1.
        tokens, passes: of the answers.
    """

    tested: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    tokens: int = 0
    passes: int = 0

    def told(self) -> str:
        """In words."""
        found = zip_longest(self.accepted, self.tested, fillvalue=0)
        rates = [f"{accepted / tested:.3f}" for accepted, tested in found if tested]
        return f"{' '.join(rates)} · {self.tokens / max(1, self.passes):.2f} tokens a pass"


def count(
    engine: Engine, prompts: Sequence[Prompt], depth: int, tokens: int, temperature: float
) -> Counts:
    """Answer them all."""
    drafting = Drafting(drafter=engine.head_source or "model", depth=depth)
    found = Counts()
    for prompt in prompts:
        sampling = SamplingParams(temperature=temperature, seed=0)
        stream = engine.stream(prompt, max_tokens=tokens, sampling=sampling, drafting=drafting)
        stats = stream.completion().stats
        add_counts(found.tested, stats.tested_per_position)
        add_counts(found.accepted, stats.accepted_per_position)
        found.tokens += stats.generated_tokens - 1
        found.passes += stats.target_passes - 1
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("drafts", nargs="+")
    parser.add_argument("--raw", action="store_true", help="prompts are text to go on from")
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("-n", "--tokens", type=int, default=48)
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0])
    parser.add_argument("--limit", type=int, help="take so many prompts, evenly apart")
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    said = parser.parse_args()
    texts = list(read_prompts(said.prompts))
    texts = texts[:: max(1, len(texts) // said.limit)][: said.limit] if said.limit else texts
    prompts: list[Prompt] = [
        [{"role": "user", "content": each}] if isinstance(each, str) and not said.raw else each
        for each in texts
    ]
    options = ModelOptions(context=2048, threads=said.threads)
    for draft in said.drafts:
        with load(said.model, draft=draft, options=options) as engine:
            for temperature in said.temperature:
                found = count(engine, prompts, said.depth, said.tokens, temperature)
                if said.json:
                    facts = {"draft": draft, "temperature": temperature, **asdict(found)}
                    print(json.dumps(facts), flush=True)
                else:
                    print(f"{draft} at {temperature}: {found.told()}", flush=True)


if __name__ == "__main__":
    main()
