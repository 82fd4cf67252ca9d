"""Choice of a local or downloadable model, and of a draft for it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from rich.style import Style
from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Input, Label, OptionList, Static
from textual.widgets.option_list import Option

from localspec.errors import describe
from localspec.gguf.reader import read_gguf
from localspec.text import gigabytes, harmless, parameter_count
from localspec.tui.rendering.palette import Palette
from localspec.tui.screens.dialogs import Dialog
from localspec.tui.session.background_engine import PairReference
from localspec.tui.widgets.inputs import Options
from localspec.worker_threads import run_in_thread

if TYPE_CHECKING:
    from localspec.hub.catalog import Entry
    from localspec.hub.local import LocalModel
    from localspec.pairing.auto import DraftCandidate

AUTO, NONE = "auto", "none"


class _Filter(Input):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "submit", "To the models")]


class _Targets(Options):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select", "Choose its draft")]


class _Drafts(Options):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select", "Open the pair")]


class ModelPicker(Dialog[PairReference | None]):
    """A dialog for a pair; its result is the pair to open, None for Escape. `now`: the open pair;
    `folders`: searched besides the usual ones; `draft_only`: keep the target, choose its draft.
    `models`: local models found so far."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Cancel"),
        Binding("down", "app.focus_next", "Next list", show=False),
        Binding("tab,right", "app.focus_next", "Next list"),
        Binding("shift+tab,left", "app.focus_previous", "Previous list", show=False),
    ]

    def __init__(
        self, now: PairReference, folders: Sequence[Path] = (), *, draft_only: bool = False
    ) -> None:
        super().__init__()
        self._now, self._folders, self._draft_only = now, folders, draft_only
        self.models: list[LocalModel] = []
        self._entries: list[Entry] = []
        self._rows: list[LocalModel | Entry] = []
        self._drafts: list[str] = []
        self._offered_for: Path | None = None
        self._judged: dict[Path, list[DraftCandidate]] = {}

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog wide"):
            yield _Filter(
                placeholder="Filter, or a path or user/repo[:quant] to open or download",
                id="filter",
                compact=True,
            )
            with Horizontal(id="lists"):
                with Vertical():
                    yield Label("Model")
                    yield _Targets(id="targets", compact=True)
                with Vertical():
                    yield Label("Draft model for it")
                    yield _Drafts(id="drafts", compact=True)
            yield Static("Looking for models …", id="about", markup=False)

    @work(group="find")
    async def on_mount(self) -> None:
        from localspec.hub import catalog, local

        try:
            models = await run_in_thread("find", partial(local.local_models, self._folders))
            entries = (await run_in_thread("catalogue", catalog.load)).entries
        except Exception as error:  # an unhandled error would end the app
            self._set_about(describe(error)[0])
            return
        self.models = models
        here = {model.reference.partition(":")[0] for model in models}
        self._entries = [e for e in entries if here.isdisjoint((e.name, *e.repositories))]
        self._list()
        if not models:
            self._set_about(
                "There are no GGUF files where localspec looks. Choose one to download, or type "
                "the path of one above."
            )

    @on(Input.Changed)
    def _list(self) -> None:
        palette = Palette.of(self.app)
        wanted = self.query_one("#filter", Input).value.strip().lower()
        here = [
            m for m in self.models if wanted in f"{m.name} {m.reference} {m.architecture}".lower()
        ]
        offered = [e for e in self._entries if wanted in f"{e.name} {e.family}".lower()]
        self._rows = [*here, *offered]
        targets = self.query_one("#targets", OptionList)
        targets.clear_options()
        for model in here:
            now = self._is_now(model)
            mark = Text.assemble(("▌" if now else " ", palette.style("accent")))
            style = palette.faint if model.problem else palette.style("foreground", bold=now)
            details = f"{model.quantization} {gigabytes(model.size)}"
            targets.add_option(Option(_row(mark, model.name, style, palette, details)))
        for entry in offered:
            mark, style = Text("↓ ", palette.style("accent")), palette.style("foreground")
            details = gigabytes(entry.size) if entry.size else ""
            targets.add_option(Option(_row(mark, entry.name, style, palette, details)))
        if here or (offered and wanted):
            current = [n for n, m in enumerate(here) if self._is_now(m)]
            targets.highlighted = current[0] if current else 0
            if self._draft_only and not wanted:
                self.query_one("#drafts").focus()
        elif wanted:
            self._set_about(
                "No model name contains that. Enter opens it as a path or reference, and "
                "downloads missing files."
            )

    def _is_now(self, model: LocalModel) -> bool:
        now = self._now.model
        return (now or "demo") in (model.reference, str(model.path))

    @on(Input.Submitted)
    def _typed(self, event: Input.Submitted) -> None:
        text = event.value.strip()
        if self._rows or not text:
            self.query_one("#targets").focus()
        else:
            self.dismiss(PairReference(text, AUTO))

    @on(OptionList.OptionHighlighted, "#targets")
    def _target(self) -> None:
        model, row = self._model_now(), self._row_now()
        if model is None:
            if row is not None:
                self._offer_drafts_of(cast("Entry", row))
            return
        self._set_about(_describe(model))
        self._offer_drafts(model)
        if model.problem is None:
            self._judge_drafts(model)

    @on(OptionList.OptionSelected, "#targets")
    def _chosen(self) -> None:
        model = self._model_now()
        if model is not None and model.problem is not None:
            self._set_about(model.problem)
        else:
            self.query_one("#drafts").focus()

    @on(OptionList.OptionHighlighted, "#drafts")
    def _draft_described(self, event: OptionList.OptionHighlighted) -> None:
        target = self._model_now()
        if target is None or event.option_index >= len(self._drafts):
            return
        reference = self._drafts[event.option_index]
        judged = self._judged.get(target.path, [])
        draft = next((each for each in judged if each.reference == reference), None)
        if draft is None or not draft.checks:
            self._set_about(_describe(target))
            return
        self._set_about("; ".join(draft.warnings) or f"{draft.model.name} fits {target.name}.")

    @on(OptionList.OptionSelected, "#drafts")
    def _open(self, event: OptionList.OptionSelected) -> None:
        model, row = self._model_now(), self._row_now()
        if model is not None and model.problem is not None:
            self._set_about(model.problem)
        elif row is not None and event.option_index < len(self._drafts):
            reference = row.name if model is None else model.reference
            self.dismiss(PairReference(reference, self._drafts[event.option_index]))

    def _row_now(self) -> LocalModel | Entry | None:
        """The highlighted row, read now: the list may have changed since a message was sent."""
        number = self.query_one("#targets", OptionList).highlighted
        return self._rows[number] if number is not None and number < len(self._rows) else None

    def _model_now(self) -> LocalModel | None:
        """The highlighted local model; None for one to download."""
        row = self._row_now()
        return row if row in self.models else None

    def _offer_drafts_of(self, entry: Entry) -> None:
        """List drafts that can be downloaded with a model."""
        self._set_about(_to_download(entry))
        offered = entry.drafts[:1]
        self._offered_for, self._drafts = None, [*offered, NONE]
        rows = [f"{harmless(draft)}, also downloaded" for draft in offered]
        self._set_drafts([Option(Text(row)) for row in (*rows, "none: n-gram drafter only")], 0)

    @work(exclusive=True, group="judge")
    async def _judge_drafts(self, target: LocalModel) -> None:
        from localspec.pairing import auto
        from localspec.pairing.memory import PairUse

        def judged() -> list[DraftCandidate]:
            smaller = [m for m in self.models if m.problem is None and m.size < target.size]
            return auto.candidates(read_gguf(target.path), smaller, PairUse())

        if target.path not in self._judged:
            try:
                self._judged[target.path] = await run_in_thread("judge", judged)
            except Exception as error:  # such as a deleted file
                self._set_about(describe(error)[0])
        self._offer_drafts(target)

    def _offer_drafts(self, target: LocalModel) -> None:
        """List drafts for a target, as far as they are judged: usable ones first, and why the
        others cannot be used."""
        if self._model_now() is not target:
            return
        palette = Palette.of(self.app)
        highlighted = self.query_one("#drafts", OptionList).highlighted
        # The user may have left the first row while the drafts were judged.
        wanted = self._now.draft if self._is_now(target) else AUTO
        if self._offered_for == target.path and highlighted:
            wanted = self._drafts[highlighted]
        self._offered_for = target.path
        judged = self._judged.get(target.path, [])
        self._drafts = [AUTO, NONE, *(draft.reference for draft in judged)]
        rows = [Option("auto: the best one on this machine"), Option("none: n-gram drafter only")]
        for draft in judged:
            sign, colour = ("✓ ", "success") if draft.usable else ("✗ ", "error")
            mark = Text.assemble((sign, palette.style(colour)))
            style = "" if draft.usable else palette.faint
            details = gigabytes(draft.model.size), draft.why_not or ""
            row = _row(mark, draft.model.name, style, palette, *details)
            rows.append(Option(row, disabled=not draft.usable))
        number = self._drafts.index(wanted) if wanted in self._drafts else 0
        self._set_drafts(rows, 0 if rows[number].disabled else number)

    def _set_drafts(self, rows: list[Option], highlighted: int) -> None:
        options = self.query_one("#drafts", OptionList)
        options.set_options(rows)
        options.highlighted = highlighted

    def _set_about(self, text: str) -> None:
        self.query_one("#about", Static).update(harmless(text))


def _row(mark: Text, name: str, style: Style | str, palette: Palette, *details: str) -> Text:
    """A row that begins with `mark`, whose style is the row's."""
    mark.append(harmless(name), style)
    for detail in filter(None, details):
        mark.append(f"  {harmless(detail)}", palette.faint)
    return mark


def _to_download(entry: Entry) -> str:
    parts = [f"to download from {entry.repo}", f"{parameter_count(entry.parameters)} parameters"]
    if entry.size:
        parts.append(gigabytes(entry.size))
    return " · ".join([*parts, entry.licence])


def _describe(model: LocalModel) -> str:
    if model.problem is not None:
        return model.problem
    parts = [model.reference, model.architecture, model.quantization, gigabytes(model.size)]
    if model.parameters:
        parts.insert(2, f"{parameter_count(model.parameters)} parameters")
    if model.trained_context:
        parts.append(f"context {model.trained_context:,}")
    parts.append(f"from {model.source}")
    if not model.chat:
        parts.append("no chat template")
    return " · ".join(parts)
