"""Answers to schemas, with and without drafts."""

from __future__ import annotations

import json
from itertools import islice

import jsonschema
import pytest

from localspec import Drafting, Engine, SamplingParams, UsageError
from tests.support.schemas import suite

FOX = [{"role": "user", "content": "Tell me a story about a fox."}]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_change_no_structured_answer(engine: Engine, temperature: float) -> None:
    """The token that each step adds is the target's under the masks, whoever drafted."""
    finished = 0
    for schema, *_ in islice(suite(), 0, None, 5):
        said = {}
        for drafter in ("none", "ngram", "model", "auto"):
            drafting = Drafting(drafter=drafter, rule="match" if temperature else "auto")
            try:
                answer = engine.chat(
                    FOX,
                    json_schema=schema if drafter == "auto" else json.dumps(schema),
                    sampling=SamplingParams(temperature=temperature, seed=1),
                    drafting=drafting,
                    max_tokens=60,
                )
            except UsageError:  # one that cannot be enforced
                break
            said[drafter] = answer.text
            if answer.finish_reason == "stop":
                finished += 1
                jsonschema.Draft202012Validator(schema).validate(json.loads(answer.text))
        assert len(set(said.values())) <= 1, said
    assert finished > 20
