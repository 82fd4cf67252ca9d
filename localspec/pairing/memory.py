"""How much memory a model will take, predicted from its file.

As `localspec.llama` opens models: one unified cache of all tokens, windows of attention kept whole,
the micro-batch as large as the batch. Follows llama-kv-cache.cpp, llama-memory-recurrent.cpp and
llama-context.cpp; the graph of a pass is fitted to what llama.cpp reports.

Resident memory of a used model, mapped pages included. Of weights that llama.cpp rewrites, the
file's pages stay until the system wants them back (`reclaimable`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from localspec.drafters.draft_model import DraftModel
from localspec.errors import LocalspecError, NativeError
from localspec.gguf.dimensions import Dimensions, default_context, n_layers
from localspec.gguf.file import GGUFFile, TensorInfo
from localspec.gguf.projectors import image_compute, image_overhead
from localspec.gguf.reader import read_gguf
from localspec.gguf.vocabularies import VocabularyFacts, compare
from localspec.llama.options import HEADS, ModelOptions
from localspec.paths import expanded
from localspec.text import gibibytes

if TYPE_CHECKING:  # it loads llama.cpp
    from localspec.llama.devices import Device

_RELEASED = 1 << 20
"""Size of a tensor from which on localspec's kernels release the file's pages (buffers.cpp)."""
_SPARE = 0.1
"""Share of a device's free memory that is left alone."""


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes. `weights`: the file's, and copies of those that are rewritten; `kv`: the KV cache, and
    states of recurrent layers; `compute`: buffers of a pass, logits, the vocabulary and the like;
    `reclaimable`: part of `weights` that the system may take back."""

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
        both = zip(astuple(self), astuple(other), strict=True)
        return MemoryNeed(*(mine + theirs for mine, theirs in both))


@dataclass(frozen=True, slots=True)
class Placement:
    """In main memory, and on a device that has the last `layers`, the output counted as one."""

    layers: int
    host: MemoryNeed
    device: MemoryNeed


def opened_besides(options: ModelOptions) -> tuple[list[GGUFFile], GGUFFile | None]:
    """Adapters and the projector of a target; unreadable ones are reported when they are opened."""
    adapters, projector = [], None
    with suppress(LocalspecError):
        adapters += [read_gguf(one.path) for one in options.adapters]
    with suppress(LocalspecError):
        projector = None if options.mmproj is None else read_gguf(expanded(options.mmproj))
    return adapters, projector


def place(file: GGUFFile, options: ModelOptions, layers: int) -> Placement:
    """Split what a target takes between main memory (`host`) and one device. `layers` as
    `gpu_layers`, -1 for all: llama.cpp offloads the last ones, the output first; the token
    embeddings stay."""
    model = Dimensions(file, options)
    adapters, eye = opened_besides(options)
    everything = model.n_layers + 1
    layers = everything if layers < 0 else min(layers, everything)
    first = max(0, model.n_layers - (layers - 1)) if layers else model.n_layers
    host, device = [MemoryNeed(compute=model.overhead())], list[MemoryNeed]()

    def there(tensor: TensorInfo) -> bool:
        layer = model.layer_of(tensor)
        if layer is None:
            return bool(layers) and tensor.name.startswith("output")
        return first <= layer

    for tensor in file.tensors:
        if there(tensor):
            device.append(MemoryNeed(tensor.size))
        else:
            host.append(_kept(tensor, model, output=not layers))
    # An adapter's matrices lie beside those that they change, read and not mapped.
    for tensor in (one for adapter in adapters for one in adapter.tensors):
        (device if there(tensor) else host).append(MemoryNeed(tensor.size))
    for layer, size in enumerate(model.kv()):
        (device if layer >= first else host).append(MemoryNeed(kv=size))
    (device if layers else host).append(MemoryNeed(compute=model.compute()))
    if eye is not None:  # weights, read and not mapped, and one image
        image = image_compute(eye) + image_overhead(eye)
        (device if layers else host).append(MemoryNeed(eye.weight_bytes, compute=image))
    if layers:
        # Tied embeddings are there twice when the output is on a device.
        device.append(MemoryNeed(model.embedding_bytes if model.tied else 0))
        host.append(MemoryNeed(compute=options.batch * model.width * 4))
    if options.mmap:  # metadata lie in the mapping as well
        host.append(MemoryNeed(max(0, file.size - file.weight_bytes)))
    return Placement(layers, sum(host, MemoryNeed()), sum(device, MemoryNeed()))


def _kept(tensor: TensorInfo, model: Dimensions, *, output: bool) -> MemoryNeed:
    """Whether a tensor stays in main memory."""
    size = tensor.size
    tied = tensor.name == "token_embd.weight"  # once to look up, once rewritten as the output
    if tied and not output:
        return MemoryNeed(size)
    if model.uses_kernels(tensor):
        if model.options.mmap and size >= _RELEASED:
            return MemoryNeed(size)  # of the file's pages those stay that are looked up
    elif not model.is_repacked(tensor):
        return MemoryNeed(size)
    if tied:
        return MemoryNeed(2 * size)
    return MemoryNeed(2 * size, reclaimable=size) if model.options.mmap else MemoryNeed(size)


def most_layers(file: GGUFFile, options: ModelOptions, free: int) -> Placement:
    """As many layers on a device as its free bytes hold, some of them left alone."""
    least, most = 0, n_layers(file) + 1
    while least < most:
        middle = (least + most + 1) // 2
        if place(file, options, middle).device.total <= free * (1.0 - _SPARE):
            least = middle
        else:
            most = middle - 1
    return place(file, options, least)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairUse:
    """How a pair is to be opened. `accelerated`: whether a GPU computes; `device_free`: its free
    memory in bytes, where that is not the host's."""

    options: ModelOptions = field(default_factory=ModelOptions)
    accelerated: bool = False
    device_free: int = 0


ANY_USE = PairUse()


def memory_of_pair(
    target: GGUFFile, draft: GGUFFile, use: PairUse
) -> tuple[MemoryNeed, MemoryNeed]:
    """In main memory. Of a target on other machines, only its token embeddings stay."""
    options, drafts = use.options, _for_draft(target, draft, use.options)
    layers = (-1 if options.rpc else 0), 0
    if use.device_free and not options.rpc:
        fit = layers_that_fit(target, draft, options, use.device_free)
        layers = fit.target, fit.draft
    return place(target, options, layers[0]).host, place(draft, drafts, layers[1]).host


def _for_draft(target: GGUFFile, draft: GGUFFile, options: ModelOptions) -> ModelOptions:
    """As `localspec.loading.components` opens it."""
    most = max(8, default_context(target, options.context))  # a file may claim less
    other = compare(VocabularyFacts(target), VocabularyFacts(draft), reads_all=True).different
    if other is None and draft.architecture not in HEADS:
        most = min(most, DraftModel.ROOM)
    return options.for_draft(most)


def available() -> tuple[int, int]:
    """Bytes of main memory that are free or can be freed, and in all."""
    memory = psutil.virtual_memory()
    return int(memory.available), int(memory.total)


@dataclass(frozen=True, slots=True)
class Offload:
    """How much of a pair a device takes: layers for `--gpu-layers` and `--draft-gpu-layers`, -1 for
    all; `need`: bytes there."""

    target: int
    draft: int
    all_fit: bool
    need: int


_SMALL = 0.2
"""A draft below this share of a device's memory goes there as a whole: it runs several passes for
each of the target's.
"""


def layers_that_fit(
    target: GGUFFile, draft: GGUFFile | None, options: ModelOptions, free: int
) -> Offload:
    """Distribute a pair between main memory and one device with `free` bytes left."""
    drafts = options if draft is None else _for_draft(target, draft, options)
    draft_need = place(draft, drafts, -1).device.total if draft is not None else 0
    whole = place(target, options, -1).device.total
    if whole + draft_need <= free * (1.0 - _SPARE):
        return Offload(-1, -1, True, whole + draft_need)
    draft_layers = 0
    if draft is not None and draft_need <= free * _SMALL:
        draft_layers, free = -1, free - draft_need
    else:
        draft_need = 0
    placed = most_layers(target, options, free)
    need = placed.device.total
    if draft is not None and draft_layers == 0 and placed.layers > n_layers(target):
        rest = most_layers(draft, drafts, free - need)
        draft_layers, draft_need = rest.layers, rest.device.total
    return Offload(placed.layers, draft_layers, False, need + draft_need)


def require_remote_room(path: Path, options: ModelOptions, devices: Sequence[Device]) -> None:
    """A NativeError if the layers need more than `devices` hold, which are all that layers can go
    to, a GPU of this machine among them."""
    try:
        file = read_gguf(path)
    except LocalspecError:
        return  # the reader knows less than llama.cpp
    wanted = place(file, options, options.gpu_layers).device.total
    free = sum(device.free for device in devices)
    if wanted > free > 0:
        servers = sum(device.remote for device in devices)
        raise NativeError(
            f"{path.name} takes {gibibytes(wanted)} where its layers go, and {gibibytes(free)} are "
            f"free there ({servers} of {len(devices)} devices are on RPC servers). Add a server to "
            "--rpc, or take fewer layers with --gpu-layers, a shorter context with --ctx, or a "
            "smaller quantization."
        )
