"""A sentence where llama.cpp takes the process with it.

Where it gives up by itself, `localspec.llama.library.on_abort` hears of it. Where it reads memory
that there is not, or throws what nobody catches, or where the system ends the process for want of
memory, nothing of this process can say so. `faulthandler` then writes the signal's name into the
pipe of a shell that waits for this process, which tells the user.

Not a parent that waits for us: the process number, what the terminal's keys, `kill` and `wait`
reach, and the exit status all stay those of one process. It ends by the signal, as any program
would, and a core dump is one of the process at fault.
"""

from __future__ import annotations

import faulthandler
import os
from contextlib import suppress

from localspec.watched import Watch

_AGAIN = "The file of the model may be damaged: download it again, or choose another model."
_REBUILD = (
    "llama-cpp-python was built for another processor: reinstall it with "
    "pip install --force-reinstall --no-cache-dir --no-binary llama-cpp-python llama-cpp-python."
)
_KILLED = (
    "localspec was killed. If that was not you, the system had no memory left: take a smaller "
    "model, or a shorter context with --ctx."
)
# The keys that stop and continue reach the shell as well, and those that end us end it in silence;
# Ctrl+C and SIGTERM we answer ourselves.
_SCRIPT = f"""
trap '' INT TERM
say() {{ [ -t 1 ] && printf '\\r\\n'; printf 'localspec: %s\\n' "$1"; }}
read -r line
case $line in
over) ;;
'Fatal Python error: Illegal'*) say 'llama.cpp crashed (Illegal instruction). {_REBUILD}' ;;
'Fatal Python error: '*) say "llama.cpp crashed (${{line#*: }}). {_AGAIN}" ;;
*) say '{_KILLED}' ;;
esac
"""

_watch: Watch | None = None


def watch() -> None:
    """From here on, tell on standard error of an end that nobody foresees; harmless when repeated.

    Does nothing where somebody wants to see such an end with his own eyes (`faulthandler` is on, as
    with `python -X dev`), and where there is no such shell.
    """
    global _watch
    if _watch is not None or faulthandler.is_enabled():
        return
    # Else ggml calls a debugger before it aborts, and prints what only its makers understand.
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    with suppress(OSError):
        _watch = Watch(_SCRIPT, 2, apart=False)
        faulthandler.enable(file=_watch.pipe, all_threads=False)


def release() -> None:
    """This process is about to be left in order, with `os._exit`."""
    if _watch is not None:
        _watch.release()


def over() -> None:
    """No model is open any more; whatever comes now is nobody's crash."""
    global _watch
    if _watch is not None:
        faulthandler.disable()
        _watch.close()
        _watch = None
