"""Measure errors of logits against the same weights in F32, with kernels and stock llama.cpp.

    python -m tools.kernel_quality [--models smollm2 demo] [--types Q4_0,Q4_K…] [--tokens 20000]

Each model is widened so that every type fits its rows, and quantized to a single type by llama.cpp,
without an importance matrix. The reference is that file dequantized by the package gguf, with a KV
cache in F32. The models read the texts of `localspec bench`, LENGTH tokens at a time.
Perplexity covers all tokens except the first of each piece; its ratio has a standard error over
tokens. |Δ| is the mean over every nth logit of each row, VOCABULARY in all.
"""

import argparse
import os
import tempfile
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from localspec import LocalspecError, ModelOptions
from localspec.bench.machine import this_machine
from localspec.bench.scale import scaled_model
from localspec.bench.scaled_gguf import LlamaFile, ModelShape, dequantize_tensor
from localspec.bench.suites import SETS, load_suites
from localspec.decoding.sampling import Rows
from localspec.errors import NativeError
from localspec.gguf.file import GGUFFile, TensorInfo
from localspec.gguf.writer import NewTensor, write_gguf
from localspec.hub.resolution import resolve
from localspec.llama import kernels
from localspec.llama.context import Context
from localspec.llama.kernels_file import AUTO, OFF
from localspec.llama.model import Model
from localspec.llama.options import MAX_TREE
from localspec.llama.quantize import quantize

SHAPES = {"smollm2": ModelShape(768, 30, 1536, "F16"), "demo": ModelShape(768, 6, 1024, "F16")}
TYPES = {name: name for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "IQ4_XS")}
TYPES |= {"MXFP4": "MXFP4_MOE", "Q2_K": "Q2_K", "Q6_K": "Q6_K", "F16": "F16", "BF16": "BF16"}
TYPES |= {f"{name}_K": f"{name}_K_S" for name in ("Q3", "Q4", "Q5")}
LENGTH = 512
VOCABULARY = 1024


class Scores(NamedTuple):
    """A model's scores of a text: the log probability of each token except the first of a piece,
    [n], and some of the logits, float32 [n, VOCABULARY]."""

    likelihoods: Rows
    logits: Rows

    @property
    def perplexity(self) -> float:
        return float(np.exp(-self.likelihoods.mean()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["smollm2", "demo"], choices=SHAPES)
    parser.add_argument("--types", type=lambda text: text.split(","), default=[*TYPES])
    parser.add_argument("--tokens", type=int, default=20_000)
    args = parser.parse_args()
    if not (status := kernels.status()).in_use:
        raise NativeError(f"There are no kernels here: {status.words}.")
    machine = this_machine(os.cpu_count() or 1)
    print(f"{machine.cpu}; commit {machine.commit}; {args.tokens:,} tokens")
    for model in args.models:
        print(f"\n{model}\n\n| type | ppl F32 | stock | kernels | kernels ÷ stock ", end="")
        print("| mean abs. Δ stock | kernels | ratio |\n|---|" + "---:|" * 7)
        source = scaled_model(resolve(model), SHAPES[model])
        for name in args.types:
            print(line(name, source, args.tokens), flush=True)


def line(name: str, source: Path, tokens: int) -> str:
    """A type's line of the table, or the reason why it is missing."""
    try:
        return compare(name, source, tokens)
    except NativeError as error:
        return f"| {name} | {error} |" + " |" * 6


def compare(name: str, source: Path, tokens: int) -> str:
    """A type's line; NativeError if llama.cpp cannot quantize to it, or cannot read it."""
    with tempfile.TemporaryDirectory() as folder:
        file, whole = Path(folder, f"{name}.gguf"), Path(folder, "f32.gguf")
        quantize(source, file, TYPES[name], pure=True)
        dequantize(file, whole)
        reference = read(whole, tokens, cache="f32", kernels=OFF)
        stock, own = (read(file, tokens, kernels=which) for which in (OFF, AUTO))
    errors = [
        float(np.abs(one.logits - reference.logits).mean(dtype=np.float64)) for one in (stock, own)
    ]
    perplexities = (one.perplexity for one in (reference, stock, own))
    differences = own.likelihoods - stock.likelihoods
    ratio = float(np.exp(-differences.mean()))
    error = ratio * float(differences.std()) / len(differences) ** 0.5
    return (
        f"| {name} | {' | '.join(f'{one:.4f}' for one in perplexities)}"
        f" | {ratio:.5f} ± {error:.5f}"
        f" | {errors[0]:.4f} | {errors[1]:.4f} | {errors[1] / (errors[0] or 1):.3f} |"
    )


def dequantize(source: Path, destination: Path) -> None:
    file = LlamaFile(source, "dequantized").file
    tensors = [
        NewTensor(one.name, one.shape, "F32", partial(_values, file, one)) for one in file.tensors
    ]
    metadata = {key: value for key, value in file.metadata.items() if key != "general.file_type"}
    write_gguf(destination, metadata, file.kinds, tensors)


def _values(file: GGUFFile, tensor: TensorInfo) -> memoryview:
    return dequantize_tensor(file, tensor).astype("<f4").data


def read(file: Path, tokens: int, *, cache: str = "f16", kernels: str) -> Scores:
    """The scores of a model file."""
    options = ModelOptions(
        context=LENGTH, kv_type_k=cache, kv_type_v=cache, gpu_layers=0, kernels=kernels
    )
    with Model(file, options) as model, closing(Context.open(model, options)) as context:
        return score(context, text_tokens(model, tokens))


def text_tokens(model: Model, count: int) -> list[int]:
    prompts = load_suites([*SETS.values()])
    texts = [prompt.text for prompt in prompts]
    later = [turn for prompt in prompts for turn in prompt.later_turns]
    whole = "\n\n".join([*texts, *later])
    tokens = model.vocabulary.tokenize(whole, special=True)
    if len(tokens) < count:
        raise SystemExit(f"The texts have {len(tokens):,} tokens. Lower --tokens to that.")
    return tokens[:count]


def score(context: Context, tokens: Sequence[int]) -> Scores:
    """The scores of pieces of LENGTH tokens."""
    likelihoods: list[Rows] = []
    logits: list[Rows] = []
    each = context.model.vocabulary.size // VOCABULARY
    for start in range(0, len(tokens), LENGTH):
        piece = tokens[start : start + LENGTH]
        context.clear()
        for first, end in pairwise([*range(0, len(piece), MAX_TREE), len(piece)]):
            rows = context.extend(piece[first:end], end - first)
            following = piece[first + 1 : end + 1]
            rows = rows[: len(following)]
            highest = rows.max(axis=1, keepdims=True)
            sums = np.log(np.exp(rows - highest).sum(axis=1, dtype=np.float64))
            chosen = rows[np.arange(len(following)), following] - highest[:, 0]
            likelihoods.append(chosen - sums)
            logits.append(rows[:, : each * VOCABULARY : each].copy())
    return Scores(np.concatenate(likelihoods), np.concatenate(logits))


if __name__ == "__main__":
    try:
        main()
    except LocalspecError as error:
        raise SystemExit(str(error)) from None
