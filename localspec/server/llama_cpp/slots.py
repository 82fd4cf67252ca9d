"""`/slots/{id}?action=save|restore|erase`: what was read of a conversation, kept in a file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from localspec import Engine
from localspec.errors import SessionError
from localspec.server.failures import ApiError
from localspec.server.llama_cpp.texts import reply
from localspec.server.service import Service
from localspec.server.turns import in_turn
from localspec.server.wire import Record

_LONGEST_NAME = 200


class SlotRequest(Record):
    filename: str = ""
    model: str | None = None


async def act(service: Service, request: Request) -> Response:
    """Save, restore or erase a slot."""
    body = await service.read_bytes(request)
    wanted = SlotRequest() if not body else await service.parsed(body, SlotRequest)
    engine = await service.open(wanted.model or request.query_params.get("model"))
    number = request.path_params["number"]
    if number >= service.gate.slots:
        raise ApiError(
            400, f"There is no slot {number}. Ask for one from 0 to {service.gate.slots - 1}."
        )
    action = request.query_params.get("action")
    if action == "erase":
        erased = await in_turn(service, request, lambda left: engine.clear())
        return reply({"id_slot": number, "n_erased": erased})
    if action not in ("save", "restore"):
        raise ApiError(
            400, "action is missing or unknown. Give save, restore or erase.", param="action"
        )
    path = _path(service, wanted.filename)
    work = _saved if action == "save" else _restored
    try:
        told = await in_turn(service, request, lambda left: work(engine, path))
    except SessionError as error:
        raise ApiError(400, str(error)) from None
    return reply({"id_slot": number, "filename": wanted.filename, **told})


def _path(service: Service, name: str) -> Path:
    """Where a slot is kept.

    Raises:
        ApiError: nowhere, or the name is none of a file in that folder.
    """
    folder = service.options.slot_save_path
    if folder is None:
        raise ApiError(
            501, "There is no folder for slots. Start the server with --slot-save-path DIR."
        )
    plain = name.isprintable() and not name.startswith(".") and not set(name) & set('/\\:*?"<>|')
    if not name or not plain or len(name) > _LONGEST_NAME:
        raise ApiError(
            400,
            "filename is not a plain name. Give one without folders, such as fox.bin.",
            param="filename",
        )
    return folder / name


def _saved(engine: Engine, path: Path) -> dict[str, Any]:
    started = time.perf_counter()
    tokens = engine.save_session(path)
    return {
        "n_saved": tokens,
        "n_written": path.stat().st_size,
        "timings": {"save_ms": (time.perf_counter() - started) * 1e3},
    }


def _restored(engine: Engine, path: Path) -> dict[str, Any]:
    started = time.perf_counter()
    if not path.is_file():
        raise SessionError("There is no file of that name. Save a slot first.")
    engine.clear()
    found = engine.open_session(path)
    if not found.tokens:
        raise SessionError(" ".join(found.notices) or "There is nothing in that file.")
    return {
        "n_restored": found.tokens,
        "n_read": path.stat().st_size,
        "timings": {"restore_ms": (time.perf_counter() - started) * 1e3},
    }
