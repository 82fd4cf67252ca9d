"""Pass damaged and inconsistent model files to `localspec show` and `localspec run`.

Each command is forked from a process with all imports, with limits on memory and time. It must end
with one of localspec's exit codes and, if that is not 0, an error message.
"""

import importlib
import os
import pkgutil
import random
import re
import resource
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from localspec.cli.main import main
from localspec.cli.verbs import VERBS, build_command
from tests.gguf.mutations import change_values, mutate, places
from tests.support.ggufs import tiny_bert, tiny_hybrid, tiny_llama, tiny_mamba
from tests.support.mtp import glm, qwen
from tools.endure.outcome import Outcome

MEMORY = 3 << 30
"""Bytes of address space beyond a command's initial size."""
SECONDS = 60
"""CPU seconds."""
PATIENCE = 900
"""Seconds after which a command that hangs is killed."""
CODES = range(7)
ROOMS = ("cli", "loading", "llama", "gguf", "hub", "pairing", "drafters", "policy", "engine")
GAVE_UP = "llama.cpp gave up: "
# fmt: off
RUN = (
    "-d", "none", "--drafter", "none", "--raw", "-n", "2", "-c", "64", "-t", "1",
    "--temp", "0", "-q",
)
# fmt: on
MAKERS: tuple[Callable[[Path], Path], ...] = (
    tiny_llama,
    lambda path: tiny_llama(path, more=True),
    tiny_mamba,
    tiny_hybrid,
    tiny_bert,
    glm,
    qwen,
)


def mutated_ggufs(folder: Path, count: int, seed: int) -> Outcome:
    """Pass `count` files to both commands; those that fail stay in the folder `failed`."""
    _import_all()
    outcome = Outcome("mutated GGUFs through show and run", unit="files")
    paths = [maker(folder / f"sound-{n}.gguf") for n, maker in enumerate(MAKERS)]
    models, wheres = [path.read_bytes() for path in paths], [places(path) for path in paths]
    kinds: Counter[str] = Counter()
    over: dict[str, list[str]] = {}
    path = folder / "mutated.gguf"
    for number in range(count):
        rng = random.Random(f"{seed}/{number}")
        which = rng.choice((0, 0, *range(len(models))))
        whole = models[which]
        data = change_values(whole, wheres[which], rng) if number % 4 else mutate(models[0], rng)
        path.write_bytes(data)
        outcome.count += 1
        for command in (("show", str(path)), ("run", "hi", "-m", str(path), *RUN)):
            status, output = run_command(command, folder / "said")
            kinds[_kind(status, output)] += 1
            if GAVE_UP in output:
                over.setdefault(_abort_cause(output), []).append(f"{seed}/{number}")
            wrong = _fault(status, output)
            if wrong is not None:
                outcome.failures.append(f"{seed}/{number} {command[0]}: {wrong}")
                kept = folder / "failed" / f"{command[0]}-{number}.gguf"
                kept.parent.mkdir(exist_ok=True)
                kept.write_bytes(data)
    outcome.seen = ", ".join(f"{many} {kind}" for kind, many in kinds.most_common())
    if over:  # a check is missing: see `localspec.gguf.damage`
        found = (f"{words} ({len(files)}, first {files[0]})" for words, files in over.items())
        outcome.seen += " over " + ", ".join(found)
    return outcome


def _import_all() -> None:
    """Import what the commands load lazily; otherwise every child would do so."""
    for verb in VERBS:
        build_command(verb)
    for room in ROOMS:
        package = importlib.import_module(f"localspec.{room}")
        for module in pkgutil.iter_modules(
            getattr(package, "__path__", ()), f"{package.__name__}."
        ):
            if not module.name.endswith("_child"):
                importlib.import_module(module.name)


def run_command(command: tuple[str, ...], output: Path) -> tuple[int, str]:
    """Exit code, negative for a signal, and standard error."""
    child = os.fork()
    if not child:
        _child(command, output)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        _wait_for_words(output)
    return code, output.read_text(errors="replace")


def _child(command: tuple[str, ...], output: Path) -> None:
    code = 99
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.alarm(PATIENCE)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        code = main(command)
    finally:
        os._exit(code)


def _wait_for_words(output: Path) -> None:
    """Wait for the shell that reports a crash, which does so a moment later."""
    for _ in range(200):
        if output.read_text(errors="replace"):
            return
        signal.sigtimedwait((), 0.01)


def _kind(status: int, output: str) -> str:
    if status < 0:
        return f"died of {signal.Signals(-status).name}"
    if GAVE_UP in output:
        return "aborted by llama.cpp, reported"
    return "answered" if status == 0 else f"refused ({status})"


def _abort_cause(output: str) -> str:
    return output.partition(GAVE_UP)[2].partition(". The file")[0]


def _fault(status: int, output: str) -> str | None:
    lines = output.strip().splitlines()
    last = lines[-1] if lines else ""
    if status < 0:
        return f"{signal.Signals(-status).name}: {last}"
    if status not in CODES:
        return f"exit code {status}: {last}"
    if "Traceback" in output or "Internal error" in output:
        return last
    if status and not re.match(r"localspec: .+\. .+", last):
        return f"no sentence but {last!r}"
    return None
