"""Error messages for crashes of the process inside llama.cpp.

`faulthandler` writes the signal's name into the pipe of a shell, which then prints the
message. The shell is not a parent process, so process id, exit status and core dump are unchanged.
"""

import faulthandler
import os
import signal
from contextlib import suppress
from types import FrameType

from localspec.signals import Watchdog

_AGAIN = "The model file may be damaged: download it again, or choose another model."
_CHANGED = "The model file may have changed while it was open: start localspec again."
_REBUILD = (
    "llama-cpp-python was built for another processor: reinstall it with "
    "pip install --force-reinstall --no-cache-dir --no-binary llama-cpp-python llama-cpp-python."
)
_KILLED = (
    "localspec was killed. If that was not you, the system had no memory left: use a smaller "
    "model, or a shorter context with --ctx. If the model file has changed, start it again. "
    "Otherwise, check the limits that ulimit -a prints."
)
_LIMITS = "Check what started it, and the limits that ulimit -a prints."
# Job-control keys reach the shell too, and keys that end this process end it silently. Ctrl+C,
# SIGTERM and SIGHUP are handled here. Threads may crash, and write, at the same time.
_SCRIPT = f"""
trap '' HUP INT TERM
say() {{ [ -t 1 ] && printf '%s\\r\\n' "$restore"; printf 'localspec: %s\\n' "$1"; }}
read -r line
case $line in
over) ;;
*'Python error: Illegal'*) say 'llama.cpp crashed (Illegal instruction). {_REBUILD}' ;;
*'Python error: Bus'*) say 'llama.cpp crashed (Bus error). {_CHANGED}' ;;
'Fatal Python error: '*) say "llama.cpp crashed (${{line##*: }}). {_AGAIN}" ;;
'Ended: '*) say "localspec was ended by a signal (${{line#*: }}). {_LIMITS}" ;;
*) say '{_KILLED}' ;;
esac
"""
_SIGNALS = [
    getattr(signal, name)
    for name in ("SIGALRM", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGXCPU")
    if hasattr(signal, name)
]

_watch: Watchdog | None = None


def watch(restore: bytes = b"") -> None:
    """Explain crashes on standard error from now on, on a terminal after `restore`. Does nothing if
    `faulthandler` is enabled already, or there is no shell."""
    global _watch
    if _watch is not None or faulthandler.is_enabled():
        return
    # Otherwise ggml runs a debugger before it aborts, and prints its backtrace.
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    with suppress(OSError):
        _watch = Watchdog(f"restore='{restore.decode()}'\n{_SCRIPT}", 2, apart=False)
        faulthandler.enable(file=_watch.pipe, all_threads=False)
        for number in _SIGNALS:
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, _report_signal)


def release() -> None:
    """Call before `os._exit`."""
    if _watch is not None:
        _watch.release()


def stop_watching() -> None:
    """Stop watching: no model is open any more."""
    global _watch
    if _watch is not None:
        faulthandler.disable()
        _watch.close()
        _watch = None


def _report_signal(number: int, _frame: FrameType | None) -> None:
    with suppress(OSError):  # Ctrl+\\ ends the shell, too
        assert _watch is not None
        os.write(_watch.pipe.fileno(), f"Ended: {signal.strsignal(number)}\n".encode())
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
