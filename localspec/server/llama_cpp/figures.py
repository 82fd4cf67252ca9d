"""`/slots` and `/metrics`: what the server does, and did."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from localspec import Engine
from localspec.server.failures import ApiError
from localspec.server.llama_cpp.texts import reply
from localspec.server.service import Service

_SIZES = (1, 2, 3, 4, 8, 16)
"""Tokens of a pass whose cost is told."""


async def slots(service: Service, request: Request) -> Response:
    """What every slot does. Prompts and answers are not told.

    Raises:
        ApiError: the server was told not to say that.
    """
    if not service.options.slots:
        raise ApiError(501, "Slots are not shown here. Start the server without --no-slots.")
    engine = service.engine()
    found = []
    for number in range(service.gate.slots):
        slot: dict[str, Any] = {
            "id": number,
            "n_ctx": engine.context_length,
            "speculative": engine.draft is not None,
            "is_processing": number in service.activity.slots,
        }
        working = service.activity.slots.get(number)
        if working is not None:
            stats = working.stream.stats
            slot |= {
                "id_task": working.number,
                "n_prompt_tokens": stats.prompt_tokens,
                "n_prompt_tokens_cache": stats.cached_tokens,
                "next_token": [{"has_next_token": True, "n_decoded": stats.generated_tokens}],
            }
        found.append(slot)
    return reply(found)


async def metrics(service: Service, request: Request) -> Response:
    """All figures, as Prometheus reads them."""
    service.require_started()
    engine = service.host.engine  # a model that makes embeddings alone has none
    lines = [*_llama_cpp(service), *([] if engine is None else _own(service, engine))]
    return Response("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")


def _llama_cpp(service: Service) -> Iterator[str]:
    totals, gate = service.activity.totals, service.gate
    counters = {
        "prompt_tokens_total": ("Prompt tokens read, without cached ones.", totals.prompt_tokens),
        "prompt_tokens_cached_total": ("Prompt tokens that were cached.", totals.cached_tokens),
        "prompt_seconds_total": ("Seconds of reading prompts.", totals.prompt_seconds),
        "tokens_predicted_total": ("Tokens generated.", totals.generated_tokens),
        "tokens_predicted_seconds_total": ("Seconds of generating.", totals.decode_seconds),
        "n_decode_total": ("Passes of the model.", totals.passes),
        "n_tokens_max": ("Most tokens of a prompt and its answer.", totals.longest),
        "spec_decode_num_draft_tokens_total": ("Tokens drafted.", totals.drafted),
        "spec_decode_num_accepted_tokens_total": ("Drafted tokens accepted.", totals.accepted),
        "spec_decode_num_drafts_total": ("Passes that verified a draft.", totals.drafts),
    }
    later = totals.generated_tokens - sum(totals.answers.values())
    gauges = {
        "prompt_tokens_seconds": (
            "Prompt tokens per second.",
            _ratio(totals.prompt_tokens, totals.prompt_seconds),
        ),
        "predicted_tokens_seconds": (
            "Generated tokens per second.",
            _ratio(max(0, later), totals.decode_seconds),
        ),
        "requests_processing": ("Answers that are written.", gate.running),
        "requests_deferred": ("Answers that wait.", gate.waiting),
        "n_busy_slots_per_decode": ("Busy slots per pass.", _ratio(totals.steps, totals.rounds)),
    }
    for name, (about, value) in counters.items():
        yield from _metric(f"llamacpp:{name}", "counter", about, [({}, value)])
    for name, (about, value) in gauges.items():
        yield from _metric(f"llamacpp:{name}", "gauge", about, [({}, value)])
    if totals.accepted_per_position:
        yield from _metric(
            "llamacpp:spec_decode_num_accepted_tokens_per_pos_total",
            "counter",
            "Drafted tokens accepted, by position.",
            [({"position": str(i)}, n) for i, n in enumerate(totals.accepted_per_position)],
        )


def _own(service: Service, engine: Engine) -> Iterator[str]:
    totals = service.activity.totals
    yield from _metric(
        "localspec:answers_total",
        "counter",
        "Answers, by how they ended.",
        [({"finish": name}, count) for name, count in sorted(totals.answers.items())],
    )
    yield from _metric(
        "localspec:requests_total",
        "counter",
        "HTTP requests.",
        [({}, service.common.traffic.requests)],
    )
    yield from _metric(
        "localspec:requests_refused_total",
        "counter",
        "HTTP requests answered with an error.",
        [({}, service.common.traffic.refused)],
    )
    drafters = sorted(totals.by_drafter.items())
    yield from _metric(
        "localspec:drafted_tokens_total",
        "counter",
        "Tokens drafted, by who proposed them.",
        [({"drafter": source}, counts.drafted) for source, counts in drafters],
    )
    for name in ("tested", "accepted"):
        yield from _metric(
            f"localspec:{name}_tokens_total",
            "counter",
            f"Tokens {name}, by who proposed them and their position in the draft, from 0.",
            [
                ({"drafter": source, "position": str(position)}, count)
                for source, counts in drafters
                for position, count in enumerate(getattr(counts, f"{name}_per_position"))
            ],
        )
    curve = engine.profile.target
    if curve:
        yield from _metric(
            "localspec:pass_seconds",
            "gauge",
            "What a pass over so many tokens costs now, T(n).",
            [({"tokens": str(n)}, curve.seconds(n, 0) * curve.pace) for n in _SIZES],
        )
    yield from _metric(
        "localspec:queue_limit",
        "gauge",
        "Answers that may wait.",
        [({}, service.options.max_queue)],
    )


def _metric(
    name: str, kind: str, about: str, values: Iterable[tuple[Mapping[str, str], float]]
) -> Iterator[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {kind}"
    for labels, value in values:
        told = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        yield f"{name}{{{told}}} {value:.12g}" if told else f"{name} {value:.12g}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _ratio(one: float, other: float) -> float:
    return one / other if other else 0.0
