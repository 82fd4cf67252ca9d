"""What may be drafted behind each place of a draft, and how sure a row of the draft model is."""

from __future__ import annotations

import numpy as np
import pytest

from localspec.decoding.draft_sampler import DraftLogits, DraftSampler
from localspec.decoding.sampling import Row
from localspec.decoding.session import Session
from tests.support.toys import session_of

ROW: Row = np.log(np.array([0.1, 0.4, 0.3, 0.2], np.float32))
BEST = int(ROW.argmax())
TEXT = [0, 1]


def sampler_of(session: Session, *path: int) -> DraftSampler:
    return DraftSampler(session, path, greedy=True)


def test_entropy_is_in_nats_and_impossible_tokens_have_no_part_in_it() -> None:
    probs = np.array([0.1, 0.4, 0.3, 0.2])
    for row in (ROW, ROW + 5, np.append(ROW, np.float32(-np.inf))):
        logits = DraftLogits(row, sampler_of(session_of(TEXT, size=len(row))), 1)
        assert logits.entropy == pytest.approx(-(probs * np.log(probs)).sum(), abs=1e-6)
    sure = DraftLogits(np.array([0.0, -np.inf], np.float32), sampler_of(session_of([0], size=2)), 1)
    assert sure.entropy == 0.0
    assert sure.probs == [1.0]
