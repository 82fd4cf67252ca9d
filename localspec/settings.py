"""What a user set permanently: defaults < config file < environment < flags."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ValidationError
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
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
"""LOCALSPEC_MODEL sets `model`, and so on. An empty variable sets nothing."""


def _judged_by(record: type[Any], *names: str) -> AfterValidator:
    """Check a value by the record, and the fields of it, that will hold it."""

    def check(value: Any) -> Any:
        if value is not None:
            record(**dict.fromkeys(names, value))
        return value

    return AfterValidator(check)


def _split(value: Any) -> Any:
    """Folders in a variable, separated as in PATH."""
    return [part for part in value.split(os.pathsep) if part] if isinstance(value, str) else value


def _thread_count(value: Any) -> Any:
    return thread_count(value) if isinstance(value, str) else value


def _size(value: Any) -> Any:
    """A number in a file is bytes."""
    value = str(value) if isinstance(value, int) else value
    if isinstance(value, str):
        size_in_bytes(value, "prompt-cache")
    return value


def _kernels(value: Any) -> Any:
    """A variable may name an instruction set, which `localspec.llama.kernels` reads for itself."""
    return AUTO if value in INSTRUCTION_SETS else value


class Settings(BaseSettings):
    """Settings for every command. None leaves a value to the library's default."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, extra="forbid", allow_inf_nan=True
    )

    model: str | None = None
    """As for `--model`. None is the embedded model."""
    draft: str = "auto"
    """A reference, "auto" for the one known for the model, or "none"."""
    drafter: Annotated[str | None, _judged_by(Drafting, "drafter")] = None
    """A name, "auto" or "none"."""
    ctx: Annotated[int | None, _judged_by(ModelOptions, "context")] = None
    """Tokens; 0 for the length that the model was trained on."""
    threads: Annotated[
        int | str | None, BeforeValidator(_thread_count), _judged_by(ModelOptions, "threads")
    ] = None
    """A number, or "auto" for as many as are best at present."""
    gpu_layers: Annotated[int | None, _judged_by(ModelOptions, "gpu_layers")] = None
    """-1 for all."""
    kv_type: Annotated[str | None, _judged_by(ModelOptions, "kv_type_k", "kv_type_v")] = None
    """Element type of the KV cache."""
    kernels: Annotated[
        str | None, BeforeValidator(_kernels), _judged_by(ModelOptions, "kernels")
    ] = None
    """"auto" or "off": localspec's own CPU kernels."""
    temperature: Annotated[float | None, _judged_by(SamplingParams, "temperature")] = None
    """0 is greedy."""
    prompt_cache: Annotated[str | None, BeforeValidator(_size)] = None
    """Size on disk, as "2GB"; "0" keeps nothing."""
    model_folders: Annotated[tuple[Path, ...], NoDecode, BeforeValidator(_split)] = ()
    """Where to look for models, besides the caches of the usual tools."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        path = paths.config_file()
        said = read_toml(path) if path.exists() else {}
        return init_settings, env_settings, InitSettingsSource(settings_cls, said)


NAMES = tuple(Settings.model_fields)


def load_settings(**flags: str | int | float | None) -> Settings:
    """All layers put together; `flags` are the command line's, None is unset.

    Raises:
        UsageError: a config file that cannot be read, or an invalid value; names the file or the
            variable it came from.
    """
    said = {name: value for name, value in flags.items() if value is not None}
    path = paths.config_file()
    if path.exists() and not path.is_file():
        raise UsageError(f"The config file {path} is not a file. Move it away.")
    try:
        return Settings(**said)  # type: ignore[arg-type]
    except ValidationError as error:
        raise UsageError(_explained(error, said)) from None
    except OSError as error:
        raise UsageError(
            f"The config file {path} cannot be read: {error.strerror}. Check its permissions."
        ) from None
    except ValueError as error:  # TOML and UTF-8 alike
        raise UsageError(
            f"The config file {path} is not valid TOML: {error}. Correct it, or move it away."
        ) from None


def _explained(error: ValidationError, said: dict[str, Any]) -> str:
    """The first thing that is wrong, and where it was set."""
    first = error.errors()[0]
    name, value, path = str(first["loc"][0]), first["input"], paths.config_file()
    if first["type"] == "extra_forbidden":
        return (
            f"The config file {path} has an unknown setting '{name}'. "
            f"Choose from {', '.join(NAMES)}."
        )
    refused = first.get("ctx", {}).get("error")
    if name in said:
        return str(refused)
    variable = PREFIX + name.upper()
    where = f"The config file {path}: {name}"
    if os.environ.get(variable):
        where = f"The variable {variable}"
    if isinstance(refused, UsageError):
        return f"{where} is refused: {refused}"
    return f"{where} is {value!r}: {first['msg'].lower()}. Correct it, or remove it."
