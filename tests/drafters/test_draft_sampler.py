"""What may be drafted behind each place of a draft, and how sure a row of the draft model is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from localspec.decoding.draft_sampler import DraftLogits, DraftSampler
from localspec.decoding.sampling import Row
from localspec.decoding.session import Session
from tests.support.toys import AS_IS, GREEDY, Forbids, session_of

ROW: Row = np.log(np.array([0.1, 0.4, 0.3, 0.2], np.float32))
BEST = int(ROW.argmax())
TEXT = [0, 1]


def sampler_of(session: Session, *path: int) -> DraftSampler:
    return DraftSampler(session, path, greedy=True)


def test_branches_have_a_grammar_of_their_own() -> None:
    session = session_of(TEXT, params=GREEDY, constraint=Forbids({(1, 1), (2, 1), (2, 2)}, 1))
    stem = sampler_of(session)
    one, other = stem.forked(2), stem.forked(0)
    assert stem.top(ROW, 4, BEST) == [2, 3, 0], "it stays where it was"
    assert one.top(ROW, 4, BEST) == [3, 0]
    assert other.top(ROW, 4, BEST) == [1, 2, 3, 0]
    assert one.forked(0).top(ROW, 4, BEST) == [1, 2, 3, 0]
    closed = stem.forked(1)
    assert not closed.open
    assert stem.open
    assert one.open


@pytest.mark.parametrize("most", [1, 3])
def test_probabilities_are_of_the_row_itself(most: int) -> None:
    """Whatever temperature, truncation, penalties and grammar make of it."""
    params = replace(AS_IS, temperature=0.3, top_k=2, frequency_penalty=2.0)
    session = session_of([2, 2], params=params, constraint=Forbids({(2, 1)}, 2))
    logits = DraftLogits(ROW, sampler_of(session), most)
    assert logits.tokens == [3, 0, 2][:most]
    assert logits.probs == pytest.approx([0.2, 0.1, 0.3][:most])
    assert [logits.prob(token) for token in range(4)] == pytest.approx([0.1, 0.4, 0.3, 0.2])


def test_entropy_is_in_nats_and_impossible_tokens_have_no_part_in_it() -> None:
    probs = np.array([0.1, 0.4, 0.3, 0.2])
    for row in (ROW, ROW + 5, np.append(ROW, np.float32(-np.inf))):
        logits = DraftLogits(row, sampler_of(session_of(TEXT, size=len(row))), 1)
        assert logits.entropy == pytest.approx(-(probs * np.log(probs)).sum(), abs=1e-6)
    sure = DraftLogits(np.array([0.0, -np.inf], np.float32), sampler_of(session_of([0], size=2)), 1)
    assert sure.entropy == 0.0
    assert sure.probs == [1.0]
