"""Make a mixture of experts that answers like a dense llama model, for measurements and tests.

    python -m tools.made_moe FILE [--source smollm2] [--quant Q4_K_M] [--shape 768x30x1792]

The model is widened (`localspec.bench.scale`), and each feed-forward layer becomes EXPERTS copies
of itself, of which a router chooses USED for each token. Their weights differ from the source's by
SPREAD, and the router's are random, both with a fixed seed: different tokens use different experts,
as in a trained mixture, and the mean of two experts is nearly the original layer. SmolLM2 in the
default shape becomes 1.1 B weights, of which a token uses 0.35 B.
"""

import argparse
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from localspec import LocalspecError
from localspec.bench.scale import scale_model
from localspec.bench.scaled_gguf import LlamaFile, ModelShape, dequantize_tensor
from localspec.gguf.file import U32, TensorInfo
from localspec.gguf.writer import NewTensor, write_gguf
from localspec.hub.resolution import resolve
from localspec.llama import quantize

EXPERTS, USED = 8, 2
SPREAD = 0.02
"""Standard deviation of an expert's weights, relative to the source's weights."""
_COPIED = ("ffn_gate.weight", "ffn_up.weight", "ffn_down.weight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--source", default="smollm2")
    parser.add_argument("--quant", default="Q4_K_M")
    parser.add_argument("--shape", default="768x30x1792", help="width x layers x feed-forward")
    args = parser.parse_args()
    dim, layers, inner = map(int, args.shape.split("x"))
    made_moe(resolve(args.source), args.file, ModelShape(dim, layers, inner, args.quant))


def made_moe(source: Path, destination: Path, shape: ModelShape) -> None:
    """Write a mixture made from a dense llama model; errors as `scale_model`."""
    with tempfile.TemporaryDirectory(dir=destination.parent) as folder:
        dense, mixed = Path(folder, "dense.gguf"), Path(folder, "mixed.gguf")
        scale_model(source, dense, replace(shape, quant="F16"))
        mix(dense, mixed)
        quantize.quantize(mixed, destination, shape.quant)


def mix(dense: Path, destination: Path) -> None:
    """Write a dense llama model in f16 as a mixture in f16."""
    model, random = LlamaFile(dense, "made a mixture of"), np.random.default_rng(29)
    file, routers = model.file, (model.number("embedding_length"), EXPERTS)

    def weights(tensor: TensorInfo, copies: bool) -> memoryview:
        values = dequantize_tensor(file, tensor)
        if copies:
            noise = random.standard_normal((EXPERTS, *values.shape), np.float32)
            values = values * (1 + SPREAD * noise)
        return values.astype("<f4" if tensor.type == "F32" else "<f2").data

    def router() -> memoryview:
        return random.standard_normal(routers[::-1], np.float32).data

    tensors = []
    for tensor in file.tensors:
        name, shape, copies = tensor.name, tensor.shape, tensor.name.endswith(_COPIED)
        if copies:
            name, shape = name.replace(".weight", "_exps.weight"), (*shape, EXPERTS)
        tensors.append(NewTensor(name, shape, tensor.type, partial(weights, tensor, copies)))
    for layer in range(model.number("block_count")):
        name = f"blk.{layer}.ffn_gate_inp.weight"
        tensors.append(NewTensor(name, routers, "F32", router))
    counts = {"llama.expert_count": EXPERTS, "llama.expert_used_count": USED}
    kinds = {**file.kinds, **dict.fromkeys(counts, U32)}
    write_gguf(destination, {**file.metadata, **counts}, kinds, tensors)


if __name__ == "__main__":
    try:
        main()
    except LocalspecError as error:
        raise SystemExit(str(error)) from None
