"""Images, and a projector that nobody trained: a small LLaVA (`clip.projector_type` "mlp")."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
from gguf import GGUFWriter

from tests.support.gguf_files import add_keys, written

SIDE, PATCH = 32, 8
POSITIONS = (SIDE // PATCH) ** 2  # that an image has, whatever its size


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
    heads_type: str = "uint32",
) -> Path:
    """Write a projector and return its path."""
    random = np.random.default_rng(0)
    writer = GGUFWriter(path, "clip")
    writer.add_type("mmproj")
    keys = {"has_vision_encoder": vision, "use_gelu": True, "projector_type": "mlp"}
    add_keys(writer, "clip", keys)
    sizes = {"embedding_length": dim, "feed_forward_length": hidden, "block_count": 2}
    sizes |= {"projection_dim": width, "image_size": side, "patch_size": patch}
    add_keys(writer, "clip.vision", sizes)
    getattr(writer, f"add_{heads_type}")("clip.vision.attention.head_count", 2)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-5)
    writer.add_array("clip.vision.image_mean", [0.5] * 3)
    writer.add_array("clip.vision.image_std", [0.5] * 3)

    def matrix(name: str, *shape: int, size: float = 1.0) -> None:
        values = random.normal(0, size * shape[-1] ** -0.5, shape)
        writer.add_tensor(f"{name}.weight", values.astype(np.float32))

    def norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(dim, np.float32))
        writer.add_tensor(f"{name}.bias", np.zeros(dim, np.float32))

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
        writer.add_tensor(f"{name}.bias", np.zeros(width, np.float32))
    return written(writer, path)
