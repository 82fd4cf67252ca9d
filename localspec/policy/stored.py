"""Base of the dataclasses that are stored on disk; pydantic checks their fields."""

from pydantic import ConfigDict


class Stored:
    __pydantic_config__ = ConfigDict(allow_inf_nan=False)
