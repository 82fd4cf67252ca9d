"""Damaged GGUF files."""

import random
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy.typing as npt
from gguf import GGUFReader

from tests.gguf.raw import STRING


def mutate(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    end = data.index(b"output_norm.weight") + 2000  # about where the metadata end
    kind = rng.randrange(7)
    if kind == 0:  # flipped bytes
        for _ in range(rng.randrange(1, 12)):
            changed[rng.randrange(4, end)] ^= 1 << rng.randrange(8)
    elif kind == 1:  # cut short
        del changed[rng.randrange(len(changed)) :]
    elif kind == 2:  # a count of the header
        at = rng.choice((8, 16))
        struct.pack_into("<Q", changed, at, rng.choice((0, 1, 1 << 20, 1 << 31, 1 << 63)))
    elif kind == 3:  # a length or a count, e.g. before a key
        name = rng.choice((b"general.name", b"llama.", b"tokenizer.ggml.", b"blk.", b"weight"))
        at = rng.choice([i for i in range(24, end) if changed.startswith(name, i)][:400])
        huge = rng.choice((0, 1 << 16, 1 << 32, 1 << 63, (1 << 64) - 1, rng.getrandbits(64)))
        struct.pack_into("<Q", changed, at - 8, huge)
    elif kind == 4:  # an array of another type or length
        at = changed.index(b"tokenizer.ggml.", rng.randrange(24, end // 2))
        at += struct.unpack_from("<Q", changed, at - 8)[0] % 64
        struct.pack_into("<I", changed, at, 9)
        struct.pack_into("<I", changed, at + 4, rng.choice((9, 8, 10, 0, 255)))
        struct.pack_into("<Q", changed, at + 8, rng.choice((1, 8192, 1 << 30, 1 << 62)))
    elif kind == 5:  # names that are not UTF-8
        at = changed.index(rng.choice((b"general.", b"blk.", b"tokenizer.")))
        changed[at : at + 4] = bytes(rng.randrange(128, 256) for _ in range(4))
    else:  # noise
        at = rng.randrange(24, end - 64)
        changed[at : at + 64] = rng.randbytes(64)
    return bytes(changed)


ODD = (0, 1, 2, 3, 7, 63, 255, 4096, (1 << 31) - 1, (1 << 32) - 1, 1 << 32, (1 << 63) - 1)
"""Edge cases of numbers."""
NAMES = (b"gemma", b"qwen2", b"qwen3", b"mamba", b"bloom", b"olmo2", b"rwkv6", b"rwkv7", b"mpt\0\0")
"""Architectures whose names are as long as llama's."""


class Places(NamedTuple):
    """Offsets in a file, and sizes: of `numbers`, single ones and elements of arrays, of `texts`
    (of an array the first one), of the types of values (`kinds`), of tensors' shapes, with the
    number of dimensions (`tensors`; their type and offset follow), and of tensors' `names`."""

    numbers: list[tuple[int, int]]
    texts: list[tuple[int, int]]
    kinds: list[int]
    tensors: list[tuple[int, int]]
    names: list[tuple[int, int]]


def places(path: Path) -> Places:
    """The places of a valid file."""
    reader = GGUFReader(path)

    def place(part: npt.NDArray[Any]) -> tuple[int, int]:
        return part.ctypes.data - reader.data.ctypes.data, part.nbytes

    fields = [field for name, field in reader.fields.items() if not name.startswith("GGUF.")]
    values = [(field.types[-1], [place(field.parts[n]) for n in field.data]) for field in fields]
    tensors = [tensor.field.parts for tensor in reader.tensors]
    return Places(
        numbers=[at for kind, found in values if kind != STRING for at in found[:4]],
        texts=[found[0] for kind, found in values if kind == STRING and found],
        kinds=[place(field.parts[2])[0] for field in fields],
        tensors=[(place(parts[3])[0], len(parts[3])) for parts in tensors],
        names=[place(parts[1]) for parts in tensors],
    )


def change_values(data: bytes, where: Places, rng: random.Random) -> bytes:
    """A well-formed copy with other values, which syntax checks accept. `where`: its `places`."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        _change(changed, where, rng)
    return bytes(changed)


def _change(changed: bytearray, where: Places, rng: random.Random) -> None:
    kind = rng.randrange(8)
    if kind <= 2:  # a number
        at, size = rng.choice(where.numbers)
        (old,) = struct.unpack_from("<Q", bytes(changed[at : at + size]).ljust(8, b"\0"))
        new = rng.choice((*ODD, rng.getrandbits(64), old + 1, old * 2, old // 2, old ^ 1))
        changed[at : at + size] = struct.pack("<Q", new % (1 << 64))[:size]
    elif kind == 3:  # letters of a text
        at, size = rng.choice([text for text in where.texts if text[1]])
        for _ in range(rng.randrange(1, 4)):
            changed[at + rng.randrange(size)] = rng.choice((*b"aZ09 {}%\0\n-", 128, 255))
    elif kind == 4:  # a tensor's shape, type or place
        at, dimensions = rng.choice(where.tensors)
        part = rng.randrange(dimensions + 3)
        if part < dimensions:
            struct.pack_into("<Q", changed, at + 8 * part, rng.choice((*ODD, 64, 128, 8192)))
        elif part == dimensions:
            struct.pack_into("<I", changed, at + 8 * dimensions, rng.randrange(48))
        elif part == dimensions + 1:
            value = rng.choice((*ODD, 32 * rng.getrandbits(16)))
            struct.pack_into("<Q", changed, at + 8 * dimensions + 4, value)
        else:
            struct.pack_into("<I", changed, at - 4, rng.choice((0, 1, 2, 3, 4, 5)))
    elif kind == 5:  # two names of tensors change places
        one, other = rng.choice(where.names), rng.choice(where.names)
        if one[1] == other[1]:
            first, second = (bytes(changed[at : at + size]) for at, size in (one, other))
            changed[one[0] : one[0] + one[1]] = second
            changed[other[0] : other[0] + other[1]] = first
    elif kind == 6:  # another architecture
        end = where.names[-1][0]
        changed[:end] = bytes(changed[:end]).replace(b"llama", rng.choice(NAMES))
    else:  # another type of a value of the same size
        at = rng.choice(where.kinds)
        struct.pack_into("<I", changed, at, rng.choice((0, 4, 5, 6, 7, 8, 9, 10, 12)))
