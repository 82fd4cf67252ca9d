"""Run programs that a model wrote in a restricted child process.

It has an empty folder, no environment, no input, limits on processor time, memory, files and
processes, and no network where the system has user namespaces (`unshare`, Linux). This protects
against mistakes, not against malice.
"""

import secrets
import shutil
import subprocess
import sys
import tempfile
from functools import cache

from localspec.errors import UsageError

SECONDS = 5
MEMORY = 512 << 20
FILE = 1 << 20

# The child sets the limits itself, after reading the program and before running it: it cannot raise
# them again, and no code has to run between fork and exec of a process with threads.
_RUNNER = f"""
import resource as r, sys
program = sys.stdin.read()
for kind, most in ((r.RLIMIT_CPU, {SECONDS}), (r.RLIMIT_AS, {MEMORY}), (r.RLIMIT_FSIZE, {FILE}),
                   (r.RLIMIT_NOFILE, 16), (r.RLIMIT_CORE, 0), (r.RLIMIT_NPROC, 0)):
    r.setrlimit(kind, (most, most))
exec(compile(program, "program", "exec"), {{"__name__": "__main__"}})
print(end="DONE")
"""


def runs_to_end(program: str) -> bool:
    """Whether a program runs to its end within the limits; a UsageError on Windows."""
    if sys.platform == "win32":
        raise UsageError(
            "HumanEval runs what the model wrote, and Windows has no limits for that here. Use "
            "another suite, or run it under WSL."
        )
    done = secrets.token_hex(8)  # printed only after the program's end
    # Into a file, whose size is limited: an endless program prints gigabytes.
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as output:
        try:
            ended = subprocess.run(
                [*without_network(), sys.executable, "-I", "-c", _RUNNER.replace("DONE", done)],
                input=program.encode("utf-8", "replace"),
                cwd=folder,
                env={},
                stdout=output,
                stderr=subprocess.DEVNULL,
                timeout=2 * SECONDS,
                start_new_session=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
        output.seek(0)
        # An exit(0) in the program does not count as success.
        return ended.returncode == 0 and output.read().endswith(done.encode())


@cache
def without_network() -> tuple[str, ...]:
    """The prefix of a command to run it without network; empty if that is not permitted."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return ()
    command = (unshare, "--user", "--map-root-user", "--net")
    tried = subprocess.run([*command, "true"], capture_output=True, check=False)
    return command if tried.returncode == 0 else ()
