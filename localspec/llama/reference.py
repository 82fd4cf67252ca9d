from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import llama_cpp
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from localspec.errors import ModelNotFound, NativeError
from localspec.llama import kernels, library
from localspec.llama.vocabulary import Vocabulary


class Reference:
    """llama-cpp-python's own `Llama`, for comparison; it drafts up to `lookup` tokens by prompt
    lookup. `lookups`, `drafted`: searches in the last answer, and tokens drafted. A ModelNotFound
    or NativeError if it cannot be opened."""

    def __init__(
        self,
        path: Path,
        *,
        context: int,
        threads: int,
        gpu_layers: int = -1,
        lookup: int | None = None,
    ) -> None:
        if not path.is_file():
            raise ModelNotFound(f"There is no file {path}. Check the path.")
        self.lookups = self.drafted = 0
        finder = None if lookup is None else LlamaPromptLookupDecoding(num_pred_tokens=lookup)

        def look_up(tokens: Any) -> Any:
            assert finder is not None
            found = finder(tokens)
            self.lookups += 1
            self.drafted += len(found)
            return found

        library.start()
        try:
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
        except (ValueError, OSError, RuntimeError) as error:
            raise NativeError(
                f"llama-cpp-python cannot open {path}: {error}. Run with -v to see llama.cpp's log."
            ) from None
        self.vocabulary = Vocabulary(llama_cpp.llama_model_get_vocab(self._llama.model))

    def tokens(
        self, prompt: Sequence[int], *, temperature: float, seed: int
    ) -> Generator[int, None, None]:
        """The tokens of an answer from an empty cache, also after its end; a NativeError if a pass
        fails."""
        self._llama.reset()
        self._llama.set_seed(seed)
        self.lookups = self.drafted = 0
        answer = self._llama.generate(
            prompt, temp=temperature, top_k=40, top_p=0.95, min_p=0.05, repeat_penalty=1.0
        )
        with closing(answer):
            try:
                yield from answer
            except (ValueError, RuntimeError) as error:
                raise NativeError(
                    f"llama-cpp-python stopped in the middle of an answer: {error}. "
                    "If the context is full, give a longer one (--ctx)."
                ) from None

    def close(self) -> None:
        self._llama.close()
