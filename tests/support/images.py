"""Images, and a random projector: a small LLaVA (`clip.projector_type` "mlp")."""

import struct
import zlib
from pathlib import Path

import numpy as np
from gguf import GGUFValueType

from tests.support.gguf_files import Matrix, within, write_gguf

SIDE, PATCH = 32, 8
POSITIONS = (SIDE // PATCH) ** 2  # of an image of any size


def png(seed: int, width: int = 40, height: int = 30) -> bytes:
    """An image of coloured noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    body = chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + body


def projector(
    path: Path,
    width: int,
    *,
    dim: int = 32,
    hidden: int = 64,
    side: int = SIDE,
    patch: int = PATCH,
    gain: float = 1.0,
    vision: bool = True,
    heads_type: GGUFValueType = GGUFValueType.UINT32,
) -> Path:
    random = np.random.default_rng(0)
    vision_keys = {
        "embedding_length": dim,
        "feed_forward_length": hidden,
        "block_count": 2,
        "projection_dim": width,
        "image_size": side,
        "patch_size": patch,
        "attention.head_count": (2, heads_type, None),
        "attention.layer_norm_epsilon": 1e-5,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    keys = {
        "general.type": "mmproj",
        "clip.has_vision_encoder": vision,
        "clip.use_gelu": True,
        "clip.projector_type": "mlp",
        **within("clip.vision", vision_keys),
    }
    tensors: dict[str, Matrix] = {}

    def matrix(name: str, *shape: int, size: float = 1.0) -> None:
        values = random.normal(0, size * shape[-1] ** -0.5, shape)
        tensors[f"{name}.weight"] = values.astype(np.float32)

    def norm(name: str) -> None:
        tensors[f"{name}.weight"] = np.ones(dim, np.float32)
        tensors[f"{name}.bias"] = np.zeros(dim, np.float32)

    matrix("v.patch_embd", dim, 3, patch, patch)
    matrix("v.position_embd", (side // patch) ** 2, dim)
    for layer in range(2):
        for name in ("attn_k", "attn_q", "attn_v", "attn_out"):
            matrix(f"v.blk.{layer}.{name}", dim, dim)
        norm(f"v.blk.{layer}.ln1")
        norm(f"v.blk.{layer}.ln2")
        matrix(f"v.blk.{layer}.ffn_up", hidden, dim)
        matrix(f"v.blk.{layer}.ffn_down", dim, hidden)
    for name, columns, size in (("mm.0", dim, 1.0), ("mm.2", width, gain)):
        matrix(name, width, columns, size=size)
        tensors[f"{name}.bias"] = np.zeros(width, np.float32)
    return write_gguf(path, "clip", keys, tensors)
