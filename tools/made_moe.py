"""A mixture of experts that says what a dense llama model says, to measure and to test with.

    python -m tools.made_moe FILE [--source smollm2] [--quant Q4_K_M] [--shape 768x30x1792]

The model is written wider (`localspec.bench.scale`), and each feed-forward layer becomes EXPERTS
copies of itself, of which a router chooses USED for each token. Their weights differ from the
source's by SPREAD, and the router's are random, both from a fixed seed: other tokens go to other
experts, as in a trained mixture, and the mean of two experts is nearly the layer that was there.
SmolLM2 in the default shape becomes 1.1 B weights, of which a token uses 0.35 B.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from localspec import LocalspecError
from localspec.bench.scale import scale_model
from localspec.bench.scaled_gguf import LlamaFile, ModelShape
from localspec.hub.resolution import resolve
from localspec.llama import quantize

EXPERTS, USED = 8, 2
SPREAD = 0.02
"""Standard deviation of an expert's weights around the source's ÷ these."""
_COPIED = ("ffn_gate.weight", "ffn_up.weight", "ffn_down.weight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--source", default="smollm2")
    parser.add_argument("--quant", default="Q4_K_M")
    parser.add_argument("--shape", default="768x30x1792", help="width x layers x feed-forward")
    said = parser.parse_args()
    shape = ModelShape.parse(f"{said.shape}:{said.quant}")
    made_moe(resolve(said.source), said.file, shape)


def made_moe(source: Path, destination: Path, shape: ModelShape) -> None:
    """Write a mixture made of a dense llama model; errors as `scale_model`."""
    with tempfile.TemporaryDirectory(dir=destination.parent) as folder:
        dense, mixed = Path(folder, "dense.gguf"), Path(folder, "mixed.gguf")
        scale_model(source, dense, replace(shape, quant="F16"))
        mix(dense, mixed)
        quantize.quantize(mixed, destination, shape.quant)


def mix(dense: Path, destination: Path) -> None:
    """Write a dense llama model in f16 as a mixture in f16."""
    file, random = LlamaFile(dense, "made a mixture of"), np.random.default_rng(29)
    routers = (EXPERTS, int(file.number("embedding_length")))
    writer = file.writer(destination, {}, leave=())
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(USED)
    for name, tensor in file.tensors.items():
        shape, kind = tuple(tensor.data.shape), tensor.data.dtype
        if name.endswith(_COPIED):
            name = name.replace(".weight", "_exps.weight")
            shape = (EXPERTS, *shape)
        writer.add_tensor_info(name, shape, kind, kind.itemsize * math.prod(shape))
    for layer in range(file.number("block_count")):
        router = f"blk.{layer}.ffn_gate_inp.weight"
        writer.add_tensor_info(router, routers, np.dtype(np.float32), 4 * math.prod(routers))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, tensor in file.tensors.items():
        data = tensor.data
        if name.endswith(_COPIED):
            noise = random.standard_normal((EXPERTS, *data.shape), np.float32)
            data = (data * (1 + SPREAD * noise)).astype(data.dtype)
        writer.write_tensor_data(data)
    for _ in range(file.number("block_count")):
        writer.write_tensor_data(random.standard_normal(routers, np.float32))
    writer.close()


if __name__ == "__main__":
    try:
        main()
    except LocalspecError as error:
        raise SystemExit(str(error)) from None
