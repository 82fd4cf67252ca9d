"""Answers by ik_llama-cpp-python, run by its Python, which may not have localspec.

    python -I ik_child.py MODEL THREADS CONTEXT

Writes a line of JSON when the model is open, then one per question (`localspec.bench.peers`). Uses
the low-level bindings, as the package's `IkLlama` cannot repack weights.
"""

import json
import os
import sys
from importlib import import_module
from importlib.metadata import version
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

CHUNK = 31
"""Prompt tokens per pass. From 32 on, version 0.1.5 has wrong logits with Q4_1 weights."""
_TOP_K, _TOP_P, _MIN_P = 40, 0.95, 0.05


class _IkModel:
    def __init__(self, path: str, threads: int, context: int) -> None:
        """Open a model; weights are repacked when read. Raises OSError: it cannot be opened."""
        api: Any = import_module("ik_llama_cpp._ctypes_api")
        self._batch: Any = import_module("ik_llama_cpp._internals").make_batch_range
        self._api = api
        api.llama_backend_init()
        params = api.llama_model_default_params()
        params.repack_tensors, params.use_mmap = True, False  # as its -rtr does
        self._model = api.llama_model_load_from_file(os.fsencode(path), params)
        if not self._model:
            raise OSError(f"{path} cannot be opened")
        params = api.llama_context_default_params()
        params.n_ctx, params.flash_attn = context, True
        params.n_threads = params.n_threads_batch = threads
        self._context = api.llama_init_from_model(self._model, params)
        if not self._context:
            raise OSError(f"there is no memory for a context of {context} tokens")
        self._size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))

    def answer(
        self, prompt: list[int], max_tokens: int, temperature: float, seed: int
    ) -> tuple[list[int], float]:
        """Tokens of an answer, its end token included, and the seconds after the first. Raises
        OSError: a pass failed."""
        self._api.llama_kv_cache_clear(self._context)
        generator = np.random.default_rng(seed)
        for start in range(0, len(prompt), CHUNK):
            self._pass(prompt[start : start + CHUNK], start)
        answer = [self._sample(temperature, generator)]
        started = ended = perf_counter()
        while len(answer) < max_tokens:
            if self._api.llama_token_is_eog(self._model, answer[-1]):
                break
            self._pass(answer[-1:], len(prompt) + len(answer) - 1)
            answer.append(self._sample(temperature, generator))
            ended = perf_counter()
        return answer, ended - started

    def _pass(self, tokens: list[int], position: int) -> None:
        batch = self._batch(tokens, pos_start=position)
        status = self._api.llama_decode(self._context, batch)
        self._api.llama_batch_free(batch)
        if status:
            raise OSError(f"a pass over {len(tokens)} tokens failed with status {status}")

    def _sample(self, temperature: float, generator: np.random.Generator) -> int:
        logits = self._api.llama_get_logits_ith(self._context, -1)
        return choose(np.ctypeslib.as_array(logits, (self._size,)), temperature, generator)


def choose(row: npt.NDArray[np.float32], temperature: float, generator: np.random.Generator) -> int:
    """A token by top-k, top-p, min-p and temperature, as llama.cpp; `row`: logits [vocabulary]."""
    if temperature <= 0:
        return int(row.argmax())
    order = np.argsort(-row, kind="stable")[:_TOP_K]
    logits = row[order].astype(np.float64)
    probabilities = np.exp(logits - logits[0])
    probabilities /= probabilities.sum()
    few = int(np.searchsorted(probabilities.cumsum(), _TOP_P)) + 1
    kept = np.flatnonzero(probabilities[:few] >= _MIN_P * probabilities[0])
    weights = np.exp((logits[kept] - logits[0]) / temperature)
    return int(order[generator.choice(kept, p=weights / weights.sum())])


def main() -> None:
    path, threads, context = sys.argv[1:]
    # The library's own output must not mix with the lines of JSON.
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    model = _IkModel(path, int(threads), int(context))
    print(json.dumps({"version": version("ik_llama-cpp-python")}), file=output, flush=True)
    for line in sys.stdin:
        tokens, seconds = model.answer(**json.loads(line))
        print(json.dumps({"tokens": tokens, "seconds": seconds}), file=output, flush=True)


if __name__ == "__main__":
    main()
