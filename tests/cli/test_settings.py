"""Defaults < config file < environment < flags."""

import os
from pathlib import Path
from typing import Any

import pytest

from localspec import UsageError, paths
from localspec.cli.request import read_opening
from localspec.cli.verbs import build_command
from localspec.settings import NAMES, PREFIX, load_settings
from tests.cli.conftest import Cli
from tests.support import packages


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of a config file that does not exist yet; all variables are unset."""
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    for name in NAMES:
        monkeypatch.delenv(PREFIX + name.upper(), raising=False)
    path = paths.config_file()
    path.parent.mkdir(parents=True)
    return path


def test_each_layer_overrides_the_previous(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = 'drafter = "ngram"\nkernels = "off"\nkv_type = "q8_0"\ngpu_layers = -1\n'
    text = 'model = "file.gguf"\ndraft = "none"\nthreads = 1\nctx = 512\ntemperature = 0\n'
    config.write_text(text + others)
    assert load_settings().model == "file.gguf"
    monkeypatch.setenv("LOCALSPEC_MODEL", "variable.gguf")
    monkeypatch.setenv("LOCALSPEC_THREADS", "2")
    monkeypatch.setenv("LOCALSPEC_CTX", "")
    settings = load_settings(threads=3, ctx=None)
    assert (settings.model, settings.threads) == ("variable.gguf", 3)
    assert (settings.ctx, settings.temperature, settings.draft) == (512, 0, "none")
    assert (settings.drafter, settings.kernels) == ("ngram", "off")
    assert (settings.kv_type, settings.gpu_layers) == ("q8_0", -1)


def test_kernels_variable_accepts_instruction_sets(
    cli: Cli, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_KERNELS", "avx2")
    assert load_settings().kernels == "auto"
    cli("run", "Hello", "--kernels", "avx2").refused("kernels is 'avx2'. Choose one of auto, off")
    monkeypatch.setenv("LOCALSPEC_KERNELS", "mmx")
    cli("run", "Hello", "-n", "1").refused(
        "LOCALSPEC_KERNELS is refused: kernels is 'mmx'. Choose one of", code=UsageError.exit_code
    )


def test_model_folders_as_list_or_path(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text('model_folders = ["/a", "~/b"]\n', encoding="utf-8-sig")
    assert load_settings().model_folders == (Path("/a"), Path("~/b"))
    monkeypatch.setenv("LOCALSPEC_MODEL_FOLDERS", f"/c{os.pathsep}/d")
    assert load_settings().model_folders == (Path("/c"), Path("/d"))


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"model_folders = 3", "model_folders is 3"),
        (b"threads = 0", "threads is 0"),
        (b"temperature = -1", "temperature is -1"),
        (b"model = 1", "model is 1: input should be a valid string"),
        (b"threads = true", "threads is refused: it is true or false. Give a number or a text."),
        (b"temperature = 'hot'", "input should be a valid number"),
        (b"model = ", "is not valid TOML"),
        (b"model = " + b"[" * 9_999, "is not valid TOML"),
        (b"model = '\xff'", "is not valid TOML"),
        (b"colour = 1", "unknown setting 'colour'. Choose from model, draft"),
        (b"ctx = 'wide'", "ctx is 'wide': input should be a valid integer"),
        (b"ctx = 3", "context is 3. Give 8 to"),
        (b"kv_type = 'q1'", "kv-type-k is 'q1'. Choose one of f32"),
        (b"kernels = 'avx2'", "kernels is 'avx2'. Choose one of auto, off"),
        (b"drafter = 'oracle'", "There is no drafter 'oracle'"),
    ],
)
def test_invalid_file_is_named(cli: Cli, config: Path, content: bytes, cause: str) -> None:
    config.write_bytes(content)
    cli("run", "hi").refused(str(config), cause)


@pytest.mark.parametrize(
    ("variable", "text", "cause"),
    [
        ("LOCALSPEC_CTX", "many", "is 'many': input should be a valid integer"),
        ("LOCALSPEC_DRAFTER", "oracle", "There is no drafter 'oracle'"),
        ("LOCALSPEC_TEMPERATURE", "warm", "is 'warm': input should be a valid number"),
        ("LOCALSPEC_THREADS", "-2", "threads is -2"),
    ],
)
def test_invalid_variable_is_named(
    cli: Cli, config: Path, monkeypatch: pytest.MonkeyPatch, variable: str, text: str, cause: str
) -> None:
    assert not config.exists()
    monkeypatch.setenv(variable, text)
    cli("run", "hi").refused(variable, cause)
    monkeypatch.setenv(variable, "\udcff")
    cli("run", "hi").refused()


def test_settings_reach_the_model(cli: Cli, config: Path, draft_path: Path) -> None:
    config.write_text(f"model = '{draft_path}'\ndraft = 'none'\nctx = 300\nthreads = 1\n")
    answer = cli("run", "-n", "1", "--json", "hi").json
    assert (answer["files"], answer["draft"]) == ([str(draft_path)], None)
    cli("run", "word " * 400).refused("300", code=6)
    assert cli("run", "-n", "1", "-c", "1000", "-q", "word " * 400).code == 0


@pytest.fixture
def no_options() -> dict[str, Any]:
    return {str(parameter.name): None for parameter in build_command("run").params}


def test_given_sampling(no_options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_opening(no_options).given_sampling == {}
    monkeypatch.setenv("LOCALSPEC_TEMPERATURE", "0.3")
    said = read_opening(no_options | {"top_k": 0}).given_sampling
    assert said == {"temperature": 0.3, "top_k": 0}


def test_installed_smollm2_is_the_default(
    no_options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    embedded = read_opening(no_options)
    packages.install(tmp_path, monkeypatch)
    read = (embedded, read_opening(no_options), read_opening(no_options | {"model": "demo"}))
    told = [(each.model, each.named) for each in read]
    assert told == [(None, False), ("smollm2", False), ("demo", True)]
