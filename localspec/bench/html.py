"""The report as one HTML page that needs no other file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from localspec.bench.report import PairResults, Report, facts, file_lines, warnings
from localspec.bench.table import Table
from localspec.bench.tables import tables

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 0.2rem 0.7rem; text-align: right; border-bottom: 1px solid #8884; }
th:first-child, td:first-child { text-align: left; }
.wide { overflow-x: auto; }
.warning { border-left: 4px solid #d80; padding-left: 0.7rem; }
figure { margin: 1rem 0; background: #fff; color: #000; padding: 0.5rem; }
figure svg { max-width: 100%; height: auto; }
code, pre { overflow-x: auto; font-size: 0.9em; }
dt { font-weight: 600; }
"""


def html(report: Report, charts: Sequence[tuple[str, str]] = ()) -> str:
    """The page.

    Args:
        charts: caption and SVG source of each chart.
    """
    terms = "".join(f"<dt>{_e(name)}</dt><dd>{_e(text)}</dd>" for name, text in facts(report))
    body = ["<h1>localspec bench</h1>", f"<dl>{terms}</dl>"]
    body += [f'<p class="warning">{_e(text)}</p>' for text in warnings(report)]
    for pair in report.pairs:
        body += _pair(pair)
    for caption, svg in charts:
        body.append(f"<figure>{_inline(svg)}<figcaption>{_e(caption)}</figcaption></figure>")
    page = "\n".join(body)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8" />'
        '<meta name="viewport" content="width=device-width" />'
        f"<title>localspec bench</title><style>{_STYLE}</style></head>\n"
        f"<body>\n{page}\n</body>\n</html>\n"
    )


def _pair(pair: PairResults) -> Iterable[str]:
    yield f"<h2>{_e(pair.name)}</h2>"
    yield "<ul>" + "".join(f"<li>{_e(line)}</li>" for line in file_lines(pair)) + "</ul>"
    for table in tables(pair.summary, pair.bounds, pair.hardware):
        yield from _table(table)
    if pair.commands:
        rows = "".join(
            f"<dt>{_e(arm)}</dt><dd><code>{_e(command)}</code></dd>"
            for arm, command in pair.commands.items()
        )
        yield f"<details><summary>Commands</summary><dl>{rows}</dl></details>"


def _table(table: Table) -> Iterable[str]:
    yield f"<h3>{_e(table.title)}</h3>"
    head = "".join(f"<th>{_e(cell)}</th>" for cell in table.header)
    rows = "".join(
        "<tr>" + "".join(f"<td>{_e(cell)}</td>" for cell in row) + "</tr>" for row in table.rows
    )
    grid = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    yield f'<div class="wide">{grid}</div>'
    yield from (f"<p>{_e(note)}</p>" for note in table.notes)


def _inline(svg: str) -> str:
    """An SVG without what only a file of its own may begin with."""
    return svg[svg.index("<svg") :]


def _e(text: str) -> str:
    # XML has no place for control characters, and a model's file name may hold them.
    return escape("".join(c if c.isprintable() else "\ufffd" for c in text))
