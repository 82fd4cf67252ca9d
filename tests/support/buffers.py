"""How much memory llama.cpp sets aside for a model and its context."""

import logging
import re
from collections import defaultdict
from pathlib import Path

import pytest

from localspec import ModelOptions
from localspec.llama.context import Context
from localspec.llama.model import Model

_BUFFER = re.compile(r"(\S+) +(KV|RS|compute|output|model) buffer size = +([\d.]+) MiB")


def logged_buffers(
    path: Path, options: ModelOptions, caplog: pytest.LogCaptureFixture
) -> dict[str, float]:
    """MiB of the buffers in llama.cpp's log: by kind, and by device."""
    with caplog.at_level(logging.DEBUG, "localspec.llama"), Model(path, options) as model:
        Context.open(model, options).close()
    found: dict[str, float] = defaultdict(float)
    for device, kind, size in _BUFFER.findall(caplog.text):
        for name in (device, kind):
            found[name] += float(size)
    return found
