"""Whether a file is a projector for images, said before llama.cpp meets it."""

from __future__ import annotations

from pathlib import Path

from localspec.errors import ModelInvalid
from localspec.gguf.reader import read_gguf

_READ = frozenset({4, 5, 6, 7, 8, 9})
"""GGUF's value types that clip.cpp reads: whole numbers and floats of 32 bits, truth values, texts
and arrays. It asserts on others."""
_VISION = "clip.has_vision_encoder"


def require_projector(path: Path) -> None:
    """Return where a file looks like one that shows a model images.

    Raises:
        ModelNotFound: there is no such file.
        ModelInvalid: it is damaged, or something else.
    """
    file = read_gguf(path)
    if file.architecture != "clip":
        raise ModelInvalid(
            f"{path} is no projector. Give the mmproj file that belongs to the model; the model "
            "itself is named with -m."
        )
    if file.metadata.get(_VISION) is not True:
        raise ModelInvalid(
            f"{path} shows a model no images. Give a projector that has a vision encoder."
        )
    for key, kind in file.kinds.items():
        if key.startswith("clip.") and kind not in _READ:
            raise ModelInvalid(
                f"{path} keeps {key} in a type that llama.cpp does not read. Convert it anew with "
                "llama.cpp's convert_hf_to_gguf.py --mmproj."
            )
