"""The binding: the only package that imports llama_cpp, and only when a model is opened.

On import it shortens spinning at barriers, if llama.cpp is built with GNU OpenMP: libgomp spins for
some 15 ms at each of the hundreds of barriers in a pass, which takes most of the time while another
process computes. It reads the variable when loaded; children do not inherit it.
"""

import os

NAME, SPINS = "GOMP_SPINCOUNT", "10000"
_set_here = not os.environ.keys() & {NAME, "OMP_WAIT_POLICY"}  # not by the user
if _set_here:
    os.environ[NAME] = SPINS


def restore_waits() -> None:
    """Remove the variable; call this after the library is loaded."""
    if _set_here:
        os.environ.pop(NAME, None)
