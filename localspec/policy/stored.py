"""What is kept on disk is its own record: pydantic checks the fields of these dataclasses."""

from __future__ import annotations

from pydantic import ConfigDict


class Stored:
    __pydantic_config__ = ConfigDict(allow_inf_nan=False)
