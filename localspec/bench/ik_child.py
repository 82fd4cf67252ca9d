"""ik_llama.cpp in a process of its own: its libraries have the names of llama.cpp's.

    python ik_child.py MODEL CONTEXT THREADS

Each line of stdin is [token ids, most tokens, temperature, seed]; what comes back is [token ids,
seconds from the first of them to the last]. The package's own `generate` looks at every logit in
Python, which would be most of the time: here numpy does.
"""

from __future__ import annotations

import json
import sys
from time import perf_counter
from typing import Any

import numpy as np

TOP_K = 40


def main() -> None:
    """Open the model with its weights repacked, say so, and answer until stdin ends."""
    import ik_llama_cpp._ctypes_api as native  # brings the libraries

    path, context, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    native.llama_backend_init()
    how = native.llama_model_default_params()
    how.use_mmap, how.repack_tensors, how.n_gpu_layers = False, True, 0
    model = native.llama_model_load_from_file(path.encode(), how)
    params = native.llama_context_default_params()
    params.n_ctx, params.n_batch, params.flash_attn = context, 512, True
    params.n_threads = params.n_threads_batch = threads
    if not model or not (handle := native.llama_init_from_model(model, params)):
        raise SystemExit("ik_llama.cpp cannot open the model")
    size = native.llama_vocab_n_tokens(native.llama_model_get_vocab(model))
    batch = native.llama_batch_init(512, 0, 1)
    print("ready", flush=True)
    for line in sys.stdin:
        tokens, most, temperature, seed = json.loads(line)
        random = np.random.default_rng(seed)
        native.llama_kv_cache_clear(handle)
        ids: list[int] = []
        times: list[float] = []
        position, pending = 0, tokens
        while len(ids) < most:
            for start in range(0, len(pending), 512):
                part = pending[start : start + 512]
                fill(batch, part, position)
                if native.llama_decode(handle, batch):
                    raise SystemExit("ik_llama.cpp failed in a pass")
                position += len(part)
            row = np.ctypeslib.as_array(native.llama_get_logits_ith(handle, -1), (size,))
            pending = [chosen(row, temperature, random)]
            times.append(perf_counter())
            ids += pending
            if native.llama_token_is_eog(model, pending[0]):
                break
        print(json.dumps([ids, times[-1] - times[0] if times else 0.0]), flush=True)


def fill(batch: Any, tokens: list[int], position: int) -> None:
    """Make a pass of tokens behind those that are held, with logits for the last."""
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i] = token, position + i
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        batch.logits[i] = i == len(tokens) - 1


def chosen(row: Any, temperature: float, random: np.random.Generator) -> int:
    """The most probable token, or a draw among the TOP_K best."""
    if not temperature:
        return int(row.argmax())
    best = np.argpartition(row, -TOP_K)[-TOP_K:]
    weights = np.exp((row[best] - row[best].max()) / temperature)
    return int(random.choice(best, p=weights / weights.sum()))


if __name__ == "__main__":
    main()
