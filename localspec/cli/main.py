"""The `localspec` command: verbs, `--version`, and the report of every failure."""

import os
import shlex
import signal
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from localspec.cli import crashes
from localspec.cli.output import Console, OutputLost, output_error
from localspec.cli.verbs import VERBS, VerbGroup, verbatim
from localspec.errors import Cancelled, LocalspecError, UsageError
from localspec.paths import provide_home
from localspec.signals import END_SIGNALS, handle_signals

NAME = "localspec"

_EXIT_CODES = """\
  0    done
  1    failed while running
  2    invalid option, grammar, schema or prompt
  3    model not found
  4    the model cannot generate text
  5    the draft model does not fit
  6    the prompt does not fit the context
  130  interrupted
  141  broken pipe"""

app = typer.Typer(
    name=NAME,
    cls=VerbGroup,
    help="Make a local language model answer faster without changing its output.\n\n"
    "Without a command, localspec opens the chat, as in 'localspec --temp 0'.",
    epilog=verbatim(_EXIT_CODES, "Exit codes"),
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from localspec import __version__

        typer.echo(f"{NAME} {__version__}")
        raise typer.Exit


@app.callback()
def localspec(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line without the program's name; returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    provide_home()
    console = Console(shlex.join([NAME, *arguments]))
    try:
        os.fsencode("".join(arguments))  # other programs may pass arguments that a shell could not
    except UnicodeEncodeError:
        return console.error(UsageError("An argument contains a lone surrogate."))
    if console.closed:
        return console.error(OutputLost("Standard output is closed. Redirect it to a file."))
    with handle_signals((signal.SIGINT, *END_SIGNALS), signal.default_int_handler):
        try:
            code = _run(console, arguments)
            if not code:  # otherwise the terminal may have been closed
                console.finish()
        except (KeyboardInterrupt, Exception) as error:
            if not isinstance(error, LocalspecError) and _caused_by_interrupt(error):
                return Cancelled.exit_code
            return console.error(error)
        finally:
            crashes.stop_watching()
    return code


def _caused_by_interrupt(error: BaseException | None) -> bool:
    """Whether Ctrl+C caused an error; imports turn it into other exceptions."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _run(console: Console, arguments: list[str]) -> int:
    try:
        code = typer.main.get_command(app).main(
            arguments, prog_name=NAME, standalone_mode=False, obj=console
        )
    except typer.TyperException as error:
        _report_misuse(console, error)
        return error.exit_code
    except SystemExit as leaving:
        # typer exits this way when the reader of --help closes the pipe.
        if isinstance(leaving.__context__, OSError):
            raise output_error(leaving.__context__) from None
        raise
    except OSError:
        # If printing the help failed, flushing the rest raises the error that names the cause.
        console.finish()
        raise
    return int(code or 0)


def _report_misuse(console: Console, error: typer.TyperException) -> None:
    """Print the help if the verb is missing, else one line instead of typer's box."""
    sentence = error.format_message().strip()
    sentence = sentence.replace("valid float.", "number.").replace("valid int.", "whole number.")
    if type(error).__name__ == "NoArgsIsHelpError":  # typer does not export it
        console.answer(f"{sentence}\n")
        return
    context = getattr(error, "ctx", None)
    where = NAME if context is None else context.command_path
    params = () if context is None else context.command.params
    extra = sentence.removeprefix("Got unexpected extra argument(s) (")
    if context is not None and extra != sentence:
        extra = extra.rstrip(")")
        sentence = f"Unexpected argument: {extra}"
        names = {param.name for param in params}
        if (verb := extra.partition(" ")[0]) in VERBS:
            sentence += f". Type the command first, as in '{NAME} {verb} -m REF'"
        elif names & {"model", "models"}:
            quoted = "put a prompt, or a path with spaces, in quotes"
            also = quoted if "prompt" in names else "a context length with --ctx"
            sentence += f". Name a model with -m, and {also}"
    end = "" if sentence.endswith("?") else "."
    rare = [name for one in params if getattr(one, "hidden", False) for name in one.opts]
    page = "--help-all" if any(f"'{name}'" in sentence for name in rare) else "--help"
    console.say(f"{NAME}: {sentence.rstrip('.')}{end} See '{where} {page}'.")
