"""llama-server's flags as `localspec serve` has them, and the models that stand in."""

from pathlib import Path

import pytest

from localspec.gguf.reader import read_gguf
from tools.llama_server import shim
from tools.llama_server.models import INFILL, SPLIT, TARGET, model_file

pytestmark = pytest.mark.nightly

PRESET = ["--port", "8080", "--temp", "0.8", "--seed", "42", "--host", "127.0.0.1"]


def test_translated_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(shim.FOLDER, str(tmp_path))
    said = [*PRESET, "--offline", "--hf-repo", "ggml-org/test-model-stories260K", "--jinja"]
    said += ["--batch-size", "32", "--no-slots", "--ctx-size", "512", "--parallel", "2"]
    said += ["--n-predict", "64", "--reasoning", "off", "--chat-template", "chatml"]
    found = shim.command(said)
    assert (found[found.index("-c") + 1], found[found.index("--max-tokens") + 1]) == ("256", "64")
    assert found[found.index("--drafter") + 1] == "none"
    assert {"--no-think", "--no-slots"} <= {*found}
    assert "--no-ui" not in found
    model = read_gguf(Path(found[found.index("-m") + 1]))
    assert "<|im_start|>" in (model.text("tokenizer.chat_template") or "")


@pytest.mark.parametrize(
    "said", [["--hf-repo", "ggml-org/tinygemma3-GGUF:Q8_0"], ["--spec-synth-rates", "0.5"]]
)
def test_unsupported_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    monkeypatch.setenv(shim.FOLDER, str(tmp_path))
    with pytest.raises(SystemExit, match="shim: "):
        shim.command([*PRESET, *said])


def test_stand_in_tokens(tmp_path: Path) -> None:
    target, infill = (read_gguf(model_file(name, tmp_path)) for name in (TARGET, INFILL))
    assert target.integer("tokenizer.ggml.fim_pre_token_id") is None
    assert infill.integer("tokenizer.ggml.fim_pre_token_id") is not None
    tokens = target.array("tokenizer.ggml.tokens")
    assert tokens is not None
    assert tokens.index_of(b"<|end|>") is None
    assert tokens.index_of(b"<|fin|>") == 4


def test_split_stand_in_has_the_same_weights(tmp_path: Path) -> None:
    whole, split = (read_gguf(model_file(name, tmp_path)) for name in (TARGET, SPLIT))
    assert [path.name[-19:] for path in split.parts] == [
        f"-0000{number}-of-00003.gguf"[-19:] for number in (1, 2, 3)
    ]
    assert [one.name for one in split.tensors] == [one.name for one in whole.tensors]
    assert {one.part for one in split.tensors} == {0, 1, 2}
    assert split.weight_bytes == whole.weight_bytes
    for mine, other in zip(whole.tensors, split.tensors, strict=True):
        data = split.parts[other.part].read_bytes()[other.offset : other.offset + other.size]
        assert data == whole.path.read_bytes()[mine.offset : mine.offset + mine.size]
