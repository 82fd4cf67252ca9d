"""The figures in words."""

from localspec import Completion, DrafterStats, GenerationStats
from localspec.chat.figures import STOCK, Figures
from localspec.cli.answer import AnswerResult, stats_table


def test_table_lists_the_figures() -> None:
    stats = GenerationStats(prompt_tokens=20, cached_tokens=5, generated_tokens=139)
    stats.drafted, stats.tested, stats.accepted, stats.target_passes = 2000, 1850, 1280, 55
    stats.accepted_per_position, stats.tested_per_position = [80, 48], [100, 80, 5]
    stats.by_drafter = {"model": DrafterStats(190, 180, 125), "ngram": DrafterStats(10, 5, 3)}
    stats.reasons = {"it rests": 1, "the answer ends with the next token": 3}
    figures = Figures(tokens=139, decode_seconds=0.17, plain_seconds=0.442, beside=STOCK)
    result = AnswerResult(Completion("", "stop", stats), figures, "m", "d", False)
    lines = stats_table(result).splitlines()
    assert "speed-up       2.6× plain llama.cpp (312 tok/s)" in lines
    at = lines.index("target passes  55, 2.53 tokens per pass")
    assert lines[at + 1 : at + 8] == [
        "drafted        2,000 tokens (1,850 tested)",
        "accepted       1,280 of 1,850 (69%)",
        "  position 1   80 of 100 (80%)",
        "  position 2   48 of 80 (60%)",
        "  position 3   0 of 5 (0%)",
        "  model        125 of 180 (69%)",
        "  ngram        3 of 5 (60%)",
    ]
    assert "not drafted    3 passes: the answer ends with the next token" in lines
