"""The report as one HTML page that needs no other file."""

from __future__ import annotations

from collections.abc import Sequence

from jinja2 import Environment

from localspec.bench.report import Report, facts, file_lines, warnings
from localspec.bench.tables import tables

_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8" /><meta name="viewport" content="width=device-width" />
<title>localspec bench</title><style>
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 0.2rem 0.7rem; text-align: right; border-bottom: 1px solid #8884; }
th:first-child, td:first-child { text-align: left; }
.wide { overflow-x: auto; }
.warning { border-left: 4px solid #d80; padding-left: 0.7rem; }
figure { margin: 1rem 0; background: #fff; color: #000; padding: 0.5rem; }
figure svg { max-width: 100%; height: auto; }
code { overflow-x: auto; font-size: 0.9em; }
dt { font-weight: 600; }
</style></head>
<body>
<h1>localspec bench</h1>
<dl>{% for name, text in facts(report) %}<dt>{{ name }}</dt><dd>{{ text }}</dd>{% endfor %}</dl>
{% for text in warnings(report) %}<p class="warning">{{ text }}</p>{% endfor %}
{% for pair in report.pairs %}
<h2>{{ pair.name }}</h2>
<ul>{% for line in file_lines(pair) %}<li>{{ line }}</li>{% endfor %}</ul>
{% for table in tables(pair.summary) %}
<h3>{{ table.title }}</h3>
<div class="wide"><table>
<thead><tr>{% for cell in table.header %}<th>{{ cell }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in table.rows %}
<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>{% endfor %}
</tbody></table></div>
{% for note in table.notes %}<p>{{ note }}</p>{% endfor %}
{% endfor %}
<details><summary>Commands</summary><dl>
{% for arm, command in pair.commands.items() %}
<dt>{{ arm }}</dt><dd><code>{{ command }}</code></dd>
{% endfor %}</dl></details>
{% endfor %}
{% for caption, svg in charts %}
<figure>{{ svg[svg.index("<svg"):] | safe }}<figcaption>{{ caption }}</figcaption></figure>
{% endfor %}
</body>
</html>
"""


def html(report: Report, charts: Sequence[tuple[str, str]] = ()) -> str:
    """The page; `charts` are pairs of caption and SVG source."""
    # XML has no place for control characters, and a model's file name may hold them.
    clean = Environment(
        autoescape=True,
        finalize=lambda value: (
            "".join(c if c.isprintable() else "\ufffd" for c in value)
            if type(value) is str
            else value
        ),
    )
    return clean.from_string(_PAGE).render(
        report=report,
        charts=charts,
        facts=facts,
        warnings=warnings,
        file_lines=file_lines,
        tables=tables,
    )
