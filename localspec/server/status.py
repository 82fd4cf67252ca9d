"""The state of the server: `/health`, `/v1/models`, `/slots` and `/metrics`."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from starlette.responses import Response

from localspec.server.failures import ApiError
from localspec.server.model_hosts import ModelHost
from localspec.server.service import Service

_SIZES = (1, 2, 3, 4, 8, 16)


async def health(service: Service) -> Any:
    return {"status": "ok"}


async def models(service: Service) -> Any:
    hosts = service.state.models.hosts
    found: dict[str, Any] = {"object": "list", "data": [_describe(host) for host in hosts]}
    # Codex, which says its version, wants a list of what it knows about models as well.
    return found | ({"models": []} if "client_version" in service.request.query_params else {})


async def model(service: Service) -> Any:
    return _describe(service.state.models.named(service.request.path_params["name"]))


def _describe(host: ModelHost) -> dict[str, Any]:
    engine, model = host.engine, host.model
    about = {
        "id": host.name,
        "object": "model",
        "created": host.loaded_at,
        "owned_by": "localspec",
        # Fields for Anthropic's clients.
        "type": "model",
        "display_name": host.name,
        "lifecycle": "active",
        "created_at": datetime.fromtimestamp(host.loaded_at, timezone.utc).isoformat(),
        "aliases": list(host.aliases),
        "tags": list(host.tags),
        "status": {"value": "unloaded" if model is None else "loaded"},
    }
    if model is None:
        return about
    meta: dict[str, Any] = {
        "n_vocab": model.vocabulary.size,
        "n_ctx_train": model.trained_context,
        "n_embd": model.width,
        "size": model.size,
    }
    if engine is not None:
        draft = None if engine.draft is None else engine.draft.name
        meta |= {"n_ctx": engine.context_length, "draft": draft}
        names = ("max_model_len", "max_input_tokens")  # vLLM's and Anthropic's
        about |= dict.fromkeys(names, engine.context_length)
    return {**about, "meta": meta}


async def slots(service: Service) -> Any:
    if not service.options.slots:
        raise ApiError(501, "Slots are not shown here. Start the server without --no-slots.")
    engine, queue = service.engine(), service.host.queue
    if service.request.query_params.get("fail_on_no_slot") and queue.running == queue.slots:
        raise ApiError(503, "No slot is free.")
    found = []
    for number in range(queue.slots):
        working = service.host.slots.get(number)
        slot: dict[str, Any] = {
            "id": number,
            "n_ctx": engine.context_length,
            "speculative": engine.drafts,
            "is_processing": working is not None,
        }
        if working is not None:
            task, stream = working
            stats = stream.stats
            slot |= {
                "id_task": task,
                "n_prompt_tokens": stats.prompt_tokens,
                "n_prompt_tokens_cache": stats.cached_tokens,
                "next_token": [{"has_next_token": True, "n_decoded": stats.generated_tokens}],
            }
        found.append(slot)
    return found


async def metrics(service: Service) -> Response:
    """Metrics of the first model, or of the requested one, so that counters never decrease."""
    host = service.state.models.find(service.request.query_params.get("model"))
    lines: list[str] = []
    for name, (about, values) in _metrics(service, host).items():
        kind = "counter" if name.endswith(("_total", "_max")) else "gauge"
        lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
        for labels, value in values if isinstance(values, Sequence) else [({}, values)]:
            pairs = ",".join(f'{key}="{_escape(str(text))}"' for key, text in labels.items())
            lines.append(f"{name}{f'{{{pairs}}}' if pairs else ''} {value:.12g}")
    return Response("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")


_Values = Sequence[tuple[Mapping[str, object], float]]


def _metrics(service: Service, host: ModelHost) -> dict[str, tuple[str, float | _Values]]:
    """Description and value of each metric, or values by labels."""
    totals, queue, state = host.totals, host.queue, service.state
    later = max(0, totals.generated_tokens - sum(totals.answers.values()))
    prompt_speed = _ratio(totals.read_tokens, totals.prompt_seconds)
    speed, busy = _ratio(later, totals.decode_seconds), _ratio(totals.steps, totals.rounds)
    positions = [({"position": n}, count) for n, count in enumerate(totals.accepted_per_position)]
    finished = [({"finish": name}, count) for name, count in sorted(totals.answers.items())]
    drafters = sorted(totals.by_drafter.items())
    curve = host.engine and host.engine.profile.target  # None for an embedding model
    passes = [({"tokens": n}, curve.seconds(n, 0) * curve.pace) for n in _SIZES] if curve else []

    def by_drafter(name: str) -> _Values:
        return [({"drafter": source}, getattr(counts, name)) for source, counts in drafters]

    llama_cpp: dict[str, tuple[str, float | _Values]] = {
        "prompt_tokens_total": ("Prompt tokens prefilled, not cached.", totals.read_tokens),
        "prompt_tokens_cached_total": ("Prompt tokens that were cached.", totals.cached_tokens),
        "prompt_seconds_total": ("Seconds of prefill.", totals.prompt_seconds),
        "prompt_tokens_seconds": ("Prompt tokens per second.", prompt_speed),
        "tokens_predicted_total": ("Tokens generated.", totals.generated_tokens),
        "tokens_predicted_seconds_total": ("Seconds of decoding.", totals.decode_seconds),
        "predicted_tokens_seconds": ("Generated tokens per second.", speed),
        "n_decode_total": ("Passes of the model.", totals.target_passes),
        "n_tokens_max": ("Longest prompt with its answer, in tokens.", totals.longest),
        "n_busy_slots_per_decode": ("Busy slots per pass.", busy),
        "requests_processing": ("Answers being generated.", queue.running),
        "requests_deferred": ("Answers waiting for a slot.", queue.waiting),
        "spec_decode_num_drafts_total": ("Passes that verified a draft.", totals.drafts),
        "spec_decode_num_draft_tokens_total": ("Tokens drafted.", totals.drafted),
        "spec_decode_num_accepted_tokens_total": ("Drafted tokens accepted.", totals.accepted),
        "spec_decode_num_accepted_tokens_per_pos_total": ("Accepted, by position.", positions),
    }
    own: dict[str, tuple[str, float | _Values]] = {
        "answers_total": ("Answers, by finish reason.", finished),
        "requests_total": ("HTTP requests.", state.requests),
        "requests_refused_total": ("HTTP requests answered with an error.", state.refused),
        "drafted_tokens_total": ("Tokens drafted, by drafter.", by_drafter("drafted")),
        "tested_tokens_total": ("Tokens tested, by drafter.", by_drafter("tested")),
        "accepted_tokens_total": ("Tokens accepted, by drafter.", by_drafter("accepted")),
        "pass_seconds": ("Seconds per pass over n tokens, T(n).", passes),
        "queue_limit": ("Limit of waiting answers.", service.options.max_queue),
    }
    tables = ("llamacpp", llama_cpp), ("localspec", own)
    return {f"{room}:{name}": metric for room, table in tables for name, metric in table.items()}


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _ratio(one: float, other: float) -> float:
    return one / other if other else 0.0
