"""The binding: the only package that imports llama_cpp, and only when a model is opened.

On import it shortens spinning at barriers, if llama.cpp is built with GNU OpenMP: libgomp spins for
some 15 ms at each of the hundreds of barriers in a pass, which takes most of the time while another
process computes. It reads the variable when loaded; children do not inherit it.
"""

import os

NAME, SPINS = "GOMP_SPINCOUNT", "10000"
_POLICY = "OMP_WAIT_POLICY"
_set_here = False


def shorten_waits() -> None:
    """Set the variable, unless the user did; call this before the library is loaded."""
    global _set_here
    if NAME not in os.environ and _POLICY not in os.environ:
        os.environ[NAME] = SPINS
        _set_here = True


def restore_waits() -> None:
    """Remove the variable; call this after the library is loaded."""
    global _set_here
    if _set_here and os.environ.get(NAME) == SPINS:
        del os.environ[NAME]
    _set_here = False


shorten_waits()
