"""What of llama-cpp-python's source archive travels to a machine without network."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path, PurePosixPath

import pytest

from tools.cuda_build import kept, pack

INSTANCE = "vendor/llama.cpp/ggml/src/ggml-cuda/template-instances/" + "mmq-" * 12 + "q8_0.cu"


@pytest.mark.parametrize(
    ("path", "needed"),
    [
        ("llama_cpp/llama.py", True),
        ("vendor/llama.cpp/CMakeLists.txt", True),
        ("vendor/llama.cpp/src/llama.cpp", True),
        ("vendor/llama.cpp/ggml/src/ggml.c", True),
        ("vendor/llama.cpp/ggml/src/ggml-cpu/ops.cpp", True),
        (INSTANCE, True),
        ("vendor/llama.cpp/ggml/src/ggml-vulkan/ggml-vulkan.cpp", False),
        ("vendor/llama.cpp/tools/server/server.cpp", False),
        ("vendor/llama.cpp/models/ggml-vocab-phi-3.gguf", False),
        (".git/objects/pack/a.pack", False),
    ],
)
def test_what_a_build_needs_is_kept(path: str, needed: bool) -> None:
    assert kept(PurePosixPath(path)) is needed


def test_long_names_lose_the_archives_own_folder_like_short_ones(tmp_path: Path) -> None:
    """A name of more than 100 characters stands in an archive twice."""
    archive, packed = tmp_path / "source.tar.gz", tmp_path / "packed.tar.xz"
    with tarfile.open(archive, "w:gz", format=tarfile.PAX_FORMAT) as written:
        for name in ("llama_cpp/llama.py", INSTANCE, "README.md"):
            member = tarfile.TarInfo(f"llama_cpp_python-0.3.36/{name}")
            member.size = len(name)
            written.addfile(member, io.BytesIO(name.encode()))
    pack(archive, packed)
    with tarfile.open(packed) as read:
        found = {one.name: read.extractfile(one) for one in read}
        assert set(found) == {"llama_cpp/llama.py", INSTANCE}
        assert all(
            file is not None and file.read() == name.encode() for name, file in found.items()
        )
