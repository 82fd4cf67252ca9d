"""`localspec race`: plain decoding and localspec on one prompt."""

from __future__ import annotations

import shutil
import sys
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localspec.cli import options as o
from localspec.cli.answer_options import ANSWER, SAMPLING
from localspec.cli.drafting_options import DRAFTING
from localspec.cli.model_options import DRAFT_MODEL, MODEL
from localspec.cli.output import Console, OutputLost
from localspec.errors import Cancelled, UsageError

# The rest brings numpy and the engine with it, and `--help` wants to be quick.
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console as RichConsole

    from localspec.cli.race_view import RaceView
    from localspec.cli.race_worker import Raced, RaceWorker
    from localspec.cli.request import AnswerRequest
    from localspec.cli.worker import Ready
    from localspec.race.turns import Lap

EXAMPLES = """\
Examples:
  localspec race --scale A
  localspec race -m model.gguf -d draft.gguf "How does a bill become law?"
  localspec race -m model.gguf "Add type hints. Print all of it." < shop.py"""

QUESTION, STORY = "Why is the sky blue?", "Tell me a story about a fox."
"""The default prompts: of a model, and of the built-in one."""
_REDRAW_SECONDS = 0.1
_PAGE = (80, 24)
_RESTORE = "\x1b[?25h\x1b[?1049l"
"""Shows the cursor and leaves the alternate screen."""

Prompt = Annotated[
    str | None,
    typer.Argument(
        metavar="[PROMPT]",
        show_default=False,
        help=f"The prompt, as for 'localspec run'. Default, if nothing is piped in: '{QUESTION}'",
    ),
]
THEN = {
    "then": o.in_panel("Prompt and answer")(
        list[str],
        "--then",
        "TEXT",
        "Ask this next; each lane continues from its own answers. Repeatable.",
    )
}
_sampling, _output = o.in_panel("Sampling"), o.in_panel(o.OUTPUT)
SCALE = {
    "scale": o.in_panel("Model")(
        str,
        "--scale",
        "NAME",
        "Race a model of realistic size instead of -m and -d, as for 'localspec bench'.",
    )
}
GREEDY = {
    "temperature": _sampling(
        float,
        "--temp --temperature",
        "X",
        "Set the temperature. 0, the default, is greedy: both lanes give the same text.",
    )
}
OUTPUT = {
    "json": _output(bool, "--json", "", "Print one JSON object with texts and figures at the end."),
}


@o.takes(
    THEN,
    ANSWER,
    SCALE,
    MODEL,
    DRAFT_MODEL,
    DRAFTING,
    GREEDY,
    o.without(SAMPLING, "temperature"),
    OUTPUT,
)
def race(
    context: typer.Context,
    prompt: Prompt = None,
    *,
    quiet: o.Quiet = False,
    verbose: o.Verbose = 0,
) -> int:
    """Watch plain decoding and localspec answer the same prompt.

    The two take turns, each on its own clock, so neither slows the other.
    Ctrl+C stops both and keeps the texts so far; a second Ctrl+C exits at
    once.
    """
    console: Console = context.obj
    console.configure(quiet=quiet, verbosity=verbose)
    if quiet and verbose:
        raise UsageError("--quiet excludes --verbose. Leave out one of them.")
    said = dict(context.params)
    if said["scale"] is not None and (said["model"] or said["draft"]):
        raise UsageError("--scale excludes --model and --draft. Leave out one of them.")
    if said["scale"] is not None and (said["lora"] or said["lora_draft"]):
        raise UsageError("--scale excludes --lora and --lora-draft. Leave out one of them.")
    if said["temperature"] is None:
        said["temperature"] = 0.0
    try:
        from localspec.cli.prompt import require_texts
        from localspec.cli.race_worker import RaceWorker

        request = _request(said)
        further = require_texts(said["then"], "--then")
        worker = RaceWorker(request, said["scale"], further, shows_progress=console.shows_progress)
        shown = _Shown(request, further, console, live=console.draws and not said["json"])
        shown.follow(worker)
    except KeyboardInterrupt:
        raise Cancelled("Interrupted before the race began.") from None
    shown.tell(as_json=bool(said["json"]))
    interrupted = any(outcome.interrupted for outcome in shown.raced.outcomes)
    return Cancelled.exit_code if interrupted else 0


def _request(said: dict[str, Any]) -> AnswerRequest:
    from localspec.cli.prompt import standard_input
    from localspec.cli.request import read_request
    from localspec.hub.packages import default_reference

    stdin = standard_input()
    if said["prompt"] is None and (stdin is None or stdin.isatty()):
        story = said["model"] is said["scale"] is default_reference() is None
        said["prompt"] = STORY if story else QUESTION
    return read_request(said)


class _Shown:
    """A race on the screen; `raced` is its result."""

    raced: Raced

    def __init__(
        self, request: AnswerRequest, further: Sequence[str], console: Console, *, live: bool
    ) -> None:
        self._request = request
        self._further = further
        self._console = console
        self._live = live
        self._screen: Any = None
        self._ready: Ready | None = None
        self._view: RaceView | None = None
        self._laps: list[Lap] = []
        self._due = 0.0

    def follow(self, worker: RaceWorker) -> None:
        try:
            worker.follow(
                self._console,
                self._handle,
                writing=lambda: self._live and bool(self._laps),
                restore=_RESTORE if self._live else "",
            )
        except BaseException:
            self._leave()
            if self._live and self._laps:  # what was on the screen
                with suppress(OutputLost):
                    self._draw_all("")
            raise
        self._leave()

    def tell(self, *, as_json: bool) -> None:
        from localspec.race.outcome import speed_up
        from localspec.race.words import texts

        outcomes, ready = self.raced.outcomes, self._ready
        assert ready is not None
        # The same may befall several answers.
        for notice in dict.fromkeys(n for each in outcomes for n in each.localspec.stats.notices):
            self._console.notice(notice)
        if as_json:
            found = {
                "prompt": self._request.prompt,
                "model": ready.model,
                "draft": ready.draft,
                "calibration_seconds": self.raced.calibration_seconds,
                **outcomes[0].as_dict(),
            }
            if self._further:
                asked = [self._request.prompt, *self._further]
                found["questions"] = [
                    {"prompt": question, **outcome.as_dict()}
                    for question, outcome in zip(asked, outcomes, strict=False)
                ]
                found["speed_up_of_all"] = speed_up(outcomes)
            self._console.answer_json(found)
        elif self._live:
            self._draw_all(self._summary)
        else:
            self._console.answer(f"{texts(outcomes, self._further)}\n{self._summary}\n")

    @property
    def _summary(self) -> str:
        from localspec.race.words import summary

        return summary(self.raced.outcomes, self.raced.calibration_seconds)

    def _handle(self, event: Ready | Lap | Raced) -> None:
        from localspec.cli.race_worker import Raced
        from localspec.cli.worker import Ready

        if isinstance(event, Ready):
            self._ready = event
            self._view = self._new_view()
            for notice in event.notices:
                self._console.notice(notice)
            self._draw()
        elif isinstance(event, Raced):
            self.raced = event
        else:
            assert self._view is not None
            self._laps.append(event)
            self._view.add(event)
            self._draw()

    def _new_view(self) -> RaceView:
        from localspec.cli.race_view import RaceView

        ready, sampling = self._ready, self._request.opening.sampling
        assert ready is not None
        parts = [ready.model_name]
        if ready.draft_name is not None:
            parts.append(f"draft {ready.draft_name}")
        parts.append("greedy" if sampling.greedy else f"temperature {sampling.temperature:g}")
        return RaceView(self._request.prompt, " · ".join(parts), self._further)

    def _draw(self) -> None:
        now = perf_counter()
        if now < self._due:
            return
        # Between two redraws: on a small machine they take cores from the model.
        self._due = now + _REDRAW_SECONDS
        assert self._view is not None
        if self._live:
            from rich.console import Group
            from rich.live import Live

            if self._screen is None:
                self._console.erase_progress()
                self._screen = Live(console=_terminal(), screen=True, auto_refresh=False)
                self._screen.start()
            self._screen.update(Group(*self._view.lines(*_size())), refresh=True)
        elif self._laps:
            counts = [self._view.progress.tokens(lane) for lane in (0, 1)]
            self._console.progress(f"plain {counts[0]} tokens, localspec {counts[1]}")

    def _leave(self) -> None:
        if self._screen is not None:
            self._screen.stop()
            self._screen = None

    def _draw_all(self, figures: str) -> None:
        """Both whole texts and the figures, where the terminal scrolls."""
        from localspec.cli.race_view import paragraph, show

        assert self._view is not None
        width = _size()[0]
        self._console.erase_progress()
        show(_terminal(), [*self._view.lines(width, None), *paragraph(figures, width)])


def _terminal() -> RichConsole:
    from rich.console import Console as RichConsole

    return RichConsole(file=sys.stdout, highlight=False, markup=False, emoji=False)


def _size() -> tuple[int, int]:
    found = shutil.get_terminal_size(_PAGE)
    return found.columns, found.lines
