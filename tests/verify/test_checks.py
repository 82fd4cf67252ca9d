"""The checks pass for the build as it is, and fail for builds that are wrong."""

from dataclasses import replace
from typing import Any

import pytest

from localspec import Drafting, Engine
from localspec.verify.cache_state import check_cache_state
from localspec.verify.checks import QUICK, Deadline, Outcome
from localspec.verify.greedy import check_grammar, check_greedy
from localspec.verify.sampled import check_sampled
from localspec.verify.subject import Subject
from tests.decoding.broken import (
    AlwaysAcceptRule,
    IndependentSiblingsRule,
    UncorrectedResamplingRule,
)
from tests.verify import broken
from tests.verify.conftest import LITTLE

pytestmark = pytest.mark.nightly

ENDLESS = Deadline(None)


@pytest.fixture
def examined(subject: Subject) -> Subject:
    """A subject after the first check, whose results the others use."""
    check_greedy(subject, LITTLE, ENDLESS)
    return subject


def sampled(subject: Subject, *how: Any) -> Outcome:
    subject.answers = [subject.plain(prompt, 16) for prompt in subject.prompts(2)]
    return check_sampled(subject, LITTLE, ENDLESS)


def test_correct_build_passes(subject: Subject) -> None:
    assert not subject.same_bits, "the kernels lack attention of this head size"
    for check in (check_greedy, sampled, check_cache_state, check_grammar):
        outcome = check(subject, LITTLE, ENDLESS)
        assert (outcome.faults, outcome.complete) == ((), True)


@pytest.mark.parametrize("rule", [AlwaysAcceptRule, UncorrectedResamplingRule])
def test_wrong_rules_fail(subject: Subject, monkeypatch: pytest.MonkeyPatch, rule: Any) -> None:
    broken.with_rule(monkeypatch, rule)
    assert any("not distributed" in fault for fault in sampled(subject).faults)
    if rule is AlwaysAcceptRule:
        monkeypatch.setattr("localspec.decoding.rules.GreedyMatch", rule)
        faults = check_greedy(subject, LITTLE, ENDLESS).faults
        assert any("differs from plain" in fault for fault in faults)


def test_answer_of_one_token_is_checked(subject: Subject) -> None:
    subject.answers = [subject.plain(subject.prompts(1)[0], 1)]
    assert check_cache_state(subject, LITTLE, ENDLESS).figures["cases"]["answers"]["rows"] > 0


class TreesOnly(Subject):
    """A subject that only drafts trees, with sampled siblings."""

    def ways(self) -> dict[str, Drafting]:
        return {"model tree": super().ways()["model tree"]}


def test_stale_sibling_distribution_fails(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the built-in pair: random weights hardly show it. With four times the sample of `--quick`:
    on some processors half of it draws texts that do not show it."""
    subject = TreesOnly(engine, lambda text: None)
    subject.answers = [subject.plain(prompt, 32) for prompt in subject.prompts(4)]
    more = replace(QUICK, samples=4 * QUICK.samples)
    assert check_sampled(subject, more, ENDLESS).faults == ()
    broken.with_rule(monkeypatch, IndependentSiblingsRule)
    faults = check_sampled(subject, more, ENDLESS).faults
    assert faults
    assert all("not distributed" in fault for fault in faults)


@pytest.mark.parametrize(
    ("target", "check", "words"),
    [
        (broken.RejectedBranchTarget, check_cache_state, "After tree commits"),
        (broken.RejectedBranchTarget, check_greedy, "tree differs from plain"),
        (broken.RejectedTailTarget, check_cache_state, "After rejections"),
    ],
)
def test_rejected_tokens_in_the_cache_fail(
    examined: Subject, monkeypatch: pytest.MonkeyPatch, target: Any, check: Any, words: str
) -> None:
    broken.with_target(monkeypatch, examined.engine, target)
    assert any(words in fault for fault in check(examined, LITTLE, ENDLESS).faults)


def test_drafts_outside_the_grammar_fail(
    examined: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken.without_grammar_on_drafts(monkeypatch)
    found = check_grammar(examined, LITTLE, ENDLESS)
    assert any("breaks the grammar" in fault for fault in found.faults)


@pytest.fixture
def bit_exact(kernels: None, tiny_exact: Engine) -> Subject:
    """A subject whose rows do not depend on the shape of the pass."""
    return Subject(tiny_exact, lambda text: None)


def test_kernels_are_bit_for_bit_equal(bit_exact: Subject) -> None:
    assert bit_exact.same_bits
    greedy = check_greedy(bit_exact, LITTLE, ENDLESS)
    cache = check_cache_state(bit_exact, LITTLE, ENDLESS)
    grammar = check_grammar(bit_exact, LITTLE, ENDLESS)
    assert [one.faults for one in (greedy, cache, grammar)] == [(), (), ()]
    assert "bit for bit" in greedy.summary
    assert "bit for bit" in cache.summary
    assert set(bit_exact.distances) == {0.0}


def test_near_ties_are_faults_with_kernels(
    bit_exact: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken.with_target(monkeypatch, bit_exact.engine, broken.NearTieTarget)
    faults = check_greedy(bit_exact, LITTLE, ENDLESS).faults
    assert any("differs from plain decoding" in fault for fault in faults)
    assert any("rows differ in passes of other shapes" in fault for fault in faults)
    bit_exact.same_bits = False
    excused = check_greedy(bit_exact, LITTLE, ENDLESS)
    assert excused.faults == ()
    assert "the others differ where" in excused.summary


def test_changed_bit_is_a_fault_with_kernels(
    bit_exact: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken.with_target(monkeypatch, bit_exact.engine, broken.BitFlipTarget)
    greedy = check_greedy(bit_exact, LITTLE, ENDLESS)
    assert all("rows differ in passes of other shapes" in fault for fault in greedy.faults)
    cache = check_cache_state(bit_exact, LITTLE, ENDLESS)
    assert any("After rejections" in fault for fault in cache.faults)
    bit_exact.same_bits = False
    assert check_greedy(bit_exact, LITTLE, ENDLESS).faults == ()
