"""Whether a target fits on the machines that its layers are to go to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from localspec.errors import LocalspecError, NativeError
from localspec.gguf.dimensions import Use
from localspec.gguf.reader import read_gguf
from localspec.llama.devices import Device
from localspec.llama.options import ModelOptions
from localspec.pairing.memory import place
from localspec.text import gibibytes


def require_remote_room(path: Path, options: ModelOptions, devices: Sequence[Device]) -> None:
    """Raise NativeError where the layers need more than the machines hold.

    `devices` are all that layers can go to, a GPU of this machine among them.
    """
    try:
        file = read_gguf(path)
    except LocalspecError:
        return  # the reader knows less than llama.cpp
    wanted = place(file, Use.of(options), options.gpu_layers).device.total
    free = sum(device.free for device in devices)
    if wanted > free > 0:
        servers = sum(device.remote for device in devices)
        raise NativeError(
            f"{path.name} takes {gibibytes(wanted)} where its layers go, and {gibibytes(free)} are "
            f"free there ({servers} of {len(devices)} devices are on RPC servers). Add a server to "
            "--rpc, or take fewer layers with --gpu-layers, a shorter context with --ctx, or a "
            "smaller quantization."
        )
