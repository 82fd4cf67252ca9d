"""`localspec verify`: evidence that drafting does not change answers here."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.cli import option_groups as o
from localspec.cli.output import Console
from localspec.cli.shared_options import DRAFT_MODEL, MODEL
from localspec.cli.tables import indent
from localspec.cli.work import working
from localspec.errors import Cancelled, UsageError

if TYPE_CHECKING:
    from localspec.cli.request import OpeningOptions

EXAMPLES = """\
  localspec verify --quick
  localspec verify -m model.gguf -d draft.gguf --output proof
  localspec verify --check proof/certificate.json -m model.gguf -d draft.gguf"""

EFFORT = o.parameters("""
How much:
    --quick
        Take about a minute instead of ten.
    --thorough
        Run without a time limit: an hour or more, to find smaller biases.
    --check FILE
        Run no checks: compare a certificate.json with the files, versions and machine here.
Output:
    -o --output FOLDER
        Write certificate.json to this folder; an earlier one is renamed.
""")


@o.takes(o.without(MODEL, "rpc"), DRAFT_MODEL, EFFORT, o.COMMON)
def verify(console: Console, params: o.Params) -> int:
    """Compares greedy answers of every drafter with plain decoding, sampled
    tokens with the exact distribution, and the KV cache after rejections and
    cancelled answers with a fresh one. Also checks grammars. The exit code is
    0 if all checks pass, else 1. Ctrl+C keeps the results so far.
    """
    if params["quick"] and params["thorough"]:
        raise UsageError("--quick excludes --thorough. Leave out one of them.")
    from localspec.cli.request import read_models

    models = read_models(params)
    if params["check"] is not None:
        return _compare(console, models, params["check"])
    if params["output"] is not None:
        from localspec.bench import output_folder

        output_folder.prepare(params["output"])
    with working(console, "Interrupted before anything was verified.") as work:
        from localspec.verify import checks
        from localspec.verify.certificate import examine, new_certificate, rows, sealed

        effort = checks.QUICK if params["quick"] else checks.USUAL
        effort = checks.THOROUGH if params["thorough"] else effort
        with work.load(models) as engine:
            work.report("reading the files")
            certificate = new_certificate(engine, models.options, effort, console.command)
            with suppress(KeyboardInterrupt):  # the certificate lists unfinished checks
                examine(engine, effort, certificate, work.report)
    found = sealed(certificate)
    try:
        # Print first: if the disk is full, the result is not lost.
        console.result(found, "".join(indent(*row) for row in rows(found)))
    finally:
        if params["output"] is not None:
            text = json.dumps(found, ensure_ascii=False, indent=2) + "\n"
            output_folder.write(params["output"], {"certificate.json": text})
            console.notice(f"The certificate is in {params['output']}.")
    if found["missing"]:
        raise Cancelled("Interrupted; the certificate covers the checks so far.")
    return 0 if found["verdict"] == "passed" else 1


def _compare(console: Console, models: OpeningOptions, path: Path) -> int:
    from localspec.hub import resolution
    from localspec.loading.draft import draft_for
    from localspec.verify.certificate import compare, comparison, read

    found = read(path)
    target = resolution.find(models.model, offline=models.offline).path
    draft = draft_for(target, models.draft, models.options, offline=models.offline).path
    differences = compare(found, models.options, target, draft)
    about = all(one.same for one in differences if one.decides)
    console.result(
        {
            "certified": found["verdict"],
            "about_this": about,
            "facts": [asdict(one) | {"same": one.same} for one in differences],
            "checks": {check["check"]: check["verdict"] for check in found["checks"]},
        },
        comparison(found, differences),
    )
    return 0 if about and found["verdict"] == "passed" else 1
