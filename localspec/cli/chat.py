"""`localspec chat`: conversations in the terminal."""

import gc
import os
import sys
from functools import partial

from localspec.cli import option_groups as o
from localspec.cli.output import Console
from localspec.cli.shared_options import ANSWER, USE
from localspec.errors import LocalspecError, UsageError
from localspec.signals import exit_on_signals

EXAMPLES = """\
  localspec chat
  localspec chat -c
  localspec chat -m model.gguf -d draft.gguf
  localspec chat --system "Answer in one sentence." --temp 0
  localspec chat --session fox.session"""


CONTINUE = o.parameters("""
Sessions:
    resume: -c --continue
        Continue the last conversation.
""")
_USE = {**USE, "ctx": partial(USE["ctx"], param_decls=["--ctx"])}  # -c is --continue here


@o.takes(o.only(ANSWER, "system", "max_tokens"), CONTINUE, o.without(_USE, "logit_bias"))
def chat(console: Console, params: o.Params) -> int:
    """Conversations are saved automatically. Esc stops an answer, ? shows the
    keys, /help the commands, Ctrl+Q exits.
    """
    if not (sys.stdin and sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "'localspec chat' needs a terminal. Use 'localspec run' to answer piped text."
        )
    if os.environ.get("TERM") == "dumb":
        raise UsageError("This terminal (TERM=dumb) cannot show a chat. Use 'localspec run'.")
    # Garbage collection while importing would take an eighth of the time to the first paint; the
    # chat enables it then.
    gc.disable()
    try:
        with exit_on_signals():
            return _shown(console, params)
    except (ImportError, KeyError, OSError) as error:
        if names := [name for name in os.environ if name.startswith("TEXTUAL_")]:
            advice = f"Unset {', '.join(names)}, which Textual reads."
            raise UsageError(f"The chat does not start: {error}. {advice}") from error
        raise
    finally:
        gc.enable()


def _shown(console: Console, params: o.Params) -> int:
    from localspec.cli.request import read_opening, read_text
    from localspec.tui.app import ChatApp
    from localspec.tui.session import session_conversation
    from localspec.tui.session.background_engine import BackgroundEngine, PairReference
    from localspec.tui.terminal import log_file, running_in_terminal

    opening = read_opening(params)
    session = None if params["session"] is None else session_conversation.read(params["session"])
    # Adapters and a projector belong to the requested model, not to the last one used.
    options = opening.options
    adapted = options.adapters or options.draft_adapters or options.mmproj
    if params["session"] is not None and params["resume"]:
        raise UsageError("A session is a conversation. Leave out --session, or --continue.")
    asked = opening.named or opening.draft != "auto" or bool(adapted)
    with running_in_terminal():
        app = ChatApp(
            PairReference(opening.model, opening.draft) if asked else None,
            engine=partial(
                BackgroundEngine,
                options=opening.options,
                drafting=opening.drafting,
                offline=opening.offline,
                session=params["session"],
            ),
            sampling=dict(opening.given_sampling),
            max_tokens=None if opening.max_tokens == -1 else opening.max_tokens,
            system=read_text(params, "system"),
            session=session,
            resume=bool(params["resume"]),
        )
        app.run()
    console.notices([app.trouble] if app.trouble else [])
    if app.return_code == 1:
        raise LocalspecError(
            f"The chat ended with an internal error, described in {log_file()}. All messages are "
            "in the history: start it again, and report the contents of the file."
        )
    return app.return_code or int(app.trouble is not None)
