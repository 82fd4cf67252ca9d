"""`localspec serve`: the model behind OpenAI's and other protocols."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from localspec import ModelOptions
from localspec.cli import crashes
from localspec.cli import options as o
from localspec.cli.answer_options import SAMPLING
from localspec.cli.drafting_options import DRAFTING
from localspec.cli.model_options import DRAFT_MODEL, MODEL, PROJECTOR
from localspec.cli.output import Console
from localspec.cli.session_options import SESSION
from localspec.errors import Cancelled, LocalspecError, UsageError
from localspec.server.options import ServerOptions

if TYPE_CHECKING:
    from localspec.cli.request import OpeningOptions
    from localspec.server.model_host import Offer, Opened, Opener

EXAMPLES = """\
Examples:
  localspec serve -m model.gguf -d auto
  localspec serve -m small.gguf -m large.gguf --alias quick --alias clever
  localspec serve --host 0.0.0.0 --api-key "$KEY" --cors https://chat.example
  curl http://127.0.0.1:8080/v1/chat/completions \\
    -d '{"messages": [{"role": "user", "content": "Hello!"}]}'"""

KEY_VARIABLE = "LOCALSPEC_API_KEY"

_server = o.in_panel("Server")
SERVER = {
    "host": _server(
        str,
        "--host",
        "HOST",
        "Listen at this address, or several separated by commas. Any but this machine's own "
        "needs a key. "
        f"{o.default(ServerOptions, 'host')}",
    ),
    "port": _server(
        int,
        "--port",
        "N",
        f"Listen at this port; 0 takes a free one. {o.default(ServerOptions, 'port')}",
    ),
    "api_key": _server(
        str,
        "--api-key",
        "KEY",
        "Require this key from clients. Other users of this machine can see it here, but not "
        "in "
        f"the variable. ({KEY_VARIABLE})",
    ),
    "insecure": _server(bool, "--insecure", "", "Allow other addresses without a key."),
    "cors": _server(
        list[str],
        "--cors",
        "ORIGIN",
        "Allow pages of this origin; 'localhost' allows those of this machine, * all. Repeatable.",
    ),
    "allowed_hosts": _server(
        list[str],
        "--allowed-host",
        "NAME",
        "Accept this host name, besides addresses and this machine's own names. Repeatable.",
    ),
    "max_queue": _server(
        int,
        "--max-queue",
        "N",
        f"Let N requests wait for their turn. {o.default(ServerOptions, 'max_queue')}",
    ),
    "max_tokens": _server(
        int,
        "-n --max-tokens",
        "N",
        "Generate at most N tokens for requests that set no limit. Default: until the context "
        "is full.",
    ),
    "context_shift": _server(
        bool,
        "--context-shift",
        "",
        "When the context is full, drop the oldest text after the first n_keep tokens of the "
        "request, and continue.",
    ),
    "slot_save_path": _server(
        Path,
        "--slot-save-path",
        "DIR",
        "Let clients save slots in files of this folder (/slots/0?action=save). Not with "
        "--parallel.",
    ),
    "slots": _server(
        bool,
        "--slots/--no-slots",
        "",
        "Show the state of every slot at /slots, without texts. Default --slots.",
    ),
    "ui": _server(bool, "--ui/--no-ui", "", "Serve the page at /. Default --ui."),
    "thinking": _server(
        bool,
        "--think/--no-think",
        "",
        "Let reasoning models think, unless a request decides. Default --think.",
    ),
    "log_prompts": _server(bool, "--log-prompts", "", "With -v, log prompts too."),
}


MODELS = {
    "models": o.in_panel("Model")(
        list[str],
        "-m --model",
        "REF",
        "Serve this model, as for 'localspec run'. Repeatable: clients choose by name, the "
        "first loads at once, others on demand. (LOCALSPEC_MODEL)",
    ),
    "aliases": o.in_panel("Model")(
        list[str],
        "--alias",
        "NAMES",
        "Names of the model, separated by commas. Answers carry the first in alphabetical "
        "order. Default: the file's name. Repeatable, in the order of --model.",
    ),
    "tags": o.in_panel("Model")(
        list[str],
        "--tags",
        "TAGS",
        "Labels of the model in /v1/models, separated by commas. Repeatable, in the order of "
        "--model.",
    ),
}
PARALLEL = {
    "parallel": _server(
        int,
        "--parallel",
        "N",
        "Generate N answers at once, in shared passes; further requests wait. "
        f"{o.default(ModelOptions, 'parallel')}",
    ),
}


_BODY_WITH_IMAGES = 64 << 20
"""Largest request in bytes, with images."""


@o.takes(
    MODELS,
    o.without(MODEL, "model"),
    PROJECTOR,
    DRAFT_MODEL,
    SERVER,
    PARALLEL,
    SESSION,
    DRAFTING,
    SAMPLING,
)
def serve(
    context: typer.Context,
    *,
    quiet: o.Quiet = False,
    verbose: o.Verbose = 0,
) -> int:
    """Serve clients of OpenAI, Anthropic, llama.cpp and ollama.

    The port opens at once; /health returns 503 until the model is loaded.
    Ctrl+C lets running answers finish; a second Ctrl+C stops them. Sampling
    options are defaults, which a request can override.
    """
    console: Console = context.obj
    console.configure(quiet=quiet, verbosity=verbose)
    said = dict(context.params)
    options = _options(said)
    _check_kept(said)
    from localspec.cli.request import read_opening

    references: list[str | None] = [*(said["models"] or ())] or [None]
    openings = [
        read_opening({**said, "model": reference, "max_tokens": None}) for reference in references
    ]
    names, tags = _names(said, len(openings)), _tags(said, len(openings))
    try:
        from localspec import Engine
        from localspec.server.running import serve as run_server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn", "h11", "anyio"):
            raise
        raise LocalspecError(
            "The server needs starlette and uvicorn. Install them with "
            "pip install '.[server]' in the clone of localspec."
        ) from None

    def ready(engine: Opened) -> None:
        if not isinstance(engine, Engine):
            console.notice(f"{engine.model.name} is loaded. It makes only embeddings.")
            return
        draft = "" if engine.draft is None else f", drafts by {engine.draft.path.name}"
        console.notice(f"{engine.model.name} is loaded{draft}.")
        for notice in engine.notices:
            console.notice(notice)

    crashes.watch()
    try:
        whole = run_server(
            options,
            _offers(openings, names, tags, console, said["session"]),
            openings[0].sampling,
            listening=lambda address: console.answer(f"Listening at {address}\n"),
            ready=ready,
        )
    except KeyboardInterrupt:
        raise Cancelled("Interrupted.") from None
    if not whole:
        raise Cancelled("Interrupted while answers were written; they were cut off.")
    return 0


def _check_kept(said: dict[str, Any]) -> None:
    if said["session"] is not None and said["mmproj"] is not None:
        raise UsageError("A session holds only text. Leave out --session, or --mmproj.")
    if said["session"] is not None and (said["parallel"] or 1) > 1:
        raise UsageError(
            "--session saves one conversation at a time and does not work with --parallel. Leave "
            "out one of them, or use --prompt-cache SIZE, which saves all conversations."
        )
    if said["session"] is not None and len(said["models"] or ()) > 1:
        raise UsageError("A session goes with one model. Give one -m, or leave out --session.")


def _names(said: dict[str, Any], models: int) -> list[tuple[str, ...]]:
    """Names of each model for clients, sorted as by llama-server; empty: the file's name."""
    names = [_listed(one, "alias") for one in said["aliases"] or ()]
    if len(names) > models:
        raise UsageError("There are more names than models. Give one --alias for each --model.")
    every = [name for one in names for name in one]
    if len({*every}) < len(every):
        raise UsageError("Two models have one name. Give each its own --alias.")
    if models > 1 and said["draft"] not in (None, "auto", "none", "self"):
        raise UsageError("A draft model goes with one model. Give several models -d auto, or none.")
    if models > 1 and said["lora"]:
        raise UsageError("An adapter fits one model. Give one -m, or leave out --lora.")
    if models > 1 and said["mmproj"]:
        raise UsageError("A projector fits one model. Give one -m, or leave out --mmproj.")
    return [*names, *[()] * (models - len(names))]


def _tags(said: dict[str, Any], models: int) -> list[tuple[str, ...]]:
    tags = [_listed(one, "tags") for one in said["tags"] or ()]
    if len(tags) > models:
        raise UsageError("There are more tags than models. Give one --tags for each --model.")
    return [*tags, *[()] * (models - len(tags))]


def _listed(text: str, option: str) -> tuple[str, ...]:
    """The names in a list with commas, sorted, each once."""
    names = [name.strip() for name in text.split(",")]
    if any(not (name and name.isprintable()) for name in names):
        raise UsageError(
            f"{option} is empty, or cannot be printed. Give a name, or several such as a,b."
        )
    return tuple(sorted({*names}))


def _offers(
    openings: Sequence[OpeningOptions],
    names: Sequence[tuple[str, ...]],
    tags: Sequence[tuple[str, ...]],
    console: Console,
    session: Path | None,
) -> list[Offer]:
    from localspec.server.kept_session import ServedSession
    from localspec.server.model_host import Offer

    if len(openings) == 1:
        opening = openings[0]
        return [
            Offer(
                opener=_opener(opening, console, session=session is not None),
                name=names[0][0] if names[0] else None,
                aliases=names[0],
                tags=tags[0],
                reference=opening.model,
                options=opening.options,
                session=None if session is None else ServedSession(session, console.notice),
            )
        ]
    from localspec.hub import resolution

    offers: list[Offer] = []
    for opening, given, told in zip(openings, names, tags, strict=True):
        path = resolution.find(opening.model, offline=opening.offline).path
        name = given[0] if given else resolution.name_of(opening.model, path)
        if any(name == offer.name or name in offer.aliases for offer in offers):
            raise UsageError(f"Two models are called {name}. Name them with --alias.")
        offers.append(
            Offer(
                opener=_opener(opening, console),
                name=name,
                aliases=given,
                tags=told,
                reference=opening.model,
                path=path,
                options=opening.options,
                needs=partial(needs, path, opening.options),
            )
        )
    return offers


def _opener(opening: OpeningOptions, console: Console, *, session: bool = False) -> Opener:
    def open_it(progress: Callable[[float], None]) -> Opened:
        from localspec.gguf.description import embeds_alone
        from localspec.hub import resolution
        from localspec.llama import library
        from localspec.llama.embeddings import EmbeddingModel

        library.on_abort(console.last_words)
        path = resolution.find(opening.model, offline=opening.offline).path
        if not embeds_alone(path):
            return opening.load(progress)
        if opening.options.adapters:
            raise UsageError(
                f"{path.name} makes only embeddings and takes no adapter. Leave out --lora."
            )
        if session:
            raise UsageError(
                f"{path.name} makes only embeddings and has no conversation. Leave out --session."
            )
        embeds = EmbeddingModel(path, opening.options, progress=progress)
        embeds.model.name = resolution.name_of(opening.model, path)
        return embeds

    return open_it


def needs(path: Path, options: ModelOptions) -> int:
    """Bytes of main memory that a model needs at least."""
    from localspec.gguf.dimensions import Use
    from localspec.gguf.reader import read_gguf
    from localspec.llama import library
    from localspec.pairing.memory import place

    try:
        file = read_gguf(path)
    except LocalspecError:
        return 0  # llama.cpp has the last word about it
    away = options.gpu_layers if options.rpc or library.accelerated() else 0
    return place(file, Use.of(options), away).host.least


def _options(said: dict[str, object]) -> ServerOptions:
    values = {name: said[name] for name in SERVER if said[name] is not None}
    for name in ("cors", "allowed_hosts"):
        if name in values:
            values[name] = tuple(values[name])  # type: ignore[arg-type]
    if "slot_save_path" in values:
        values["slot_save_path"] = Path(str(values["slot_save_path"]))
    if said["mmproj"] is not None:
        values["body"] = _BODY_WITH_IMAGES
    if "api_key" not in values and os.environ.get(KEY_VARIABLE):
        values["api_key"] = os.environ[KEY_VARIABLE]
    return ServerOptions(**values)  # type: ignore[arg-type]
