"""llama-cpp-python's `Llama` as an arm, plain and with prompt lookup."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from itertools import islice
from pathlib import Path
from time import perf_counter

from localspec.bench.samples import Arm, BenchPrompt, Sample

LOOKUPS = (None, 10, 2)
"""Draft lengths: none, its default, and its README's advice for CPUs."""

_DEFAULT_LOOKUP = 10


class PythonLlama(Arm):
    """llama-cpp-python's `Llama.generate`. `tokenize`: raw text to token ids, BOS included;
    `lookup`: most draft tokens by prompt lookup; None decodes plainly. Raises ModelNotFound,
    NativeError: it cannot be opened."""

    def __init__(
        self,
        target: Path,
        *,
        tokenize: Callable[[str], list[int]],
        threads: int,
        context: int,
        gpu_layers: int = -1,
        lookup: int | None = None,
    ) -> None:
        from localspec.llama.reference import Reference

        how = "plain" if lookup is None else f"prompt lookup {lookup}"
        self.name = f"llama-cpp-python {how}" + (" (default)" if lookup == _DEFAULT_LOOKUP else "")
        self.every_turn = lookup is None
        options = f"n_ctx={context}, n_threads={threads}, n_threads_batch={threads}"
        options += f", n_gpu_layers={gpu_layers}"
        if lookup is not None:
            options += ", logits_all=True"
            options += f", draft_model=LlamaPromptLookupDecoding(num_pred_tokens={lookup})"
        self.command = f"llama_cpp.Llama({str(target)!r}, {options})"
        self._tokenize = tokenize
        self._lookup = lookup
        self._reference = Reference(
            target, context=context, threads=threads, gpu_layers=gpu_layers, lookup=lookup
        )

    def generate(
        self, prompt: BenchPrompt, *, temperature: float, seed: int, max_tokens: int
    ) -> Sample:
        """Answer one prompt. Raises NativeError: a pass failed."""
        reference = self._reference
        vocabulary = reference.vocabulary
        ids: list[int] = []
        started = ended = 0.0
        answer = reference.tokens(self._tokenize(prompt.text), temperature=temperature, seed=seed)
        with closing(answer):
            for token in islice(answer, max_tokens):
                ended = perf_counter()
                started = started or ended
                ids.append(token)
                if vocabulary.ends(token):
                    break
        tokens = max(0, len(ids) - 1)
        text = b"".join(map(vocabulary.piece, ids)).decode("utf-8", "replace")
        # Each pass yields a token of the target's own, but one that the answer's end cut short.
        passes = tokens if self._lookup is None else reference.lookups
        return Sample(
            tokens=tokens,
            seconds=ended - started,
            passes=passes,
            drafted=reference.drafted,
            accepted=tokens - passes,
            text=text,
            token_ids=tuple(ids),
        )

    def close(self) -> None:
        self._reference.close()
