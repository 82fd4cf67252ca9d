"""Drafts of tokens that a grammar forces, and structured answers with drafts."""

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import jsonschema
import pytest

from localspec import Drafting, Engine, ModelOptions, SamplingParams, UsageError
from localspec.grammars.grammar import Grammar
from localspec.grammars.intended_schema import parse_schema
from localspec.llama.model import Model
from localspec.llama.vocabulary import Vocabulary
from tests.llama.conftest import smaller, vocabulary
from tests.support.asking import user
from tests.support.retokenised import sentencepiece
from tests.support.schemas import suite

__all__ = ["smaller", "vocabulary"]

SCHEMA = (
    '{"type": "object", "properties": {"a long name": {"enum": ["of a fox"]}}, '
    '"required": ["a long name"]}'
)


def texts(vocabulary: Vocabulary, tokens: Sequence[int]) -> str:
    return b"".join(map(vocabulary.piece, tokens)).decode()


def test_forced_text(vocabulary: Vocabulary) -> None:
    grammar = Grammar.from_schema(vocabulary, parse_schema(SCHEMA))
    forced_texts = []
    for token in vocabulary.tokenize(b'{"a long name":"of a fox"}'):
        forced_texts.append(texts(vocabulary, grammar.forced()))
        other = grammar.fork()
        grammar.advance(token)
        assert texts(vocabulary, other.forced()) == forced_texts[-1], "in a fork"
    assert forced_texts[0] == "{"
    assert 'a long name"' in forced_texts
    assert forced_texts[-1] in ("", "}", 'of a fox"}')
    assert grammar.forced() == ()


def test_forced_text_with_a_space_in_front(draft_path: Path, tmp_path: Path) -> None:
    with Model(sentencepiece(tmp_path / "spm.gguf", draft_path), ModelOptions()) as model:
        grammar = Grammar.from_regex(model.vocabulary, "the old fox sleeps")
        assert texts(model.vocabulary, grammar.forced()) == "the old fox sleeps"


FOX = [user("Tell me a story about a fox.")]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("every", [25, pytest.param(5, marks=pytest.mark.nightly)])
def test_drafts_do_not_change_structured_answers(
    engine: Engine, temperature: float, every: int
) -> None:
    """The target's token at the end of each step obeys the masks too."""
    finished = forced = 0
    for schema, *_ in islice(suite(), 0, None, every):
        completion = {}
        for drafter in ("none", "ngram", "model", "auto", "grammar"):
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
            completion[drafter] = answer.text
            forced += answer.stats.accepted * (drafter == "grammar")
            if answer.finish_reason == "stop":
                finished += 1
                jsonschema.Draft202012Validator(schema).validate(json.loads(answer.text))
        assert len(set(completion.values())) <= 1, completion
    assert finished > 100 // every
    assert forced > 100 // every
