"""Sizes of a model's parts, from metadata and tensor shapes."""

import platform
import re
from collections import defaultdict

from localspec.gguf.architectures import HYBRID, RECURRENT
from localspec.gguf.damage import MAX_LAYERS
from localspec.gguf.file import Array, GGUFFile, TensorInfo, clamped
from localspec.llama import kernels_file
from localspec.llama.options import DEFAULT_CONTEXT, MAX_SNAPSHOT_DRAFT, MAX_TREE, ModelOptions
from localspec.llama.types import row_bytes

_SNAPSHOTTED = frozenset(
    """
    kimi-k3 qwen35 qwen35moe qwen4exp deepseek4 glm5-next nemotron_h nemotron_h_moe lfm2 lfm2moe
    bailingmoe3
    """.split()
)
_VOCABULARY_ITEM = 165
"""Bytes that llama.cpp allocates per token and per merge (126 to 175)."""
_OVERHEAD = 7 << 20
"""Bytes of graphs, stacks, and localspec's buffers."""

_BLOCK = re.compile(r"blk\.(\d+)\.")
_X86 = frozenset({"Q2_K", "Q4_0", "Q4_K", "IQ4_NL", "MXFP4"})
_ARM = frozenset({"Q4_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4", "Q8_0"})
_REPACKED = _ARM if platform.machine().lower() in ("arm64", "aarch64") else _X86
"""Types that llama.cpp's CPU backend repacks (repack.cpp); fewer on some x86 processors."""

_ATTENDS = frozenset({"attn_q.weight", "attn_k.weight", "attn_qkv.weight", "attn_kv_a_mqa.weight"})
_LINEAR = ("ssm_conv1d_q", "ssm_f_a")
_STATES = ("ssm_", "shortconv", "time_mix", "kda_")


def default_context(file: GGUFFile, options: ModelOptions) -> int:
    """Tokens of context with which a model is opened."""
    return options.context_for(file.own_integer("context_length") or DEFAULT_CONTEXT)


def n_layers(file: GGUFFile) -> int:
    """Number of blocks; `gpu_layers` counts the output as one more."""
    return min(file.count("block_count"), MAX_LAYERS)


class Dimensions:
    """Sizes of a model that is opened as a target with these options. `cells`: of its KV cache."""

    def __init__(self, file: GGUFFile, options: ModelOptions) -> None:
        self.file, self.options = file, options
        self.n_layers, self.width = n_layers(file), file.count("embedding_length")
        self.cells = -(-default_context(file, options) // 256) * 256  # llama.cpp rounds up
        self.vocabulary = len(file.array("tokenizer.ggml.tokens") or ())
        self.by_layer: dict[int, dict[str, TensorInfo]] = defaultdict(dict)
        for tensor in file.tensors:
            layer = self.layer_of(tensor)
            if layer is not None:
                self.by_layer[layer][tensor.name.split(".", 2)[2]] = tensor

    @staticmethod
    def layer_of(tensor: TensorInfo) -> int | None:
        found = _BLOCK.match(tensor.name)
        return None if found is None else int(found[1])

    def uses_kernels(self, tensor: TensorInfo) -> bool:
        """Whether localspec's kernels will copy a tensor, and release its mapped pages; a guess."""
        used = self.options.kernels != kernels_file.OFF and kernels_file.expected() is not None
        return used and tensor.type in kernels_file.TYPES and self._multiplies(tensor)

    def _multiplies(self, tensor: TensorInfo) -> bool:
        if len(tensor.shape) < 2 or not tensor.name.endswith(".weight"):
            return False
        return tensor.name != "token_embd.weight" or self.file.tied

    def is_repacked(self, tensor: TensorInfo) -> bool:
        repacked = tensor.type in _REPACKED and self._multiplies(tensor)
        return repacked and tensor.shape[1] % 8 == 0

    def kv(self) -> list[int]:
        """Bytes of KV cache and states, by layer."""
        return [self._attention(layer) + self._state(layer) for layer in range(self.n_layers)]

    def _attention(self, layer: int) -> int:
        tensors = self.by_layer.get(layer, {})
        shared = self.file.count("attention.shared_kv_layers")
        if self.file.architecture == "gemma3n":
            shared = max(0, self.n_layers - 20)
        uncached = max(shared, self.file.count("nextn_predict_layers"))  # the last layers
        if layer >= self.n_layers - uncached or not _ATTENDS & tensors.keys():
            return 0
        if self.file.architecture in HYBRID and self._recurs(layer):
            # Linear attention has tensors with these names, too, but no cache.
            linear = any(name.startswith(_LINEAR) for name in tensors)
            if linear or "attn_q.weight" not in tensors:
                return 0
        keys, values = self._widths(layer, tensors)
        if "attn_kv_a_mqa.weight" in tensors and self.file.count("attention.key_length_mla"):
            # One latent vector per token represents keys and values.
            keys, values = self.file.count("attention.key_length"), 0
        norm = tensors.get("indexer.k_norm.weight")  # sparse attention has keys to choose tokens
        chosen_by = sum(norm.shape[:1]) if norm is not None else 0
        k_type, v_type = self.options.kv_type_k, self.options.kv_type_v
        return self.cells * (
            row_bytes(k_type, keys) + row_bytes(v_type, values) + row_bytes(k_type, chosen_by)
        )

    def _widths(self, layer: int, tensors: dict[str, TensorInfo]) -> tuple[int, int]:
        own = [tensors.get(name) for name in ("attn_k.weight", "attn_v.weight")]
        keys = own[0].shape[1] if own[0] is not None and len(own[0].shape) > 1 else 0
        values = own[1].shape[1] if own[1] is not None and len(own[1].shape) > 1 else keys
        if keys:
            return keys, values
        heads = self._at(layer, "attention.head_count")
        kv_heads = self._at(layer, "attention.head_count_kv", heads)
        width = self.width // heads if heads else 0
        return (
            kv_heads * self._at(layer, "attention.key_length", width),
            kv_heads * self._at(layer, "attention.value_length", width),
        )

    def _at(self, layer: int, key: str, default: int = 0) -> int:
        value = self.file.own(key)
        if isinstance(value, Array):
            value = value[layer] if layer < len(value) else None
        return clamped(value) if isinstance(value, int) else default

    def _recurs(self, layer: int) -> bool:
        return any(name.startswith(_STATES) for name in self.by_layer.get(layer, {}))

    def _state(self, layer: int) -> int:
        """Bytes of a recurrent layer's states, in f32."""
        if self.file.architecture not in RECURRENT | HYBRID or not self._recurs(layer):
            return 0
        own = self.file.count
        heads = self._at(layer, "attention.head_count") or self._max("attention.head_count")
        conv, inner, state = (own(f"ssm.{k}") for k in ("conv_kernel", "inner_size", "state_size"))
        if own("wkv.head_size"):
            shift = own("token_shift_count") or 2
            numbers = shift * self.width + self.width * own("wkv.head_size")
        elif own("shortconv.l_cache"):
            numbers = self.width * (own("shortconv.l_cache") - 1)
        elif own("kda.head_dim"):
            size = own("kda.head_dim")
            numbers = 3 * max(0, (conv or 4) - 1) * heads * size + size * size * heads
        else:
            groups = own("ssm.group_count")
            numbers = max(0, conv - 1) * (inner + 2 * groups * state) + state * inner
        copies = 1 + (MAX_SNAPSHOT_DRAFT if self.file.architecture in _SNAPSHOTTED else 0)
        return max(0, numbers) * 4 * copies

    def _max(self, key: str) -> int:
        return max(map(clamped, self.file.numbers(key)), default=0)

    def compute(self) -> int:
        """Bytes of the largest graph: a prefill chunk, or the logits of a tree, and their mask."""
        batch, width = self.options.batch, self.width
        inner = self._feed_forward()
        heads = self._max("attention.head_count")
        if self.options.flash_attention != "off":
            mask, scores = 2 * batch * self.cells, 0
            if self.file.own_integer("attention.sliding_window"):
                mask *= 2  # a second one for the window
        else:
            mask, scores = 4 * batch * self.cells, 4 * batch * self.cells * heads
        if self.file.architecture in RECURRENT:
            mask = scores = 0
        layer = 4 * batch * 3 * (inner + width)
        rows = min(batch, MAX_TREE + 1) * 4 * (self.vocabulary + width)
        return mask + max(layer, rows, scores)

    def _feed_forward(self) -> int:
        """Width of a token's widest feed-forward layer, summed over its experts."""
        inner = self._max("feed_forward_length")
        experts = self.file.count("expert_used_count") * self._max("expert_feed_forward_length")
        experts += self._max("expert_shared_feed_forward_length")
        return max(inner, experts, 2 * self.file.count("ssm.inner_size"))

    def overhead(self) -> int:
        """Bytes of logits, vocabulary and small buffers."""
        items = self.vocabulary + len(self.file.array("tokenizer.ggml.merges") or ())
        return (MAX_TREE + 1) * 4 * self.vocabulary + _VOCABULARY_ITEM * items + _OVERHEAD
