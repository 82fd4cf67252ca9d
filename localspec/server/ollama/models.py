"""`/api/tags`, `/api/ps`, `/api/show` and `/api/version`: what there is."""

from __future__ import annotations

import hashlib
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from localspec import Engine
from localspec.gguf.names import quant_of
from localspec.server.llama_cpp.texts import settings_of
from localspec.server.model_host import ModelHost
from localspec.server.service import Service
from localspec.server.wire import Record

VERSION = "0.12.0"
"""Of ollama, whose clients ask for it: the protocol as it was then."""


class ShowRequest(Record):
    model: str | None = None
    name: str | None = None


async def tags(service: Service, request: Request) -> Response:
    """The models there are."""
    service.require_started()
    return JSONResponse({"models": [_described(host) for host in service.common.models.hosts]})


async def ps(service: Service, request: Request) -> Response:
    """The models that are loaded."""
    service.require_started()
    loaded = []
    for host in service.common.models.hosts:
        if host.engine is not None:
            more = {"expires_at": "9999-12-31T23:59:59Z", "size_vram": 0}
            context = {"context_length": host.engine.context_length}
            loaded.append({**_described(host), **more, **context})
    return JSONResponse({"models": loaded})


async def show(service: Service, request: Request) -> Response:
    """What a model is."""
    wanted = await service.read(request, ShowRequest)
    engine = await service.open(wanted.model or wanted.name)
    can = ["completion", *(["tools"] if engine.prompts.knows_tools else [])]
    if engine.prompts.sees_images:
        can.append("vision")
    if {"pre", "suf", "mid"} <= engine.model.vocabulary.filling().keys():
        can.append("insert")
    parameters = settings_of(service.defaults)
    return JSONResponse(
        {
            "modelfile": "",
            "parameters": "\n".join(f"{k} {v}" for k, v in parameters.items() if k != "logit_bias"),
            "template": engine.model.chat_template or "",
            "details": _details(service.host),
            "model_info": dict(engine.model.metadata) | {"general.architecture": _family(engine)},
            "capabilities": can,
            "modified_at": _modified(engine.model.path),
        }
    )


async def version(service: Service, request: Request) -> Response:
    """The version of the protocol."""
    return JSONResponse({"version": VERSION})


def _described(host: ModelHost) -> dict[str, Any]:
    path = host.path
    assert path is not None, "models that are not loaded have files"
    digest = hashlib.sha256(f"{path}:{path.stat().st_size}".encode()).hexdigest()
    return {
        "name": host.name,
        "model": host.name,
        "modified_at": _modified(path),
        "size": path.stat().st_size,
        "digest": digest,
        "details": _details(host),
    }


def _details(host: ModelHost) -> dict[str, Any]:
    """What is known of a model; of one that is not loaded, by its name alone."""
    engine = host.engine
    family = "" if engine is None else _family(engine)
    size = "" if engine is None else engine.model.metadata.get("general.size_label", "")
    return {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family],
        "parameter_size": size,
        "quantization_level": quant_of(host.path.name if host.path is not None else ""),
    }


def _family(engine: Engine) -> str:
    return engine.model.metadata.get("general.architecture", "")


def _modified(path: Path) -> str:
    return datetime.fromtimestamp(path.stat().st_mtime, timezone.utc).isoformat()
