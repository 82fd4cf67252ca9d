"""`localspec history`: the conversations of `localspec chat`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

from localspec import paths
from localspec.chat.conversation import Conversation
from localspec.chat.titles import one_line
from localspec.cli import option_groups as o
from localspec.cli.output import Console
from localspec.cli.tables import moment, shorten, table
from localspec.cli.verbs import Command, Group, verbatim
from localspec.errors import Cancelled, HistoryError, UsageError
from localspec.history.export import FORMATS, to_json, to_markdown, write_export
from localspec.history.history import History
from localspec.history.statements import expression
from localspec.history.trouble import READ_ONLY
from localspec.text import counted, harmless

EXAMPLES = """\
  localspec history list
  localspec history search 'fox "in the wood"'
  localspec history show 1
  localspec history export 1 --output notes.md
  localspec history rm 3f2a"""

_MOST = 50
"""Maximum number of conversations to list."""
_ID, _TITLE = 8, 24
"""Characters shown of an id, and, on a terminal, of a title next to a text."""
_HISTORY = {
    **o.only(o.COMMON, "json"),
    **o.parameters(f"""
    id: ID
        The conversation: the beginning of its id, or its number in the list (1 is the newest).
    ids: ID…
        The conversations, by id or by number.
    query: QUERY
        Words that must all occur, and "phrases"; the last word may be incomplete.
    --limit N≥1
        Show at most N. Default {_MOST}.
    --format md|json
        Write Markdown of the current branch, or JSON of all branches. Default: by the file's
        ending, else md.
    -o --output FILE
        Write to this file, or to a new file in this folder. An existing file is kept: -2, -3 … is
        appended to the name. Default, as with -: standard output.
"""),
}


@o.takes(o.only(_HISTORY, "limit", "json"))
def list_(console: Console, params: o.Params) -> None:
    """List conversations, newest first."""
    with open_history() as store:
        found = [] if store is None else store.list(limit=params["limit"] or _MOST)
        total = 0 if store is None else store.count()
    rows = [
        {
            "#": str(number),
            "ID": each.id[:_ID],
            "UPDATED": moment(each.updated),
            "MESSAGES": str(each.messages),
            "MODEL": "-" if each.model is None else _plain(each.model),
            "TITLE": _plain(each.title),
        }
        for number, each in enumerate(found, start=1)
    ]
    console.result(
        {"total": total, "conversations": [asdict(each) for each in found]},
        table(rows, right=("#", "MESSAGES"), spare=("MODEL", "MESSAGES", "UPDATED"), cut="TITLE"),
        "There are no conversations yet. Start one with 'localspec chat'.",
    )
    if total > len(found) and not console.json:
        console.notice(f"{total - len(found):,} more are not shown; --limit N shows more.")


@o.takes(o.only(_HISTORY, "query", "limit", "json"))
def search(console: Console, params: o.Params) -> None:
    """Search titles and messages."""
    query = params["query"]
    if expression(query) is None:
        raise UsageError("There is no word to search for. Give one with letters or digits.")
    with open_history() as store:
        found = [] if store is None else store.search(query, limit=params["limit"] or _MOST)
    records = [asdict(one) | {"snippet": "".join(text for text, _ in one.parts)} for one in found]
    rows = [
        {
            "ID": each["conversation"][:_ID],
            "UPDATED": moment(each["updated"]),
            "WHERE": each["role"] or "title",
            "TITLE": shorten(_plain(each["title"]), _TITLE if sys.stdout.isatty() else sys.maxsize),
            "TEXT": _plain(each["snippet"]),
        }
        for each in records
    ]
    shown = table(rows, spare=("UPDATED",), cut="TEXT")
    nothing = "Nothing was found. Try fewer words, or the beginning of one."
    console.result({"query": query, "hits": records}, shown, nothing)


@o.takes(o.only(_HISTORY, "id", "json"))
def show(console: Console, params: o.Params) -> None:
    """Print a conversation: the branch that the chat shows, as Markdown."""
    conversation = _load(params["id"])
    console.answer(to_json(conversation) if console.json else harmless(to_markdown(conversation)))


@o.takes(o.only(_HISTORY, "id", "format", "output", "json"))
def export(console: Console, params: o.Params) -> None:
    """Write a conversation to a file, as Markdown or JSON."""
    format, output = params["format"], params["output"]
    output = None if str(output) in ("-", "/dev/stdout", "/dev/fd/1") else output
    if format is not None and format not in FORMATS:
        raise UsageError(f"There is no format '{format}'. Choose one of {', '.join(FORMATS)}.")
    if console.json and output is None:
        raise UsageError(
            "--json prints the file's path, so it needs --output. For JSON of the conversation "
            "itself, give --format json."
        )
    conversation = _load(params["id"])
    if output is None:
        console.answer(FORMATS[format or "md"](conversation))
        return
    path = write_export(conversation, output, form=format)
    console.result({"id": conversation.id, "path": str(path)}, f"{path}\n")


@o.takes(o.only(_HISTORY, "ids", "json"), o.YES)
def rm(console: Console, params: o.Params) -> None:
    """Delete conversations."""
    with open_history() as store:
        if store is None:
            raise _no_conversation(params["ids"][0])
        # Deleting changes the numbers, so look up all conversations first.
        chosen = list(dict.fromkeys(store.find(id) for id in params["ids"]))
        titles = [_plain(store.load(id).title) for id in chosen]
        what = "this conversation" if len(titles) == 1 else f"these {len(titles)} conversations"
        if not params["yes"] and not console.confirm(titles, f"Remove {what} for good?"):
            raise Cancelled("Nothing was removed.")
        if store.trouble is not None:
            raise HistoryError(store.trouble.text)
        removed = store.delete(chosen)
    console.done({"removed": chosen}, f"Removed {counted(removed, 'conversation')}.")


def _plain(text: str) -> str:
    """A title or name in one line, without control characters."""
    return one_line(text) or "(no title)"


@contextmanager
def open_history() -> Iterator[History | None]:
    """Open the history without repairing it; None if there is none yet."""
    path = paths.history_file()
    if not (path.exists() or path.is_symlink()):
        yield None
        return
    # Commands that read must not move files.
    store = History(repair=False, patience=_PATIENCE)
    try:
        yield store
        if store.trouble is not None and store.trouble.kind != READ_ONLY:
            raise HistoryError(store.trouble.text)
    finally:
        store.close()


_PATIENCE = 2.0
"""Seconds to wait for another program that keeps the file locked."""


def _load(id: str) -> Conversation:
    with open_history() as store:
        if store is None:
            raise _no_conversation(id)
        return store.load(store.find(id))


def _no_conversation(id: str) -> UsageError:
    return UsageError(
        f"There is no conversation '{id}': the history is empty. Start one with 'localspec chat'."
    )


history = Group(
    name="history",
    commands=[
        Command(verb.__name__.strip("_"), verb) for verb in (list_, search, show, export, rm)
    ],
    help="List, search, export and delete conversations.",
    epilog=verbatim(EXAMPLES),
    rich_markup_mode=None,
    no_args_is_help=True,
)
