"""Backends, devices and their memory."""

from dataclasses import dataclass

import llama_cpp

from localspec.llama import ggml, library

KINDS = {0: "CPU", ggml.GPU: "GPU", ggml.INTEGRATED_GPU: "integrated GPU", 3: "accelerator"}


@dataclass(frozen=True, slots=True)
class Device:
    """A ggml device. `free`, `total`: bytes of memory, 0 if unknown; an integrated GPU uses main
    memory. `remote`: on an RPC server."""

    name: str
    description: str
    kind: str
    free: int
    total: int
    remote: bool = False

    @property
    def takes_layers(self) -> bool:
        return self.kind in ("GPU", "integrated GPU")


def devices() -> list[Device]:
    library.start()  # sets the log callback before GPU drivers write to it
    return [
        Device(
            ggml.text(ggml.device_name(handle)),
            ggml.text(ggml.device_description(handle)),
            KINDS.get(ggml.device_type(handle), "other"),
            *ggml.device_memory(handle),
            remote=ggml.text(ggml.registry_name(ggml.device_registry(handle))).startswith("RPC"),
        )
        for handle in ggml.devices()
    ]


def free_memory() -> int:
    """Free bytes on devices with dedicated memory."""
    return sum(device.free for device in devices() if device.kind == KINDS[ggml.GPU])


def backends() -> list[str]:
    handles = map(ggml.registry_at, range(ggml.registry_count()))
    return [ggml.text(ggml.registry_name(handle)) for handle in handles]


def features() -> list[str]:
    """Instruction sets of the build, e.g. "AVX2"."""
    info = llama_cpp.llama_print_system_info().decode("utf-8", "replace")
    parts = (part.split(":")[-1].strip() for part in info.split("|"))
    return [part.removesuffix("= 1").strip() for part in parts if part.endswith("= 1")]
