"""Small files that look like models, to be judged in pairs; nobody loads them."""

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

from tests.gguf.raw import ARRAY, STRING, Tensor, array, key, keyed, write_model
from tests.support.gguf_files import within

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
    """Write a model; by default, models differ only in width and layers."""
    special = {"bos": 0, "eos": 1} if special is None else special
    if types is None:
        types = [3 if i in controls else 1 for i in range(len(tokens))]
    own = {"embedding_length": width, "block_count": layers, "context_length": context}
    own |= {"attention.head_count": 4, "attention.head_count_kv": 2}
    own |= zip(("expert_count", "expert_used_count"), experts or (None, None), strict=True)
    ids = {f"{which}_token_id": token for which, token in special.items()}
    kinds = {"model": tokenizer, "pre": pre, "add_bos_token": add_bos, "token_type": types}
    more = within("tokenizer.ggml", kinds | ids)
    more |= {"tokenizer.chat_template": template, "general.name": name}
    # Some are bytes that are not UTF-8.
    spelled = key("tokenizer.ggml.tokens", ARRAY, array(STRING, tokens))
    shapes: list[tuple[str, tuple[int, ...]]] = [("token_embd.weight", (width, len(tokens)))]
    for layer in range(layers):
        shapes += [(f"blk.{layer}.attn_{part}.weight", (width, width // 2)) for part in "kv"]
        shapes.append((f"blk.{layer}.attn_q.weight", (width, width)))
        if experts is not None:
            shapes.append((f"blk.{layer}.ffn_up_exps.weight", (width, width, experts[0])))
    tensors, offset = [], 0
    for tensor, shape in shapes:
        tensors.append(Tensor(tensor, shape, offset=offset))
        offset += -(-prod(shape) * 4 // 32) * 32
    keys = [*keyed(more), spelled]
    return write_model(
        path, architecture=architecture, own=own, more=keys, tensors=tensors, data=offset
    )
