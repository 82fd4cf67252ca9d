"""Other programs as arms, opened with a pair's files.

llama.cpp's server is in `localspec.bench.llama_server`.
"""

import shlex
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter

from localspec import Engine, ModelOptions
from localspec.bench import ik_child
from localspec.bench.child import ANSWER_TIMEOUT, START_TIMEOUT, Child
from localspec.bench.llama_server import SERVER_CONFIGURATIONS, LlamaServer, needs_draft
from localspec.bench.samples import Arm, PeerSetup, Question, Sample
from localspec.bench.suites import prompt_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """Peers to measure; None skips one. `configurations`: names of llama-server modes, None for all
    that the pair allows; `python`: llama-cpp-python's `Llama`, plain and with prompt lookup;
    `ik_python`: the Python of an environment with ik_llama-cpp-python."""

    llama_server: Path | None = None
    configurations: tuple[str, ...] | None = None
    python: bool = True
    ik_python: Path | None = None


def open_peers(
    engine: Engine, peers: Peers | None, options: ModelOptions, stack: ExitStack
) -> tuple[list[Arm], dict[str, str]]:
    """Peers on the engine's files, closed by `stack`; and why others failed to open, by name."""
    if peers is None:
        return [], {}
    from localspec.llama.cores import default_threads

    setup = PeerSetup(
        target=engine.model.path,
        draft=engine.draft_path,
        tokenize=partial(prompt_tokens, engine),
        piece=engine.model.vocabulary.piece,
        threads=options.fixed_threads or default_threads(),
        context=engine.context_length,
        gpu_layers=options.gpu_layers,
    )
    openings: dict[str, Callable[[], Arm]] = {}
    for how, lookup in LOOKUPS.items() if peers.python else ():
        name = f"llama-cpp-python {how}"
        openings[name] = partial(PythonLlama, name, setup, lookup)
    if peers.ik_python is not None:
        openings["ik_llama-cpp-python"] = partial(IkLlama, peers.ik_python, setup)
    if peers.llama_server is not None:
        named = peers.configurations
        for configuration in SERVER_CONFIGURATIONS if named is None else named:
            flags = SERVER_CONFIGURATIONS[configuration]
            # Skipped without a draft model, even if it was named.
            if setup.draft is not None or not needs_draft(flags):
                openings[f"llama-server {configuration}"] = partial(
                    LlamaServer, peers.llama_server, configuration, flags, setup
                )
    arms: list[Arm] = []
    refused: dict[str, str] = {}
    for name, opening in openings.items():
        try:
            arms.append(opening())
        except Exception as error:  # noqa: PERF203
            # Peers are optional: their failures are reported, not raised.
            refused[name] = str(error) or type(error).__name__
        else:
            stack.callback(_close, arms[-1])
    return arms, refused


def _close(arm: Arm) -> None:
    # A failure here must not lose the report.
    with suppress(Exception):
        arm.close()


LOOKUPS = {"plain": None, "prompt lookup 10 (default)": 10, "prompt lookup 2": 2}
"""Draft lengths by name: none, the package's default, and its README's advice for CPUs."""


class PythonLlama(Arm):
    """llama-cpp-python's `Llama.generate`. `lookup`: maximum draft tokens of prompt lookup; None
    decodes plainly. Raises as that class."""

    def __init__(self, name: str, setup: PeerSetup, lookup: int | None) -> None:
        from localspec.llama.reference import Reference

        self.name, self.every_turn = name, lookup is None
        threads, context = setup.threads, setup.context
        options = f"n_ctx={context}, n_threads={threads}, n_threads_batch={threads}"
        options += f", n_gpu_layers={setup.gpu_layers}"
        if lookup is not None:
            options += ", logits_all=True"
            options += f", draft_model=LlamaPromptLookupDecoding(num_pred_tokens={lookup})"
        self.command = f"llama_cpp.Llama({str(setup.target)!r}, {options})"
        self._tokenize = setup.tokenize
        self._lookup = lookup
        self._reference = Reference(
            setup.target,
            context=context,
            threads=threads,
            gpu_layers=setup.gpu_layers,
            lookup=lookup,
        )

    def generate(self, question: Question) -> Sample:
        reference = self._reference
        vocabulary = reference.vocabulary
        ids: list[int] = []
        started = ended = 0.0
        prompt = self._tokenize(question.prompt.text)
        answer = reference.tokens(prompt, temperature=question.temperature, seed=question.seed)
        with closing(answer):
            for token in islice(answer, question.max_tokens):
                ended = perf_counter()
                started = started or ended
                ids.append(token)
                if vocabulary.ends(token):
                    break
        tokens = max(0, len(ids) - 1)
        text = b"".join(map(vocabulary.piece, ids)).decode("utf-8", "replace")
        # Each pass yields one token beyond the draft, unless the answer ended within the draft.
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


class IkLlama(Arm):
    """Plain decoding by ik_llama.cpp, with weights repacked at run time; the package does not
    support speculative decoding. Runs in another process (`localspec.bench.ik_child`), as its
    libraries have llama.cpp's names. `python`: of an environment with ik_llama-cpp-python. Raises
    LocalspecError."""

    def __init__(self, python: Path, setup: PeerSetup) -> None:
        self.name = "ik_llama-cpp-python repacked plain"
        self._setup, target = setup, str(setup.target)
        # Isolated, as modules in the script's folder have names of the standard library.
        command = [str(python), "-I", ik_child.__file__, target]
        command += [str(setup.threads), str(setup.context)]
        advice = "Name the Python of an environment with ik_llama-cpp-python."
        self._child = Child(self.name, command, advice=advice, piped=True)
        try:
            version = self._child.receive("started", START_TIMEOUT)["version"]
        except BaseException:
            self.close()
            raise
        options = f"n_ctx={setup.context}, n_threads={setup.threads}"
        self.command = (
            f"ik_llama-cpp-python {version}: {shlex.quote(target)}, repack_tensors=True, "
            f"flash_attn=True, {options}"
        )

    def generate(self, question: Question) -> Sample:
        prompt = self._setup.tokenize(question.prompt.text)
        try:
            asked = asdict(question) | {"prompt": prompt}
            reply = self._child.ask(asked, "answered", ANSWER_TIMEOUT)
        except BaseException:
            # Otherwise a late answer would be taken for the next one.
            self.close()
            raise
        ids = tuple(reply["tokens"])
        return Sample(
            tokens=len(ids) - 1,
            seconds=reply["seconds"],
            passes=len(ids) - 1,
            drafted=0,
            accepted=0,
            text=b"".join(map(self._setup.piece, ids)).decode("utf-8", "replace"),
            token_ids=ids,
        )

    def close(self) -> None:
        """End the process; may be repeated."""
        self._child.close()
