"""Whether the server is there, and which model it has."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from localspec.server.failures import ApiError
from localspec.server.service import Service


async def health(service: Service, request: Request) -> Response:
    """Whether it can answer; 503 with the loaded fraction before."""
    service.engine()
    return JSONResponse({"status": "ok"})


async def models(service: Service, request: Request) -> Response:
    """The models there are."""
    return JSONResponse({"object": "list", "data": [_described(service)]})


async def model(service: Service, request: Request) -> Response:
    """One of them."""
    if request.path_params["name"] != _described(service)["id"]:
        raise ApiError(404, "There is no such model here.", code="model_not_found", param="model")
    return JSONResponse(_described(service))


def _described(service: Service) -> dict[str, Any]:
    engine = service.host.require()
    return {
        "id": service.host.name,
        "object": "model",
        "created": service.host.loaded_at,
        "owned_by": "localspec",
        "meta": {
            "n_vocab": engine.model.vocabulary.size,
            "n_ctx": engine.context_length,
            "n_ctx_train": engine.model.trained_context,
            "n_embd": engine.model.width,
            "size": engine.model.size,
            "draft": None if engine.draft is None else engine.draft.path.stem,
        },
    }
