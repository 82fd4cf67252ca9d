"""Run all checks on an open engine."""

from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timezone
from time import perf_counter

from localspec.bench.machine import this_machine
from localspec.engine import Engine
from localspec.errors import Cancelled, UsageError, describe
from localspec.llama.options import ModelOptions
from localspec.verify.cache_state import check_cache_state
from localspec.verify.certificate import Certificate, adapters_of, files_of
from localspec.verify.checks import Deadline, Effort, Outcome
from localspec.verify.greedy import check_grammar, check_greedy
from localspec.verify.sampled import check_sampled
from localspec.verify.subject import Subject

CHECKS: dict[str, tuple[Callable[[Subject, Effort, Deadline], Outcome], float]] = {
    "greedy": (check_greedy, 0.45),
    "sampled": (check_sampled, 0.7),
    "KV cache": (check_cache_state, 0.9),
    "grammar": (check_grammar, 1.0),
}
"""Checks by name, each with the share of the time after which it should end. The first check stores
in the `Subject` the measurements that the others use."""
MIN_CONTEXT = 512
"""Tokens: a prompt takes a quarter at most, an answer up to 128."""


def new_certificate(
    engine: Engine, options: ModelOptions, effort: Effort, command: str
) -> Certificate:
    """A certificate without checks; reads the files completely. A UsageError if the context is too
    short."""
    if engine.context_length < MIN_CONTEXT:
        raise UsageError(
            f"The context of {engine.context_length} tokens is too short to verify anything in. "
            f"Give --ctx {MIN_CONTEXT} or more."
        )
    return Certificate(
        machine=this_machine(options.fixed_threads),
        target=files_of(engine.model.path),
        draft=files_of(engine.draft_path),
        command=command,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        effort=effort.name,
        settings={
            **asdict(effort),
            "context": engine.context_length,
            "threads": options.threads,
            "gpu_layers": options.gpu_layers,
            "kv_type": options.kv_type_k,
            "kernels": engine.model.kernels.words,
            "bit_for_bit": engine.batch_invariant,
            "lora": adapters_of(options.adapters),
            "lora_draft": adapters_of(options.draft_adapters),
        },
        missing=tuple(CHECKS),
    )


def examine(
    engine: Engine, effort: Effort, certificate: Certificate, report: Callable[[str], None]
) -> None:
    """Run the checks, adding each to the certificate as soon as it is done. `report` may raise
    KeyboardInterrupt; the certificate then has the checks done so far."""
    subject, started = Subject(engine, report), perf_counter()
    for name, (check, until) in CHECKS.items():
        left = None
        if effort.seconds is not None:
            left = until * effort.seconds - (perf_counter() - started)
        try:
            outcome = check(subject, effort, Deadline(left))
        except Cancelled:
            raise KeyboardInterrupt from None
        except Exception as error:
            outcome = Outcome(
                check=name,
                faults=(f"It ended in an error: {describe(error)[0]}",),
                summary="An answer could not be given.",
                figures={},
                complete=False,
            )
        certificate.checks.append(outcome)
        certificate.missing = certificate.missing[1:]
        certificate.seconds = perf_counter() - started
