"""The charts of the report; the only module that imports matplotlib."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from localspec.bench.arms import PLANNER
from localspec.bench.summary import ALL, Cell, PairSummary
from localspec.bench.table import kind
from localspec.bench.tables import sweep

if TYPE_CHECKING:
    from localspec.bench.report import PairResults

MISSING = (
    "Figures are left out: they need matplotlib. Install it with pip install '.[bench]' in the "
    "clone of localspec."
)
_MOST_BARS = 8


@dataclass(frozen=True, slots=True)
class Chart:
    """`name` is that of its files, without the ending."""

    name: str
    caption: str
    svg: str
    png: bytes


def available() -> bool:
    return find_spec("matplotlib") is not None


def draw(pair: PairResults, prefix: str = "") -> list[Chart]:
    """All charts that the samples of a pair allow; `prefix` of the names tells pairs apart."""
    summary = pair.summary
    charts: list[Chart | None] = []
    for temperature in summary.temperatures:
        end = "greedy" if temperature == 0 else f"t{temperature:g}"
        words = f"{pair.name}, {kind(temperature)}"
        name = f"{prefix}{{}}-{end}"
        charts += [paint(summary, temperature, name, words) for paint in (_sweep, _bars)]
    return [chart for chart in charts if chart is not None]


def _sweep(summary: PairSummary, temperature: float, name: str, words: str) -> Chart | None:
    rows = sweep(summary, temperature)
    if len(rows) < 2:
        return None
    depths = [depth for depth, _ in rows]

    def paint(axes: Any) -> None:
        axes.plot(depths, [cell.acceptance for _, cell in rows], "o-", color="C0")
        axes.set_xlabel("draft tokens per pass")
        axes.set_xticks(depths)
        axes.set_ylabel("acceptance rate", color="C0")
        axes.set_ylim(0, 1)
        speed = axes.twinx()
        speed.plot(depths, [cell.tokens_per_second for _, cell in rows], "s--", color="C1")
        speed.set_ylabel("tokens/s", color="C1")
        plain = summary.cell(summary.baseline, ALL, temperature)
        if plain is not None:
            speed.axhline(plain.tokens_per_second, color="C1", linewidth=0.8, linestyle=":")
        speed.set_ylim(bottom=0)

    caption = f"Draft tokens against acceptance and speed (dotted: plain): {words}"
    return _chart(name.format("sweep"), caption, paint)


def _bars(summary: PairSummary, temperature: float, name: str, words: str) -> Chart | None:
    cells = [c for c in summary.cells if c.temperature == temperature and c.speed_up is not None]
    best = sorted(
        (c for c in cells if c.suite == ALL and c.arm != summary.baseline),
        # What localspec does by itself is always shown.
        key=lambda c: (c.arm == PLANNER, c.speed_up or 0.0),
        reverse=True,
    )
    chosen = {cell.arm for cell in best[:_MOST_BARS]}
    arms = [arm for arm in summary.arms if arm in chosen]
    if not arms:
        return None
    suites = [s for s in (*summary.suites, ALL) if any(c.suite == s for c in cells)]

    def paint(axes: Any) -> None:
        width = 0.8 / len(arms)
        for number, arm in enumerate(arms):
            found = [summary.cell(arm, suite, temperature) for suite in suites]
            heights = [c.speed_up or 0.0 if c is not None else 0.0 for c in found]
            places = [place + (number + 0.5) * width - 0.4 for place in range(len(suites))]
            axes.bar(places, heights, width, label=_literal(arm), yerr=_whiskers(found))
        axes.axhline(1.0, color="black", linewidth=0.8)
        axes.set_xticks(range(len(suites)), [_literal(s.strip("()")) for s in suites])
        axes.set_ylabel(f"× {_literal(summary.baseline)}")
        axes.legend(fontsize="small", ncols=2)

    return _chart(name.format("speed-up"), f"Speed-up by suite: {words}", paint)


def _whiskers(cells: Sequence[Cell | None]) -> list[list[float]]:
    reach = [
        (0.0, 0.0)
        if cell is None or cell.interval is None or cell.speed_up is None
        else (cell.speed_up - cell.interval[0], cell.interval[1] - cell.speed_up)
        for cell in cells
    ]
    return [[max(0.0, low) for low, _ in reach], [max(0.0, high) for _, high in reach]]


def _chart(name: str, caption: str, paint: Callable[[Any], None]) -> Chart:
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    # Text stays text, and the same figures give the same file.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        canvas = Canvas(figsize=(8.0, 4.5), layout="constrained")
        axes = canvas.add_subplot()
        axes.set_title(_literal(caption), fontsize="medium", wrap=True)
        paint(axes)
        svg, png = io.StringIO(), io.BytesIO()
        canvas.savefig(svg, format="svg", metadata={"Date": None})
        canvas.savefig(png, format="png", dpi=150)
    return Chart(name, caption, svg.getvalue(), png.getvalue())


def _literal(text: str) -> str:
    """Text in which matplotlib finds no formula."""
    return text.replace("$", r"\$")
