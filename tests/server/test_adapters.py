"""A server whose model has a LoRA adapter."""

from __future__ import annotations

from pathlib import Path

import pytest

import localspec
from localspec import SamplingParams
from tests.server.process import serving
from tests.support.adapters import lora

pytestmark = pytest.mark.nightly

PROMPT = "Once upon a time"


def test_answers_are_the_adapted_models(tmp_path: Path, target_path: Path) -> None:
    path = lora(tmp_path / "style.gguf", target_path, gain=3.0)
    with localspec.load(context=512, threads=1, draft="none", lora=path) as engine:
        expected = engine.generate(
            PROMPT, max_tokens=24, sampling=SamplingParams(temperature=0)
        ).text
    arguments = ("-c", "512", "-t", "1", "--temp", "0", "--lora", str(path), "--drafter", "model")
    with serving(tmp_path, *arguments, "--parallel", "2") as running:
        body = {"prompt": PROMPT, "max_tokens": 24}
        reply = running.request("POST", "/v1/completions", body)
        assert reply.status == 200, reply.body
        assert reply.json["choices"][0]["text"] == expected
