"""`localspec run`: one prompt, one answer."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from localspec.cli import option_groups as o
from localspec.cli.output import Console, OutputLost, ReaderGone
from localspec.cli.shared_options import ANSWER, USE
from localspec.cli.work import working
from localspec.errors import Cancelled, UsageError

if TYPE_CHECKING:
    from localspec.cli.answer import Format

EXAMPLES = """\
  localspec run "Tell me a story about a fox."
  git diff | localspec run -n 200 --stats "Describe this change."
  localspec run "Invent a person." --json-schema @person.json --json
  localspec run -m model.gguf -d draft.gguf --temp 0 < prompt.txt
  localspec run -m vl.gguf --mmproj proj.gguf --image fox.jpg "What is this?"
  localspec run --session fox.session "And what did the fox do then?" -n 80"""


RUN = o.parameters("""
    prompt: [PROMPT]
        The prompt. Piped text goes before it, with a blank line between; without a prompt, or with
        '-', the piped text is the prompt.
Prompt and answer:
    images: --image FILE *
        Put an image (PNG, JPEG, GIF, BMP) before the prompt; needs --mmproj. Repeatable.
Output:
    --stats
        Print all figures on standard error.
    --jsonl *
        Print one JSON object per event, as it happens.
""")


@o.takes(ANSWER, USE, RUN, o.COMMON)
def run(console: Console, params: o.Params) -> int:
    """The answer goes to standard output while it is generated; everything else
    goes to standard error. Ctrl+C stops the answer and keeps the text so far;
    a second Ctrl+C exits at once.
    """
    if params["json"] and params["jsonl"]:
        raise UsageError("--json and --jsonl cannot be combined. Leave out one of them.")
    if console.quiet and (params["stats"] or console.verbosity):
        raise UsageError("--quiet excludes --stats and --verbose. Leave out one of them.")

    from localspec.cli import answer

    kind = next((kind for kind in (answer.JSON, answer.JSON_LINES) if params[kind]), answer.TEXT)
    form = answer.Format(console, kind)
    shows_figures = kind == answer.TEXT and not console.quiet
    loading = "Interrupted while the model was loading."
    try:
        from localspec.cli.request import read_request

        with console.reading():
            request = read_request(params)
        with working(console, loading, failed=partial(_report_error, form)) as work:
            found = answer.answer_request(request, work, form, measure=shows_figures)
    except ReaderGone as gone:
        if not console.quiet:
            console.say(f"localspec: {str(gone).rstrip('.')}, so the answer stops here.")
        raise
    except OutputLost:
        raise
    except (KeyboardInterrupt, Exception) as error:
        if isinstance(error, KeyboardInterrupt):
            error = Cancelled("Interrupted before the model was loaded.")
        _report_error(form, error)
        raise error from None
    from localspec.cli.input_texts import mistaken_model

    if not params["model"] and (meant := mistaken_model(params["prompt"])):
        as_model = f"""To ask a model: localspec run -m {meant} "Tell me a story"."""
        console.notices([f"'{params['prompt']}' was taken as the prompt. {as_model}"])
    console.notices(found.completion.stats.notices)
    if params["stats"]:
        console.say(answer.stats_table(found), dim=True)
    elif shows_figures:
        console.say(answer.stats_line(found), dim=True)
    cancelled = found.completion.finish_reason == "cancelled"
    return Cancelled.exit_code if cancelled else int(found.unsaved != "")


def _report_error(form: Format, error: Exception) -> None:
    # If the output is lost as well, report the original error.
    with suppress(OutputLost):
        form.failed(error)
