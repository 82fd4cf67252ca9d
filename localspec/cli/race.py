"""`localspec race`: plain decoding and localspec on one prompt."""

from __future__ import annotations

import shutil
import sys
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localspec.cli import option_groups as o
from localspec.cli.output import Console, OutputLost
from localspec.cli.shared_options import ANSWER, DRAFT_MODEL, DRAFTING, MODEL, SAMPLING
from localspec.cli.working import working
from localspec.errors import Cancelled, UsageError
from localspec.text import harmless

# The rest brings numpy and the engine with it, and `--help` wants to be quick.
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console as RichConsole

    from localspec import Engine
    from localspec.cli.race_view import RaceView
    from localspec.cli.racing import Raced
    from localspec.cli.request import AnswerRequest
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
    o.argument(
        "[PROMPT]",
        f"The prompt, as for 'localspec run'. Default, if nothing is piped in: '{QUESTION}'",
    ),
]
THEN = {
    "then": o.in_panel("Prompt and answer")(
        "--then TEXT",
        "Ask this next; each lane continues from its own answers. Repeatable.",
        list[str],
    )
}
_sampling, _output = o.in_panel("Sampling"), o.in_panel(o.OUTPUT)
SCALE = {
    "scale": o.in_panel("Model")(
        "--scale NAME",
        "Race a model of realistic size instead of -m and -d, as for 'localspec bench'.",
    )
}
GREEDY = {
    "temperature": _sampling(
        "--temp --temperature X",
        "Set the temperature. 0, the default, is greedy: both lanes give the same text.",
    )
}
OUTPUT = {"json": _output("--json", "Print one JSON object with texts and figures at the end.")}


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
    o.only(o.COMMON, "quiet", "verbose"),
)
def race(context: typer.Context, prompt: Prompt = None) -> int:
    """Watch plain decoding and localspec answer the same prompt.

    The two take turns, each on its own clock, so neither slows the other.
    Ctrl+C stops both and keeps the texts so far; a second Ctrl+C exits at
    once.
    """
    console: Console = context.obj
    if console.quiet and console.verbosity:
        raise UsageError("--quiet excludes --verbose. Leave out one of them.")
    params = dict(context.params)
    if params["scale"] is not None and (params["model"] or params["draft"]):
        raise UsageError("--scale excludes --model and --draft. Leave out one of them.")
    if params["scale"] is not None and (params["lora"] or params["lora_draft"]):
        raise UsageError("--scale excludes --lora and --lora-draft. Leave out one of them.")
    if params["temperature"] is None:
        params["temperature"] = 0.0
    try:
        from localspec.cli.input_texts import require_texts

        request = _request(params)
        further = require_texts(params["then"], "--then")
        shown = _Shown(request, further, console, live=console.draws and not params["json"])
        found = shown.follow(params["scale"])
    except KeyboardInterrupt:
        raise Cancelled("Interrupted before the race began.") from None
    shown.tell(found, as_json=bool(params["json"]))
    interrupted = any(outcome.interrupted for outcome in found.outcomes)
    return Cancelled.exit_code if interrupted else 0


def _request(params: dict[str, Any]) -> AnswerRequest:
    from localspec.cli.input_texts import standard_input
    from localspec.cli.request import read_request
    from localspec.hub.packages import default_reference

    stdin = standard_input()
    if params["prompt"] is None and (stdin is None or stdin.isatty()):
        story = params["model"] is params["scale"] is default_reference() is None
        params["prompt"] = STORY if story else QUESTION
    return read_request(params)


class _Shown:
    """A race on the screen."""

    def __init__(
        self, request: AnswerRequest, further: Sequence[str], console: Console, *, live: bool
    ) -> None:
        self._request = request
        self._further = further
        self._console = console
        self._live = live
        self._screen: Any = None
        self._view: RaceView | None = None
        self._begun = False
        self._due = 0.0

    def follow(self, scale: str | None) -> Raced:
        from localspec.cli.racing import raced

        restore = _RESTORE.encode() if self._live else b""
        interrupted = "Interrupted before the race began."
        with working(self._console, interrupted, restore=restore) as work:

            def show(lap: Lap) -> None:
                work.writing = self._live
                self._begun = True
                assert self._view is not None
                self._view.add(lap)
                self._draw()

            try:
                return raced(
                    self._request,
                    scale,
                    self._further,
                    work,
                    begin=self._begin,
                    ask=self._ask,
                    show=show,
                )
            except BaseException:
                self._leave()
                if self._live and self._begun:  # what was on the screen
                    with suppress(OutputLost):
                        self._draw_all("")
                raise
            finally:
                self._leave()

    def tell(self, found: Raced, *, as_json: bool) -> None:
        from localspec.race import race_line
        from localspec.race.race_outcome import speed_up

        outcomes = found.outcomes
        # The same may befall several answers.
        self._console.notices(
            dict.fromkeys(n for each in outcomes for n in each.localspec.stats.notices)
        )
        summary = race_line.summary(outcomes, found.calibration_seconds)
        if as_json:
            result = {
                "prompt": self._request.prompt,
                "model": found.model,
                "draft": found.draft,
                "calibration_seconds": found.calibration_seconds,
                **outcomes[0].as_dict(),
            }
            if self._further:
                asked = [self._request.prompt, *self._further]
                result["questions"] = [
                    {"prompt": question, **outcome.as_dict()}
                    for question, outcome in zip(asked, outcomes, strict=False)
                ]
                result["speed_up_of_all"] = speed_up(outcomes)
            self._console.answer_json(result)
        elif self._live:
            self._draw_all(summary)
        else:
            self._console.answer(f"{race_line.texts(outcomes, self._further)}\n{summary}\n")

    def _ask(self, question: str) -> None:
        assert self._view is not None
        self._view.ask(question)

    def _begin(self, engine: Engine, notices: list[str]) -> None:
        from localspec.cli.race_view import RaceView

        sampling, draft = self._request.opening.sampling, engine.draft
        parts = [engine.model.name, *([] if draft is None else [f"draft {draft.name}"])]
        parts.append("greedy" if sampling.greedy else f"temperature {sampling.temperature:g}")
        self._view = RaceView(self._request.prompt, " · ".join(parts))
        self._console.notices(notices)
        self._draw()

    def _draw(self) -> None:
        now = perf_counter()
        if now < self._due or self._view is None:
            return
        # Between two redraws: on a small machine they take cores from the model.
        self._due = now + _REDRAW_SECONDS
        if self._live:
            from rich.console import Group
            from rich.live import Live

            if self._screen is None:
                self._console.erase_progress()
                self._screen = Live(console=_terminal(), screen=True, auto_refresh=False)
                self._screen.start()
            size = shutil.get_terminal_size(_PAGE)
            self._screen.update(Group(*self._view.lines(size.columns, size.lines)), refresh=True)
        elif self._begun:
            counts = [self._view.progress.tokens(lane) for lane in (0, 1)]
            self._console.progress(f"plain {counts[0]} tokens, localspec {counts[1]}")

    def _leave(self) -> None:
        if self._screen is not None:
            self._screen.stop()
            self._screen = None

    def _draw_all(self, figures: str) -> None:
        """Both whole texts and the figures, where the terminal scrolls."""
        assert self._view is not None
        self._console.erase_progress()
        width = shutil.get_terminal_size(_PAGE).columns
        terminal = _terminal()
        for line in self._view.lines(width, None):
            terminal.print(line, no_wrap=True, overflow="crop", crop=True)
        if figures:
            terminal.print(f"\n{harmless(figures)}", style="bold")


def _terminal() -> RichConsole:
    from rich.console import Console as RichConsole

    return RichConsole(file=sys.stdout, highlight=False, markup=False, emoji=False)
