"""Incremental rendering of Markdown to lines of the screen.

Textual's Markdown creates a widget for each paragraph, whose layout takes too much time from the
model. Here only the last block of a growing text is rendered again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Any, ClassVar

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from rich import markdown as rich_markdown
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.syntax import Syntax
from rich.table import Table
from textual.strip import Strip

from localspec.tui.rendering.palette import Palette, strip_of

Line = list[Segment]
_REFERENCE = re.compile(r"^[ \t>*+\-\d.)]*\[[^\]]+\]:", re.MULTILINE)
"""A line that may define a link reference."""
_FORMULA = re.compile(
    r"\\\(.{1,2000}?\\\)|\\\[.{1,2000}?\\\]|\$\$.{1,2000}?\$\$"
    r"|\$[^\s$`](?:[^$`\n]{0,300}[^\s$`])?\$(?!\d)",  # not the prices `$5 and $6`
    re.DOTALL,
)
_FORMULA_LINE = re.compile(r"\$\$|\\\[|\\begin\{(\w+\*?)\}.*")
"""A line that begins a formula of several lines."""
_LONGEST_FORMULA = 50
"""Lines within which a formula must end; otherwise its first line is text."""
_BREAK = re.compile("<br ?/?>", re.IGNORECASE)
_DOCUMENT = Lock()
"""Held while a block is in the shared document: the first one is rendered in another thread."""


@dataclass(frozen=True, slots=True)
class CodeBlock:
    language: str
    code: str


@dataclass(frozen=True, slots=True)
class _Block:
    """A top-level element, and the character at which it begins. `open`: a formula whose end may
    still come, behind other blocks."""

    start: int
    strips: list[Strip]
    open: bool


class MarkdownLines:
    """Renders one growing text."""

    def __init__(self) -> None:
        self._text = ""
        self._blocks: list[_Block] = []
        self._for: tuple[int, Palette] | None = None

    def render(self, text: str, width: int, palette: Palette) -> list[Strip]:
        """Lines of `width` cells after the margin, with an empty one between blocks."""
        grown = self._for == (width, palette) and text.startswith(self._text)
        # A link reference may be defined later, and applies to the whole text.
        if not grown or _REFERENCE.search(text):
            self._blocks = []
        dropped = self._unsettled()
        self._for, self._text = (width, palette), text
        start = dropped[0].start if dropped else 0
        found = [(start + at, tokens) for at, tokens in _blocks(text[start:])]
        settled = len(dropped) == 2 and not dropped[0].open
        if settled and len(found) > 1 and found[1][0] == dropped[1].start:
            self._blocks.append(dropped[0])  # its end is unchanged
            del found[0]
        for at, tokens in found:
            lines = _render_block(tokens, width, palette)
            strips = [strip_of(line, width) for line in lines]
            self._blocks.append(_Block(at, strips, bool(tokens[0].meta.get("open"))))
        strips = []
        for block in self._blocks:
            if strips and block.strips:
                strips.append(strip_of([], width))
            strips.extend(block.strips)
        return strips

    def _unsettled(self) -> list[_Block]:
        """Remove and return the last blocks that more text may change."""
        if not self._blocks:
            return []
        # An incomplete line may continue the previous block: a lone "3" is a paragraph, but
        # "3. three" an item of the list above it.
        last = len(self._blocks) - 1 - ("\n" not in self._text[self._blocks[-1].start :])
        opened = (at for at, block in enumerate(self._blocks) if block.open)
        at = max(0, min(last, next(opened, last)))
        dropped, self._blocks = self._blocks[at:], self._blocks[:at]
        return dropped


def code_blocks(text: str) -> list[CodeBlock]:
    """All code blocks of a text, also in lists and quotes."""
    return [
        CodeBlock(_language(token), token.content)
        for token in _parser().parse(text)
        if token.type in ("fence", "code_block")
    ]


def _language(token: Token) -> str:
    return next(iter(token.info.split()), "")


def _blocks(text: str) -> Iterator[tuple[int, list[Token]]]:
    """Top-level elements: index of the first character, and tokens."""
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    group: list[Token] = []
    at = 0
    for token in _parser().parse(text):
        if not group and token.map is not None:
            at = starts[token.map[0]]
        group.append(token)
        if token.level == 0 and token.nesting <= 0:
            yield at, group
            group = []


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    # HTML tags are shown as text: a model may write <think> for the reader. Links without brackets
    # would need another package, and terminals detect them.
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    parser.disable("lheading")  # a rule below a line would make it a heading, as would the next `-`
    parser.inline.ruler.before("escape", "formula", _formula)
    parser.inline.ruler.before("escape", "break", _break)
    alt = ["paragraph", "reference", "blockquote", "list"]  # what it may interrupt
    parser.block.ruler.before("fence", "formula", _formula_lines, {"alt": alt})
    parser.core.ruler.push("lines", _lines)
    return parser


def _formula(state: StateInline, silent: bool) -> bool:
    """Rule that shows formulas unchanged: their backslashes and underscores are not Markdown."""
    found = _FORMULA.match(state.src, state.pos)
    if found is None:
        return False
    if not silent:
        state.pending += found.group()
    state.pos = found.end()
    return True


def _formula_lines(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Rule for formulas of several lines: `+ y` would begin a list. One without an end is only its
    first paragraph."""
    found = _FORMULA_LINE.fullmatch(_line(state, start))
    if found is None or state.is_code_block(start):
        return False
    if silent:
        return True
    closing = rf"\end{{{found[1]}}}" if found[1] else {"$$": "$$"}.get(found[0], r"\]")
    most = min(end, start + _LONGEST_FORMULA)
    after, paragraph, unclosed = start + 1, 0, False
    while after < most and (state.isEmpty(after) or state.sCount[after] >= state.blkIndent):
        paragraph = paragraph or (after if state.isEmpty(after) else 0)
        after += 1
        if closing in _line(state, after - 1):
            break
    else:
        unclosed = end <= start + _LONGEST_FORMULA  # whose last line may be incomplete
        after = paragraph or after
    token = state.push("formula", "", 0)
    token.content = state.getLines(start, after, state.sCount[start], False).rstrip()
    token.map, token.meta = [start, after], {"open": unclosed}
    state.line = after
    return True


def _line(state: StateBlock, number: int) -> str:
    return state.src[state.bMarks[number] + state.tShift[number] : state.eMarks[number]].rstrip()


def _break(state: StateInline, silent: bool) -> bool:
    """Rule for `<br>`, the only line break that cells of tables can have."""
    found = _BREAK.match(state.src, state.pos)
    if found is None:
        return False
    if not silent:
        state.push("hardbreak", "br", 0)
    state.pos = found.end()
    return True


def _lines(state: StateCore) -> None:
    """Keep line breaks, as the page of `localspec serve` does: of verses, of `Key: value` lines.
    Append the addresses of links and images, which many terminals do not show."""
    for token in state.tokens:
        shown: list[Token] = []
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"
            elif child.type == "link_open":
                to, begun = str(child.attrs["href"]), len(shown)
            elif child.type == "image":
                image = f"{child.content or 'image'} ({child.attrs['src']})"
                child = Token("text", "", 0, content=image)
            shown.append(child)
            if child.type == "link_close":
                text = "".join(part.content for part in shown[begun:])
                if to.removeprefix("mailto:") != text:
                    shown.append(Token("text", "", 0, content=f" ({to})"))
        if shown:
            token.children = shown


@lru_cache(maxsize=2)
def _document(palette: Palette) -> _Markdown:
    """A cached document without tokens; creating one takes longer than rendering a block."""
    document = _Markdown("", code_theme=palette.code_theme, hyperlinks=True)
    document.background = palette.colour("panel")
    return document


def _render_block(tokens: Sequence[Token], width: int, palette: Palette) -> list[Line]:
    document, console = _document(palette), palette.console
    with _DOCUMENT:
        document.parsed = list(tokens)
        lines = console.render_lines(document, console.options.update(width=width), pad=False)
    while lines and not _text(lines[-1]):
        lines.pop()
    while lines and not _text(lines[0]):
        lines.pop(0)
    return lines


def _text(line: Line) -> str:
    return "".join(segment.text for segment in line).strip()


class _Heading(rich_markdown.Heading):
    """A left-aligned heading."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _Code(rich_markdown.CodeBlock):
    """A code block on the panel's colour, without empty lines around it."""

    background = "default"

    @classmethod
    def create(cls, markdown: Any, token: Token) -> _Code:
        block = cls(_language(token) or "text", markdown.code_theme)
        block.background = markdown.background
        return block

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Syntax(
            str(self.text).rstrip("\n"),
            self.lexer_name,
            theme=self.theme,
            word_wrap=True,
            padding=(0, 1),
            background_color=self.background,
        )


class _Table(rich_markdown.TableElement):
    """A table that breaks words instead of cutting them where there is too little room."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for table in super().__rich_console__(console, options):
            assert isinstance(table, Table)
            for column in table.columns:
                column.overflow = "fold"
            yield table


class _Item(rich_markdown.ListItem):
    """A list item whose number ends with a full stop, unlike in `1 2 eggs`."""

    def render_number(
        self, console: Console, options: ConsoleOptions, number: int, last_number: int
    ) -> RenderResult:
        width = len(str(last_number)) + 3
        lines = console.render_lines(self.elements, options.update(width=options.max_width - width))
        style = console.get_style("markdown.item.number")
        for index, line in enumerate(lines):
            yield Segment(" " * width if index else f"{number}. ".rjust(width), style)
            yield from line
            yield Segment.line()


class _Markdown(rich_markdown.Markdown):
    elements: ClassVar[dict[str, type[rich_markdown.MarkdownElement]]] = {
        **rich_markdown.Markdown.elements,
        "heading_open": _Heading,
        "fence": _Code,
        "code_block": _Code,
        "formula": rich_markdown.Paragraph,
        "list_item_open": _Item,
        "table_open": _Table,
    }
    background = "default"
