"""An answer as lines that fit: Markdown as it grows, and its text with tokens marked.

What the marks look like: `tests/tui/test_story_colours.py`.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual.selection import Selection
from textual.strip import Strip

from localspec.chat.conversation import Message
from localspec.chat.figures import Figures
from localspec.text import harmless
from localspec.tui.rendering.markdown_lines import CodeBlock, MarkdownLines, code_blocks
from localspec.tui.rendering.message_lines import (
    LONGEST,
    DisplayMode,
    MessageColumn,
    MessageLines,
    token_lines,
)
from localspec.tui.rendering.palette import INDENT, Palette
from localspec.tui.widgets.sidebar import ago

PALETTE = Palette({"accent": "#ffa62b", "primary": "#0178d4", "panel": "#242f38"}, dark=True)
SOURCES = ["target", "ngram", "model", "cascade", "oracle"]
WORD = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6)


def same_as_whole(
    lines: Sequence[Strip], text: str, width: int, palette: Palette = PALETTE
) -> bool:
    """Whether lines are those of a text at once: characters and styles, not borders of segments."""
    found, whole = (
        [[(c, str(segment.style or "")) for segment in line for c in segment.text] for line in each]
        for each in (lines, MarkdownLines().render(text, width, palette))
    )
    return found == whole


def test_threads_do_not_get_each_others_blocks() -> None:
    texts = ["> fox\n\n" * 60, "`owl`\n\n" * 60]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda text: MarkdownLines().render(text, 40, PALETTE), texts))
    assert all(same_as_whole(lines, text, 40) for lines, text in zip(found, texts, strict=True))


@given(
    pieces=st.lists(
        st.sampled_from(
            [
                *("- ", "* ", "1. ", "> ", "# ", "```", "~~~", "    ", "  ", "\n", "\n\n", "---"),
                *("===", "|a|b|", "|-|-|", "[a]", "[a]: x", "**", "_", "`", "<p>", "\\", "\t"),
                *("word", "&#9;", "~~", "![", "](", ")", "http://a.b", ":"),
                *("日本", "e\u0301", "\u200b", "👩\u200d👧"),
                *("$$\n", "\\[\n", "\n\\]", "\\begin{a}\n", "$", "<br>", "\n= y\n"),
            ]
        )
        | st.text(max_size=9).map(harmless),
        max_size=14,
    ),
    cuts=st.lists(st.integers(0, 60), max_size=6),
)
@settings(max_examples=150, deadline=None)
def test_streamed_text_renders_like_whole_text(pieces: list[str], cuts: list[int]) -> None:
    text = "".join(pieces)
    growing = MarkdownLines()
    for end in [*sorted(cuts), len(text)]:
        lines = growing.render(text[:end], 20, PALETTE)
    assert same_as_whole(lines, text, 20)
    for width in (2, 10, 33):
        lines = MarkdownLines().render(text, width, PALETTE)
        assert all(line.cell_length == width + INDENT for line in lines)
        drawn = [segment for line in lines for segment in line]
        assert all(
            s.control is None and s.text == harmless(s.text.replace("\n", "↵")) for s in drawn
        )


@pytest.mark.parametrize(
    "entity", ["&#27;[31m", "&#x1b;]0;title&#7;", "&#13;", "&#8;", "&#x9b;31m", "&#12;", "&#0;"]
)
def test_control_characters_in_entities(entity: str) -> None:
    for text in ("a{}b", "`a{}b`", "[a{0}b](x{0}y)", "```{}\na\n```"):
        for line in MarkdownLines().render(text.format(entity), 40, PALETTE):
            for segment in line:
                assert harmless(segment.text) == segment.text
                link = None if segment.style is None else segment.style.link
                assert link is None or harmless(link) == link


def test_replaced_text_and_new_width() -> None:
    growing = MarkdownLines()
    growing.render("one two\n\nthree", 40, PALETTE)
    assert same_as_whole(growing.render("one", 40, PALETTE), "one", 40)
    text = "one two three\n\nfour"
    growing.render(text, 40, PALETTE)
    assert same_as_whole(growing.render(text, 4, PALETTE), text, 4)
    light = Palette({"accent": "#000000"}, dark=False)
    code = "```\nx\n```"
    growing.render(code, 40, PALETTE)
    assert same_as_whole(growing.render(code, 40, light), code, 40, light)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (r"[a](http://b) ![d](e) \(x_1 * y_2\) \*", [r"a (http://b) d (e) \(x_1 * y_2\) *"]),
        ("$a*b*c$ for $5 and *$6*", ["$a*b*c$ for $5 and $6"]),
        ("So\n$$\na\n= b\n+ c\n\n- d\n$$\nend", "So||$$|a|= b|+ c||- d|$$||end".split("|")),
        ("$$\na\n\n- b\n```\nc", ["$$", "a", "", "• b", "", "c"]),  # a formula without an end
        ("> \\[\n> a\\\\\n> = b\n> \\].\n", "▌ \\[|▌ a\\\\|▌ = b|▌ \\].".split("|")),
        ("Roses are red\nViolets\n---", ["Roses are red", "Violets", "", "-" * 70]),
        ("|a|b|\n|-|-|\n|x<br>`<br>`<BR />z|1|", ["a     b", "───────", "x     1", "<br>", "z"]),
        (f"|{'y' * 90}|b|\n|-|-|", ["y" * 65, f"{'y' * 25:67}b", "─" * 68]),
        ("1. 2 eggs\n2. salt", ["1. 2 eggs", "2. salt"]),
    ],
)
def test_nothing_is_lost(text: str, shown: list[str]) -> None:
    assert [line.text.strip() for line in MarkdownLines().render(text, 70, PALETTE)] == shown


def test_selection_keeps_line_breaks() -> None:
    words = "one two three four five six seven"
    text = f"{words}\n\n- {words}\n\n      if x:\n          {words}\n\n"
    text += f"> {words}\n\n---\n\n{'x' * 70}"
    column, showing = MessageColumn(), DisplayMode(PALETTE)
    column.show([(Message("1", None, "user", f"{words}\n  end", 0.0), (1, 1))])
    column.items += [MessageLines(Message("2", "1", "assistant", text, 0.0))]
    column.estimate(24)
    for number in (0, 1):
        column.measure(number, 24, showing)
    lines = column.text(Selection(None, None), 24, showing).split("\n")
    code = [f" • {words}", "if x:", f"    {words}"]
    assert lines[1:4] == [words, "  end", ""]
    assert MessageColumn().text(Selection(None, None), 24, showing) == "", "of another conversation"
    assert lines[5:] == [words, "", *code, "", f"▌ {words}", "", "-" * 22, "", "x" * 70, ""]


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_of_a_long_text_the_end_is_drawn(role: str) -> None:
    message = Message("m", None, role, f"first\n\n{'word ' * LONGEST}\n\nlast", 0.0)
    item = MessageLines(message)
    lines = [strip.text.strip() for strip in item.strips(200, DisplayMode(PALETTE))]
    assert "400,000 characters before these are not shown: c copies all" in lines[1]
    assert "last" in lines
    assert sum(map(len, lines)) < 2 * LONGEST
    assert len(lines) // 2 < item.estimate(200) < 2 * len(lines)
    for growth in range(3):  # where it ends moves in steps, not with each token
        message.content += "more "
        item.changed()
        assert lines[2] == item.strips(200, DisplayMode(PALETTE))[2].text.strip(), growth


def test_code_blocks() -> None:
    text = "a\n\n```py\nx = 1\n```\n- c\n\n  ~~~ sh -x\n  ls\n  ~~~\n\n> ```\n> y\n> ```\n\n    z\n"
    found = (("py", "x = 1\n"), ("sh", "ls\n"), ("", "y\n"), ("", "z\n"))
    assert code_blocks(text) == [CodeBlock(*each) for each in found]
    assert code_blocks("none") == []


def test_rejected_tokens_are_shown_in_place() -> None:
    fallen = ((0, "No "), (3, " end\n"), (7, "\x9b1m"))
    (line,) = token_lines("one **two**\x1b[31m", [(3, "ngram")], fallen, 40, PALETTE)
    assert line.text[INDENT:].rstrip() == "No one end↵ **t\ufffd1mwo**\ufffd[31m"
    struck = "".join(s.text for s in line if s.style is not None and s.style.strike)
    assert struck == "No  end↵\ufffd1m"


@given(
    words=st.lists(st.tuples(WORD, st.sampled_from(SOURCES)), max_size=12), width=st.integers(1, 12)
)
@settings(max_examples=80, deadline=None)
def test_lines_fit_and_keep_all_text(words: list[tuple[str, str]], width: int) -> None:
    text = "".join(word for word, _ in words)
    spans = [(len(word), source) for word, source in words]
    strips = token_lines(text, spans, [], width, PALETTE)
    assert all(strip.cell_length == width + INDENT for strip in strips)
    drawn = "".join("".join(strip.text.split()) for strip in strips)
    if width > 1:  # a wide character has no room in one cell
        wanted = "".join(harmless(text).split())
        assert [c for c in drawn if c.isalnum()] == [c for c in wanted if c.isalnum()]


@pytest.mark.parametrize(
    ("days", "words"), [(0, "12:00"), (1, "Fri"), (8, "20 Nov"), (-1, "29 Nov"), (-400, "Jan 2028")]
)
def test_dates_of_conversations(days: int, words: str) -> None:
    """Those of the future too, which a clock that was ahead has left."""
    now = datetime(2026, 11, 28, 12, 0)
    assert ago((now - timedelta(days=days)).timestamp(), now) == words


@pytest.mark.parametrize(
    ("used", "limit"),
    [(120, "max_tokens is reached (/set max_tokens N)"), (128, "the context is full")],
)
def test_an_answer_cut_off_names_the_limit(used: int, limit: str) -> None:
    stats = Figures(tokens=9, context_used=used, context_length=128).as_dict()
    answer = Message("2", "1", "assistant", "So", 0.0, finish_reason="length", stats=stats)
    lines = MessageLines(answer).strips(70, DisplayMode(PALETTE))
    assert f"■ cut off: {limit}" in [line.text.strip() for line in lines]
