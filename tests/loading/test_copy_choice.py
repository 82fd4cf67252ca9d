"""Whether a pair drafts with the requantized copy of its draft model: by what that is worth to it.

Times are made up (a copy's, a pass's of the draft, the target's curve); how often drafts are right
is measured with the models.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader

import localspec
from localspec import Drafting, Engine, ModelOptions, SamplingParams
from localspec.errors import NativeError
from localspec.llama import requantized_draft
from localspec.llama.model import Model
from localspec.llama.quantize import quantize
from localspec.loading import copy_choice
from localspec.loading.copy_choice import promises_more
from localspec.pairing.agreement import acceptances
from localspec.pairing.forecast import CPU_CURVE
from tests.support import retokenised

OPTIONS = ModelOptions(context=256, threads=1, gpu_layers=0)
CURVE = (1.0, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9)


@pytest.fixture(autouse=True)
def agreed_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded draft is large enough, costs a fourth of a pass, and its copy half of that."""
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(requantized_draft, "SMALLEST", 1 << 20)
    monkeypatch.setattr(requantized_draft, "time_ratio", lambda *_: 0.5)
    monkeypatch.setattr(copy_choice, "measured_curve", lambda *_: CURVE)
    monkeypatch.setattr(copy_choice, "_cost", lambda *_: 0.25)
    monkeypatch.setattr(copy_choice, "BUSY", math.inf)


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The targets that read texts for it, each time."""
    seen: list[Path] = []
    real = acceptances

    def counted(target: Any, drafts: Any) -> Any:
        seen.append(target.model.path)
        return real(target, drafts)

    monkeypatch.setattr(copy_choice, "acceptances", counted)
    return seen


def opened(target: Path | None = None, options: ModelOptions = OPTIONS, **keywords: Any) -> Engine:
    """The embedded pair, or its draft with another target."""
    draft = localspec.paths.embedded(localspec.paths.EMBEDDED_DRAFT)
    return localspec.load(target, options=options, **{"draft": draft} | keywords)


def path_in_use(*arguments: Any, **keywords: Any) -> Path:
    with opened(*arguments, **keywords) as engine:
        assert engine.draft is not None
        return engine.draft.path


def copies(home: Path) -> list[Path]:
    return sorted((home / "cache" / "drafts").glob("*.gguf"))


def scrambled(source: Path, destination: Path, *arguments: Any, **options: Any) -> None:
    """A copy that is as fast as any and says nonsense: its embeddings, which are also the output,
    belong to other tokens."""
    quantize(source, destination, *arguments, **options)
    reader = GGUFReader(destination, "r+")
    rows = next(tensor.data for tensor in reader.tensors if tensor.name == "token_embd.weight")
    rows[:] = rows[np.random.default_rng(0).permutation(len(rows))]
    rows.flush()


def test_copy_that_is_about_as_often_right_is_used_and_said_so(
    draft_path: Path, compared: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "localspec.loading"), opened() as engine:
        assert engine.draft is not None
        assert engine.draft.path != draft_path
        assert engine.draft_path == draft_path
        (notice,) = engine.notices
        assert notice.startswith("The draft is used as a Q4_0 copy: 0.50 of the time, accepted 0.")
        assert engine.profile.target.seconds(1, 0) == 0, "nothing else was measured"
    assert "the copy is used" in caplog.text
    assert len(compared) == 1


def test_copy_that_says_nonsense_is_not_used_however_fast_it_is(
    draft_path: Path,
    tmp_path: Path,
    compared: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(requantized_draft, "quantize", scrambled)
    with caplog.at_level(logging.INFO, "localspec.loading"):
        for _ in range(2):
            with opened() as engine:
                assert engine.draft is not None
                assert engine.draft.path == draft_path
                assert engine.notices == ()
    assert "the original is used" in caplog.text
    assert len(compared) == 1, "that is known from then on"
    assert copies(tmp_path / "home") == []
    (record,) = (tmp_path / "home" / "cache" / "drafts").glob("*.json")
    (use,) = json.loads(record.read_text(encoding="utf-8"))["pairs"].values()
    original, copy = use["acceptance"]
    assert original > 0.5 > 0.1 > copy


def test_later_sessions_ask_the_target_nothing(compared: list[Path]) -> None:
    first = path_in_use()
    with opened() as engine:
        assert engine.draft is not None
        assert engine.draft.path == first
        assert len(engine.notices) == 1
    assert len(compared) == 1


@pytest.mark.parametrize("change", ["another", "newer", "library", "record"])
def test_it_is_asked_anew_where_something_has_changed(
    change: str,
    target_path: Path,
    tmp_path: Path,
    compared: list[Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = tmp_path / "target.gguf"
    shutil.copyfile(target_path, target)
    copy = path_in_use(target)
    if change == "another":
        target = tmp_path / "other.gguf"
        shutil.copyfile(target_path, target)
    elif change == "newer":
        os.utime(target, ns=(1, 1))
    elif change == "library":
        monkeypatch.setattr("localspec.llama.library.version", lambda: "another llama.cpp")
    else:
        copy.with_suffix(".json").write_text("{", encoding="utf-8")
    path_in_use(target)
    path_in_use(target)
    assert len(compared) == 2


def test_answers_stay_as_they_were(draft_path: Path) -> None:
    texts = []
    for requantized in (False, True, True):
        with opened(options=replace(OPTIONS, requantize_draft=requantized)) as engine:
            assert engine.draft is not None
            assert (engine.draft.path != draft_path) is requantized
            answer = engine.generate(
                "Once upon a time",
                max_tokens=24,
                sampling=SamplingParams(temperature=0),
                drafting=Drafting(drafter="model", depth=3),
            )
            assert answer.stats.accepted > 0
            texts.append(answer.text)
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize("how", [{"parallel": 2}, {"context": 16}, {"exact": True}], ids=str)
def test_it_is_measured_whatever_the_target_is_opened_for(
    how: dict[str, Any], draft_path: Path, compared: list[Path]
) -> None:
    with opened(options=replace(OPTIONS, **how)) as engine:
        assert engine.draft is not None
        assert engine.draft.path != draft_path
        assert engine.generate("Once upon", max_tokens=8).stats.generated_tokens == 8
    assert len(compared) == 1


def test_draft_of_another_vocabulary_gets_no_copy(
    draft_path: Path, tmp_path: Path, compared: list[Path]
) -> None:
    other = retokenised.permuted(tmp_path / "other.gguf", draft_path)
    assert path_in_use(draft=other) == other
    assert compared == []
    assert copies(tmp_path / "home") == []


def test_failure_to_measure_leaves_the_original_and_is_tried_again(
    draft_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise NativeError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(copy_choice, "acceptances", fail)
        assert path_in_use() == draft_path
    assert "the draft model is used as it is: no memory" in caplog.text
    assert path_in_use() != draft_path


@pytest.mark.parametrize("disturbed", ["before", "while it was timed", "while it was compared"])
def test_busy_machine_tells_nothing_and_it_is_tried_again(
    disturbed: str,
    draft_path: Path,
    tmp_path: Path,
    compared: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    busy = ["before", "while it was timed", "while it was compared"].index(disturbed)
    used = [0.1, 0.1, 0.1]
    used[busy] = 1.0
    asked = iter(used)
    with monkeypatch.context() as patch, caplog.at_level(logging.INFO):
        patch.setattr(copy_choice, "BUSY", 0.3)
        real = copy_choice.calm
        patch.setattr(copy_choice, "calm", lambda _: real(lambda: next(asked)))
        assert path_in_use() == draft_path
        assert "other processes compute" in caplog.text
        assert next(asked, None) == (0.1 if busy < 2 else None), "nothing is measured after that"
    assert len(compared) == (1 if busy == 2 else 0)
    assert len(copies(tmp_path / "home")) == (0 if busy == 0 else 1)
    assert path_in_use() != draft_path


def test_what_counts_as_calm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_choice, "BUSY", 0.3)
    assert copy_choice.calm(lambda: None), "a system that does not tell"
    assert copy_choice.calm(lambda: 0.1)
    assert not copy_choice.calm(lambda: 0.9)


def test_curve_that_an_earlier_session_measured_is_used(
    target_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = replace(OPTIONS, threads=1)
    with localspec.load(target_path, draft=None, options=options) as alone:
        alone.profile.target.learn({n: 0.01 * t for n, t in enumerate(CPU_CURVE, 1)}, 0)
        alone._store.save(alone.profile)
    found: list[Any] = []
    real = promises_more

    def seen(ratio: float, accepted: Any, cost: float, curve: Any) -> bool:
        found.append(curve)
        return real(ratio, accepted, cost, curve)

    monkeypatch.setattr(copy_choice, "promises_more", seen)
    path_in_use(options=options)
    assert found[0] == pytest.approx(CPU_CURVE)


def chances(original: float, copy: float, spread: float = 0.0, places: int = 64) -> Any:
    """Of both at each place; their difference is off by `spread`, up and down in turn."""
    found = np.array([np.full(places, original), np.full(places, copy)])
    found[1] += spread * np.where(np.arange(places) % 2, 1.0, -1.0)
    return found


def test_what_was_measured_on_a_real_pair() -> None:
    """SmolLM2-135M as the draft: in Q8_0 for a target in Q4_K_M, its copy was right in 0.775 of all
    places instead of 0.91, for 0.75 of the time; whatever a pass costs, that is worse."""
    for cost in (0.05, 0.1, 0.2, 0.3, 0.5):
        assert not promises_more(0.75, chances(0.91, 0.775), cost, CPU_CURVE)
    assert promises_more(0.7, chances(0.78, 0.957), 0.26, CPU_CURVE)


def test_what_promises_more() -> None:
    # By hand, one depth: (1 + a) / (c + 1.1) is 1.5 / 1.2 = 1.25 before.
    curve = (1.0, 1.1)
    assert promises_more(0.5, chances(0.5, 0.45), 0.1, curve)  # 1.45 / 1.15 = 1.26
    assert not promises_more(0.5, chances(0.5, 0.43), 0.1, curve)  # 1.243
    # A spread of 0.16 over 64 places is an error of 0.02.
    assert not promises_more(0.5, chances(0.5, 0.45, spread=0.16), 0.1, curve)
    assert promises_more(0.5, chances(0.5, 0.47, spread=0.16), 0.1, curve)


def test_a_tie_goes_to_the_original() -> None:
    assert not promises_more(1.0, chances(0.8, 0.8), 0.2, CPU_CURVE)
    assert not promises_more(0.5, chances(0.5, 0.5), 1.1, CPU_CURVE), "neither gains"
    assert not promises_more(0.5, chances(0.8, 0.8, places=1), 0.2, CPU_CURVE), "nothing is known"
    assert not promises_more(0.5, np.full((2, 64), np.nan), 0.2, CPU_CURVE)


def test_pass_of_a_draft_is_measured_in_those_of_the_target(
    target_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same model it is about one; what of it is left in the caches is nothing."""
    monkeypatch.undo()
    from localspec.llama.context import Context

    with Model(target_path, OPTIONS) as model:
        one, other = Context(model, OPTIONS), Context(model, OPTIONS)
        assert 0.1 < copy_choice._cost(one, other) < 10.0
        assert one.tokens == other.tokens == []
        one.close()
        other.close()


def damaged(data: bytes) -> dict[str, bytes]:
    """What may become of a file in a cache folder."""
    return {
        "empty": b"",
        "cut": data[: len(data) // 2],
        "another": b"no model at all" * 1000,
        "scrambled": data[:64] + bytes(byte ^ 0x5A for byte in data[64:4096]) + data[4096:],
    }


@pytest.mark.parametrize("how", ["empty", "cut", "another", "scrambled"])
def test_copy_that_cannot_be_opened_is_removed_and_the_original_used(
    how: str, draft_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = path_in_use()
    assert copy != draft_path
    copy.write_bytes(damaged(copy.read_bytes())[how])
    with caplog.at_level(logging.WARNING, "localspec.llama"):
        with opened() as engine:
            assert engine.draft is not None
            assert engine.draft.path == draft_path
            drafting = Drafting(drafter="model", depth=3)
            answer = engine.generate("Once upon a time", max_tokens=8, drafting=drafting)
            assert answer.stats.drafted > 0
        assert "the copy of the draft model is removed, the original is used" in caplog.text
    assert not copy.exists()
    assert not copy.with_suffix(".json").exists()
    assert path_in_use() == copy, "and it is made anew"
