"""Drafts with the frequent tokens of their target only."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from localspec import ModelOptions, load
from localspec.distill import weights
from localspec.distill.frequent import FrequentPart, weight_of_tokens
from localspec.distill.shape import parse
from localspec.distill.trace import Trace, TraceHeader, TraceRecord
from localspec.distill.weights import TrainingFacts
from localspec.errors import UsageError
from localspec.gguf.reader import read_gguf
from localspec.llama.model import Model
from localspec.prompting.prompt import Tokens
from tests.distill.traces import top_tokens
from tests.support.asking import WAYS, ask, tokens_of
from tests.support.ggufs import tiny_llama
from tests.support.greedy import Reference
from tests.support.sessions import module_model

SIZE = 1500
SEEN = (
    "Once upon a time there was a little girl who had a red ball. She played with the ball in the "
    "park, and the dog ran after it. 'Look!' she said. 'It is so big!'<|end|>"
)
OTHER = "A quixotic zebra's kaleidoscope: naïve façades, 1,024 µs of grandmotherly advice"


OPTIONS = ModelOptions(threads=1)
target, draft = module_model("target_path", OPTIONS), module_model("draft_path", OPTIONS)


def tokenize(model: Model, text: str) -> list[int]:
    return model.vocabulary.tokenize(text, special=True)


@pytest.fixture(scope="module")
def part(target_path: Path, target: Model) -> FrequentPart:
    """The tokens of one text, filled up with the lowest ids."""
    weight = np.zeros(target.vocabulary.size)
    weight[tokenize(target, SEEN)] = 1.0
    return FrequentPart(read_gguf(target_path), weight, SIZE)


@pytest.fixture(scope="module")
def draft_path(
    target_path: Path, part: FrequentPart, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Two layers of the target and its embeddings of these tokens."""
    file, path = read_gguf(target_path), tmp_path_factory.mktemp("frequent") / "draft.gguf"
    shape = parse("384x2x1024", replace(weights.target_shape(file), vocabulary=len(part)))
    values = weights.initial(shape, target_path, 0, part.kept)
    facts = TrainingFacts("x", 0.5, "part")
    weights.write(path, shape, values, part.tokenizer(), facts)
    return path


def test_text_of_kept_tokens(target: Model, draft: Model, part: FrequentPart) -> None:
    assert len(part) == draft.vocabulary.size == SIZE
    theirs = tokenize(target, SEEN)
    assert tokenize(draft, SEEN) == part.own[theirs].tolist()
    assert (part.own[theirs] >= 0).all()


def test_other_tokens_are_spelled(target: Model, draft: Model, part: FrequentPart) -> None:
    theirs = tokenize(target, OTHER)
    assert (part.own[theirs] < 0).any()
    pieces = [part.spell(token) for token in theirs]
    spelled = b"".join(draft.vocabulary.piece(own) for each in pieces for own in each)
    assert spelled.decode() == OTHER
    for token, own in zip(theirs, pieces, strict=True):
        text = target.vocabulary.piece(token)
        assert b"".join(map(draft.vocabulary.piece, own)) == text
        assert len(own) == 1 or part.own[token] < 0


def test_special_tokens_are_kept(target: Model, draft: Model, part: FrequentPart) -> None:
    assert target.vocabulary.bos == part.kept[draft.vocabulary.bos]
    ends = [t for t in range(target.vocabulary.size) if target.vocabulary.ends(t)]
    theirs = [t for t in range(draft.vocabulary.size) if draft.vocabulary.ends(t)]
    assert part.kept[theirs].tolist() == ends


def test_draft_does_not_change_the_answer(
    kernels: None, target_path: Path, draft_path: Path, plain_answers: Reference
) -> None:
    known = plain_answers.first(1)
    with load(target_path, draft=draft_path, context=512, threads=1) as engine:
        stream = ask(engine, Tokens(known.prompts[0]), WAYS["model"])
        assert tokens_of(stream) == known.tokens[0]
    assert stream.stats.tested > 20


def test_record_is_mapped(target: Model, part: FrequentPart) -> None:
    record = record_of(target)
    own = part.map_record(record)
    assert part.kept[own.prompt].tolist() == tokenize(target, SEEN)
    pieces = [part.spell(token) for token in record.answer.tolist()]
    assert own.answer.tolist() == [token for each in pieces for token in each]
    first = np.cumsum([0, *map(len, pieces[:-1])])
    p, mine = np.exp(record.log_p), np.exp(own.log_p)
    assert np.allclose(mine.sum(1) + own.rest, 1.0, atol=1e-3), "rows stay distributions"
    for row, place in enumerate(first):
        for token, likely in zip(record.ids[row].tolist(), p[row].tolist(), strict=True):
            there = mine[place][own.ids[place] == part.own[token]].sum()
            assert np.isclose(there, likely if part.own[token] >= 0 else 0.0, atol=1e-6)
    for place in {*range(len(own.answer))} - {*first.tolist()}:
        assert own.ids[place, 0] == own.answer[place]
        assert np.isclose(mine[place, 0], 1.0), "the rest of a spelling is certain"
    assert (own.key, own.held_back, own.chat) == (record.key, True, True)


def record_of(target: Model) -> TraceRecord:
    """An answer with other tokens to a prompt of kept ones."""
    tokens = np.array(tokenize(target, OTHER), np.int64)
    logits = np.random.Generator(np.random.PCG64(1)).normal(size=(len(tokens), 8192)) * 3
    logits[np.arange(len(tokens)), tokens] += 14
    prompt = np.array(tokenize(target, SEEN), np.int64)
    rows = top_tokens(np.asarray(logits, np.float32), 32)
    return TraceRecord(b"k" * 16, prompt, tokens, *rows, held_back=True, chat=True)


def test_trace_is_mapped(target: Model, target_path: Path, tmp_path: Path) -> None:
    header = TraceHeader("t", "0" * 16, "f" * 24, target.vocabulary.size, 32)
    record = record_of(target)
    with Trace(tmp_path / "trace", header) as trace:
        for number in range(3):
            trace.append(replace(record, key=bytes([number]) * 16, held_back=number == 1))
        part = FrequentPart(read_gguf(target_path), weight_of_tokens(trace), 3000)
        assert (part.own[record.answer] >= 0).all(), "they are the most frequent ones"
        narrow = FrequentPart(read_gguf(target_path), weight_of_tokens(trace), 300)
        trace.translate(narrow.map_record)
        assert (len(trace), trace.numbers(held_back=True)) == (3, [1])
        for number in range(3):
            respelled = trace.record(number)
            assert trace.lengths(number) == (len(respelled.prompt), len(respelled.answer))
            assert len(respelled.answer) > len(record.answer)


def test_too_few_tokens_and_other_tokenizers_are_refused(tmp_path: Path, target_path: Path) -> None:
    other = tiny_llama(tmp_path / "none.gguf", tokenizer=False)
    for path, size, why in (
        (target_path, 200, "letters and marks"),
        (other, 4000, "BPE tokenizer"),
    ):
        with pytest.raises(UsageError, match=why):
            FrequentPart(read_gguf(path), np.ones(8192), size)
