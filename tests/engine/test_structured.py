"""Answers to generated schemas, with and without drafts."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given

from localspec import Drafting, Engine, SamplingParams
from tests.support.schemas import with_references
from tests.support.toys import examples

FOX = [{"role": "user", "content": "Tell me a story about a fox."}]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_change_no_structured_answer(engine: Engine, temperature: float) -> None:
    """The token that each step adds is the target's under the masks, whoever drafted."""
    finished = 0

    @given(with_references())
    @examples(10)
    def told(made: tuple[dict[str, Any], Any]) -> None:
        nonlocal finished
        schema = made[0]
        said = {}
        for drafter in ("none", "ngram", "model", "auto"):
            drafting = Drafting(drafter=drafter, rule="match" if temperature else "auto")
            answer = engine.chat(
                FOX,
                json_schema=schema if drafter == "auto" else json.dumps(schema),
                sampling=SamplingParams(temperature=temperature, seed=1),
                drafting=drafting,
                max_tokens=60,
            )
            said[drafter] = answer.text
            if answer.finish_reason == "stop":
                finished += 1
                jsonschema.Draft202012Validator(schema).validate(json.loads(answer.text))
        assert set(said.values()) == {said["none"]}, said

    told()
    assert finished > 20
