"""Recording of answers for training, and on-policy texts."""

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import log_softmax

from localspec import Engine, ModelOptions
from localspec.distill import distillation
from localspec.distill.distillation import draft_texts
from localspec.distill.recording import RecordedQuestion, questions, read_prompts, text_questions
from localspec.distill.recording import record_answers as recorded_by
from localspec.distill.trace import Trace, TraceHeader, TraceRecord
from localspec.distill.training_run import ROUND, Run
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.prompting.prompt import PromptBuilder
from localspec.retrieval.texts import SkippedFiles
from tests.distill.test_training_run import PLAN
from tests.support.sessions import module_pair

pytestmark = pytest.mark.nightly

K = 8
ASKED = ({"role": "system", "content": "S"}, {"role": "user", "content": "C"})
PROMPTS = ["Once upon a time", "The fox", "Tell me why.", "A long day", "One", "In the house", "Is"]


engine = module_pair(draft=None, context=4 * 96, threads=1, parallel=4)


@pytest.fixture
def model(engine: Engine) -> Model:
    return engine.model


@pytest.fixture
def trace(model: Model, tmp_path: Path) -> Iterator[Trace]:
    header = TraceHeader("tale", "0" * 16, "f" * 24, model.vocabulary.size, K)
    with Trace(tmp_path / "t", header) as made:
        yield made


def prepared_questions(model: Model) -> list[RecordedQuestion]:
    tokens = [model.vocabulary.tokenize(text, special=True, add_bos=True) for text in PROMPTS]
    return [RecordedQuestion(tuple(each)) for each in tokens]


def record_all(engine: Engine, trace: Trace, wanted: list[RecordedQuestion], **options: Any) -> int:
    """Record answers of 12 tokens at most, and return the number of tokens."""
    options |= {"longest": 12, "known": trace.keys}
    tokens = 0
    for record in recorded_by(engine, wanted, K, **options):
        trace.append(record)
        tokens += len(record.answer)
    return tokens


def single_answer(model: Model, record: TraceRecord) -> npt.NDArray[np.float32]:
    """Log probabilities for an answer, read by itself in another cache."""
    with closing(Context.open(model, ModelOptions(context=96, threads=1))) as context:
        text = [int(t) for t in [*record.prompt, *record.answer[:-1]]]
        return np.asarray(log_softmax(context.extend(text, len(record.answer)), axis=1))


def test_rows_equal_those_of_single_answers(engine: Engine, trace: Trace) -> None:
    record_all(engine, trace, prepared_questions(engine.model))
    assert len(trace) == len(PROMPTS)
    ended = 0
    for number in range(len(trace)):
        record = trace.record(number)
        likely = np.take_along_axis(single_answer(engine.model, record), record.ids, 1)
        assert np.abs(np.exp(likely) - np.exp(record.log_p)).max() < 0.03
        assert np.abs(1 - np.exp(likely).sum(1) - record.rest).max() < 0.01
        assert (np.diff(record.log_p, axis=1) <= 0).all()
        ends = [engine.model.vocabulary.ends(int(token)) for token in record.answer]
        assert ends[-1] or len(ends) == 12
        assert not any(ends[:-1])
        ended += ends[-1]
    assert ended < len(trace)


def test_recorded_answers_are_skipped(engine: Engine, trace: Trace) -> None:
    wanted = prepared_questions(engine.model)
    first = record_all(engine, trace, wanted[:3])
    assert first > 0
    kept = [trace.record(n).answer.tolist() for n in range(3)]
    record_all(engine, trace, [*wanted, *wanted])
    assert len(trace) == len(wanted)
    assert [trace.record(n).answer.tolist() for n in range(3)] == kept
    assert record_all(engine, trace, wanted) == 0
    assert record_all(engine, trace, [replace(wanted[0], turn=1)]) > 0


def test_recording_stops_at_the_limit(engine: Engine, trace: Trace) -> None:
    tokens = record_all(engine, trace, prepared_questions(engine.model), most=30)
    assert 30 - 12 < tokens <= 30  # answers that begin at once included
    assert tokens == trace.tokens(held_back=False) + trace.tokens(held_back=True)


def test_given_text_is_read(engine: Engine, trace: Trace, tmp_path: Path) -> None:
    text = "The fox ran to the house. It was a cold day, and he was sad. " * 3
    (tmp_path / "a.txt").write_text(text)
    vocabulary = engine.model.vocabulary
    wanted = list(text_questions(tmp_path / "a.txt", vocabulary, SkippedFiles()))
    given = [token for question in wanted for token in question.given]
    assert given == vocabulary.tokenize(text)
    record_all(engine, trace, wanted)
    record = trace.record(0)
    assert tuple(record.answer) == wanted[0].given
    likely = np.take_along_axis(single_answer(engine.model, record), record.ids, 1)
    assert np.abs(np.exp(likely) - np.exp(record.log_p)).max() < 0.03
    longer = [replace(question, turn=1) for question in wanted]
    assert (record_all(engine, trace, longer, most=5), longer[0].key in trace.keys) == (5, True)


def test_all_answers_of_a_prompt_are_held_back_or_none() -> None:
    prompts = [tuple(range(n, n + 5)) for n in range(2000)]
    held, again = ([RecordedQuestion(p, turn).held_back for p in prompts] for turn in (0, 3))
    assert 0.03 < sum(held) / len(held) < 0.07
    assert held == again
    keys = {RecordedQuestion(prompt, turn).key for prompt in prompts for turn in range(2)}
    assert len(keys) == 4000


def test_prompts_of_files(tmp_path: Path, model: Model) -> None:
    (tmp_path / "p.txt").write_bytes(b"One?\r\n\nTwo?\n")
    messages = json.dumps({"messages": ASKED})
    lines = ('{"prompt": "A\u2028a"}', '{"turns": ["B", "b"]}', messages)
    (tmp_path / "p.jsonl").write_text("\n".join(lines), encoding="utf-8")
    assert list(read_prompts(tmp_path / "p.txt")) == ["One?", "Two?"]
    assert list(read_prompts(tmp_path / "p.jsonl")) == ["A\u2028a", "B", ASKED]
    builder = PromptBuilder(model, 96)
    one, two = questions(["A"], builder, raw=False, answers=2)
    assert (one.tokens, one.turn, two.turn) == (two.tokens, 0, 1)
    spelled = b"".join(model.vocabulary.piece(t, special=True) for t in one.tokens)
    assert b"<|user|>A<|end|><|assistant|>" in spelled
    (raw,) = questions(["<|user|>A"], builder, raw=True, answers=1)
    assert [*raw.tokens] == model.vocabulary.tokenize("<|user|>A", special=True, add_bos=True)


# On-policy rounds: texts of the draft with rows of the target.

ALONE = ModelOptions(context=96, threads=1)
STORY = "Once upon a time, there was a little fox. The fox lived in a big forest with his friends."


@pytest.fixture(scope="module")
def story(target_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with Model(target_path, ALONE) as model:
        tokens = np.array(model.vocabulary.tokenize(STORY, special=True, add_bos=True))
        header = TraceHeader("tale", "0" * 16, "f" * 24, model.vocabulary.size, 8)
    path = tmp_path_factory.mktemp("trace") / "t"
    with Trace(path, header) as made:
        for number in range(6):
            end = len(tokens) - number
            rows = np.zeros((end - 4, 9), np.float32)
            ids, key = rows[:, :8].astype(np.int64), number.to_bytes(16, "little")
            parts = (tokens[:4], tokens[4:end], ids, rows[:, :8], rows[:, 8])
            made.append(TraceRecord(key, *parts, number == 5))
    return path


def test_on_policy_texts_have_the_targets_rows(
    model: Model, story: Path, draft_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distillation, "CONTINUATION", 8)
    plan = replace(PLAN, records=6, epochs=3, rounds=2, longest=64)
    lines: list[str] = []
    with Trace(story) as known:
        first = known.record(0)
        answer = [*first.prompt.tolist(), *first.answer.tolist()]

        def texts(epoch: int) -> Trace:
            write = partial(shutil.copyfile, draft_path)
            return draft_texts(Run(tmp_path, plan), known, model.path, epoch, write, lines.append)

        with texts(1) as own:
            records = [own.record(n) for n in range(len(own))]
        before = (tmp_path / f"{ROUND}1").read_bytes()
        with texts(1) as again:  # stored
            assert len(again) == len(records)
        assert len(lines) == 1
        (tmp_path / f"{ROUND}1").unlink()
        texts(1).close()
        assert (tmp_path / f"{ROUND}1").read_bytes() == before  # as do the same weights
        with texts(2) as later:
            assert {record.key for record in records} != later.keys
    assert lines[0].startswith("On-policy round 1 of 2")
    assert len(records) > 3
    greedy = 0
    for record in records:
        assert record.prompt.tolist() == answer[: len(record.prompt)]  # a beginning of it
        assert len(record.prompt) >= 4
        likely = np.take_along_axis(single_answer(model, record), record.ids, 1)
        assert np.exp(record.log_p) == pytest.approx(np.exp(likely), abs=0.03)
        with Model(draft_path, ALONE) as draft:
            greedy += int((single_answer(draft, record).argmax(1) == record.answer).all())
    assert greedy >= 1  # the others are draw
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{ROUND}1", f"{ROUND}2"]
