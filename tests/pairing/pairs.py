"""Small files that look like models, to be judged in pairs; nobody loads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.gguf.raw import ARRAY, BOOL, STRING, U32, Tensor, array, gguf, key, scalar, text

TOKENS = ("<s>", "</s>", "<|user|>", *"abcdefghij", "<|pad|>")
CONTROLS = (0, 1, 2, 13)


def model(
    path: Path,
    *,
    width: int = 64,
    layers: int = 4,
    tokens: Sequence[str | bytes] = TOKENS,
    controls: Sequence[int] = CONTROLS,
    types: Sequence[int] | None = None,
    tokenizer: str = "gpt2",
    pre: str | None = "gpt-2",
    special: Mapping[str, int] | None = None,
    add_bos: bool | None = True,
    context: int | None = 2048,
    template: str | None = "{{ messages }}",
    name: str | None = "Fox",
    architecture: str = "llama",
    experts: tuple[int, int] | None = None,
) -> Path:
    """Write one: by default all agree, but for width and layers."""
    special = {"bos": 0, "eos": 1} if special is None else special
    if types is None:
        types = [3 if i in controls else 1 for i in range(len(tokens))]
    keys = [
        key("general.architecture", STRING, text(architecture)),
        key(f"{architecture}.embedding_length", U32, scalar(U32, width)),
        key(f"{architecture}.block_count", U32, scalar(U32, layers)),
        key(f"{architecture}.attention.head_count", U32, scalar(U32, 4)),
        key(f"{architecture}.attention.head_count_kv", U32, scalar(U32, 2)),
        key("tokenizer.ggml.model", STRING, text(tokenizer)),
        key("tokenizer.ggml.tokens", ARRAY, array(STRING, tokens)),
        key("tokenizer.ggml.token_type", ARRAY, array(5, types)),
    ]
    keys += [
        key(f"tokenizer.ggml.{which}_token_id", U32, scalar(U32, token))
        for which, token in special.items()
    ]
    if pre is not None:
        keys.append(key("tokenizer.ggml.pre", STRING, text(pre)))
    if add_bos is not None:
        keys.append(key("tokenizer.ggml.add_bos_token", BOOL, scalar(BOOL, add_bos)))
    if context is not None:
        keys.append(key(f"{architecture}.context_length", U32, scalar(U32, context)))
    if template is not None:
        keys.append(key("tokenizer.chat_template", STRING, text(template)))
    if name is not None:
        keys.append(key("general.name", STRING, text(name)))
    shapes: list[tuple[str, tuple[int, ...]]] = [("token_embd.weight", (width, len(tokens)))]
    for layer in range(layers):
        shapes += [(f"blk.{layer}.attn_{part}.weight", (width, width // 2)) for part in "kv"]
        shapes.append((f"blk.{layer}.attn_q.weight", (width, width)))
        if experts is not None:
            shapes.append((f"blk.{layer}.ffn_up_exps.weight", (width, width, experts[0])))
    if experts is not None:
        keys.append(key(f"{architecture}.expert_count", U32, scalar(U32, experts[0])))
        keys.append(key(f"{architecture}.expert_used_count", U32, scalar(U32, experts[1])))
    tensors, offset = [], 0
    for tensor, shape in shapes:
        tensors.append(Tensor(tensor, shape, offset=offset))
        elements = 1
        for size in shape:
            elements *= size
        offset += -(-elements * 4 // 32) * 32
    path.write_bytes(gguf(keys, tensors, offset))
    return path
