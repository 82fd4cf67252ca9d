"""All checks in turn, on an open engine."""

from __future__ import annotations

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
from localspec.verify.greedy import PlainReference, check_greedy
from localspec.verify.sampled import check_sampled
from localspec.verify.subject import Subject
from localspec.verify.under_grammar import check_grammar

CHECKS = ("greedy", "sampled", "KV cache", "grammar")
LEAST_CONTEXT = 512
"""Tokens: a prompt has a quarter of it at most, an answer up to 128."""
_UNTIL = {"greedy": 0.45, "sampled": 0.7, "KV cache": 0.9, "grammar": 1.0}
"""When each check should be over, as a share of all the time."""


def begun(engine: Engine, options: ModelOptions, effort: Effort, command: str) -> Certificate:
    """A certificate without checks yet; reads the files as a whole. A UsageError if the context is
    too short."""
    if engine.context_length < LEAST_CONTEXT:
        raise UsageError(
            f"The context of {engine.context_length} tokens is too short to verify anything in. "
            f"Give --ctx {LEAST_CONTEXT} or more."
        )
    from localspec.llama.library import default_threads

    return Certificate(
        machine=this_machine(options.fixed_threads or default_threads()),
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
        missing=CHECKS,
    )


def examine(
    engine: Engine, effort: Effort, certificate: Certificate, tell: Callable[[str], None]
) -> None:
    """Do the checks, and note each in the certificate as soon as it is done. `tell` may raise
    KeyboardInterrupt; the certificate has what was done until then."""
    subject, started = Subject(engine, tell), perf_counter()
    reference = PlainReference()

    def deadline(check: str) -> Deadline:
        if effort.seconds is None:
            return Deadline(None)
        return Deadline(_UNTIL[check] * effort.seconds - (perf_counter() - started))

    def greedy() -> Outcome:
        nonlocal reference
        outcome, reference = check_greedy(subject, effort, deadline("greedy"))
        return outcome

    checks: dict[str, Callable[[], Outcome]] = {
        "greedy": greedy,
        "sampled": lambda: check_sampled(subject, reference.answers, effort, deadline("sampled")),
        "KV cache": lambda: check_cache_state(subject, reference, effort, deadline("KV cache")),
        "grammar": lambda: check_grammar(subject, effort, deadline("grammar"), reference.noise),
    }
    for name in CHECKS:
        try:
            outcome = checks[name]()
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
