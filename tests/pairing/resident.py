"""`python -m tests.pairing.resident model.gguf '{"context": 2048}'` prints by how many bytes the
resident memory of a process grows by opening and using a model."""

import json
import sys
from pathlib import Path

import numpy as np
import psutil

from localspec.llama import kernels, library
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.options import MAX_TREE, ModelOptions
from localspec.llama.pictures import PicturePart
from localspec.loading.load import open_projector
from localspec.paths import expanded
from tests.support.images import png


def main(path: Path, said: dict[str, int | str | bool]) -> None:
    library.start()
    kernels.status()
    np.zeros(1)
    before = psutil.Process().memory_info().rss
    options = ModelOptions(threads=2, gpu_layers=0, **said)  # type: ignore[arg-type]
    with Model(path, options, adapters=options.adapters) as model:
        context = Context.open(model, options)
        # The whole context, which takes memory as it is filled, with the largest tree at its end.
        tokens = [40 + i % 1000 for i in range(context.capacity)]
        context.extend(tokens[:-MAX_TREE], 1)
        context.extend(tokens[-MAX_TREE:], MAX_TREE)
        eye = None
        if options.mmproj is not None:
            eye = open_projector(model, expanded(options.mmproj), options)
        parts = [] if eye is None else eye.parts("key", png(0))
        _shown = [part.rows() for part in parts if isinstance(part, PicturePart)]
        print(psutil.Process().memory_info().rss - before)
        if eye is not None:
            eye.close()
        context.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
