"""User settings; precedence: defaults < config file < environment < flags."""

import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    field_validator,
)

from localspec import paths
from localspec.decoding.params import SamplingParams
from localspec.drafters.options import Drafting
from localspec.errors import UsageError
from localspec.files import read_toml
from localspec.llama.kernels_file import AUTO, INSTRUCTION_SETS
from localspec.llama.options import ModelOptions, thread_count
from localspec.text import size_in_bytes

PREFIX = "LOCALSPEC_"
"""LOCALSPEC_MODEL sets `model`, and so on. Empty variables are ignored."""


def _validated_by(record: type[Any], *names: str) -> AfterValidator:
    """Validate a value with the dataclass, and its fields, that will hold it."""

    def check(value: Any) -> Any:
        if value is not None:
            record(**dict.fromkeys(names, value))
        return value

    return AfterValidator(check)


def _split(value: Any) -> Any:
    """Split the folders of a variable, separated as in PATH."""
    return [part for part in value.split(os.pathsep) if part] if isinstance(value, str) else value


def _thread_count(value: Any) -> Any:
    return thread_count(value) if isinstance(value, str) else value


def _size(value: Any) -> Any:
    """Validate a size; a plain number is in bytes."""
    value = str(value) if isinstance(value, int) else value
    if isinstance(value, str):
        size_in_bytes(value, "prompt-cache")
    return value


class Settings(BaseModel):
    """Settings of all commands. None means the library's default."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = None
    """As for `--model`; None is the built-in model."""
    draft: str = "auto"
    """A reference, "auto" to choose one for the model, or "none"."""
    drafter: Annotated[str | None, _validated_by(Drafting, "drafter")] = None
    """Name of a drafter, "auto" or "none"."""
    ctx: Annotated[int | None, _validated_by(ModelOptions, "context")] = None
    """Context length in tokens; 0 for the model's trained length."""
    threads: Annotated[
        int | str | None, BeforeValidator(_thread_count), _validated_by(ModelOptions, "threads")
    ] = None
    """A number, or "auto" to choose the fastest at run time."""
    gpu_layers: Annotated[int | None, _validated_by(ModelOptions, "gpu_layers")] = None
    """Layers to offload; -1 for all."""
    kv_type: Annotated[str | None, _validated_by(ModelOptions, "kv_type_k", "kv_type_v")] = None
    """Element type of the KV cache."""
    kernels: Annotated[str | None, _validated_by(ModelOptions, "kernels")] = None
    """"auto" or "off": localspec's own CPU kernels."""
    temperature: Annotated[float | None, _validated_by(SamplingParams, "temperature")] = None
    """0 is greedy."""
    prompt_cache: Annotated[str | None, BeforeValidator(_size)] = None
    """Size on disk, such as "2GB"; "0" stores nothing."""
    model_folders: Annotated[tuple[Path, ...], BeforeValidator(_split)] = ()
    """Folders with models, besides the caches of common tools."""

    @field_validator("*", mode="before")
    @classmethod
    def _not_a_switch(cls, value: Any) -> Any:
        if isinstance(value, bool):  # pydantic reads it as 0 or 1
            raise UsageError("it is true or false. Give a number or a text.")
        return value


NAMES = tuple(Settings.model_fields)


def load_settings(**flags: str | int | float | None) -> Settings:
    """Load the settings from all sources. `flags`: options of the command line; None is unset.
    Raises UsageError, which names the file or variable, if one cannot be read or is invalid."""
    given = {name: value for name, value in flags.items() if value is not None}
    path = paths.config_file()
    if path.exists() and not path.is_file():
        raise UsageError(f"The config file {path} is not a file. Move it away.")
    values = read_toml(path, "config file") if path.exists() else {}
    variables = {name: os.environ.get(PREFIX + name.upper()) for name in NAMES}
    if variables["kernels"] in INSTRUCTION_SETS:  # which `localspec.llama.kernels` reads
        variables["kernels"] = AUTO
    values |= {name: value for name, value in variables.items() if value} | given
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise UsageError(_explain(error, given)) from None
    except UnicodeEncodeError as error:  # a check's message, with a value that is not UTF-8
        raise UsageError(str(error.object)) from None


def _explain(error: ValidationError, given: dict[str, Any]) -> str:
    """Message about the first invalid value, and where it was set."""
    first = error.errors()[0]
    name, value, path = str(first["loc"][0]), first["input"], paths.config_file()
    if first["type"] == "extra_forbidden":
        return (
            f"The config file {path} has an unknown setting '{name}'. "
            f"Choose from {', '.join(NAMES)}."
        )
    cause = first.get("ctx", {}).get("error")
    if name in given:
        return str(cause)
    variable = PREFIX + name.upper()
    where = f"The config file {path}: {name}"
    if os.environ.get(variable):
        where = f"The variable {variable}"
    if isinstance(cause, UsageError):
        return f"{where} is refused: {cause}"
    return f"{where} is {value!r}: {first['msg'].lower()}. Correct it, or remove it."
