"""What `tools.kernel_bits` compares: drafts that are wrong are tested, and rows are told apart."""

from __future__ import annotations

from unittest import mock

import pytest

from localspec import Drafting, Engine
from localspec.drafters.registry import REGISTRY, Registration
from localspec.verify.subject import PLAIN, Subject
from tools.kernel_bits import WRONG, WrongSource, rows_seen

pytestmark = pytest.mark.nightly


def test_wrong_drafts_are_tested_and_leave_the_answer(engine: Engine) -> None:
    subject = Subject(engine, lambda text: None)
    (prompt,) = subject.prompts(1)
    plain = subject.answer(prompt, 8, PLAIN)
    source = Registration(lambda parts: WrongSource(2000), "drafts random tokens")
    with mock.patch.dict(REGISTRY, {WRONG: source}):
        answer = subject.answer(prompt, 8, Drafting(drafter=WRONG, depth=4))
    assert answer.tested >= 6
    assert answer.accepted <= 1
    assert answer.tokens == plain.tokens


def test_rows_are_told_apart(engine: Engine) -> None:
    seen = []
    for text in ("Once upon a time", "Once upon a time", "Once upon a day"):
        engine.clear()
        with rows_seen() as found:
            engine.logits(engine.model.vocabulary.tokenize_bytes(text.encode()))
        seen.append(found)
    assert len(seen[0]) == 1
    assert seen[0] == seen[1]
    assert seen[0] != seen[2]
