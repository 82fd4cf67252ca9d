"""The panel of figures beside the conversation."""

from collections.abc import Sequence

from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Sparkline, Static

from localspec.chat import words
from localspec.chat.figures import Figures
from localspec.text import harmless, rate, times
from localspec.tui.rendering.palette import Palette
from localspec.tui.session.background_engine import OpenPair

_NOTHING = "–"
"""Shown for an unknown figure."""
_NAME = 11
"""Width of a figure's name in cells."""


class FiguresPanel(VerticalScroll):
    """Figures of the running answer, else of the last one."""

    def compose(self) -> ComposeResult:
        yield Static(id="speed")
        yield Sparkline(id="speeds")
        yield Static(id="rest")

    def show(
        self, figures: Figures, answers: Sequence[Figures], opened: OpenPair | None, memory: str
    ) -> None:
        palette = Palette.of(self.app)
        self._set_text("#speed", speed_text(figures, answers, palette))
        self._set_text("#rest", rest_text(figures, opened, memory, palette))
        self.query_one(Sparkline).data = list(figures.speeds)

    def _set_text(self, selector: str, text: Text) -> None:
        static = self.query_one(selector, Static)
        wrapped = text.wrap(Palette.of(self.app).console, max(1, static.content_size.width))
        # A new layout of the screen is more expensive than all drawing.
        static.update(text, layout=len(wrapped) != static.content_size.height)


def speed_text(figures: Figures, answers: Sequence[Figures], palette: Palette) -> Text:
    text = Text()
    _title(text, "Speed", palette)
    known = bool(figures.decode_seconds)
    _row(text, "now", f"{rate(figures.speed_now)} tok/s" if known else _NOTHING)
    _row(text, "average", f"{rate(figures.speed)} tok/s" if known else _NOTHING)
    _row(text, "per pass", f"{figures.tokens_per_pass:.2f} tokens" if known else _NOTHING)
    gain = figures.times_plain
    if gain is None:
        _row(text, "speed-up", "not measured yet", palette.faint)
    else:
        colour = "success" if gain >= 1.02 else "warning" if gain < 0.97 else "foreground"
        _row(text, "speed-up", times(gain), palette.style(colour, bold=True))
    text.append(f"{words.balance(figures, answers)}\n", palette.faint)
    text.rstrip()
    return text


def rest_text(figures: Figures, opened: OpenPair | None, memory: str, palette: Palette) -> Text:
    text = Text("\n")
    _title(text, "Accepted drafts", palette)
    if figures.tested:
        _row(text, "all", _share(figures.accepted, figures.tested))
        for name, (accepted, tested) in figures.by_drafter.items():
            mark = palette.mark(name)
            text.append(mark.name.ljust(_NAME)[:_NAME], mark.style)
            text.append(f" {_share(accepted, tested)}\n")
        for number, (accepted, tested) in enumerate(figures.by_position[:8], start=1):
            text.append(f"position {number}".ljust(_NAME), palette.faint)
            text.append(f" {_bar(accepted, tested)} ", palette.style("accent"))
            text.append(f"{words.share(accepted, tested)}\n")
    else:
        text.append("no drafts yet\n", palette.faint)
    off = words.why_undrafted(figures)
    if off is not None:
        text.append(f"{off}\n", palette.style("warning"))
    total = figures.decode_seconds
    text.append("\n")
    _title(text, "Time", palette)
    for name, seconds in (
        ("verify", figures.verify_seconds),
        ("draft", figures.draft_seconds),
        ("overhead", figures.overhead_seconds),
    ):
        _row(text, name, words.share(seconds, total) if total else _NOTHING)
    text.append("\n")
    _title(text, "Context and memory", palette)
    length = figures.context_length or (opened.context_length if opened else 0)
    if length:
        used = figures.context_used
        style: Style | str = palette.style("warning") if used > 0.9 * length else ""
        _row(text, "context", f"{used:,} of {length:,}", style)
        text.append(f"{' ' * _NAME} {_bar(used, length, 12)}\n", palette.style("accent"))
    _row(text, "process", memory)
    if not figures.lossless:
        text.append(f"Rule {figures.rule} is lossy.\n", palette.style("error"))
    text.rstrip()
    return text


def _title(text: Text, title: str, palette: Palette) -> None:
    text.append(f"{title}\n", palette.style("primary", bold=True))


def _row(text: Text, name: str, value: str, style: Style | str = "") -> None:
    text.append(f"{name:<{_NAME}} ")
    text.append(f"{harmless(value)}\n", style)


def _share(accepted: int, tested: int) -> str:
    return f"{words.share(accepted, tested)} ({accepted:,}/{tested:,})"


def _bar(part: float, whole: float, width: int = 8) -> str:
    full = round(width * part / whole) if whole else 0
    return "█" * full + "░" * (width - full)


def status_text(figures: Figures, draft: str | None, palette: Palette, *, live: bool) -> Text:
    """The figures in one line, for the status bar."""
    text = Text()
    text.append("● " if live else "■ ", palette.style("success") if live else palette.faint)
    text.append(words.line(figures, draft=draft, now=live))
    off = words.why_undrafted(figures)
    if off is not None:
        text.append(f"  {off}", palette.faint)
    return text
