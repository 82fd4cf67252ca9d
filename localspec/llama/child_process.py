"""Run a module in a child process, for work that may crash it."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic

from localspec.errors import Cancelled

# As -m does, except for the current folder, whose files may have any module's name.
_MODULE = """import sys; sys.path[:] = filter(None, sys.path); import runpy
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)"""
_POLL = 0.1


def run(
    module: str, *arguments: str, limit: float, cancelled: Callable[[], bool] = lambda: False
) -> tuple[int, bytes]:
    """Run `python -m module`; returns its exit status, negative for a signal, and output. Raises
    TimeoutError after `limit` seconds, Cancelled, or OSError, after killing the child and its
    descendants."""
    deadline = monotonic() + limit
    with start(module, *arguments) as child:
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    output, _ = child.communicate(timeout=_POLL)
                    return child.returncode, output
                if cancelled():
                    raise Cancelled("Stopped during the trial of the file.")
                if monotonic() > deadline:
                    raise TimeoutError(f"{module} took more than {limit:.0f} seconds")
        finally:
            kill(child)


def start(module: str, *arguments: str, keep: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """Start `python -m module` with our import path, and pipes to its standard input and output.
    `keep`: file descriptors that it inherits (not on Windows)."""
    return subprocess.Popen(
        command(module, *arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            # Otherwise ggml starts a debugger when it aborts, which takes seconds.
            "GGML_NO_BACKTRACE": "1",
        },
        # Ctrl+C for this process must not look like a crash of the child. On POSIX the child also
        # leads a separate process group, which `kill` ends as a whole.
        start_new_session=True,
        pass_fds=tuple(keep),
    )


def command(module: str, *arguments: str) -> list[str]:
    return [_python(), "-c", _MODULE, module, *arguments]


def _python() -> str:
    """The interpreter's own program: in a frozen program, and in one that embeds Python,
    `sys.executable` may be that program, which would start once more. Raises OSError if there is
    none."""
    places = (sys.executable or "", os.path.join(sys.prefix, "bin", "python3"))
    for path in () if getattr(sys, "frozen", False) else places:
        if re.search("python|pypy", os.path.basename(path), re.IGNORECASE) and os.path.isfile(path):
            return path
    raise OSError("this program, which is frozen or embeds Python, has no Python to start")


def kill(child: subprocess.Popen[bytes]) -> None:
    """End a child and its descendants."""
    if child.poll() is not None:
        return  # another process may have its id by now
    if sys.platform == "win32":
        child.kill()
    else:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    child.wait()
