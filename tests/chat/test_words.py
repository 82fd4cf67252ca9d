"""Figures in words."""

import pytest

from localspec.chat import words
from localspec.chat.figures import STOCK, Figures


def figures(**changed: object) -> Figures:
    """Figures of 120 tokens in 2 s, 1.5× as fast as plain decoding."""
    values: dict[str, object] = {
        "tokens": 121,
        "passes": 61,
        "prompt_tokens": 30,
        "prompt_seconds": 0.04,
        "decode_seconds": 2.0,
        "draft_seconds": 0.2,
        "verify_seconds": 1.7,
        "overhead_seconds": 0.1,
        "speed": 60.0,
        "speed_now": 75.04,
        "plain_seconds": 3.0,
        "drafted": 120,
        "tested": 100,
        "accepted": 61,
        "rule": "auto",
        "by_drafter": {"ngram": (11, 20), "model": (50, 80)},
        "by_position": ((40, 60), (15, 30), (6, 10)),
    }
    return Figures(**(values | changed))  # type: ignore[arg-type]


def test_durations() -> None:
    told = {
        0: "0 ms",
        0.0994: "99 ms",
        0.1: "0.1 s",
        -2.34: "-2.3 s",
        99.94: "99.9 s",
        100: "1 min 40 s",
        -125: "-2 min 5 s",
    }
    assert {value: words.seconds(value) for value in told} == told


def test_answer_line() -> None:
    line = words.line(figures(beside=STOCK), draft="smollm2")
    assert line == "121 tokens · 60.0 tok/s · 1.50× plain llama.cpp · draft smollm2"
    assert words.line(figures()) == "121 tokens · 60.0 tok/s", "llama.cpp was not measured"
    assert words.line(figures(), now=True).startswith("121 tokens · 75.0 tok/s")


def test_answer_line_leaves_out_unknown_figures() -> None:
    assert words.line(Figures()) == ""
    assert words.line(Figures(prompt_tokens=1200)) == "1,200 tokens read"
    assert words.line(Figures(tokens=1, passes=1)) == "1 token"
    undrafted = figures(drafted=0, reasons={"rarely": 1, "mostly": 9})
    assert words.line(undrafted) == "121 tokens · 60.0 tok/s · not drafted"
    assert words.line(undrafted, in_full=True) == f"{words.line(undrafted)}: mostly"


def test_lossy_rule_is_reported() -> None:
    lossy = figures(lossless=False, rule="typical")
    assert words.line(lossy).endswith("lossy (rule typical)")
    assert "**Rule typical is lossy**" in words.explain(lossy)
    assert "lossy" not in words.explain(figures())


def test_drafting_off() -> None:
    assert words.why_undrafted(figures()) is None
    assert words.why_undrafted(figures(off="it does not pay")) == "No drafts now: it does not pay."
    why, passes = "passes are too short", {"tokens": 100, "passes": 100, "verify_seconds": 0.0792}
    small = figures(**passes, drafted=0, reasons={why: 99}, off=why)
    assert words.line(small).endswith("100 tokens · 60.0 tok/s · too small for drafts to help")
    assert words.why_undrafted(small) == (
        "This model is too small for drafts to help: a pass takes 0.8 ms. To see them help, type "
        "'localspec race --scale A'."
    )


def test_explanation() -> None:
    told = words.explain(
        figures(reasons={"nothing likely": 2, "too short": 3}, notices=("By the way.",)),
        model="big",
        draft="small",
    ).split("\n\n")
    assert told == [
        "**big** wrote 121 tokens at 60.0 tokens per second. That is **1.50× without drafts**, "
        "which would have taken 1.0 s longer.",
        "The n-gram drafter guessed 20 tokens, 11 of them correctly (55%); the draft model "
        "(small) guessed 80 tokens, 50 of them correctly (62%). Each pass of the model gave "
        "1.98 tokens, where it gives 1 without drafts.",
        "5 of 61 passes had no draft:",
        "- 3 ×: too short\n- 2 ×: nothing likely",
        "The first token came after 40 ms (30 prompt tokens). The others took 2.0 s: 85% in the "
        "model, 10% in the draft model, 5% in localspec.",
        "Drafts do not change the output (lossless).",
        "By the way.",
    ]
    rare = words.explain(figures(by_drafter={"ngram": (1, 20)}), model="big", draft=None)
    assert "guessed 20 tokens, 1 of them correctly (5%)" in rare


@pytest.mark.parametrize(
    ("plain_seconds", "said"),
    [
        (2.0, "That is as fast as without drafts."),
        (1.5, "That is slower than without drafts: **0.75×**, 0.5 s lost to trying drafts"),
        (None, "The speed without drafts is not measured yet."),
    ],
)
def test_explanation_without_a_gain(plain_seconds: float | None, said: str) -> None:
    assert said in words.explain(figures(plain_seconds=plain_seconds))


@pytest.mark.parametrize(
    ("plain_seconds", "said"),
    [
        (3.0, "Drafting saved 1.0 s in this conversation; loss limit 0.4 s."),
        (1.5, "Drafting lost 0.5 s in this conversation; loss limit 0.4 s."),
        (2.01, "Drafting made no difference in this conversation; loss limit 0.4 s."),
    ],
)
def test_balance(plain_seconds: float, said: str) -> None:
    answers = [Figures(), figures(plain_seconds=None), figures(plain_seconds=plain_seconds)]
    beside_stock = figures(may_risk=0.4, beside="plain llama.cpp")
    assert f"{said} 'localspec doctor' compares it" in words.balance(figures(may_risk=0.4), answers)
    said = said.replace("Drafting", "localspec").replace(";", ", compared with plain llama.cpp;")
    assert words.balance(beside_stock, answers) == said, "the kernels save time as well"
    assert words.balance(Figures(), [Figures()]) == "No answers yet."
