"""How long the threads of a pass spin before they sleep, where llama.cpp is built with GNU OpenMP.

libgomp spins 300,000 times, some 15 ms: as long as another process that has taken a core of ours
may keep it. A pass has hundreds of barriers. 10,000 times (half a millisecond) cost nothing on an
idle machine (SmolLM2 and a model of 1.5 B on two cores: the same within the noise). Beside one
computing process SmolLM2 made 6 passes a second as it comes, 9 with 30,000 and 25 with 3,000; 300
would halve the idle speed.

libgomp reads the variable when it is loaded. It is taken back then, as child processes (a
llama-server to compare with, say) are not ours to tune.
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
