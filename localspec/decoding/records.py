"""Records that are made at every step."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:
    from dataclasses import dataclass

    def record(*, frozen: bool, slots: bool):
        """As `dataclass`, without the guard against changes that `frozen` makes.

        That one costs a Python-level look-up for each field of each new record: 3 µs instead of 1
        for the record of a step, several times that where a pass has just emptied the processor's
        caches. Whoever changes a field is told by mypy.
        """
        assert frozen, "a record that may change is a dataclass"
        return dataclass(slots=slots, unsafe_hash=True)


__all__ = ["record"]
