"""A llama model in PyTorch (Touvron et al. 2023), as a function of its weights by GGUF names.

RoPE of GGUF's type NORM rotates neighbouring pairs. Weights are float32; activations are
[batch, tokens, width].
"""

from collections.abc import Mapping
from typing import Any

from localspec.bench.scaled_gguf import Shape
from localspec.distill.pytorch import Tensor, torch


def states(weights: Mapping[str, Tensor], shape: Shape, tokens: Tensor) -> Tensor:
    """The input of the output matrix, after the norm: [batch, tokens, width]. `tokens`: int [batch,
    tokens], padded at the end."""
    return layer_inputs(weights, shape, tokens)[1]


def layer_inputs(
    weights: Mapping[str, Tensor], shape: Shape, tokens: Tensor
) -> tuple[list[Tensor], Tensor]:
    """The input of each layer, and `states`."""
    x = torch.nn.functional.embedding(tokens, weights["token_embd.weight"])
    angles = rotations(shape, tokens.shape[1], x.device)
    inputs = []
    for layer in range(shape.layers):
        inputs.append(x)
        x = block(weights, shape, x, angles, f"blk.{layer}")
    return inputs, norm(x, weights["output_norm.weight"], shape.epsilon)


def output_matrix(weights: Mapping[str, Tensor], shape: Shape) -> Tensor:
    """[vocabulary, width]: logits are states times its transpose."""
    return weights["token_embd.weight" if shape.tied else "output.weight"]


def block(
    weights: Mapping[str, Tensor], shape: Shape, x: Tensor, angles: tuple[Tensor, Tensor], at: str
) -> Tensor:
    normed = norm(x, weights[f"{at}.attn_norm.weight"], shape.epsilon)
    x = x + attention(weights, shape, normed, angles, at)
    return x + feed_forward(weights, norm(x, weights[f"{at}.ffn_norm.weight"], shape.epsilon), at)


def attention(
    weights: Mapping[str, Tensor], shape: Shape, x: Tensor, angles: tuple[Tensor, Tensor], at: str
) -> Tensor:
    """Causal attention with grouped queries."""
    functional = torch.nn.functional
    queries, keys, values = project(weights, shape, x, angles, at)
    mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
    return functional.linear(mixed.transpose(1, 2).flatten(2), weights[f"{at}.attn_output.weight"])


def project(
    weights: Mapping[str, Tensor], shape: Shape, x: Tensor, angles: tuple[Tensor, Tensor], at: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, [batch, heads, tokens, head width], repeated for every head."""
    batch, tokens, _ = x.shape

    def heads(name: str, count: int) -> Tensor:
        found = torch.nn.functional.linear(x, weights[f"{at}.{name}.weight"])
        return found.view(batch, tokens, count, shape.head_width).transpose(1, 2)

    queries = _rotate(heads("attn_q", shape.heads), angles)
    keys = _rotate(heads("attn_k", shape.kv_heads), angles)
    values = heads("attn_v", shape.kv_heads)
    if shape.kv_heads != shape.heads:
        keys, values = (
            tensor.repeat_interleave(shape.heads // shape.kv_heads, 1) for tensor in (keys, values)
        )
    return queries, keys, values


def feed_forward(weights: Mapping[str, Tensor], x: Tensor, at: str) -> Tensor:
    functional = torch.nn.functional
    gate = functional.silu(functional.linear(x, weights[f"{at}.ffn_gate.weight"]))
    up = functional.linear(x, weights[f"{at}.ffn_up.weight"])
    return functional.linear(gate * up, weights[f"{at}.ffn_down.weight"])


def norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return torch.nn.functional.rms_norm(x, weight.shape, weight, epsilon)


def rotations(shape: Shape, tokens: int, device: Any) -> tuple[Tensor, Tensor]:
    """Cosines and sines of RoPE's angles, [tokens, rotated ÷ 2] each."""
    pairs = torch.arange(0, shape.rotated, 2, dtype=torch.float32, device=device)
    angles = torch.outer(
        torch.arange(tokens, dtype=torch.float32, device=device),
        shape.base ** (-pairs / shape.rotated),
    )
    return angles.cos(), angles.sin()


def _rotate(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate queries or keys [batch, heads, tokens, head width] by their positions."""
    cosines, sines = angles
    count = 2 * cosines.shape[1]
    even, odd = x[..., 0:count:2], x[..., 1:count:2]
    turned = torch.stack((even * cosines - odd * sines, even * sines + odd * cosines), -1)
    turned = turned.flatten(-2)
    return turned if count == x.shape[-1] else torch.cat((turned, x[..., count:]), -1)
