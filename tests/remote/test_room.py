"""Room for layers on other machines."""

from pathlib import Path

import pytest

from localspec import ModelOptions, NativeError
from localspec.gguf.reader import read_gguf
from localspec.llama.devices import Device
from localspec.pairing.memory import place, require_remote_room

OPTIONS = ModelOptions(context=1024, rpc=("far:1",))


def device(free: int, *, remote: bool = True) -> Device:
    return Device("RPC0", "far:1", "GPU", free, 2 * free, remote=remote)


def test_too_large_layers_are_refused(target_path: Path) -> None:
    need = place(read_gguf(target_path), OPTIONS, -1).device.total
    require_remote_room(target_path, OPTIONS, [device(need // 2), device(need // 2 + 1)])
    with pytest.raises(NativeError, match=r"\(1 of 2 devices are on RPC servers\). Add a server"):
        require_remote_room(
            target_path, OPTIONS, [device(need // 2), device(need // 2 - 1, remote=False)]
        )


def test_device_of_unknown_size_is_accepted(target_path: Path) -> None:
    with pytest.raises(NativeError, match="Add a server"):
        require_remote_room(target_path, OPTIONS, [device(1)])
    require_remote_room(target_path, OPTIONS, [device(0)])
