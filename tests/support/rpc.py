"""RPC servers for tests; most builds of llama.cpp have none."""

from __future__ import annotations

import llama_cpp
import pytest

from tools.native_build import is_built

needs_servers = pytest.mark.skipif(
    not (llama_cpp.llama_supports_rpc() and is_built("rpc")),
    reason="needs llama.cpp's RPC backend: `make rpc` builds it, in some minutes, and runs "
    "these tests with it",
)
