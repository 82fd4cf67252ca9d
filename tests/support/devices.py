"""Devices beside the CPU for tests; most builds of llama.cpp, and machines, have none."""

from __future__ import annotations

import logging
import re
from collections import defaultdict

import pytest

from localspec.llama import library

needs_device = pytest.mark.skipif(
    not library.accelerated(),
    reason="needs a GPU, or llama.cpp's Vulkan backend on Mesa's software driver: `make vulkan` "
    "builds it, and runs these tests with it",
)

_BUFFER = re.compile(r"(\S+) +(?:model|KV|RS|compute|output) buffer size = +([\d.]+) MiB")


class Buffers(logging.Handler):
    """MiB by device, as llama.cpp's log tells them."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.found: dict[str, float] = defaultdict(float)

    def emit(self, record: logging.LogRecord) -> None:
        for name, size in _BUFFER.findall(record.getMessage()):
            self.found[name] += float(size)
