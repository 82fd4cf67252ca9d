from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import llama_cpp
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from localspec.llama import kernels, library
from localspec.llama.vocabulary import Vocabulary


class Reference:
    """llama-cpp-python's own `Llama`, for comparison; it drafts up to `lookup` tokens by prompt
    lookup. `lookups`, `drafted`: searches in the last answer, and tokens drafted. Raises as
    `Llama`."""

    def __init__(
        self,
        path: Path,
        *,
        context: int,
        threads: int,
        gpu_layers: int = -1,
        lookup: int | None = None,
    ) -> None:
        self.lookups = self.drafted = 0
        find = LlamaPromptLookupDecoding(num_pred_tokens=lookup or 0)

        def look_up(tokens: Any) -> Any:
            found = find(tokens)
            self.lookups += 1
            self.drafted += len(found)
            return found

        library.start()
        kernels.status()  # must be decided before the first model
        kernels.take(wanted=False)
        self._llama = llama_cpp.Llama(
            str(path),
            n_ctx=context,
            n_threads=threads,
            n_threads_batch=threads,
            n_gpu_layers=gpu_layers,
            draft_model=None if lookup is None else look_up,
            # Prompt lookup stores all rows of logits, for which this allocates memory.
            # Without a draft it would only slow down plain decoding.
            logits_all=lookup is not None,
            verbose=False,
        )
        self.vocabulary = Vocabulary(llama_cpp.llama_model_get_vocab(self._llama.model))

    def tokens(
        self, prompt: Sequence[int], *, temperature: float, seed: int
    ) -> Generator[int, None, None]:
        """The tokens of an answer from an empty cache, also after its end."""
        self._llama.reset()
        self._llama.set_seed(seed)
        self.lookups = self.drafted = 0
        answer: Generator[int, None, None] = self._llama.generate(
            prompt, temp=temperature, top_k=40, top_p=0.95, min_p=0.05, repeat_penalty=1.0
        )
        return answer

    def close(self) -> None:
        self._llama.close()
