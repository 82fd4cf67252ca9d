"""Memory needs of a model, predicted from its file.

Assumes the settings of `localspec.llama`: one unified cache of all tokens, full-size caches for
sliding-window layers, and a micro-batch as large as the batch. Follows llama-kv-cache.cpp,
llama-memory-recurrent.cpp and llama-context.cpp; compute buffers are fitted to llama.cpp's reports.

Counts resident memory, mapped pages included. Where llama.cpp repacks weights, the file's pages
also stay resident until the system needs them (`reclaimable`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import add, attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.drafters.draft_model import DraftModel
from localspec.errors import NativeError
from localspec.gguf.dimensions import Dimensions, default_context, n_layers
from localspec.gguf.file import GGUFFile, TensorInfo
from localspec.gguf.projectors import image_compute, image_overhead
from localspec.gguf.reader import readable
from localspec.gguf.vocabularies import VocabularyFacts, compare
from localspec.llama.options import HEADS, ModelOptions
from localspec.paths import expanded
from localspec.text import gigabytes

if TYPE_CHECKING:  # importing it loads llama.cpp
    from localspec.llama.devices import Device

_SPARE = 0.1
"""Share of a device's free memory that is left unused."""


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Memory in bytes. `weights`: the file's weights and repacked copies; `kv`: the KV cache and
    recurrent states; `compute`: compute buffers, logits, vocabulary etc.; `reclaimable`: part of
    `weights` that the system can evict."""

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
        return MemoryNeed(*map(add, _PARTS(self), _PARTS(other)))


_PARTS = attrgetter("weights", "kv", "compute", "reclaimable")


@dataclass(frozen=True, slots=True)
class Placement:
    """Memory on the host, and on a device with the last `layers`, counting the output as one."""

    layers: int
    host: MemoryNeed
    device: MemoryNeed


def adapters_and_projector(options: ModelOptions) -> tuple[list[GGUFFile], GGUFFile | None]:
    """Read the adapters and projector of a target. Skips unreadable files; opening reports them."""
    adapters = (readable(adapter.path) for adapter in options.adapters)
    projector = None if options.mmproj is None else readable(expanded(options.mmproj))
    return [file for file in adapters if file is not None], projector


def place(file: GGUFFile, options: ModelOptions, layers: int) -> Placement:
    """Split a target's memory between the host and one device. `layers`: as `gpu_layers`, -1 for
    all. Like llama.cpp, offloads the output and the last layers, but no token embeddings."""
    model = Dimensions(file, options)
    adapters, projector = adapters_and_projector(options)
    everything = model.n_layers + 1
    layers = everything if layers < 0 else min(layers, everything)
    first = max(0, model.n_layers - (layers - 1)) if layers else model.n_layers
    host, device = [MemoryNeed(compute=model.overhead())], list[MemoryNeed]()

    def on_device(tensor: TensorInfo) -> bool:
        layer = model.layer_of(tensor)
        if layer is None:
            return bool(layers) and tensor.name.startswith("output")
        return first <= layer

    for tensor in file.tensors:
        if on_device(tensor):
            device.append(MemoryNeed(tensor.size))
        else:
            host.append(_host_need(tensor, model, output=not layers))
    # An adapter's matrices are read, not mapped, and go where the matrices that they change are.
    for tensor in (tensor for adapter in adapters for tensor in adapter.tensors):
        (device if on_device(tensor) else host).append(MemoryNeed(tensor.size))
    for layer, size in enumerate(model.kv()):
        (device if layer >= first else host).append(MemoryNeed(kv=size))
    (device if layers else host).append(MemoryNeed(compute=model.compute()))
    if projector is not None:  # weights are read, not mapped; plus one image
        image = image_compute(projector) + image_overhead(projector)
        (device if layers else host).append(MemoryNeed(projector.weight_bytes, compute=image))
    if layers:
        # With the output on a device, tied embeddings are stored twice.
        embeddings = file.by_name.get("token_embd.weight") if file.tied else None
        device.append(MemoryNeed(0 if embeddings is None else embeddings.size))
        host.append(MemoryNeed(compute=options.batch * model.width * 4))
    if options.mmap:  # the mapping includes the metadata
        host.append(MemoryNeed(max(0, file.size - file.weight_bytes)))
    return Placement(layers, sum(host, MemoryNeed()), sum(device, MemoryNeed()))


def _host_need(tensor: TensorInfo, model: Dimensions, *, output: bool) -> MemoryNeed:
    """Memory of a tensor on the host. `output`: whether the output is computed there."""
    size = tensor.size
    tied = tensor.name == "token_embd.weight"  # read for lookups, and repacked as the output
    if tied and not output:
        return MemoryNeed(size)
    if model.uses_kernels(tensor):
        if model.options.mmap:  # its pages are released (buffers.cpp), except for lookups
            return MemoryNeed(size)
    elif not model.is_repacked(tensor):
        return MemoryNeed(size)
    if tied:
        return MemoryNeed(2 * size)
    return MemoryNeed(2 * size, reclaimable=size) if model.options.mmap else MemoryNeed(size)


def most_layers(file: GGUFFile, options: ModelOptions, free: int) -> Placement:
    """The placement with the most layers that fit in a device's free bytes, less a reserve."""
    counts, limit = range(n_layers(file) + 2), free * (1.0 - _SPARE)
    fit = bisect_right(counts, limit, key=lambda n: place(file, options, n).device.total)
    return place(file, options, max(0, fit - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class PairUse:
    """Settings for opening a pair. `accelerated`: whether a GPU computes; `device_free`: bytes free
    in its own memory, 0 if it shares the host's."""

    options: ModelOptions = field(default_factory=ModelOptions)
    accelerated: bool = False
    device_free: int = 0


ANY_USE = PairUse()


def memory_of_pair(
    target: GGUFFile, draft: GGUFFile, use: PairUse
) -> tuple[MemoryNeed, MemoryNeed]:
    """Host memory of target and draft. With RPC servers, only the target's embeddings stay here."""
    options, drafts = use.options, _for_draft(target, draft, use.options)
    layers = (-1 if options.rpc else 0), 0
    if use.device_free and not options.rpc:
        fit = layers_that_fit(target, draft, options, use.device_free)
        layers = fit.target, fit.draft
    return place(target, options, layers[0]).host, place(draft, drafts, layers[1]).host


def _for_draft(target: GGUFFile, draft: GGUFFile, options: ModelOptions) -> ModelOptions:
    """Options for the draft, as `localspec.loading.load` sets them."""
    most = max(8, default_context(target, options))  # a file may declare less
    other = compare(VocabularyFacts(target), VocabularyFacts(draft), reads_all=True)
    if other is None and draft.architecture not in HEADS:
        most = min(most, DraftModel.ROOM)
    return options.for_draft(most)


@dataclass(frozen=True, slots=True)
class Offload:
    """Layers of a pair on a device, as for `--gpu-layers` and `--draft-gpu-layers`: -1 for all.
    `need`: bytes on the device."""

    target: int
    draft: int
    all_fit: bool
    need: int


_SMALL = 0.2
"""A draft below this share of a device's memory is offloaded whole: it runs several passes for each
of the target's.
"""


def layers_that_fit(
    target: GGUFFile, draft: GGUFFile | None, options: ModelOptions, free: int
) -> Offload:
    """Distribute a pair between the host and one device with `free` bytes."""
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
    """Raise NativeError if the layers need more memory than `devices` have. These are all devices
    that take layers, including GPUs of this machine."""
    if (file := readable(path)) is None:
        return  # llama.cpp may be able to read what our reader cannot
    wanted = place(file, options, options.gpu_layers).device.total
    free = sum(device.free for device in devices)
    if wanted > free > 0:
        servers = sum(device.remote for device in devices)
        raise NativeError(
            f"{path.name} needs {gigabytes(wanted)} where its layers go, and {gigabytes(free)} are "
            f"free there ({servers} of {len(devices)} devices are on RPC servers). Add a server to "
            "--rpc, or use fewer layers with --gpu-layers, a shorter context with --ctx, or a "
            "smaller quantization."
        )
