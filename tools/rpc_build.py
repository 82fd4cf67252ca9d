"""llama-cpp-python with llama.cpp's RPC backend, and the server that goes with it.

    python -m tools.rpc_build [FOLDER] [--jobs N]

Builds ggml and `ggml-rpc-server`, and puts them into FOLDER (build/rpc) as `tools.native_build`
says.
"""

from __future__ import annotations

from pathlib import Path

from tools import native_build

SERVER = "ggml-rpc-server"
FOLDER = native_build.PLACE / "rpc"


def main() -> None:
    said = native_build.options(__doc__ or "", FOLDER).parse_args()
    flags = ("-DGGML_RPC=ON", "-DLLAMA_BUILD_TOOLS=ON")
    native_build.make(said.folder, flags, said.jobs, programs=(SERVER,))
    print(f"Start servers with\n  {server(said.folder)} --host 0.0.0.0 --port 50052")


def server(folder: Path) -> Path:
    return native_build.program(folder, SERVER)


if __name__ == "__main__":
    main()
