"""Models are found wherever the usual tools keep them, and nothing is changed there."""

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from localspec.gguf.architectures import KNOWN
from localspec.hub import local
from localspec.hub.local import LocalModel, local_models
from localspec.hub.resolution import resolve
from tests.gguf.raw import Tensor, gguf, key, keyed, scalar, write_model
from tests.hub.conftest import COMMIT, cache_file
from tests.support.ggufs import tiny_bert, tiny_llama, tiny_mamba
from tests.support.homes import move_to
from tests.support.patches import fail_with


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return move_to(tmp_path, monkeypatch).with_name("home")


def find_models(*folders: Path) -> list[LocalModel]:
    """The models found, without the built-in pair."""
    return [model for model in local_models(folders) if model.source != "built-in"]


def add_model(path: Path, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return tiny_llama(path, seed=seed)


def add_cached_model(cache: Path, repo: str, name: str, commit: str = COMMIT, **more: Any) -> None:
    """Store a model as huggingface_hub does."""
    model = add_model(cache.with_name("model"), seed=len(name) + int(commit[0], 16))
    cache_file(cache, repo, name, model.read_bytes(), commit, **more)


def test_hugging_face_cache(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = home / ".cache" / "huggingface" / "hub"
    for name in ("Tiny-Q4_K_M.gguf", "Tiny-Q8_0.gguf", "sub/Tiny-Q8_0.gguf", "plain.gguf"):
        add_cached_model(cache, "Me/Tiny-GGUF", name)
    found = find_models()
    assert {model.source for model in found} == {"huggingface"}
    files = {"Q4_K_M", "Q8_0", "sub/Tiny-Q8_0.gguf", "plain.gguf"}
    assert {model.reference for model in found} == {f"Me/Tiny-GGUF:{file}" for file in files}
    monkeypatch.setenv("HF_HOME", str(home / "elsewhere"))
    assert find_models() == []
    add_cached_model(home / "elsewhere" / "hub", "a/b", "m-Q8_0.gguf")
    assert [model.name for model in find_models()] == ["a/b:Q8_0"]
    found[0].path.with_name("x.gguf").symlink_to("a" * 300)  # `Path.is_file` raises OSError
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    assert find_models() == found


def test_older_snapshot_is_referenced_by_path(home: Path) -> None:
    cache = home / ".cache" / "huggingface" / "hub"
    add_cached_model(cache, "a/b", "m-Q8_0.gguf", "1" * 40, ref=None)
    add_cached_model(cache, "a/b", "m-Q8_0.gguf", "2" * 40)
    new, old = find_models()
    assert (new.reference, new.path.parent.name) == ("a/b:Q8_0", "2" * 40)
    assert (old.reference, old.path.parent.name) == (str(old.path), "1" * 40)


def add_ollama_model(root: Path, name: str, digest: str | None = None) -> None:
    digest = digest or f"sha256:{'a' * 64}"
    if "/" not in digest:
        add_model(root / "blobs" / digest.replace(":", "-"))
    manifest = root / "manifests" / name
    manifest.parent.mkdir(parents=True, exist_ok=True)
    kinds = (("license", f"sha256:{'b' * 64}"), ("model", digest))
    layers = [
        {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": one} for kind, one in kinds
    ]
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))


def test_ollama_models(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = home / ".ollama" / "models"
    add_ollama_model(root, "registry.ollama.ai/library/llama3.2/1b")
    add_ollama_model(root, "registry.ollama.ai/me/mine/latest", f"sha256:{'c' * 64}")
    add_ollama_model(root, "hf.co/me/mine-GGUF/Q8_0", f"sha256:{'d' * 64}")
    found = find_models()
    names = ["hf.co/me/mine-GGUF:Q8_0", "llama3.2:1b", "me/mine:latest"]
    assert [(model.name, model.source, model.problem, model.reference) for model in found] == [
        (name, "ollama", None, str(model.path)) for name, model in zip(names, found, strict=True)
    ]
    typed = ("HF.co/me/mine-gguf:q8_0", "Llama3.2:1b", "me/mine")
    assert [resolve(name) for name in typed] == [model.path for model in found]
    found[0].path.unlink()
    found[0].path.symlink_to("a" * 300)  # as in a closed folder, `Path.is_file` raises OSError
    monkeypatch.setenv("OLLAMA_MODELS", str(home / "else"))
    add_ollama_model(home / "else", "registry.ollama.ai/library/other/latest", f"sha256:{'e' * 64}")
    assert "other:latest" in [model.name for model in find_models()]


@pytest.mark.parametrize(
    "manifest",
    [
        *("", "{", "[]", '{"layers": 3}', '{"layers": [3]}'),
        '{"layers": [{"mediaType": "application/vnd.ollama.image.model"}]}',
        '{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": 3}]}',
        "[" * 100_000,
    ],
    ids=lambda text: text[:20],
)
def test_damaged_manifest_is_skipped(home: Path, manifest: str) -> None:
    path = home / ".ollama/models/manifests/registry.ollama.ai/library/x/latest"
    path.parent.mkdir(parents=True)
    path.write_text(manifest)
    assert find_models() == []


def test_manifest_cannot_name_outside_files(home: Path) -> None:
    root = home / ".ollama" / "models"
    tiny_llama(home / "secret")
    (root / "blobs" / "sha256-x").mkdir(parents=True)
    digest = "sha256:x/../../../../secret"
    assert (root / "blobs" / digest.replace(":", "-")).is_file()
    add_ollama_model(root, "registry.ollama.ai/library/evil/latest", digest)
    assert find_models() == []


def test_lm_studio_and_llama_cpp_folders(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_model(home / ".lmstudio/models/pub/repo/m-Q8_0.gguf")
    add_model(home / ".cache/lm-studio/models/pub/old/n.gguf", seed=1)
    add_model(home / ".cache/llama.cpp/user_repo_m.gguf", seed=2)
    assert [(model.source, model.name) for model in find_models()] == [
        ("llama.cpp", "user_repo_m.gguf"),
        ("lmstudio", "pub/repo/m-Q8_0.gguf"),
        ("lmstudio", "pub/old/n.gguf"),
    ]
    monkeypatch.setenv("LLAMA_CACHE", str(home / "empty"))
    (home / ".lmstudio-home-pointer").write_text(str(home / "moved"))
    add_model(home / "moved/models/o.gguf", seed=3)
    add_model(home / "big/p.gguf", seed=4)
    big = json.dumps({"downloadsFolder": str(home / "big")})
    (home / "moved" / "settings.json").write_text(big)
    (home / ".lmstudio" / "settings.json").write_text("[")
    assert [model.name for model in find_models()] == [
        *("o.gguf", "pub/repo/m-Q8_0.gguf", "pub/old/n.gguf", "p.gguf")
    ]


def test_named_set_and_current_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, name in enumerate(("said", "set", "here/below")):
        add_model(tmp_path / name / f"{number}.gguf", seed=number)
    monkeypatch.setenv("LOCALSPEC_MODEL_FOLDERS", str(tmp_path / "set"))
    names = [model.name for model in find_models(tmp_path / "said")]
    assert names == ["0.gguf", "1.gguf", "2.gguf"]
    assert resolve("1.gguf") == resolve("1") == tmp_path / "set" / "1.gguf"
    (tmp_path / "said" / "link.gguf").symlink_to(tmp_path / "set" / "1.gguf")
    assert len(find_models(tmp_path / "said", tmp_path / "said")) == 3, "it is the same file"


def test_split_model_is_listed_once(tmp_path: Path) -> None:
    keys = keyed({"general.architecture": "llama", "tokenizer.ggml.model": "gpt2"})
    first, second = (tmp_path / "here" / f"m-0000{number}-of-00002.gguf" for number in (1, 2))
    for number, path in enumerate((first, second)):
        split = [key("split.no", 2, scalar(2, number)), key("split.count", 2, scalar(2, 2))]
        path.write_bytes(gguf([*keys, *split], [Tensor(f"w{number}", (64, 1))], 256))
    (model,) = find_models()
    assert (model.path, model.parameters, model.problem) == (first, 128, None)
    assert model.size == first.stat().st_size + second.stat().st_size
    second.rename(tmp_path / "aside")
    (model,) = find_models()
    assert "m-00002-of-00002.gguf is missing" in (model.problem or "")
    (tmp_path / "aside").rename(second)
    first.unlink()
    (model,) = find_models()
    assert "later part" in (model.problem or "")


def _model(architecture: str, **more: str) -> Callable[[Path], Path]:
    keys = keyed({name.replace("__", "."): value for name, value in more.items()})
    return partial(
        write_model, architecture=architecture, more=keys, tensors=[Tensor("w", (64,))], data=256
    )


@pytest.mark.parametrize(
    ("write", "problem"),
    [
        (_model("llama", general__type="adapter"), "adapter (LoRA)"),
        (_model("llama", general__type="imatrix"), "imatrix"),
        (_model("clip"), "mmproj"),
        (_model("controlvector"), "control vector"),
        (_model("t5"), "encoder-decoder"),
        (_model("llada"), "diffusion"),
        (_model("eagle3"), "trained head"),
        (_model("wavtokenizer-dec"), "sound"),
        (_model("futurenet\x1b[2J"), "architecture futurenet\ufffd[2J is not known"),
        (_model("llama"), "no vocabulary"),
        (lambda path: tiny_llama(path, tokenizer=False), "no vocabulary"),
        (tiny_bert, "embedding model"),
        (lambda path: path.write_bytes(gguf()), "does not name its architecture"),
        (lambda path: path.write_bytes(b"hello, world, this is text"), "not a GGUF file"),
        (_model("llama", tokenizer__ggml__model="gpt2"), None),
        (tiny_llama, None),
        (tiny_mamba, None),
    ],
)
def test_unusable_files_give_a_reason(
    write: Callable[[Path], object], problem: str | None, tmp_path: Path
) -> None:
    write(tmp_path / "here" / "x.gguf")
    found = find_models()[0].problem
    if problem is None:
        assert found is None
    else:
        assert found is not None
        assert problem in found
        assert found.endswith(".")
        assert found.isprintable()


def test_known_architectures_are_in_the_library() -> None:
    import llama_cpp

    library = next((Path(llama_cpp.__file__).parent / "lib").glob("*llama.*")).read_bytes()
    missing = [name for name in KNOWN if name.encode() + b"\0" not in library]
    assert missing == []  # short names may lie inside of longer strings


def test_unreadable_and_circular_paths(tmp_path: Path) -> None:
    here = tmp_path / "here"
    (here / "dangling.gguf").symlink_to(here / "nothing")
    (here / "loop.gguf").symlink_to(here / "loop.gguf")
    (here / "round").symlink_to(here)
    (here / "folder.gguf").mkdir()
    os.mkfifo(here / "pipe.gguf")
    (here / "locked").mkdir(mode=0)
    (here / "line\nbreak\x1b[31m.gguf").write_bytes(b"no model")
    add_model(here.joinpath(*["deeper"] * 40) / "too-deep.gguf")
    (model,) = find_models(here, here / "missing", tmp_path / "a\0b")
    assert model.name == "line break\ufffd[31m.gguf"


def test_huge_folder_is_read_partly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(50):
        (tmp_path / "here" / f"{number:02d}.gguf").write_bytes(b"x")
    monkeypatch.setattr(local, "MOST_ENTRIES", 20)
    assert len(find_models()) == 20


def test_model_folders_are_not_changed(home: Path, tmp_path: Path) -> None:
    add_cached_model(home / ".cache/huggingface/hub", "a/b", "m.gguf")
    tiny_llama(tmp_path / "here" / "m.gguf", seed=4)

    def state() -> list[tuple[str, int, int]]:
        files = [*home.rglob("*"), *(tmp_path / "here").rglob("*")]
        return sorted((str(p), p.lstat().st_mtime_ns, p.lstat().st_size) for p in files)

    before = state()
    assert len(find_models()) == 2
    assert state() == before


def test_descriptions_are_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_llama(tmp_path / "here" / "m.gguf")
    first = find_models()
    with monkeypatch.context() as patch:
        patch.setattr(local, "describe", fail_with(AssertionError("read again")))
        assert find_models() == first
        tiny_llama(path, layers=3)
        with pytest.raises(AssertionError, match="read again"):
            find_models()
    assert find_models()[0].parameters != first[0].parameters


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"format": 1, "files": 3}', "[" * 100_000],
    ids=lambda text: text[:20],
)
def test_damaged_index_is_rebuilt(tmp_path: Path, content: str) -> None:
    tiny_llama(tmp_path / "here" / "m.gguf")
    local.index.path.parent.mkdir(parents=True)
    local.index.path.write_text(content)
    (first,) = find_models()
    assert len(local.index.all()) == 3
    local.index.write({key: one | {"size": "large"} for key, one in local.index.all().items()})
    assert find_models() == [first], "what somebody has changed is read again"
