"""`localspec doctor --paths`, and the older `localspec paths`."""

from __future__ import annotations

import typer

from localspec.cli import options as o
from localspec.cli.output import Console


def paths(context: typer.Context, json: o.Json = False) -> int:
    """Print the folders and files of localspec, as 'doctor --paths' does.

    LOCALSPEC_HOME moves them all.
    """
    return print_paths(context.obj, json=json)


def print_paths(console: Console, *, json: bool) -> int:
    """Print where localspec keeps its files."""
    from localspec import paths as places

    found = {
        "config": places.config_file().parent,
        "settings": places.config_file(),
        "data": places.data_folder(),
        "history": places.history_file(),
        "cache": places.cache_folder(),
    }
    if json:
        console.answer_json({name: str(path) for name, path in found.items()})
    else:
        console.answer("".join(f"{name:<10}{path}\n" for name, path in found.items()))
    return 0
