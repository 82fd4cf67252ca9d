"""An answer's text with its tokens marked."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.chat.provenance import Rejected, Span
from localspec.text import harmless
from localspec.tui.rendering.message_lines import token_lines
from localspec.tui.rendering.palette import Palette
from localspec.tui.rendering.strips import INDENT

PALETTE = Palette({}, dark=True)
SOURCES = ["target", "ngram", "model", "cascade", "oracle"]


def shown(
    text: str, spans: list[Span], rejected: list[Rejected] | None = None, width: int = 40
) -> list[tuple[str, str]]:
    """The text without its margins, and the source of each run: its mark, or "fallen"."""
    styles = {str(PALETTE.mark(source).style): source for source in SOURCES}
    styles[str(PALETTE.fallen)] = "fallen"
    runs: list[tuple[str, str]] = []
    for strip in token_lines(text, spans, rejected or [], width, PALETTE):
        assert strip.cell_length == width + INDENT
        line = [(c, str(s.style)) for s in strip for c in s.text][INDENT:]
        while line and line[-1][0] == " " and styles.get(line[-1][1], "target") == "target":
            line.pop()
        for character, style in line:
            source = styles.get(style, "target")
            if runs and runs[-1][1] == source:
                runs[-1] = (runs[-1][0] + character, source)
            else:
                runs.append((character, source))
        runs.append(("\n", ""))
    return runs[:-1]


def test_each_run_has_its_mark() -> None:
    assert shown("one two three four", [(4, "target"), (4, "ngram"), (6, "model")]) == [
        ("one ", "target"),
        ("two ", "ngram"),
        ("three ", "model"),
        ("four", "target"),
    ]


def test_what_fell_is_shown_where_it_fell() -> None:
    rejected = [
        Rejected(0, "No ", "model"),
        Rejected(3, " end\n", "ngram"),
        Rejected(7, "!", "model"),
    ]
    assert shown("one two", [(3, "ngram")], rejected) == [
        ("No ", "fallen"),
        ("one", "ngram"),
        (" end↵", "fallen"),
        (" two", "target"),
        ("!", "fallen"),
    ]


def test_markdown_and_control_characters_are_shown_as_they_are() -> None:
    assert shown("**a** [b](c)", []) == [("**a** [b](c)", "target")]
    assert shown("a\x1b[31mb\x07", [], [Rejected(1, "\x9b1m", "model")]) == [
        ("a", "target"),
        ("�1m", "fallen"),
        ("�[31mb�", "target"),
    ]


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
