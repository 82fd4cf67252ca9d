"""Open unknown model files in a child process first, as llama.cpp may abort on them.

`python -m localspec.llama.crash_test PATH` is that process; a refused file does not crash it.
"""

import signal
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from localspec import paths
from localspec.errors import ModelInvalid, NativeError
from localspec.identity import file_identity
from localspec.llama import child_process, kernels, library
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.options import ModelOptions
from localspec.llama.outcomes import Outcomes

MIN_TIMEOUT, MIN_READ_RATE = 120.0, 10e6
"""Seconds that any file may take, plus the time to read it at the rate of a slow disk, bytes/s."""
MODULE = "localspec.llama.crash_test"
_KILLED = 9  # SIGKILL, which Windows does not define
_survived = Outcomes("crash_tests", 1000)


def require_survivable(path: Path, *, cancelled: Callable[[], bool] = lambda: False) -> None:
    """Return if opening the file and decoding with it does not crash; a ModelInvalid if it crashes
    or hangs, a NativeError if the system kills it, Cancelled if `cancelled` returns true."""
    facts = _facts(path)
    if facts is None or _survived.get(facts) is not None:
        return  # loading reports a missing file
    limit = MIN_TIMEOUT + path.stat().st_size / MIN_READ_RATE
    try:
        status, _ = child_process.run(MODULE, str(path), limit=limit, cancelled=cancelled)
    except TimeoutError:
        raise ModelInvalid(
            f"{path.name} makes llama.cpp hang: in a separate process it did not open within "
            f"{limit:.0f} seconds. The file may be damaged: download it again, or choose another "
            "model."
        ) from None
    except OSError:  # there is no Python to start
        return
    if status == 0:
        _survived.store(facts, {})
    elif status == -_KILLED:
        raise NativeError(
            f"The system ended a trial of {path.name} in a separate process, as it does when "
            "memory runs out. Close other programs, or choose a smaller model."
        )
    elif status < 0:
        raise ModelInvalid(
            f"{path.name} makes llama.cpp crash ({signal.Signals(-status).name}), tested in a "
            "separate process. The file may be damaged: download it again, or choose another model."
        )


def _facts(path: Path) -> dict[str, Any] | None:
    """File, build and kernels; None for a missing file or a built-in model."""
    ours = {paths.embedded(name) for name in (paths.EMBEDDED_TARGET, paths.EMBEDDED_DRAFT)}
    try:
        if path.resolve() in {p.resolve() for p in ours}:
            return None
        return {
            "file": file_identity(path),
            "library": library.version(),
            "kernels": kernels.status().identity,
        }
    except OSError:
        return None


def try_file(path: Path) -> None:
    """Open a model and decode a token, using only the CPU. Raises as `Model` and `extend`."""
    options = ModelOptions(context=64, gpu_layers=0)
    with (
        Model(path, options, cpu_only=True) as model,
        closing(Context.open(model, options)) as context,
    ):
        context.extend([0])


if __name__ == "__main__":
    try_file(Path(sys.argv[1]))
