"""What ends the process from below is told all the same, and the exit status is the signal's."""

import signal

import pytest

from tests.cli.process import finished, patched

pytestmark = pytest.mark.nightly

DIES = """
import ctypes, os, signal, threading
from localspec import Stream
from localspec.cli.output import Console

signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # jobs in the background ignore it
said = threading.Event()

def answer(console, text, real=Console.answer):
    real(console, text)
    said.set()

Console.answer = answer

def dies(real=Stream.__next__, left=[3]):
    left[0] -= 1
    if left[0]:
        return real
    said.wait(60); {how}

Stream.__next__ = lambda stream, real=Stream.__next__: dies(real)(stream)
"""
"""localspec whose third piece of an answer ends the process in the thread that computes, once
another thread has printed what was said."""
DAMAGED = "The model file may be damaged: download it again, or choose another model."
HOWS = {
    "ctypes.string_at(0)": (signal.SIGSEGV, f"llama.cpp crashed (Segmentation fault). {DAMAGED}"),
    "os.abort()": (signal.SIGABRT, f"llama.cpp crashed (Aborted). {DAMAGED}"),
    "os.kill(os.getpid(), signal.SIGBUS)": (signal.SIGBUS, "changed while it was open: start"),
    # Another thread that crashes has begun its line.
    "from localspec.cli import crashes; crashes._watch.pipe.write(b'Fatal Python error: '); "
    "crashes._watch.pipe.flush(); ctypes.string_at(0)": (
        signal.SIGSEGV,
        f"llama.cpp crashed (Segmentation fault). {DAMAGED}",
    ),
    "os.kill(os.getpid(), signal.SIGILL)": (signal.SIGILL, "built for another processor: reinst"),
    **{
        f"os.kill(os.getpid(), {number.value}); threading.Event().wait(60)": (
            number,
            f"localspec was ended by a signal ({signal.strsignal(number)}).",
        )
        for number in (signal.SIGXCPU, signal.SIGQUIT, signal.SIGALRM)
    },
    "os.kill(os.getpid(), signal.SIGKILL)": (signal.SIGKILL, "Otherwise, check the limits that"),
}


@pytest.mark.parametrize("how", HOWS)
def test_an_end_in_native_code_is_told(how: str) -> None:
    number, sentence = HOWS[how]
    command = patched(DIES.format(how=how))
    done = finished("run", "hi", "-n", "20", "-q", "--drafter", "none", command=command)
    assert done.code == -number
    assert done.out, "what was said until then stays"
    assert sentence in done.sentence()
