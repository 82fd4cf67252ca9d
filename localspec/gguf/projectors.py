"""Projectors for images: checks before llama.cpp opens one, and memory."""

from pathlib import Path

from localspec.errors import ModelInvalid
from localspec.gguf.file import GGUFFile
from localspec.gguf.reader import read_gguf

_READABLE = frozenset({4, 5, 6, 7, 8, 9})
"""Value types that clip.cpp reads (32-bit numbers, booleans, texts, arrays); others would fail an
assertion."""
_MTMD = 8 << 20
"""Bytes of the library and its buffers."""
_VISION = "clip.has_vision_encoder"


def require_projector(path: Path) -> None:
    """Raise ModelNotFound, or ModelInvalid if a file is damaged, or not a projector for images."""
    file = read_gguf(path)
    if file.architecture != "clip":
        raise ModelInvalid(
            f"{path} is not a projector. Give the mmproj file that belongs to the model; the model "
            "itself is named with -m."
        )
    if file.metadata.get(_VISION) is not True:
        raise ModelInvalid(f"{path} is not for images. Give a projector that has a vision encoder.")
    for key, kind in file.kinds.items():
        if key.startswith("clip.") and kind not in _READABLE:
            raise ModelInvalid(
                f"{path} keeps {key} in a type that llama.cpp does not read. Convert it again with "
                "llama.cpp's convert_hf_to_gguf.py --mmproj."
            )


def image_compute(file: GGUFFile) -> int:
    """Bytes of a projector's pass over one image of its native size, and of the result: pixels, and
    the widest activations. Fitted to clip.cpp's reports for vision transformers with flash
    attention; too low for projectors of variable resolution."""
    side, patch, width = (
        file.count(f"vision.{key}") for key in ("image_size", "patch_size", "embedding_length")
    )
    patches = (side // max(1, patch)) ** 2
    gated = any(".ffn_gate." in tensor.name for tensor in file.tensors)
    inner = file.count("vision.feed_forward_length") * (2 if gated else 1)
    widest = max(patches * max(inner + width, 9 * width // 2), _pixels(file) // 2)
    return 4 * (_pixels(file) + widest + patches * file.count("vision.projection_dim"))


def image_overhead(file: GGUFFile) -> int:
    """Bytes of copies of an image, and of mtmd; measured."""
    return _MTMD + 10 * _pixels(file)


def _pixels(file: GGUFFile) -> int:
    """Colour values of an image."""
    return 3 * file.count("vision.image_size") ** 2
