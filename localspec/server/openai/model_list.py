"""`/health` and `/v1/models`."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from localspec.server.model_hosts import ModelHost
from localspec.server.service import Service


async def health(service: Service) -> Any:
    service.require_started()
    return {"status": "ok"}


async def models(service: Service) -> Any:
    service.require_started()
    hosts = service.common.models.hosts
    return {"object": "list", "data": [_described(host) for host in hosts]}


async def model(service: Service) -> Any:
    service.require_started()
    return _described(service.common.models.named(service.request.path_params["name"]))


def _described(host: ModelHost) -> dict[str, Any]:
    engine, model = host.engine, host.model
    about = {
        "id": host.name,
        "object": "model",
        "created": host.loaded_at,
        "owned_by": "localspec",
        # As Anthropic's clients know a model.
        "type": "model",
        "display_name": host.name,
        "lifecycle": "active",
        "created_at": datetime.fromtimestamp(host.loaded_at, timezone.utc).isoformat(),
        "aliases": list(host.offer.aliases),
        "tags": list(host.offer.tags),
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
        draft = None if engine.draft is None else engine.draft.path.stem
        meta |= {"n_ctx": engine.context_length, "draft": draft}
    return {**about, "meta": meta}
