"""How much memory opening and using a model takes: run as a process of its own.

    python -m tests.pairing.resident model.gguf '{"context": 2048}'

prints the bytes by which its resident memory grew.
"""

import json
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import psutil

from localspec.llama import kernels, library
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.options import MAX_TREE, ModelOptions
from localspec.llama.pictures import PicturePart
from localspec.loading.components import open_projector
from tests.support.images import png


def main(path: Path, said: dict[str, int | str | bool]) -> None:
    library.start()
    kernels.status()
    np.zeros(1)
    before = psutil.Process().memory_info().rss
    options = ModelOptions(threads=2, gpu_layers=0, **said)  # type: ignore[arg-type]
    with (
        Model(path, options, adapters=options.adapters) as model,
        closing(Context(model, options)) as context,
    ):
        # The whole context, which takes memory as it is filled, with the largest tree at its end.
        context.extend(_tokens(context.capacity - MAX_TREE), 1)
        context.extend(_tokens(MAX_TREE), MAX_TREE)
        eye = open_projector(model, options)
        parts = [] if eye is None else eye.parts("key", png(0))
        _shown = [part.rows() for part in parts if isinstance(part, PicturePart)]
        print(psutil.Process().memory_info().rss - before)
        if eye is not None:
            eye.close()


def _tokens(count: int) -> list[int]:
    return [40 + i % 1000 for i in range(count)]


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
