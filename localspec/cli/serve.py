"""`localspec serve`: the model behind OpenAI's protocol, and others."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from localspec import ModelOptions
from localspec.cli import options as o
from localspec.cli.answer_options import SAMPLING
from localspec.cli.drafting_options import DRAFTING
from localspec.cli.model_options import DRAFT_MODEL, MODEL
from localspec.cli.output import Console
from localspec.errors import Cancelled, LocalspecError
from localspec.server.options import ServerOptions

if TYPE_CHECKING:
    from localspec import Engine

EXAMPLES = """\
Examples:
  localspec serve -m model.gguf -d auto
  localspec serve --host 0.0.0.0 --api-key "$KEY" --cors https://chat.example
  curl http://127.0.0.1:8080/v1/chat/completions \\
    -d '{"messages": [{"role": "user", "content": "Hello!"}]}'"""

KEY_VARIABLE = "LOCALSPEC_API_KEY"

_server = o.in_panel("Server")
SERVER = {
    "host": _server(
        str,
        "--host",
        metavar="HOST",
        help="Address to listen at; any but this machine's own needs a key. "
        f"{o.default(ServerOptions, 'host')}",
    ),
    "port": _server(
        int,
        "--port",
        metavar="N",
        help=f"Port to listen at, 0 for a free one. {o.default(ServerOptions, 'port')}",
    ),
    "api_key": _server(
        str,
        "--api-key",
        metavar="KEY",
        help=f"What clients have to show; other users of this machine can read it here, and not "
        f"in the variable. ({KEY_VARIABLE})",
    ),
    "insecure": _server(
        bool, "--insecure", help="Let everybody who reaches another address in without a key."
    ),
    "cors": _server(
        list[str],
        "--cors",
        metavar="ORIGIN",
        help="Let pages of this origin use the server; * for all. Repeatable.",
    ),
    "allowed_hosts": _server(
        list[str],
        "--allowed-host",
        metavar="NAME",
        help="A name that the server goes by, besides addresses and this machine's own. "
        "Repeatable.",
    ),
    "max_queue": _server(
        int,
        "--max-queue",
        metavar="N",
        help=f"Answers that may wait for their turn. {o.default(ServerOptions, 'max_queue')}",
    ),
    "max_tokens": _server(
        int,
        "-n",
        "--max-tokens",
        metavar="N",
        help="Longest answer to requests that do not say. Default up to the end of the context.",
    ),
    "alias": _server(
        str, "--alias", metavar="NAME", help="What clients call the model. Default its file's name."
    ),
    "log_prompts": _server(bool, "--log-prompts", help="With -v, log the prompts as well."),
}


PARALLEL = {
    "parallel": _server(
        int,
        "--parallel",
        metavar="N",
        help="Answers that are written at a time, in passes that they share; further ones wait. "
        f"{o.default(ModelOptions, 'parallel')}",
    ),
}


@o.takes(MODEL, DRAFT_MODEL, SERVER, PARALLEL, DRAFTING, SAMPLING)
def serve(
    context: typer.Context,
    *,
    quiet: o.Quiet = False,
    verbose: o.Verbose = 0,
) -> int:
    """Serve a model to every client of OpenAI, Anthropic, llama.cpp and ollama.

    Listens at once and loads the model meanwhile: /health says 503 until it is
    there. Ctrl+C lets running answers end; a second one cuts them. Sampling
    options are the defaults for requests that say nothing.
    """
    console: Console = context.obj
    console.configure(quiet=quiet, verbosity=verbose)
    said = dict(context.params)
    options = _options(said)
    from localspec.cli.request import read_opening

    opening = read_opening({**said, "max_tokens": None})
    try:
        from localspec.server.running import serve as run_server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn", "h11", "anyio"):
            raise
        raise LocalspecError(
            "The server needs starlette and uvicorn. Install them with "
            "pip install 'localspec[server]'."
        ) from None

    def opener(progress: Callable[[float], None]) -> Engine:
        from localspec import load
        from localspec.llama import library

        library.on_abort(console.last_words)
        return load(
            opening.model,
            draft=opening.draft,
            options=opening.options,
            drafting=opening.drafting,
            progress=progress,
            offline=opening.offline,
        )

    def ready(engine: Engine) -> None:
        draft = "" if engine.draft is None else f", drafts by {engine.draft.path.name}"
        console.notice(f"{engine.model.path.name} is loaded{draft}.")
        for notice in engine.notices:
            console.notice(notice)

    try:
        whole = run_server(
            options,
            opener,
            opening.sampling,
            listening=lambda address: console.answer(f"Listening at {address}\n"),
            ready=ready,
        )
    except KeyboardInterrupt:
        raise Cancelled("Interrupted.") from None
    if not whole:
        raise Cancelled("Interrupted while answers were written; they were cut off.")
    return 0


def _options(said: dict[str, object]) -> ServerOptions:
    values = {name: said[name] for name in SERVER if said[name] is not None}
    for name in ("cors", "allowed_hosts"):
        if name in values:
            values[name] = tuple(values[name])  # type: ignore[arg-type]
    if "api_key" not in values and os.environ.get(KEY_VARIABLE):
        values["api_key"] = os.environ[KEY_VARIABLE]
    return ServerOptions(**values)  # type: ignore[arg-type]
