"""ik_llama.cpp as an arm: what it is asked and says, and that its end is told."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from localspec.bench import peers_ik
from localspec.bench.ik_child import chosen
from localspec.bench.samples import BenchPrompt
from localspec.errors import NativeError

PROMPT = BenchPrompt("sky", "questions", "abc")
LOG = "print('a line of its log', flush=True)\n"
ANSWERS = f"""
import json, sys
{LOG}print("ready", flush=True)
tokens, most, temperature, seed = json.loads(input())
print(json.dumps([[*tokens, most, seed], 0.5]), flush=True)
"""


def opened(child: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> peers_ik.IkLlama:
    child.write_text(source)
    monkeypatch.setattr(peers_ik, "_CHILD", child)
    return peers_ik.IkLlama(
        Path("a.gguf"), tokenize=lambda text: [*text.encode()], threads=2, context=512
    )


def test_an_answer_and_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(opened(tmp_path / "child.py", ANSWERS, monkeypatch)) as arm:
        sample = arm.generate(PROMPT, temperature=0.0, seed=3, max_tokens=9, turn=1)
        assert sample.token_ids == (97, 98, 99, 9, 3)
        assert (sample.tokens, sample.seconds, sample.passes) == (4, 0.5, 4)
        with pytest.raises(NativeError, match="ended"):
            arm.generate(PROMPT, temperature=0.0, seed=3, max_tokens=9, turn=1)


def test_a_model_that_it_cannot_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NativeError, match=r"cannot open a\.gguf"):
        opened(tmp_path / "child.py", LOG, monkeypatch)


def test_it_says_why_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_ik, "find_spec", lambda name: None)
    assert peers_ik.why_no_ik() == "not installed (pip install ik-llama-cpp-python)"


def test_draws_are_of_the_likely() -> None:
    row, random = np.linspace(0.0, 10.0, 100, dtype=np.float32), np.random.default_rng(1)
    assert chosen(row, 0.0, random) == 99
    drawn = [chosen(row, 1.0, random) for _ in range(200)]
    assert min(drawn) >= 60
    assert 0.04 < np.mean(np.array(drawn) == 99) < 0.2
