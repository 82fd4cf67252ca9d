"""`localspec serve`: serve models over OpenAI's and other protocols."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec import ModelOptions
from localspec.cli import crashes
from localspec.cli import option_groups as o
from localspec.cli.output import Console
from localspec.cli.shared_options import USE
from localspec.errors import Cancelled, LocalspecError, SessionError, UsageError
from localspec.server.server_options import ServerOptions

if TYPE_CHECKING:
    from localspec.cli.request import OpeningOptions
    from localspec.server.model_hosts import ModelHost, OpenModel

EXAMPLES = """\
  localspec serve -m model.gguf -d auto
  localspec serve -m small.gguf -m large.gguf --alias quick --alias clever
  localspec serve --host 0.0.0.0 --api-key "$KEY" --cors https://chat.example
  curl http://127.0.0.1:8080/v1/chat/completions \\
    -d '{"messages": [{"role": "user", "content": "Hello!"}]}'"""

KEY_VARIABLE = "LOCALSPEC_API_KEY"

SERVE = o.parameters(f"""
Model:
    models: -m -hf --model REF
        Serve this model, as for 'localspec run'. Repeatable: clients choose by name, the first
        loads at once, others on demand. (LOCALSPEC_MODEL)
    aliases: --alias NAMES
        Serve the model under these names, separated by commas. Answers show the alphabetically
        first. Default: the file's name. Repeatable, in the order of --model.
    --tags TAGS
        Label the model with these words in /v1/models, separated by commas. Repeatable, in the
        order of --model.
Server:
    --host HOST
        Listen on this address, or several separated by commas. Any but this machine's own needs a
        key. {o.default(ServerOptions, "host")}
    --port N
        Listen on this port; 0 picks a free one. {o.default(ServerOptions, "port")}
    --api-key KEY
        Require this key from clients. Prefer the variable: other users of this machine can see the
        command line. ({KEY_VARIABLE})
    --insecure
        Allow other addresses without a key.
    --cors ORIGIN
        Allow pages of this origin; 'localhost' allows those of this machine, * all. Repeatable.
    allowed_hosts: --allowed-host NAME
        Accept this host name, besides addresses and this machine's own names. Repeatable.
    --max-queue N
        Let N requests wait for their turn. {o.default(ServerOptions, "max_queue")}
    -n --max-tokens N
        Generate at most N tokens for requests that set no limit. Default: until the context is
        full.
    --context-shift
        When the context is full, drop the oldest text after the first n_keep tokens of the request,
        and continue.
    --slot-save-path DIR
        Let clients save slots in files of this folder (/slots/0?action=save). Not with --parallel.
    --slots/--no-slots
        Show the state of every slot at /slots, without texts. Default --slots.
    --ui/--no-ui
        Serve the page at /. Default --ui.
    --api-prefix PREFIX
        Also answer below this path, such as /llm, for a proxy that passes it on.
    thinking: --think/--no-think
        Let reasoning models think; a request can override this. Default --think.
    --log-prompts
        With -v, log prompts too.
    --parallel N
        Generate N answers at once, in shared passes; further requests wait.
        {o.default(ModelOptions, "parallel")}
""")


@o.takes(SERVE, o.without(USE, "model"), o.only(o.COMMON, "quiet", "verbose"))
def serve(console: Console, params: o.Params) -> None:
    """The port opens at once; /health returns 503 until the model is loaded.
    Ctrl+C lets running answers finish within 30 s; a second Ctrl+C stops them.
    The exit code is 130 if any was cut off. Sampling options are defaults,
    which a request can override.
    """
    from localspec.cli.request import given_fields, read_opening

    own = given_fields(ServerOptions, params)
    own.setdefault("api_key", os.environ.get(KEY_VARIABLE) or None)
    options = ServerOptions(**own)
    references: list[str | None] = [*(params["models"] or ())] or [None]
    _check(params, len(references))
    given = {**params, "max_tokens": None, "keeps_conversations": True}
    openings = [read_opening({**given, "model": reference}) for reference in references]
    names = _split_by_model(params["aliases"], "alias", "names", len(openings))
    tags = _split_by_model(params["tags"], "tags", "tags", len(openings))
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

    def ready(engine: OpenModel) -> None:
        if not isinstance(engine, Engine):
            console.notice(f"{engine.model.name} is loaded. It makes only embeddings.")
            return
        draft = "" if engine.draft is None else f", with draft model {engine.draft.name}"
        console.notice(f"{engine.model.name} is loaded{draft}.")
        console.notices(engine.notices)

    hosts = _hosts(openings, names, tags, console, params["session"])
    crashes.watch()
    try:
        complete = run_server(
            options,
            hosts,
            openings[0].sampling,
            listening=lambda address: console.answer(f"Listening at {address}\n"),
            ready=ready,
        )
    except KeyboardInterrupt:
        raise Cancelled("Interrupted.") from None
    if (session := hosts[0].session) is not None and session.lost:
        raise SessionError(session.lost)
    if not complete:
        raise Cancelled("Interrupted while answers were written; they were cut off.")


def _check(params: dict[str, Any], models: int) -> None:
    """Refuse options that cannot be combined."""
    if params["session"] is not None and (params["parallel"] or 1) > 1:
        raise UsageError(
            "--session saves one conversation at a time and does not work with --parallel. Leave "
            "out one of them, or use --prompt-cache SIZE, which saves all conversations."
        )
    if models == 1:
        return
    for name, what in (("session", "A session"), ("lora", "An adapter"), ("mmproj", "A projector")):
        if params[name]:
            raise UsageError(f"{what} needs a single model. Give one -m, or leave out --{name}.")
    if params["draft"] not in (None, "auto", "none", "self"):
        raise UsageError("A draft model needs a single model. Give several models -d auto or none.")


def _split_by_model(
    given: list[str] | None, option: str, what: str, models: int
) -> list[tuple[str, ...]]:
    """Split an option's comma-separated lists, one per model, into sorted unique words."""
    found = []
    for text in given or ():
        words = [word.strip() for word in text.split(",")]
        if not all(word and word.isprintable() for word in words):
            raise UsageError(
                f"{option} is empty, or cannot be printed. Give a name, or several such as a,b."
            )
        found.append(tuple(sorted({*words})))
    if len(found) > models:
        raise UsageError(
            f"There are more {what} than models. Give one --{option} for each --model."
        )
    return [*found, *[()] * (models - len(found))]


def _hosts(
    openings: Sequence[OpeningOptions],
    names: Sequence[tuple[str, ...]],
    tags: Sequence[tuple[str, ...]],
    console: Console,
    session: Path | None,
) -> list[ModelHost]:
    from localspec.hub import resolution
    from localspec.self_draft.recipe import is_self
    from localspec.server.model_hosts import ModelHost, ServedSession

    hosts: list[ModelHost] = []
    for opening, given, labels in zip(openings, names, tags, strict=True):
        path = resolution.find(opening.model, offline=opening.offline).path
        if opening.draft not in ("auto", "none") and not is_self(opening.draft):
            resolution.find(opening.draft, offline=opening.offline)
        name = given[0] if given else resolution.name_of(opening.model, path)
        taken = {alias for other in hosts for alias in (other.name, *other.aliases)}
        if duplicates := taken & {name, *given}:
            raise UsageError(
                f"Two models have the same name, {duplicates.pop()}. Give each its own --alias."
            )
        hosts.append(
            ModelHost(
                opener=partial(_open_model, opening, console, session is not None),
                name=name,
                aliases=given,
                tags=labels,
                reference=opening.model,
                path=path,
                options=opening.options,
                needs=partial(needs, path, opening.options),
                session=None if session is None else ServedSession(session, console.notice),
            )
        )
    return hosts


def _open_model(
    opening: OpeningOptions, console: Console, session: bool, progress: Callable[[float], None]
) -> OpenModel:
    from localspec.gguf.description import is_embedding_model
    from localspec.hub import resolution
    from localspec.llama import library
    from localspec.llama.embeddings import EmbeddingModel

    library.on_abort(console.exit_with)
    path = resolution.find(opening.model, offline=opening.offline).path
    if not is_embedding_model(path):
        return opening.load(progress)
    subject = f"{path.name} makes only embeddings and"
    if opening.options.adapters:
        raise UsageError(f"{subject} does not support adapters. Leave out --lora.")
    if session:
        raise UsageError(f"{subject} has no conversation. Leave out --session.")
    model = EmbeddingModel(path, opening.options, progress=progress)
    model.model.name = resolution.name_of(opening.model, path)
    return model


def needs(path: Path, options: ModelOptions) -> int:
    """Minimum bytes of main memory that a model needs; 0 if unknown."""
    from localspec.gguf.reader import readable
    from localspec.llama import library
    from localspec.pairing.memory import place

    if (file := readable(path)) is None:
        return 0  # llama.cpp may be able to read what our reader cannot
    away = options.gpu_layers if options.rpc or library.accelerated() else 0
    return place(file, options, away).host.least
