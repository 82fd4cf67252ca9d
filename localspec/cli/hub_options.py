"""The options of the verbs that manage models."""

from __future__ import annotations

from typing import Annotated

import typer

Reference = Annotated[
    str,
    typer.Argument(
        metavar="REF",
        show_default=False,
        help="A name that 'localspec models' lists, user/repo[:quant] of Hugging Face (default "
        "Q4_K_M, else its first GGUF), hf.co/user/repo, or the address of a file there.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Nothing but results and errors.")]
