"""On-policy rounds: the texts are the draft's own, and what is wanted of them is the target's."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from localspec import ModelOptions
from localspec.distill import rounds
from localspec.distill.recording import log_softmax
from localspec.distill.rounds import own_texts
from localspec.distill.trace import Trace, TraceHeader, TraceRecord
from localspec.distill.training_run import ROUND, Run
from localspec.llama.context import Context
from localspec.llama.model import Model
from tests.distill.test_training_run import PLAN

pytestmark = pytest.mark.nightly

OPTIONS = ModelOptions(context=96, threads=1)
STORY = "Once upon a time, there was a little fox. The fox lived in a big forest with his friends."


def read_by(path: Path, text: Sequence[int], outputs: int) -> npt.NDArray[np.float32]:
    with Model(path, OPTIONS) as model, closing(Context(model, OPTIONS)) as context:
        return log_softmax(np.array(context.extend(list(text), outputs)))


@pytest.fixture(scope="module")
def trace(target_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with Model(target_path, OPTIONS) as model:
        tokens = np.array(model.vocabulary.tokenize(STORY, special=True, add_bos=True))
        header = TraceHeader("tale", "0" * 16, "f" * 24, model.vocabulary.size, 8)
    path = tmp_path_factory.mktemp("trace") / "t"
    with Trace(path, header) as made:
        for number in range(6):
            end = len(tokens) - number
            ids = np.zeros((end - 4, 8), np.int64)
            log_p, rest = np.zeros((end - 4, 8), np.float32), np.zeros(end - 4, np.float32)
            key, held = number.to_bytes(16, "little"), number == 5
            made.append(TraceRecord(key, tokens[:4], tokens[4:end], ids, log_p, rest, held))
    return path


def test_the_draft_says_it_and_the_target_judges(
    trace: Path,
    target_path: Path,
    draft_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rounds, "CONTINUED", 8)
    plan = replace(PLAN, records=6, epochs=3, rounds=2, longest=64)
    told: list[str] = []
    with Trace(trace) as known:
        answers = [known.record(n).prompt.tolist() + known.record(n).answer.tolist() for n in (0,)]

        def texts(epoch: int) -> Trace:
            def write(path: Path) -> None:
                shutil.copyfile(draft_path, path)

            run = Run(tmp_path, plan)
            return own_texts(run, known, target_path, epoch, write, told.append)

        with texts(1) as own:
            records = [own.record(n) for n in range(len(own))]
        before = (tmp_path / f"{ROUND}1").read_bytes()
        with texts(1) as again:  # it is there
            assert len(again) == len(records)
        assert len(told) == 1
        (tmp_path / f"{ROUND}1").unlink()
        texts(1).close()
        assert (tmp_path / f"{ROUND}1").read_bytes() == before, "the same weights say the same"
        with texts(2) as later:
            assert {record.key for record in records} != later.keys
    assert told[0].startswith("On-policy round 1 of 2")
    assert len(records) > 3
    greedy = 0
    for record in records:
        assert record.prompt.tolist() == answers[0][: len(record.prompt)]  # a beginning of it
        assert len(record.prompt) >= 4
        text = [*record.prompt.tolist(), *record.answer[:-1].tolist()]
        theirs = read_by(target_path, text, len(record.answer))
        assert np.exp(record.log_p) == pytest.approx(
            np.exp(np.take_along_axis(theirs, record.ids, 1)), abs=0.03
        )
        ours = read_by(draft_path, text, len(record.answer))
        greedy += int((ours.argmax(1) == record.answer).all())
    assert greedy >= 1  # the others are drawn
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{ROUND}1", f"{ROUND}2"]
