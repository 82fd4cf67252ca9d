"""Options as keywords of `localspec.load`."""

from inspect import signature, unwrap
from typing import get_type_hints

import pytest

import localspec
from localspec import Drafting, ModelOptions
from localspec.engine import Engine
from localspec.keywords import (
    IN_ANSWERS_ELSEWHERE,
    OTHER_NAMES,
    AnswerKeywords,
    AnswerOptions,
    DraftingKeywords,
    ModelKeywords,
    with_keywords,
)
from localspec.loading.load import OWN
from tests.engine.test_engine import untyped


@pytest.mark.parametrize(
    ("keywords", "record"),
    [(ModelKeywords, ModelOptions), (DraftingKeywords, Drafting), (AnswerKeywords, AnswerOptions)],
)
def test_keywords_are_the_fields_of_the_options(keywords: type, record: type) -> None:
    assert get_type_hints(keywords) == get_type_hints(record)


def test_own_keywords_are_the_parameters_of_load() -> None:
    assert tuple(signature(unwrap(localspec.load)).parameters) == (*OWN, "keywords")
    assert not {*get_type_hints(ModelKeywords), *get_type_hints(DraftingKeywords)} & {*OWN}


def test_a_keyword_overrides_one_field_of_an_object() -> None:
    options, drafting = with_keywords(
        ModelOptions(context=1024, threads=1),
        Drafting(drafter="model", depth=5),
        {"context": 512, "depth": 2},
        OWN,
    )
    assert options == ModelOptions(context=512, threads=1)
    assert drafting == Drafting(drafter="model", depth=2)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *(
            (name, rf"{name}'. Did you mean '{meant}'\?")
            for name, meant in (
                ("contxt", "context"),
                ("n_threads", "threads"),
                ("n_gpu_layers", "gpu_layers"),
                ("drafting_options", "drafting"),
                ("option", "options"),
                *OTHER_NAMES.items(),
            )
        ),
        ("zzz", r"It takes model, draft, .*context, .*threshold"),
        ("temperature", r"sampling=SamplingParams\(temperature=…\)"),  # of an answer
    ],
)
def test_error_on_a_wrong_name_in_load(name: str, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        localspec.load(**{name: 1})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *((name, f"Did you mean '{meant}'") for name, meant in IN_ANSWERS_ELSEWHERE.items()),
        ("max_new_tokens", "Did you mean 'max_tokens'"),
        ("temperature", r"sampling=SamplingParams\(temperature=…\)"),
        ("zzz", "It takes prompt, max_tokens"),
    ],
)
def test_error_on_a_wrong_name_in_stream(tiny: Engine, name: str, words: str) -> None:
    for ask in (untyped(tiny.stream), untyped(tiny.generate)):
        with pytest.raises(TypeError, match=rf"An answer takes no .*'{name}'. .*{words}"):
            ask("Once", **{name: 1})
