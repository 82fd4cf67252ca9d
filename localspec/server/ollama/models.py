"""`/api/tags`, `/api/ps`, `/api/show` and `/api/version`."""

from __future__ import annotations

import hashlib
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from localspec import Engine
from localspec.gguf.names import quant_of
from localspec.prompting.reasoning import reasons
from localspec.server.llama_cpp.texts import settings_of
from localspec.server.model_host import ModelHost
from localspec.server.service import Service
from localspec.server.wire import Record

VERSION = "0.12.0"


class ShowRequest(Record):
    model: str | None = None
    name: str | None = None


async def tags(service: Service) -> Any:
    service.require_started()
    return {"models": [_described(host) for host in service.common.models.hosts]}


async def ps(service: Service) -> Any:
    service.require_started()
    more = {"expires_at": "9999-12-31T23:59:59Z", "size_vram": 0}
    return {
        "models": [
            {**_described(host), **more, "context_length": host.engine.context_length}
            for host in service.common.models.hosts
            if host.engine is not None
        ]
    }


async def show(service: Service, wanted: ShowRequest) -> Any:
    engine = await service.open(wanted.model or wanted.name)
    can = {
        "completion": True,
        "tools": engine.prompts.knows_tools,
        "vision": engine.prompts.sees_images,
        "thinking": reasons(engine.model.chat_template),
        "insert": {"pre", "suf", "mid"} <= engine.model.vocabulary.filling().keys(),
    }
    parameters = settings_of(service.defaults)
    return {
        "modelfile": "",
        "parameters": "\n".join(f"{k} {v}" for k, v in parameters.items() if k != "logit_bias"),
        "template": engine.model.chat_template or "",
        "details": _details(service.host),
        "model_info": dict(engine.model.metadata) | {"general.architecture": _family(engine)},
        "capabilities": [name for name, offered in can.items() if offered],
        "modified_at": _modified(engine.model.path),
    }


async def version(service: Service) -> Any:
    return {"version": VERSION}


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
