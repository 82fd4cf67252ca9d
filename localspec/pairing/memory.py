"""How much memory a model will take, predicted from its file.

As `localspec.llama` opens models: one unified cache of all tokens, windows of attention kept whole,
the micro-batch as large as the batch. Follows llama-kv-cache.cpp, llama-memory-recurrent.cpp and
llama-context.cpp; the graph of a pass is fitted to what llama.cpp reports.

Resident memory of a used model, mapped pages included. Of weights that llama.cpp rewrites, the
file's pages stay until the system wants them back (`reclaimable`).
"""

from __future__ import annotations

from dataclasses import dataclass

from localspec.gguf.dimensions import Dimensions, Extras, Use, n_layers
from localspec.gguf.file import GGUFFile, TensorInfo
from localspec.gguf.projectors import image_besides, image_compute

RELEASED = 1 << 20
"""Size of a tensor from which on localspec's kernels release the file's pages (buffers.cpp)."""
SPARE = 0.1
"""Share of a device's free memory that is left alone."""


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes.

    Attributes:
        weights: the file's, and copies of those that are rewritten.
        kv: the KV cache, and the states of recurrent layers.
        compute: buffers of a pass, logits, the vocabulary and the like.
        reclaimable: part of `weights` that the system may take back.
    """

    weights: int = 0
    kv: int = 0
    compute: int = 0
    reclaimable: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.compute

    @property
    def least(self) -> int:
        return self.total - self.reclaimable

    def __add__(self, other: MemoryNeed) -> MemoryNeed:
        return MemoryNeed(
            self.weights + other.weights,
            self.kv + other.kv,
            self.compute + other.compute,
            self.reclaimable + other.reclaimable,
        )


@dataclass(frozen=True, slots=True)
class Placement:
    """In main memory, and on a device that has the last `layers`, the output counted as one."""

    layers: int
    host: MemoryNeed
    device: MemoryNeed


def place(file: GGUFFile, use: Use, layers: int) -> Placement:
    """Split what a model takes between main memory (`host`) and one device.

    `layers` as `gpu_layers`, -1 for all: llama.cpp offloads the last ones, the output first; the
    token embeddings stay.
    """
    model = Dimensions(file, use)
    projector = _projector(use.extras)
    everything = model.n_layers + 1
    layers = everything if layers < 0 else min(layers, everything)
    first = max(0, model.n_layers - (layers - 1)) if layers else model.n_layers
    host = MemoryNeed(compute=model.besides())
    device = MemoryNeed()

    def there(tensor: TensorInfo) -> bool:
        layer = model.layer_of(tensor)
        if layer is None:
            return bool(layers) and tensor.name.startswith("output")
        return first <= layer

    for tensor in file.tensors:
        if there(tensor):
            device += MemoryNeed(tensor.size)
        else:
            host += _kept(tensor, model, use, output=not layers)
    # An adapter's matrices lie beside those that they change, read and not mapped.
    for tensor in (one for adapter in use.extras.adapters for one in adapter.tensors):
        if there(tensor):
            device += MemoryNeed(tensor.size)
        else:
            host += MemoryNeed(tensor.size)
    for layer, size in enumerate(model.kv()):
        if layer >= first:
            device += MemoryNeed(kv=size)
        else:
            host += MemoryNeed(kv=size)
    if not layers:
        host += MemoryNeed(compute=model.compute()) + projector
    else:
        # Tied embeddings are there twice when the output is on a device.
        weights = model.embedding_bytes if model.tied else 0
        device += MemoryNeed(weights, compute=model.compute()) + projector
        host += MemoryNeed(compute=use.batch * model.width * 4)
    if use.mmap:  # metadata lie in the mapping as well
        host += MemoryNeed(max(0, file.size - file.weight_bytes))
    return Placement(layers, host, device)


def _projector(extras: Extras) -> MemoryNeed:
    """Weights, read and not mapped, and one image."""
    file = extras.projector
    if file is None:
        return MemoryNeed()
    return MemoryNeed(file.weight_bytes, compute=image_compute(file) + image_besides(file))


def _kept(tensor: TensorInfo, model: Dimensions, use: Use, *, output: bool) -> MemoryNeed:
    """Whether a tensor stays in main memory."""
    size = tensor.size
    tied = tensor.name == "token_embd.weight"  # once to look up, once rewritten as the output
    if tied and not output:
        return MemoryNeed(size)
    if model.takes(tensor):
        if use.mmap and size >= RELEASED:
            return MemoryNeed(size)  # of the file's pages those stay that are looked up
    elif not model.rewrites(tensor):
        return MemoryNeed(size)
    if tied:
        return MemoryNeed(2 * size)
    return MemoryNeed(2 * size, reclaimable=size) if use.mmap else MemoryNeed(size)


def most_layers(file: GGUFFile, use: Use, free: int) -> Placement:
    """As many layers on a device as its free bytes hold, some of them left alone."""
    least, most = 0, n_layers(file) + 1
    while least < most:
        middle = (least + most + 1) // 2
        if place(file, use, middle).device.total <= free * (1.0 - SPARE):
            least = middle
        else:
            most = middle - 1
    return place(file, use, least)
