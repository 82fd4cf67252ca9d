"""One file opened and one token decoded, in a process that may die of it.

Exits with 0 if that went well; see `localspec.llama.crash_test`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from localspec.errors import LocalspecError
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.options import ModelOptions

REFUSED = 3
"""Exit status for a file that is refused in the ordinary way, which loading will tell."""


def main(path: Path) -> int:
    """The exit status."""
    options = ModelOptions(context=64, gpu_layers=0)
    try:
        # Whatever devices there are may be in use, and full.
        with Model(path, options, cpu_alone=True) as model:
            context = Context(model, options)
            context.extend([0])
            context.close()
    except LocalspecError:
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
