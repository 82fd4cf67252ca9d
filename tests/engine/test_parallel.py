"""Parallel answers equal single ones, and none can disturb another."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import localspec
from localspec import Drafting, Engine, SamplingParams
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.registry import REGISTRY, Parts, Registration
from tests.support import ggufs, inside
from tests.support.asking import COUNT, GREEDY, WAYS, generate
from tests.support.greedy import Reference
from tests.support.patches import fail_with
from tests.support.sessions import make_drafts_cheap, module_pair
from tests.support.together import together

AT_ONCE = 8
LONG = "The fox and the bird and the bear went to the river. " * 40
# Only with the kernels, rows have the same bits alone and in shared passes.
pytestmark = pytest.mark.usefixtures("kernels")

WORDS = 'root ::= ("red " | "blue ")+'


parallel = module_pair(context=2048, parallel=AT_ONCE)


@pytest.fixture(scope="module")
def reference(plain_answers: Reference) -> Reference:
    return plain_answers.first(AT_ONCE + 1)


def all_free(engine: Engine) -> bool:
    """Whether no task runs, and no slot holds a cell."""
    slots = inside.slots(engine)
    caches = [cache for slot in slots.all for cache in (slot.cache, slot.draft_cache) if cache]
    held = [
        cache.shared.length(cache.sequences.first + leaf)
        for cache in caches
        for leaf in range(cache.shared.leaves)
    ]
    return not slots.tasks and set(held) == {0}


@pytest.mark.parametrize("way", ["none", "ngram tree", "model", "model tree", "cascade", "auto"])
def test_eight_greedy_answers_equal_single_ones(
    parallel: Engine, reference: Reference, prompts: list[str], way: str
) -> None:
    make_drafts_cheap(parallel)
    found = together([partial(generate, parallel, prompts[n], WAYS[way]) for n in range(AT_ONCE)])
    assert found == reference.tokens[:AT_ONCE]
    assert all_free(parallel)


@pytest.mark.parametrize("way", ["model", "model tree", "cascade"])
def test_sampled_answers_equal_single_ones(parallel: Engine, prompts: list[str], way: str) -> None:
    """So sampled text has the distribution of single answers (`test_exact_distribution`)."""

    def sampled(number: int) -> list[int]:
        sampling = SamplingParams(temperature=1.0, seed=number)
        return generate(parallel, prompts[number], WAYS[way], count=24, sampling=sampling)

    alone = [sampled(number) for number in range(AT_ONCE)]
    assert together([partial(sampled, number) for number in range(AT_ONCE)]) == alone
    assert len({tuple(tokens) for tokens in alone}) == AT_ONCE


def test_mix_of_a_grammar_a_long_prompt_and_cancelled_answers(parallel: Engine) -> None:
    make_drafts_cheap(parallel)
    short = ["Once upon a time", "She went to the", "The sun was hot"]

    def words() -> str:
        return parallel.generate("Colours:", max_tokens=24, sampling=GREEDY, grammar=WORDS).text

    def long() -> list[int]:
        return generate(parallel, LONG, count=24)

    def cancelled() -> str | None:
        stream = parallel.stream("Lily had a", max_tokens=500, sampling=GREEDY)
        for number, _ in enumerate(stream):
            if number == 5:
                stream.cancel()
        return stream.finish_reason

    alone = [words(), long(), *(generate(parallel, prompt) for prompt in short)]
    parallel.clear()  # or the long prompt would not be read again
    work: list[Callable[[], object]] = [words, long]
    work += [partial(generate, parallel, prompt) for prompt in short]
    found = together([*work, cancelled, cancelled])
    assert found[5:] == ["cancelled", "cancelled"]
    assert set(str(found[0]).split()) <= {"red", "blue"}
    assert found[:5] == alone
    assert all_free(parallel)


class Fault(Exception):
    pass


def failing_consumer(engine: Engine, *_: object) -> None:
    with engine.stream("Tom ran", max_tokens=COUNT, sampling=GREEDY) as stream:
        for number, _chunk in enumerate(stream):
            if number == 3:
                raise Fault


def failing_progress(engine: Engine, *_: object) -> None:
    fails = fail_with(Fault())
    engine.generate("He. " + LONG, max_tokens=COUNT, sampling=GREEDY, progress=fails)


class FailingDraft(DraftModel):
    """Raises at its third token: half a tree is proposed, and its cache has run ahead."""

    name = "failing"
    calls = 0

    @property
    def credit(self) -> str:
        self.calls += 1
        if self.calls == 3:
            raise Fault
        return super().credit


def failing_draft(engine: Engine, patch: pytest.MonkeyPatch) -> None:
    def build(parts: Parts) -> FailingDraft:
        assert parts.model is not None
        return FailingDraft(parts.model.cache, parts.model.vocabulary)

    patch.setitem(REGISTRY, "failing", Registration(build, needs_model=True))
    drafting = Drafting(drafter="failing", depth=4)
    engine.generate("Tom ran", max_tokens=COUNT, sampling=GREEDY, drafting=drafting)


@pytest.mark.parametrize("fault", [failing_consumer, failing_progress, failing_draft])
def test_failure_in_one_answer_leaves_the_others_untouched(
    parallel: Engine,
    reference: Reference,
    prompts: list[str],
    fault: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drafting, numbers = Drafting(drafter="model", depth=3), range(0, 9, 3)
    work: list[Callable[[], object]] = [
        partial(generate, parallel, prompts[n], drafting) for n in numbers
    ]
    work.append(partial(fault, parallel, monkeypatch))
    for _ in range(2):  # the second run finds no traces of the first
        *found, raised = together(work)
        assert isinstance(raised, Fault)
        assert found == [reference.tokens[n] for n in numbers]
        assert all_free(parallel)


def test_a_recurrent_model_answers_one_at_a_time(tmp_path: Path) -> None:
    path = ggufs.tiny_mamba(tmp_path / "mamba.gguf")
    with localspec.load(path, draft=None, parallel=4) as engine:
        assert type(engine) is Engine
        assert "one at a time" in engine.notices[-1]


def test_texts_that_a_sliding_window_left_are_read_again(tmp_path: Path) -> None:
    path = ggufs.tiny_llama(tmp_path / "a.gguf", dim=128, layers=4, window=32)
    starts = {100: 100, 300: 100, 500: 150, 700: 180, 900: 90}
    texts = [[*range(start, start + size)] for start, size in starts.items()]
    with (
        localspec.load(path, draft=None, context=512, parallel=2) as several,
        localspec.load(path, draft=None, context=512) as single,
    ):
        for text in texts:
            generate(several, text, count=8)
        for text in texts[::-1]:
            wanted = generate(single, text[:33], count=8)
            assert generate(several, text[:33], count=8) == wanted
        generate(single, texts[0])
        single.save_session(tmp_path / "a.session")
        single.clear()
        single.open_session(tmp_path / "a.session")
        assert generate(single, texts[0][:33], count=8) == wanted
