"""`localspec learn`: add texts to the datastores of the retrieval drafter."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.cli import option_groups as o
from localspec.cli.output import Console
from localspec.cli.tables import moment, table
from localspec.cli.work import Work, working
from localspec.errors import DatastoreError, UsageError
from localspec.paths import expanded
from localspec.text import counted, gigabytes, printable

if TYPE_CHECKING:
    from localspec.chat.conversation import Conversation
    from localspec.llama.vocabulary import Vocabulary
    from localspec.retrieval.manifest import Manifest

EXAMPLES = """\
  localspec learn ~/code/project -m smollm2
  localspec learn --history
  localspec learn --list
  localspec learn --forget ~/code/project"""

HISTORY = "history"
"""Name for all conversations."""

LEARN = o.parameters("""
    paths: [PATH]...
        Files, or folders of text and code; .gitignore is respected.
    --history
        Learn the conversations of 'localspec chat'.
    listing: --list
        Show what was learned.
    --forget NAME
        Delete what was learned under a name from --list. Repeatable.
    -m --model REF
        Learn for this model, and all others with its vocabulary. Default: smollm2 if it is
        installed, else demo. (LOCALSPEC_MODEL)
""")


@o.takes(LEARN, o.COMMON)
def learn(console: Console, params: o.Params) -> None:
    """The output does not change. Texts are stored in localspec's data folder
    until you delete them with --forget. Learning a path again replaces its
    earlier content.
    """
    paths, history, listing = params["paths"], bool(params["history"]), bool(params["listing"])
    forget, model = params["forget"], params["model"]
    if sum([bool(paths or history), listing, bool(forget)]) != 1:
        raise UsageError("Give one of: PATH, --history, --list, --forget NAME.")
    if listing:
        _list(console)
    elif forget:
        _forget(console, forget)
    else:
        _learn(console, [*map(expanded, paths)], history, model)


def _learn(console: Console, paths: Sequence[Path], history: bool, reference: str | None) -> None:
    from localspec.cli.request import find_model
    from localspec.llama.model import Model
    from localspec.llama.options import ModelOptions
    from localspec.retrieval.learner import LearnedVocabulary
    from localspec.retrieval.learner import learn as learn_texts
    from localspec.retrieval.manifest import CONVERSATION
    from localspec.retrieval.texts import SkippedFiles, texts_in

    began, skipped = time.perf_counter(), SkippedFiles()
    for path in paths:
        if not os.path.exists(path):  # also False for too long names
            raise UsageError(f"There is no file or folder {path}. Check the path.")
    path_of_model, name = find_model(reference, console)
    # An exception on Ctrl+C would be lost in callbacks of llama.cpp.
    with (
        working(console, "Interrupted. Nothing was learned.") as work,
        Model(path_of_model, ModelOptions(), vocabulary_only=True) as model,
    ):
        vocabulary = model.vocabulary
        facts = LearnedVocabulary(vocabulary.fingerprint(), vocabulary.size, name)
        read = {str(path.resolve()): texts_in(path, skipped) for path in paths}
        if history:
            for conversation in conversations():
                if contents := [m.content for m in conversation.messages.values() if m.content]:
                    read[CONVERSATION + conversation.id] = iter(contents)
        texts = {name: _tokenize(vocabulary, source, work) for name, source in read.items()}
        work.report("sorting")
    count, tokens = sum(map(len, texts.values())), sum(len(t) for k in texts.values() for t in k)
    if note := skipped.sentence():
        console.notice(note)
    if not count:
        raise UsageError("There is no text in it. Give UTF-8 text that git does not ignore.")
    console.progress(f"sorting {counted(tokens, 'token')}", at_once=True)
    manifest = learn_texts(facts, texts)
    seconds = time.perf_counter() - began
    console.done(
        {
            "texts": count,
            "tokens": tokens,
            "seconds": round(seconds, 3),
            "datastore_tokens": manifest.tokens,
        },
        f"Learned {counted(tokens, 'token')} of {counted(count, 'text')} in {seconds:.1f} s. "
        f"Models with the vocabulary of {manifest.model} now draft from them.",
    )


def _tokenize(vocabulary: Vocabulary, texts: Iterator[str], work: Work) -> list[Sequence[int]]:
    import numpy as np

    found: list[Any] = []
    total = 0
    for text in texts:
        tokens = vocabulary.tokenize(text)
        found.append(np.array(tokens, np.int32))
        total += len(tokens)
        work.report(f"{counted(len(found), 'text')}, {counted(total, 'token')}")
    return found


def conversations() -> Iterator[Conversation]:
    """Yield all conversations. Raises UsageError if there are none, HistoryError if unreadable."""
    from localspec.cli.history import open_history

    with open_history() as store:
        if store is None:
            raise UsageError("There is no history yet. Start one with 'localspec chat'.")
        for summary in store.list(limit=1_000_000):
            yield store.load(summary.id)


def _list(console: Console) -> None:
    from localspec.retrieval import manifest as manifests

    stores: list[dict[str, Any]] = []
    for folder in manifests.folders():
        try:
            manifest = manifests.read(folder)
        except DatastoreError as error:
            console.say(f"localspec: {error}")
            continue
        if manifest is None:
            continue
        stores.append(
            {
                "folder": str(folder),
                "model": manifest.model,
                "tokens": manifest.tokens,
                "bytes": sum(path.stat().st_size for path in folder.glob("*.segment")),
                "segments": len(manifest.segments),
                "learned": _sum_by_name(manifest),
            }
        )
    rows = [
        {
            "NAME": printable(name, 4096),
            "VOCABULARY OF": printable(store["model"]),
            "TEXTS": f"{sums['texts']:,}",
            "TOKENS": f"{sums['tokens']:,}",
            "SIZE": gigabytes(store["bytes"] * sums["tokens"] // max(1, store["tokens"])),
            "LEARNED": moment(sums["when"]),
        }
        for store in stores
        for name, sums in store["learned"].items()
    ]
    shown = table(rows, right=("TEXTS", "TOKENS", "SIZE"))
    nothing = "Nothing was learned yet. 'localspec learn PATH' learns a folder."
    console.result({"datastores": stores}, shown, nothing)


def _sum_by_name(manifest: Manifest) -> dict[str, dict[str, Any]]:
    """What was learned by name, with all conversations combined."""
    from localspec.retrieval.manifest import CONVERSATION

    found: dict[str, dict[str, Any]] = {}
    for name, entry in sorted(manifest.learned.items()):
        shown = HISTORY if name.startswith(CONVERSATION) else name
        sums = found.setdefault(shown, {"texts": 0, "tokens": 0, "when": 0.0})
        sums["texts"] += entry.texts
        sums["tokens"] += entry.tokens
        sums["when"] = max(sums["when"], entry.when)
    return found


def _forget(console: Console, names: Sequence[str]) -> None:
    from localspec.retrieval import manifest as manifests
    from localspec.retrieval.learner import forget
    from localspec.retrieval.manifest import CONVERSATION

    wanted: dict[Path, set[str]] = {}
    for name in names:
        keys = {name, str(expanded(name).resolve())}
        known = False
        for folder in manifests.folders():
            manifest = manifests.read(folder)
            for learned in () if manifest is None else manifest.learned:
                if learned in keys or (name == HISTORY and learned.startswith(CONVERSATION)):
                    wanted.setdefault(folder, set()).add(learned)
                    known = True
        if not known:
            raise UsageError(
                f"Nothing was learned under the name '{name}'. 'localspec learn --list' shows all "
                "names."
            )
    for folder, learned_names in wanted.items():
        forget(folder, learned_names)
    forgotten = sorted({name for names_in in wanted.values() for name in names_in})
    console.done({"forgotten": forgotten}, f"Forgotten: {', '.join(names)}.")
