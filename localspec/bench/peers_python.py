"""Python libraries as arms: llama-cpp-python's `Llama`, and transformers' assisted generation."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import closing
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

from localspec.bench.samples import BenchPrompt, Sample
from localspec.errors import NativeError, UsageError

LOOKUPS = (None, 10, 2)
"""Draft lengths of `PythonLlama`: none, its default, and what its README advises for CPUs."""

_DEFAULT_LOOKUP = 10


class PythonLlama:
    """llama-cpp-python's `Llama.generate`, plain or with prompt lookup decoding."""

    family = "llama-cpp-python"

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
        """Open the model.

        Args:
            target: a GGUF file.
            tokenize: raw text to token ids, BOS included.
            threads, context, gpu_layers: as localspec's ModelOptions.
            lookup: draft up to this many tokens by prompt lookup; None decodes plainly.

        Raises:
            ModelNotFound, NativeError: it cannot be opened.
        """
        from localspec.llama.reference import Reference

        how = "plain" if lookup is None else f"prompt lookup {lookup}"
        self.name = f"llama-cpp-python {how}" + (" (default)" if lookup == _DEFAULT_LOOKUP else "")
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

    def begin_turn(self) -> None:
        """Nothing: it knows of one answer only."""

    def generate(
        self, prompt: BenchPrompt, *, temperature: float, seed: int, max_tokens: int, turn: int
    ) -> Sample:
        """Answer one prompt.

        Raises:
            NativeError: a pass failed.
        """
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
            arm=self.name,
            suite=prompt.suite,
            prompt=prompt.id,
            temperature=temperature,
            turn=turn,
            tokens=tokens,
            seconds=ended - started,
            passes=passes,
            drafted=reference.drafted,
            accepted=tokens - passes,
            text=text,
            token_ids=tuple(ids),
        )

    def close(self) -> None:
        """Free the model."""
        self._reference.close()


def why_no_transformers(target: Path | None) -> str | None:
    """The reason why `Transformers` cannot take part, None where it can.

    Args:
        target: the folder of a Hugging Face model, or a GGUF file.
    """
    # transformers wants accelerate for a GGUF, and says so only when it opens one.
    wanted = ("torch", "transformers", "accelerate")
    missing = [name for name in wanted if find_spec(name) is None]
    if missing:
        return f"{' and '.join(missing)} not installed (pip install {' '.join(wanted)})"
    if target is None or not target.exists():
        return "no model in Hugging Face format was named"
    if target.is_file() and find_spec("gguf") is None:
        return "transformers reads GGUF with the package gguf (pip install '.[bench]')"
    return None


class Transformers:
    """transformers' assisted generation; plain without a draft model."""

    family = "transformers"

    def __init__(
        self,
        target: Path,
        draft: Path | None,
        *,
        tokenize: Callable[[str], list[int]],
        ends: Callable[[int], bool],
        threads: int,
    ) -> None:
        """Open the models.

        Args:
            target, draft: folders in Hugging Face format, or GGUF files (whose weights are then
                computed with in f32).
            tokenize: raw text to token ids, BOS included; localspec's, the same ids for both.
            ends: whether a token ends an answer.
            threads: of torch.

        Raises:
            UsageError: a part is missing; see `why_no_transformers`.
            NativeError: a model cannot be opened.
        """
        reason = why_no_transformers(target)
        if reason is not None:
            raise UsageError(f"transformers cannot take part: {reason}.")
        self.name = "transformers " + ("plain" if draft is None else "assisted")
        paths = [str(path) for path in (target, draft) if path is not None]
        self.command = "model.generate(…, assistant_model=…) of " + shlex.join(paths)
        self._torch: Any = import_module("torch")
        self._torch.set_num_threads(threads)
        self._tokenize, self._ends = tokenize, ends
        self._target = self._open(target)
        self._draft = None if draft is None else self._open(draft)

    def begin_turn(self) -> None:
        """Nothing: it knows of one answer only."""

    def generate(
        self, prompt: BenchPrompt, *, temperature: float, seed: int, max_tokens: int, turn: int
    ) -> Sample:
        """Answer one prompt.

        Raises:
            NativeError: the library gave up.
        """
        torch, ids = self._torch, self._tokenize(prompt.text)
        clock = _TimingStreamer()
        vocabulary = range(int(self._target.config.vocab_size))
        options: dict[str, Any] = {"do_sample": False}
        if temperature > 0:
            options = {"do_sample": True, "temperature": temperature, "top_k": 40}
            options |= {"top_p": 0.95, "min_p": 0.05}
        torch.manual_seed(seed)
        try:
            output = self._target.generate(
                torch.tensor([ids], device=self._target.device),
                max_new_tokens=max_tokens,
                assistant_model=self._draft,
                streamer=clock,
                eos_token_id=[token for token in vocabulary if self._ends(token)],
                **options,
            )
        except (RuntimeError, ValueError, TypeError) as error:
            raise NativeError(f"{self.name} gave up: {error}") from None
        answer = tuple(int(token) for token in output[0][len(ids) :])
        return Sample(
            arm=self.name,
            suite=prompt.suite,
            prompt=prompt.id,
            temperature=temperature,
            turn=turn,
            tokens=max(0, len(answer) - clock.first),
            seconds=clock.last - clock.started,
            token_ids=answer,
        )

    def close(self) -> None:
        """Drop the models; the collector frees them."""
        self._target = self._draft = None

    def _open(self, path: Path) -> Any:
        loader: Any = import_module("transformers").AutoModelForCausalLM
        folder, options = (path.parent, {"gguf_file": path.name}) if path.is_file() else (path, {})
        try:
            model = loader.from_pretrained(str(folder), **options)
        except (OSError, ValueError, RuntimeError) as error:
            raise NativeError(f"transformers cannot open {path}: {error}") from None
        return model.to("cuda" if self._torch.cuda.is_available() else "cpu").eval()


class _TimingStreamer:
    """A streamer that notes when tokens come: the prompt first, then what each pass brought."""

    def __init__(self) -> None:
        self.calls = 0
        self.first = 0
        self.started = self.last = 0.0

    def put(self, value: Any) -> None:
        """Tokens; those of the first pass, which read the prompt, do not count."""
        self.calls += 1
        self.last = perf_counter()
        if self.calls == 2:
            self.first, self.started = int(value.numel()), self.last

    def end(self) -> None:
        """Nothing is left to show."""
