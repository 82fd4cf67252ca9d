"""What drafting across vocabularies brings: a pair of realistic size, its draft re-tokenised.

    python -m tools.cross_vocabulary [--scale NAME] [--per-suite N] [-n N] [--turns N]

The draft model keeps its weights and is given other tokens: the same ones under other ids, a part
of them gone, a SentencePiece vocabulary. What is lost against its own vocabulary is the price of
the translation. Greedy; plain decoding, the planner, and the draft model at its default depth.

Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from pathlib import Path

from localspec import ModelOptions
from localspec.bench.benchmark import BenchPair, BenchSettings, benchmark
from localspec.bench.scale import scaled_pair
from localspec.bench.suites import load_suites
from localspec.bench.terminal import report_text
from tests.support import retokenised


def main() -> None:
    """Measure all pairs and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", default="A", help="pair of realistic size; see localspec bench")
    parser.add_argument("--per-suite", type=int, default=2, help="prompts of each suite")
    parser.add_argument("-n", type=int, default=96, dest="max_tokens", help="longest answer")
    parser.add_argument("--turns", type=int, default=3, help="repetitions, for medians")
    said = parser.parse_args()
    target, draft = scaled_pair(said.scale)
    settings = BenchSettings(
        options=ModelOptions(context=1024),
        prompts=load_suites(per_suite=said.per_suite),
        temperatures=(0.0,),
        groups=("plain", "planner"),
        turns=said.turns,
        max_tokens=said.max_tokens,
        seed=1,
    )
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder)
        drafts = {
            "its own vocabulary": draft,
            "other ids": retokenised.permuted(made / "permuted.gguf", draft),
            "a third gone": retokenised.permuted(made / "fewer.gguf", draft, removed=0.3),
            "SentencePiece": retokenised.sentencepiece(made / "pieces.gguf", draft),
        }
        report = benchmark(
            [
                BenchPair(name=name, target=str(target), draft=str(path))
                for name, path in drafts.items()
            ],
            settings,
            command=shlex.join(["python", "-m", "tools.cross_vocabulary", *sys.argv[1:]]),
            tell=lambda _text: None,
            notices=[],
        )
    print(report_text(report, 120))


if __name__ == "__main__":
    main()
