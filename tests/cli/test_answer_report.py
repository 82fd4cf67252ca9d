"""The figures in words."""

from __future__ import annotations

from localspec import Completion, DrafterStats, GenerationStats
from localspec.answer_line import STOCK
from localspec.chat.figures import Figures
from localspec.cli.answer_report import account, table
from localspec.cli.answering import Answered
from localspec.decoding.stats import AccountStatement


def drafted() -> GenerationStats:
    return GenerationStats(
        prompt_tokens=20,
        cached_tokens=5,
        generated_tokens=139,
        target_passes=55,
        drafted=200,
        tested=185,
        accepted=128,
        accepted_per_position=[80, 48],
        tested_per_position=[100, 80, 5],
        prompt_seconds=0.25,
        decode_seconds=0.17,
        draft_seconds=0.05,
        verify_seconds=0.1,
        overhead_seconds=0.02,
        by_drafter={"model": DrafterStats(190, 180, 125), "ngram": DrafterStats(10, 5, 3)},
        rule="auto",
        seed=42,
        reasons={"it rests": 1, "the answer ends with the next token": 3},
    )


def test_the_table_has_every_figure() -> None:
    figures = Figures(tokens=139, decode_seconds=0.17, plain_seconds=0.442, beside=STOCK)
    answer = Completion("", "stop", drafted())
    lines = table(Answered(answer, figures, "tale-13m", "tale-3m", False)).splitlines()
    assert lines == [
        "model          tale-13m",
        "draft model    tale-3m",
        "prompt         20 tokens (5 cached)",
        "generated      139 tokens, finish: stop",
        "speed          812 tok/s after the first token",
        "speed-up       2.6× plain llama.cpp (312 tok/s)",
        "target passes  55, 2.53 tokens per pass",
        "drafted        200 tokens, of these 185 tested",
        "accepted       128 of 185 (69 %)",
        "  position 1   80 of 100 (80 %)",
        "  position 2   48 of 80 (60 %)",
        "  position 3   0 of 5 (0 %)",
        "  model        125 of 180 (69 %)",
        "  ngram        3 of 5 (60 %)",
        "seconds        prompt 0.250, draft 0.050, verify 0.100, overhead 0.020",
        "not drafted    3 passes: the answer ends with the next token",
        "not drafted    1 pass: it rests",
        "rule           auto, lossless",
        "seed           42",
    ]


def test_account_is_a_line_of_the_table() -> None:
    statement = AccountStatement(saved=1.2, fund=0.4, refused=1)
    stats = GenerationStats(account=statement)
    row = "balance        drafting saved 1.20 s, and may lose 0.40 s now; 1 step held back"
    assert row in table(Answered(Completion("", "stop", stats), Figures(), "m", None, False))
    assert account(AccountStatement(saved=-0.3, fund=-0.1)) == (
        "drafting lost 0.30 s, and is paused; 0 steps held back"
    )
