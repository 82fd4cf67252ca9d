"""GGUF files as a broken disk, download or program leaves them."""

from __future__ import annotations

import random
import struct


def _metadata_end(data: bytes) -> int:
    """Where the names of the tensors begin, roughly: behind it lie weights."""
    return data.index(b"output_norm.weight") + 2000


def mutate(data: bytes, rng: random.Random) -> bytes:
    """One damaged copy."""
    changed = bytearray(data)
    end = _metadata_end(data)
    kind = rng.randrange(7)
    if kind == 0:  # flipped bytes
        for _ in range(rng.randrange(1, 12)):
            changed[rng.randrange(4, end)] ^= 1 << rng.randrange(8)
    elif kind == 1:  # cut short
        del changed[rng.randrange(len(changed)) :]
    elif kind == 2:  # a count of the header
        at = rng.choice((8, 16))
        struct.pack_into("<Q", changed, at, rng.choice((0, 1, 1 << 20, 1 << 31, 1 << 63)))
    elif kind == 3:  # a length or a count somewhere, e.g. in front of a key
        name = rng.choice((b"general.name", b"llama.", b"tokenizer.ggml.", b"blk.", b"weight"))
        at = rng.choice([i for i in range(24, end) if changed.startswith(name, i)][:400])
        huge = rng.choice((0, 1 << 16, 1 << 32, 1 << 63, (1 << 64) - 1, rng.getrandbits(64)))
        struct.pack_into("<Q", changed, at - 8, huge)
    elif kind == 4:  # an array that holds something else, or arrays, or more
        at = changed.index(b"tokenizer.ggml.", rng.randrange(24, end // 2))
        at += struct.unpack_from("<Q", changed, at - 8)[0] % 64
        struct.pack_into("<I", changed, at, 9)
        struct.pack_into("<I", changed, at + 4, rng.choice((9, 8, 10, 0, 255)))
        struct.pack_into("<Q", changed, at + 8, rng.choice((1, 8192, 1 << 30, 1 << 62)))
    elif kind == 5:  # names that are no text
        at = changed.index(rng.choice((b"general.", b"blk.", b"tokenizer.")))
        changed[at : at + 4] = bytes(rng.randrange(128, 256) for _ in range(4))
    else:  # noise
        at = rng.randrange(24, end - 64)
        changed[at : at + 64] = rng.randbytes(64)
    return bytes(changed)
