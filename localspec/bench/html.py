"""The report as one HTML page that needs no other file."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from markdown_it import MarkdownIt

from localspec.bench.report import Report, markdown

_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8" /><meta name="viewport" content="width=device-width" />
<title>localspec bench</title><style>
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
table { display: block; overflow-x: auto; border-collapse: collapse;
  font-variant-numeric: tabular-nums; }
th, td { padding: 0.2rem 0.7rem; border-bottom: 1px solid #8884; }
figure { margin: 1rem 0; background: #fff; color: #000; padding: 0.5rem; }
figure svg { max-width: 100%; height: auto; }
pre { overflow-x: auto; font-size: 0.9em; }
</style></head>
<body>
"""


def html(report: Report, charts: Sequence[tuple[str, str]] = ()) -> str:
    """The page; `charts` are pairs of caption and SVG source."""
    # XML has no place for control characters, and a model's file name may hold them.
    text = "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in markdown(report))
    figures = "".join(
        f"<figure>{svg[svg.index('<svg') :]}<figcaption>{escape(caption)}</figcaption></figure>\n"
        for caption, svg in charts
    )
    body = MarkdownIt("commonmark").enable("table").render(text)
    return f"{_PAGE}{body}{figures}</body>\n</html>\n"
