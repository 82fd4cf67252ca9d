"""How long the threads of a pass spin before they sleep, where llama.cpp is built with GNU OpenMP.

libgomp spins 300,000 times, some 15 ms, at each of the hundreds of barriers of a pass: as long as
another process may keep a core that it has taken. 10,000 times (half a millisecond) cost nothing
on an idle machine; beside one computing process a small model made 9 passes a second with 30,000
spins, and 25 with 3,000.

libgomp reads the variable when it is loaded. It is taken back then: child processes are not ours to
tune.
"""

from __future__ import annotations

import os

NAME, SPINS = "GOMP_SPINCOUNT", "10000"
_POLICY = "OMP_WAIT_POLICY"
_set_here = False


def shorten_waits() -> None:
    """Set the variable, unless somebody did, for the library that is about to be loaded."""
    global _set_here
    if NAME not in os.environ and _POLICY not in os.environ:
        os.environ[NAME] = SPINS
        _set_here = True


def restore() -> None:
    """Take it back: the library is loaded."""
    global _set_here
    if _set_here and os.environ.get(NAME) == SPINS:
        del os.environ[NAME]
    _set_here = False
