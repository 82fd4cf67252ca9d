"""The figures in words."""

from __future__ import annotations

from localspec import DrafterStats, GenerationStats
from localspec.cli.report import account, figures, table
from localspec.decoding.stats import AccountStatement
from localspec.policy.reasons import RESTING


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


def plain(**more: object) -> GenerationStats:
    return GenerationStats(generated_tokens=11, target_passes=11, decode_seconds=0.5, **more)  # type: ignore[arg-type]


def test_one_line_for_a_drafted_answer() -> None:
    assert figures(drafted(), draft="tale-3m", interrupted=False) == (
        "139 tokens · 812 tok/s · 2.53 tokens/pass · accepted 128 of 185 (69 %) · "
        "model 125/180 · ngram 3/5 · draft tale-3m"
    )


def test_one_line_gives_the_main_reason_where_nothing_was_drafted() -> None:
    stats = plain(reasons={"rarely": 1, "mostly": 9})
    assert figures(stats, draft=None, interrupted=False) == (
        "11 tokens · 20.0 tok/s · decoded plainly: mostly"
    )


def test_that_planning_rests_is_said_where_there_is_no_other_reason() -> None:
    rests = {RESTING: 9}
    line = figures(plain(reasons={"rarely": 1, **rests}), draft=None, interrupted=False)
    assert line.endswith("decoded plainly: rarely")
    line = figures(plain(reasons=rests), draft=None, interrupted=False)
    assert line.endswith(RESTING)


def test_one_line_says_interrupted_and_lossy() -> None:
    line = figures(plain(rule="typical", lossless=False), draft=None, interrupted=True)
    assert line.startswith("interrupted · 11 tokens · ")
    assert line.endswith(" · lossy (rule typical)")


def test_one_line_where_there_is_little_to_tell() -> None:
    one = GenerationStats(generated_tokens=1, target_passes=1)
    assert figures(one, draft=None, interrupted=False) == "1 token"
    none = GenerationStats(prompt_tokens=9)
    assert figures(none, draft=None, interrupted=True) == (
        "interrupted · no answer to a prompt of 9 tokens yet"
    )


def test_the_table_has_every_figure() -> None:
    lines = table(drafted(), model="tale-13m", draft="tale-3m", finish="stop").splitlines()
    assert lines == [
        "model          tale-13m",
        "draft model    tale-3m",
        "prompt         20 tokens (5 cached)",
        "generated      139 tokens, finish: stop",
        "speed          812 tok/s after the first token",
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


def test_the_table_without_a_draft() -> None:
    lines = table(plain(rule="top-k", lossless=False), model="m", draft=None, finish="length")
    assert "draft model    none\n" in lines
    assert "accepted       0 of 0\n" in lines
    assert "rule           top-k, lossy\n" in lines


def test_account_is_a_line_of_the_table() -> None:
    statement = AccountStatement(saved=1.2, fund=0.4, refused=1)
    stats = plain(account=statement)
    line = "account        saved 1.20 s, may still risk 0.40 s; 1 step held back"
    assert line in table(stats, model="m", draft=None, finish="stop").splitlines()
    assert account(AccountStatement(saved=-0.3, fund=-0.1)) == (
        "lost 0.30 s, may still risk 0.00 s; 0 steps held back"
    )
