"""`/api/tags`, `/api/ps`, `/api/show` and `/api/version`: what there is."""

from __future__ import annotations

import hashlib
from datetime import datetime, timezone
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from localspec import Engine
from localspec.gguf.names import quant_of
from localspec.server.llama_cpp.texts import settings_of
from localspec.server.service import Service
from localspec.server.wire import Record

VERSION = "0.12.0"
"""Of ollama, whose clients ask for it: the protocol as it was then."""


class ShowRequest(Record):
    model: str | None = None
    name: str | None = None


async def tags(service: Service, request: Request) -> Response:
    """The models there are."""
    return JSONResponse({"models": [_described(service)]})


async def ps(service: Service, request: Request) -> Response:
    """The models that are loaded."""
    engine = service.host.require()
    loaded: dict[str, Any] = {"expires_at": "9999-12-31T23:59:59Z", "size_vram": 0}
    loaded["context_length"] = engine.context_length
    return JSONResponse({"models": [{**_described(service), **loaded}]})


async def show(service: Service, request: Request) -> Response:
    """What a model is."""
    await service.read(request, ShowRequest)
    engine = service.host.require()
    can = ["completion", *(["tools"] if engine.prompts.knows_tools else [])]
    if {"pre", "suf", "mid"} <= engine.model.vocabulary.filling().keys():
        can.append("insert")
    parameters = settings_of(service.defaults)
    return JSONResponse(
        {
            "modelfile": "",
            "parameters": "\n".join(f"{k} {v}" for k, v in parameters.items() if k != "logit_bias"),
            "template": engine.model.chat_template or "",
            "details": _details(engine),
            "model_info": dict(engine.model.metadata) | {"general.architecture": _family(engine)},
            "capabilities": can,
            "modified_at": _modified(engine),
        }
    )


async def version(service: Service, request: Request) -> Response:
    """The version of the protocol."""
    return JSONResponse({"version": VERSION})


def _described(service: Service) -> dict[str, Any]:
    engine = service.host.require()
    path = engine.model.path
    digest = hashlib.sha256(f"{path}:{path.stat().st_size}".encode()).hexdigest()
    return {
        "name": service.host.name,
        "model": service.host.name,
        "modified_at": _modified(engine),
        "size": path.stat().st_size,
        "digest": digest,
        "details": _details(engine),
    }


def _details(engine: Engine) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "gguf",
        "family": _family(engine),
        "families": [_family(engine)],
        "parameter_size": engine.model.metadata.get("general.size_label", ""),
        "quantization_level": quant_of(engine.model.path.name),
    }


def _family(engine: Engine) -> str:
    return engine.model.metadata.get("general.architecture", "")


def _modified(engine: Engine) -> str:
    seconds = engine.model.path.stat().st_mtime
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat()
