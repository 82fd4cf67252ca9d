"""`localspec pull`: download a model, and a draft for it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import typer

from localspec.cli import option_groups as o
from localspec.cli.output import Console
from localspec.errors import Cancelled

# The rest brings the client with it, and `--help` wants to be quick.
if TYPE_CHECKING:
    from localspec.hub.download import Pulled

EXAMPLES = """\
Examples:
  localspec pull qwen3-8b --draft auto
  localspec pull unsloth/Qwen3-8B-GGUF:Q5_K_M
  localspec pull https://huggingface.co/user/repo/blob/main/model.gguf"""

_option = o.in_panel(None)
PULL = {
    "draft": _option(
        "-d --draft REF|auto",
        "Also download a draft model; 'auto' takes the one recommended for this model.",
    ),
    "offline": _option(
        "--offline", "Use only the cache, and report what is missing. (HF_HUB_OFFLINE)"
    ),
}


@o.takes(PULL, o.COMMON)
def pull(context: typer.Context, reference: o.Reference) -> int:
    """Download a model from Hugging Face.

    Continues an interrupted download, verifies the checksum, and prints the
    path of the file. Credentials come from HF_TOKEN or 'hf auth login';
    HF_HUB_CACHE or HF_HOME set the cache folder.
    """
    draft, offline = context.params["draft"], context.params["offline"]
    console: Console = context.obj
    references = [reference]
    try:
        from localspec.cli.pull_display import DownloadDisplay, client_speaks_through
        from localspec.hub import download
        from localspec.hub.resolution import identify

        identify(reference)  # errors in either, before gigabytes are fetched
        if draft is not None:
            second = _draft(reference, console) if draft == "auto" else draft
            if second is not None:
                identify(second)
                references.append(second)
        with DownloadDisplay(console) as display, client_speaks_through(console):
            pulled = [
                download.pull(one, offline=offline, progress=display.show, notify=display.notice)
                for one in references
            ]
    except KeyboardInterrupt:
        raise Cancelled(
            f"Interrupted. The part so far is kept; 'localspec pull {reference}' continues."
        ) from None
    _print(console, pulled, json=context.params["json"])
    return 0


def _draft(reference: str, console: Console) -> str | None:
    from localspec.hub import catalog

    entry = catalog.load().meant_by(reference)
    if entry is None or not entry.drafts:
        lacks = f"does not know {reference}, so no draft"
        if entry is not None:
            lacks = f"has no draft for {entry.name}, so none"
        console.notice(
            f"The catalogue {lacks} is fetched. Name one with --draft, or rely on the n-gram, "
            "which needs none."
        )
        return None
    return entry.drafts[0]


def _print(console: Console, pulled: list[Pulled], *, json: bool) -> None:
    from localspec.text import gigabytes

    if json:
        records = [_record(one) for one in pulled]
        result = {"model": records[0], "draft": records[1] if len(records) > 1 else None}
        console.answer_json(result)
        return
    for one in pulled:
        console.answer(f"{one.path}\n")
        news = f"{gigabytes(one.downloaded)} fetched" if one.downloaded else "nothing to fetch"
        console.notice(f"{one.reference} is here, {gigabytes(one.size)} ({news}).")
    with_draft = f" -d {pulled[1].reference}" if len(pulled) > 1 else ""
    console.notice(f"Run it with 'localspec run -m {pulled[0].reference}{with_draft}'.")


def _record(one: Pulled) -> dict[str, Any]:
    values = dataclasses.asdict(one)
    return values | {"path": str(one.path), "files": [str(path) for path in one.files]}
