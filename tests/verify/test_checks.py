"""The checks pass for the build as it is, and fail for builds that are wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from localspec import Drafting, Engine
from localspec.verify.cache_state import check_cache_state
from localspec.verify.checks import QUICK, Deadline, Outcome
from localspec.verify.greedy import check_grammar, check_greedy
from localspec.verify.sampled import check_sampled
from localspec.verify.subject import Subject
from tests.decoding.broken import (
    AlwaysAccepts,
    ResamplesFromTarget,
    TakesSiblingsForIndependent,
)
from tests.verify import broken
from tests.verify.conftest import LITTLE

pytestmark = pytest.mark.nightly

ENDLESS = Deadline(None)


@pytest.fixture
def examined(subject: Subject) -> Subject:
    """With what the checks behind the first go by."""
    check_greedy(subject, LITTLE, ENDLESS)
    return subject


def sampled(subject: Subject) -> Outcome:
    subject.answers = [subject.plain(prompt, 16) for prompt in subject.prompts(2)]
    return check_sampled(subject, LITTLE, ENDLESS)


def test_the_build_as_it_is_passes(subject: Subject) -> None:
    greedy = check_greedy(subject, LITTLE, ENDLESS)
    outcomes = (
        greedy,
        sampled(subject),
        check_cache_state(subject, LITTLE, ENDLESS),
        check_grammar(subject, LITTLE, ENDLESS),
    )
    for outcome in outcomes:
        assert outcome.faults == ()
        assert outcome.complete


def test_always_accepting_fails(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    broken.with_rule(monkeypatch, AlwaysAccepts)
    monkeypatch.setattr("localspec.decoding.rules.GreedyMatch", AlwaysAccepts)
    assert any(
        "differs from plain" in fault for fault in check_greedy(subject, LITTLE, ENDLESS).faults
    )
    assert any("not distributed" in fault for fault in sampled(subject).faults)


def test_a_residual_that_is_p_fails(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    broken.with_rule(monkeypatch, ResamplesFromTarget)
    outcome = sampled(subject)
    assert any("not distributed" in fault for fault in outcome.faults)


class TreesAlone(Subject):
    """Of all ways, the one with siblings that were drawn."""

    def ways(self) -> dict[str, Drafting]:
        return {"model tree": super().ways()["model tree"]}


def test_a_siblings_stale_q_fails(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the embedded pair: random weights hardly show it. With four times the sample of `--quick`:
    on some processors half of it draws texts that do not show it."""
    subject = TreesAlone(engine, lambda text: None)
    subject.answers = [subject.plain(prompt, 32) for prompt in subject.prompts(4)]
    more = replace(QUICK, samples=4 * QUICK.samples)
    assert check_sampled(subject, more, ENDLESS).faults == ()
    broken.with_rule(monkeypatch, TakesSiblingsForIndependent)
    faults = check_sampled(subject, more, ENDLESS).faults
    assert faults
    assert all("not distributed" in fault for fault in faults)


def test_a_rejected_branch_in_the_cache_fails(
    examined: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken.with_target(monkeypatch, examined.engine, broken.KeepsRejectedBranch)
    found = check_cache_state(examined, LITTLE, ENDLESS)
    assert any("After tree commits" in fault for fault in found.faults)
    greedy = check_greedy(examined, LITTLE, ENDLESS)
    assert any("tree differs from plain" in fault for fault in greedy.faults)


def test_a_grammar_that_drafts_escape_fails(
    examined: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken.without_grammar_on_drafts(monkeypatch)
    found = check_grammar(examined, LITTLE, ENDLESS)
    assert any("breaks the grammar" in fault for fault in found.faults)


def test_a_rejected_tail_in_the_cache_fails(
    examined: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken.with_target(monkeypatch, examined.engine, broken.KeepsRejectedTail)
    found = check_cache_state(examined, LITTLE, ENDLESS)
    assert any("After rejections" in fault for fault in found.faults)


@pytest.fixture
def to_the_bit(kernels: None, tiny_exact: Engine) -> Subject:
    """One whose rows are the same bits whatever shares a pass."""
    return Subject(tiny_exact, lambda text: None)


def test_with_kernels_all_is_the_same_to_the_bit(to_the_bit: Subject) -> None:
    assert to_the_bit.same_bits
    greedy = check_greedy(to_the_bit, LITTLE, ENDLESS)
    cache = check_cache_state(to_the_bit, LITTLE, ENDLESS)
    grammar = check_grammar(to_the_bit, LITTLE, ENDLESS)
    assert [one.faults for one in (greedy, cache, grammar)] == [(), (), ()]
    assert "bit for bit" in greedy.summary
    assert "bit for bit" in cache.summary
    assert set(to_the_bit.distances) == {0.0}


def test_a_head_size_that_is_llama_cpps_is_judged_with_rounding(subject: Subject) -> None:
    """Weights are the kernels' there, if these work; attention is not."""
    assert not subject.same_bits


def test_what_rounding_excuses_is_a_fault_with_kernels(
    to_the_bit: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken.with_target(monkeypatch, to_the_bit.engine, broken.TurnsNearTies)
    faults = check_greedy(to_the_bit, LITTLE, ENDLESS).faults
    assert any("differs from plain decoding" in fault for fault in faults)
    assert any("rows differ in passes of other shapes" in fault for fault in faults)
    to_the_bit.same_bits = False
    excused = check_greedy(to_the_bit, LITTLE, ENDLESS)
    assert excused.faults == ()
    assert "the others differ where" in excused.summary


def test_a_bit_that_no_token_depends_on_is_a_fault_with_kernels(
    to_the_bit: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken.with_target(monkeypatch, to_the_bit.engine, broken.MovesABit)
    greedy = check_greedy(to_the_bit, LITTLE, ENDLESS)
    assert all("rows differ in passes of other shapes" in fault for fault in greedy.faults)
    cache = check_cache_state(to_the_bit, LITTLE, ENDLESS)
    assert any("After rejections" in fault for fault in cache.faults)
    to_the_bit.same_bits = False
    assert check_greedy(to_the_bit, LITTLE, ENDLESS).faults == ()
