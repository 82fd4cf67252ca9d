"""`localspec race`: plain decoding and localspec on one prompt."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from localspec.cli import option_groups as o
from localspec.cli.output import Console
from localspec.cli.shared_options import ANSWER, GREEDY, PROJECTOR, SESSION, USE
from localspec.cli.work import working
from localspec.errors import Cancelled, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from localspec.race import RaceOutcome

EXAMPLES = """\
  localspec race --scale A
  localspec race -m model.gguf -d draft.gguf "How does a bill become law?"
  localspec race -m model.gguf "Add type hints. Print all of it." < shop.py"""

QUESTION, STORY = "Why is the sky blue?", "Tell me a story about a fox."
"""Default prompts, for the built-in model (STORY) and for others."""
_RESTORE = b"\x1b[?25h\x1b[?1049l"
"""Escape sequences that show the cursor and leave the alternate screen."""

RACE = o.parameters(f"""
    prompt: [PROMPT]
        The prompt, as for 'localspec run'. Default, if nothing is piped in: '{QUESTION}'
Prompt and answer:
    --then TEXT
        Ask this next; each lane continues from its own answers. Repeatable.
    --quick
        Take a first look: -n 64, unless given.
Model:
    --scale NAME
        Race a model of realistic size instead of -m and -d, as for 'localspec bench'.
""")


@o.takes(RACE, ANSWER, {**o.without(USE, *PROJECTOR, *SESSION), **GREEDY}, o.COMMON)
def race(console: Console, params: o.Params) -> int:
    """The two take turns, each on its own clock, so neither slows the other.
    Ctrl+C stops both and keeps the texts so far; a second Ctrl+C exits at
    once.
    """
    if console.quiet and console.verbosity:
        raise UsageError("--quiet excludes --verbose. Leave out one of them.")
    for name in ("model", "draft", "lora", "lora_draft"):
        if params["scale"] is not None and params[name]:
            raise UsageError(f"--scale excludes --{name.replace('_', '-')}. Leave out one of them.")
    if params["quick"] and params["max_tokens"] is None:
        params["max_tokens"] = 64
    early = "Interrupted before the race began."
    try:
        from localspec.cli.input_texts import require_texts
        from localspec.cli.race_run import run_race
        from localspec.cli.race_view import RaceScreen
        from localspec.cli.request import read_request
        from localspec.hub.packages import default_reference

        story = params["model"] is params["scale"] is default_reference() is None
        with console.reading():
            request = read_request(params, default=STORY if story else QUESTION)
        further = require_texts(params["then"], "--then")
        live = console.draws and not console.json
        with (
            working(console, early, restore=_RESTORE if live else b"") as work,
            closing(RaceScreen(console, request.prompt, live=live)) as screen,
        ):
            outcomes, about = run_race(request, params["scale"], further, work, screen)
    except KeyboardInterrupt:
        raise Cancelled(early) from None
    _report(console, outcomes, about, [request.prompt, *further])
    return Cancelled.exit_code if any(outcome.interrupted for outcome in outcomes) else 0


def _report(
    console: Console, outcomes: Sequence[RaceOutcome], about: dict[str, Any], prompts: Sequence[str]
) -> None:
    from localspec import race as races

    # Several answers may have the same notice.
    console.notices(
        dict.fromkeys(n for outcome in outcomes for n in outcome.localspec.stream.stats.notices)
    )
    summary = races.summary(outcomes, about["calibration_seconds"])
    if console.json:
        result = {"prompt": prompts[0], **about, **outcomes[0].as_dict()}
        if len(prompts) > 1:
            result["questions"] = [
                {"prompt": question, **outcome.as_dict()}
                for question, outcome in zip(prompts, outcomes, strict=False)
            ]
            result["speed_up_of_all"] = races.speed_up(outcomes)
        console.answer_json(result)
    else:
        console.answer(f"{races.texts(outcomes, prompts[1:])}\n{summary}\n")
