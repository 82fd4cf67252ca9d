"""`localspec rm`: delete models from the cache."""

from itertools import islice
from pathlib import Path

from localspec.cli import option_groups as o
from localspec.cli.output import Console
from localspec.hub import removal
from localspec.text import gigabytes, listed, printable

EXAMPLES = """\
  localspec rm unsloth/Qwen3-8B-GGUF:Q5_K_M
  localspec rm unsloth/Qwen3-8B-GGUF --yes"""

_SHOWN = 10
"""Maximum number of files to list before asking."""

REFERENCES = o.parameters("""
    references: REF…
        user/repo:quant or a name from 'localspec models'; user/repo for all its cached files; or
        the path of a file in the cache.
""")


@o.takes(REFERENCES, o.YES, o.COMMON)
def rm(console: Console, params: o.Params) -> None:
    """Shows the files and asks first. Deletes only from the caches of localspec
    and Hugging Face.
    """
    planned, files = list[removal.Removal](), dict[Path, None]()
    plans = [removal.plan(reference) for reference in params["references"]]
    for plan in sorted(plans, key=lambda plan: len(plan.files), reverse=True):
        if not files.keys() >= {*plan.files}:  # skip parts of other plans
            planned.append(plan)
            files |= dict.fromkeys(plan.files)
    what, freed = listed([plan.what for plan in planned]), sum(plan.freed for plan in planned)
    shown = [printable(str(path), 1000) for path in islice(files, _SHOWN)]
    if len(files) > _SHOWN:
        shown.append(f"… and {len(files) - _SHOWN} more")
    question = f"Remove {what}, {gigabytes(freed)}?"
    if not params["yes"] and not console.confirm(shown, question):
        console.notice("Nothing was removed.")
        return
    for plan in planned:
        plan.execute()
    if console.json:
        console.answer_json({"removed": [*files], "freed": freed})
    else:
        console.notice(f"Removed {what}; {gigabytes(freed)} are free again.")
