"""Run llama.cpp's server tests against `localspec serve`: how many pass, and why others fail.

    python -m tools.llama_server.run [--only completion tokenize] [--archive FILE]

The tests are from the pinned llama-cpp-python's source archive, which pip downloads if none is
given. They are unchanged, except for the replacements in `expectations.toml`: mostly constants for
the number of a text's tokens or for generated words. Failures need a reason in the same file; the
command fails if one has none, and if such a test passes.
"""

import argparse
import fnmatch
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.llama_server.models import DRAFT, model_file
from tools.llama_server.shim import FOLDER
from tools.native_build import fetch

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FILES = (
    "basic",
    "completion",
    "chat_completion",
    "tokenize",
    "ignore_eos",
    "template",
    "security",
    "ctx_shift",
    "infill",
    "speculative",
    "slot_save",
    "compat_anthropic",
)
_WGET = '''\
"""In place of wget: the one model that a test downloads was made before."""
import shutil

def download(url, out):
    shutil.copyfile({draft!r}, out)
'''


@dataclass(frozen=True)
class Result:
    """How a test ended; `why`: the message if it did not pass."""

    file: str
    name: str
    outcome: str
    why: str = ""


def main() -> int:
    """Run the tests; 1 if a failure has no reason, or a passed test has one."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--only", nargs="+", choices=FILES, default=FILES, metavar="FILE")
    options.add_argument("--archive", type=Path, help="llama-cpp-python's source archive")
    options.add_argument("--folder", type=Path, help="where to work; kept")
    options.add_argument("-k", dest="keyword", help="tests, as for pytest")
    said = options.parse_args()
    table = tomllib.loads((HERE / "expectations.toml").read_text(encoding="utf-8"))
    folder = said.folder or Path(tempfile.mkdtemp(prefix="llama-server-tests-"))
    tests = unpack(said.archive or fetch(folder), folder)
    prepare(tests, table["constant"])
    results = run(tests, folder, said.only, said.keyword)
    reasons: Mapping[str, str] = {
        name: one["why"] for one in table["reason"] for name in one["tests"]
    }
    always = {
        name: one["why"]
        for one in table["reason"]
        for name in one["tests"]
        if not one.get("sometimes")
    }
    report(results, reasons)
    complaints = [
        f"{one.file}::{one.name} {one.outcome} without a reason: {one.why}"
        for one in results
        if one.outcome == "failed" and reason_of(one, reasons) is None
    ]
    complaints += [
        f"{one.file}::{one.name} passed, but a reason for its failure is listed"
        for one in results
        if one.outcome == "passed" and reason_of(one, always) is not None
    ]
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    return 1 if complaints else 0


def unpack(archive: Path, folder: Path) -> Path:
    """The folder of the tests, fresh from the archive, and the templates that they use."""
    with tarfile.open(archive) as file:
        wanted = ("/tools/server/tests/", "/models/templates/")
        members = [one for one in file.getmembers() if any(part in one.name for part in wanted)]
        tests = folder / next(
            one.name.partition("/tests/")[0] + "/tests" for one in members if wanted[0] in one.name
        )
        shutil.rmtree(tests, ignore_errors=True)
        file.extractall(folder, members, filter="data")
    return tests


def prepare(tests: Path, constants: Iterable[Mapping[str, Any]]) -> None:
    """Replace the constants of llama.cpp's models with those of ours.

    Raises SystemExit if one of them is missing.
    """
    for one in constants:
        path = tests / one["file"]
        text = path.read_text(encoding="utf-8")
        for old, new in one["change"]:
            if old not in text:
                raise SystemExit(f"{one['file']} no longer has {old!r}")
            text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")


def run(tests: Path, folder: Path, only: Sequence[str], keyword: str | None) -> list[Result]:
    """Run the files."""
    models = folder / "models"
    draft = model_file(DRAFT, models)
    (tests / "wget.py").write_text(_WGET.format(draft=str(draft)), encoding="utf-8")
    (tests / "tmp").mkdir(exist_ok=True)
    server = folder / "llama-server"
    server.write_text(f'#!/bin/sh\nexec {sys.executable} -m tools.llama_server.shim "$@"\n')
    server.chmod(0o755)
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow"]
    command += [f"--junitxml={report}", *(f"unit/test_{name}.py" for name in only)]
    if keyword is not None:
        command += ["-k", keyword]
    environment = {
        **os.environ,
        "LLAMA_SERVER_BIN_PATH": str(server),
        FOLDER: str(models),
        "PYTHONPATH": str(ROOT),
        "LOCALSPEC_HOME": str(folder / "home"),
    }
    subprocess.run(command, cwd=tests, env=environment, check=False)
    return [_result(case) for case in ElementTree.parse(report).getroot().iter("testcase")]


def _result(case: ElementTree.Element) -> Result:
    file = case.get("classname", "").rpartition(".")[2].removeprefix("test_")
    name = case.get("name", "")
    for kind, outcome in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        found = case.find(kind)
        if found is not None:
            return Result(file, name, outcome, found.get("message", "").partition("\n")[0][:200])
    return Result(file, name, "passed")


def reason_of(one: Result, reasons: Mapping[str, str]) -> str | None:
    """The known reason why a test fails."""
    full = f"{one.file}::{one.name}"
    for pattern, why in reasons.items():
        if fnmatch.fnmatchcase(full, pattern.replace("[", "[[]")):
            return why
    return None


def report(results: Sequence[Result], reasons: Mapping[str, str]) -> None:
    """Counts by file, and failures by reason."""
    counts = Counter((one.file, one.outcome) for one in results)
    print("| file | passed | failed | skipped by itself |\n|---|---|---|---|")
    for file in dict.fromkeys(one.file for one in results):
        row = (counts[file, outcome] for outcome in ("passed", "failed", "skipped"))
        print(f"| test_{file}.py | {' | '.join(map(str, row))} |")
    failed: dict[str, list[str]] = defaultdict(list)
    for one in results:
        if one.outcome == "failed":
            why = reason_of(one, reasons) or f"unknown: {one.why}"
            failed[why].append(f"{one.file}::{one.name}")
    for why, names in failed.items():
        print(f"\n{why}\n  " + "\n  ".join(names))


if __name__ == "__main__":
    sys.exit(main())
