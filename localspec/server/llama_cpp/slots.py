"""`/slots/{id}?action=save|restore|erase`: the cache of a conversation, saved in a file."""

import time
from pathlib import Path
from typing import Any

from localspec import Engine
from localspec.errors import SessionError
from localspec.server.failures import ApiError
from localspec.server.service import Service
from localspec.server.wire import Record

_LONGEST_NAME = 200


class SlotRequest(Record):
    filename: str = ""
    model: str | None = None


async def act(service: Service, wanted: SlotRequest) -> Any:
    query = service.request.query_params
    engine = await service.open(wanted.model)
    number, last = service.request.path_params["number"], service.host.queue.slots - 1
    if number > last:
        raise ApiError(400, f"There is no slot {number}. Choose one from 0 to {last}.")
    action = query.get("action")
    if action == "erase":
        erased = await service.run_in_slot(lambda disconnected: engine.clear())
        return {"id_slot": number, "n_erased": erased}
    if action not in ("save", "restore"):
        why = "action is missing or unknown. Give save, restore or erase."
        raise ApiError(400, why, param="action")
    path = _path(service, wanted.filename)

    def work(_disconnected: object) -> dict[str, Any]:
        started = time.perf_counter()
        if action == "save":
            figures = {"n_saved": engine.save_session(path), "n_written": path.stat().st_size}
        else:
            figures = {"n_restored": _restore(engine, path), "n_read": path.stat().st_size}
        return {**figures, "timings": {f"{action}_ms": (time.perf_counter() - started) * 1e3}}

    try:
        figures = await service.run_in_slot(work)
    except SessionError as error:
        raise ApiError(400, str(error)) from None
    return {"id_slot": number, "filename": wanted.filename, **figures}


def _path(service: Service, name: str) -> Path:
    folder = service.options.slot_save_path
    if folder is None:
        why = "There is no folder for slots. Start the server with --slot-save-path DIR."
        raise ApiError(501, why)
    plain = name.isprintable() and not name.startswith(".") and not set(name) & set('/\\:*?"<>|')
    if not name or not plain or len(name) > _LONGEST_NAME:
        why = "filename is not a plain name. Give one without folders, such as fox.bin."
        raise ApiError(400, why, param="filename")
    return folder / name


def _restore(engine: Engine, path: Path) -> int:
    if not path.is_file():
        raise SessionError("There is no file of that name. Save a slot first.")
    found = engine.open_session(path)
    if not found.tokens:
        raise SessionError(" ".join(found.notices) or "There is nothing in that file.")
    engine.clear()  # also drops the opened session
    return engine.open_session(path).tokens
