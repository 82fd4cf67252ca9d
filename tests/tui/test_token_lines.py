"""An answer's text with its tokens marked: all of it, in lines that fit, and harmless.

What the marks look like: `tests/tui/test_story_colours.py`.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.chat.provenance import Rejected
from localspec.text import harmless
from localspec.tui.rendering.message_lines import token_lines
from localspec.tui.rendering.palette import Palette
from localspec.tui.rendering.strips import INDENT

PALETTE = Palette({}, dark=True)
SOURCES = ["target", "ngram", "model", "cascade", "oracle"]


def test_what_fell_is_shown_where_it_fell_and_as_it_is() -> None:
    fallen = [
        Rejected(0, "No ", "model"),
        Rejected(3, " end\n", "ngram"),
        Rejected(7, "\x9b1m", ""),
    ]
    (line,) = token_lines("one **two**\x1b[31m", [(3, "ngram")], fallen, 40, PALETTE)
    assert line.text[INDENT:].rstrip() == "No one end↵ **t\ufffd1mwo**\ufffd[31m"
    struck = "".join(s.text for s in line if s.style is not None and s.style.strike)
    assert struck == "No  end↵\ufffd1m"


@given(
    words=st.lists(
        st.tuples(
            st.text(st.characters(codec="utf-8"), min_size=1, max_size=6), st.sampled_from(SOURCES)
        ),
        max_size=12,
    ),
    width=st.integers(1, 12),
)
@settings(max_examples=80, deadline=None)
def test_lines_fit_and_nothing_gets_lost(words: list[tuple[str, str]], width: int) -> None:
    text = "".join(word for word, _ in words)
    spans = [(len(word), source) for word, source in words]
    strips = token_lines(text, spans, [], width, PALETTE)
    assert all(strip.cell_length == width + INDENT for strip in strips)
    drawn = "".join("".join(strip.text.split()) for strip in strips)
    if width > 1:  # a wide character has no room in one cell
        wanted = "".join(harmless(text).split())
        assert [c for c in drawn if c.isalnum()] == [c for c in wanted if c.isalnum()]
