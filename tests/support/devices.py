"""Devices beside the CPU for tests; most builds of llama.cpp, and machines, have none."""

from __future__ import annotations

import pytest

from localspec.llama import library

needs_device = pytest.mark.skipif(
    not library.accelerated(),
    reason="needs a GPU, or llama.cpp's Vulkan backend on Mesa's software driver: `make vulkan` "
    "builds it, and runs these tests with it",
)
