"""`localspec history`: the conversations of `localspec chat`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localspec.cli import help as help_text
from localspec.cli import options as o
from localspec.cli.output import Console
from localspec.errors import Cancelled, HistoryError, UsageError

# The rest brings SQLite with it, and `--help` wants to be quick.
if TYPE_CHECKING:
    from localspec.chat.conversation import Conversation
    from localspec.history.history import History

EXAMPLES = """\
Examples:
  localspec history list
  localspec history search 'fox "in the wood"'
  localspec history show 1
  localspec history export 1 --output notes.md
  localspec history rm 3f2a"""

history = typer.Typer(
    name="history",
    cls=help_text.Group,
    help="List, search, export and delete conversations.",
    epilog=help_text.verbatim(EXAMPLES),
    rich_markup_mode=None,
    no_args_is_help=True,
)

Id = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        show_default=False,
        help="The conversation: the beginning of its id, or its number in the list (1 is the "
        "newest).",
    ),
]
Ids = Annotated[
    list[str],
    typer.Argument(
        metavar="ID…", show_default=False, help="The conversations, by id or by number."
    ),
]
Query = Annotated[
    str,
    typer.Argument(
        metavar="QUERY",
        show_default=False,
        help='Words that must all occur, and "phrases"; the last word may be incomplete.',
    ),
]
Limit = Annotated[
    int,
    typer.Option("--limit", metavar="N", min=1, help="Show at most N.", show_default=True),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="md|json",
        show_default=False,
        help="Write Markdown of the current branch, or JSON of all branches. Default: by the "
        "file's ending, else md.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        *("-o", "--output"),
        metavar="FILE",
        show_default=False,
        help="Write to this file, or to a new file in this folder. An existing file is kept: -2, "
        "-3 … is appended to the name. Default: standard output.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")]


@history.command("list")
def list_(context: typer.Context, limit: Limit = 50, json: o.Json = False) -> int:
    """List conversations, newest first."""
    from localspec.cli.history_tables import conversations

    console: Console = context.obj
    with _opened(console) as store:
        found = [] if store is None else store.list(limit=limit)
        total = 0 if store is None else store.count()
    if json:
        console.answer_json({"total": total, "conversations": [_record(each) for each in found]})
        return 0
    if not found:
        console.notice("There are no conversations yet. `localspec chat` begins one.")
        return 0
    console.answer(conversations(found, terminal=sys.stdout.isatty()))
    if total > len(found):
        console.notice(f"{total - len(found):,} more are not shown; --limit N shows more.")
    return 0


@history.command()
def search(context: typer.Context, query: Query, limit: Limit = 50, json: o.Json = False) -> int:
    """Search titles and messages."""
    from localspec.cli.history_tables import hits
    from localspec.history.query import expression, parts

    console: Console = context.obj
    if expression(query) is None:
        raise UsageError("There is no word to search for. Give one with letters or digits.")
    with _opened(console) as store:
        found = [] if store is None else store.search(query, limit=limit)
    if json:
        records = [
            _record(each) | {"snippet": "".join(text for text, _ in parts(each.snippet))}
            for each in found
        ]
        console.answer_json({"query": query, "hits": records})
    elif found:
        console.answer(hits(found, terminal=sys.stdout.isatty()))
    else:
        console.notice("Nothing is found. Try fewer words, or the beginning of one.")
    return 0


@history.command()
def show(context: typer.Context, id: Id, json: o.Json = False) -> int:
    """Print a conversation: the branch that the chat shows, as Markdown."""
    from localspec.cli.history_tables import harmless
    from localspec.history.export import to_json, to_markdown

    console: Console = context.obj
    conversation = _load(console, id)
    console.answer(to_json(conversation) if json else harmless(to_markdown(conversation)))
    return 0


@history.command()
def export(
    context: typer.Context,
    id: Id,
    format: Format = None,
    output: Output = None,
    json: o.Json = False,
) -> int:
    """Write a conversation to a file, as Markdown or JSON."""
    from localspec.history.export import FORMATS, write_export

    console: Console = context.obj
    if format is not None and format not in FORMATS:
        raise UsageError(f"There is no format '{format}'. Choose one of {', '.join(FORMATS)}.")
    if json and output is None:
        raise UsageError(
            "--json prints the file's path, so it needs --output. For JSON of the conversation "
            "itself, give --format json."
        )
    conversation = _load(console, id)
    if output is None:
        console.answer(FORMATS[format or "md"](conversation))
        return 0
    path = write_export(conversation, output.expanduser(), form=format)
    if json:
        console.answer_json({"id": conversation.id, "path": str(path)})
    else:
        console.answer(f"{path}\n")
    return 0


@history.command()
def rm(context: typer.Context, ids: Ids, yes: Yes = False, json: o.Json = False) -> int:
    """Delete conversations."""
    from localspec.cli.history_tables import plain

    console: Console = context.obj
    with _opened(console) as store:
        if store is None:
            raise _nothing(ids[0])
        # Numbers change as conversations go: all are looked up first.
        chosen = list(dict.fromkeys(store.find(id) for id in ids))
        titles = [plain(store.load(id).title) for id in chosen]
        if not yes:
            _ask(console, titles)
        if store.trouble is not None:
            raise HistoryError(store.trouble.text)
        removed = store.delete(chosen)
    if json:
        console.answer_json({"removed": chosen})
    else:
        console.say(f"Removed {removed} conversation{'' if removed == 1 else 's'}.")
    return 0


@contextmanager
def _opened(console: Console) -> Iterator[History | None]:
    """The history; None where there is none yet. Looking changes nothing on disk."""
    from localspec import paths
    from localspec.history.history import History
    from localspec.history.trouble import READ_ONLY

    if not paths.history_file().exists():
        yield None
        return
    # Whoever only looks does not expect files to be moved.
    store = History(repair=False, patience=_PATIENCE)
    try:
        trouble = store.trouble
        if trouble is not None and trouble.kind != READ_ONLY:
            raise HistoryError(trouble.text)
        yield store
        if store.trouble is not None and store.trouble.kind != READ_ONLY:
            raise HistoryError(store.trouble.text)
    finally:
        store.close()


_PATIENCE = 2.0
"""Seconds to wait for another program that keeps the file locked."""


def _load(console: Console, id: str) -> Conversation:
    with _opened(console) as store:
        if store is None:
            raise _nothing(id)
        return store.load(store.find(id))


def _nothing(id: str) -> UsageError:
    return UsageError(
        f"There is no conversation '{id}': the history is empty. `localspec chat` begins one."
    )


def _ask(console: Console, titles: Sequence[str]) -> None:
    """Ask for confirmation; UsageError without a terminal, Cancelled for no."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(
            "Deleting needs a confirmation, and this is not a terminal. Add --yes to delete "
            "without asking."
        )
    for title in titles:
        console.say(f"  {title}")
    what = "this conversation" if len(titles) == 1 else f"these {len(titles)} conversations"
    console.ask(f"Remove {what} for good? [y/N] ")
    try:
        answer = sys.stdin.readline()
    except KeyboardInterrupt:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise Cancelled("Nothing was removed.")


def _record(found: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(found)
