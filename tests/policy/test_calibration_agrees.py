"""A stored curve is compared with the machine before it is believed."""

from __future__ import annotations

import pytest

import localspec
from localspec import ModelOptions, SamplingParams
from localspec.policy import calibration
from localspec.policy.calibration import calibrate

pytestmark = pytest.mark.nightly

OPTIONS = ModelOptions(context=256, threads=1)


def test_an_engine_measures_anew_what_does_not_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    # Whatever else this machine does: else it would be measured again.
    monkeypatch.setattr(calibration, "calibrate", lambda *arguments: calibrate(*arguments) or True)
    greedy = SamplingParams(temperature=0)
    with localspec.load(options=OPTIONS) as engine:
        engine.generate("Once", max_tokens=2, sampling=greedy)
        engine.profile.target.learn({4: 50 * engine.profile.target.seconds(4, 0)}, 0)
        poisoned = engine.profile.target.seconds(4, 0) / engine.profile.target.seconds(1, 0)
        assert poisoned > 20
    with localspec.load(options=OPTIONS) as engine:
        answer = engine.generate("Once", max_tokens=2, sampling=greedy)
        assert answer.stats.calibration_seconds == 0.0, "too little was decoded since for a look"
        engine.profile.budget.seconds += 1000.0
    with localspec.load(options=OPTIONS) as engine:
        poisoned = engine.profile.target.seconds(4, 0) / engine.profile.target.seconds(1, 0)
        assert poisoned > 20
        answer = engine.generate("Once", max_tokens=2, sampling=greedy)
        assert answer.stats.calibration_seconds > 0.0
        known = engine.profile.target
        assert known.seconds(4, 0) / known.seconds(1, 0) < poisoned / 2


def test_a_look_costs_nothing_of_the_prompt() -> None:
    """In the middle of a conversation its text would have to be read again."""
    greedy, text = SamplingParams(temperature=0), "Once upon a time there was a fox. " * 8
    with localspec.load(options=OPTIONS) as engine:
        engine.generate("Once", max_tokens=2, sampling=greedy)
    with localspec.load(options=OPTIONS) as engine:
        engine.generate(text, max_tokens=2, sampling=greedy)
        engine.profile.budget.seconds += 1000.0
        answer = engine.generate(f"{text} The fox", max_tokens=8, sampling=greedy)
        assert answer.stats.calibration_seconds > 0.0
        assert answer.stats.cached_tokens > 60
        plain = engine.generate(
            f"{text} The fox",
            max_tokens=8,
            sampling=greedy,
            drafting=localspec.Drafting(drafter="none"),
        )
        assert answer.text == plain.text
