"""What is asked of an engine: checked, and as it is begun."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localspec.decoding.acceptance import AcceptanceRule
from localspec.decoding.sampling import Constraint, SamplingParams
from localspec.decoding.session import Session
from localspec.decoding.stats import GenerationStats
from localspec.drafters.options import Drafting
from localspec.errors import UsageError

if TYPE_CHECKING:
    from localspec.llama.vocabulary import Vocabulary


@dataclass(slots=True, kw_only=True)
class Answer:
    """What was asked for, as it is begun."""

    session: Session
    sampling: SamplingParams
    drafting: Drafting
    rule: AcceptanceRule
    stats: GenerationStats
    prediction: Sequence[int] = ()
    reuse: bool = True
    progress: Callable[[int, int], None] | None


def constraint_of(
    vocabulary: Vocabulary, grammar: str | None, json_schema: str | None
) -> Constraint | None:
    """What an answer has to match, None where it may be anything.

    Args:
        grammar: GBNF text.
        json_schema: a JSON schema.

    Raises:
        UsageError: both are given, or the one given is invalid.
    """
    from localspec.llama.grammar import Grammar

    if grammar is not None and json_schema is not None:
        raise UsageError("A grammar and a JSON schema exclude each other. Give one of them.")
    if json_schema is not None:
        return Grammar.from_json_schema(vocabulary, json_schema)
    return None if grammar is None else Grammar(vocabulary, grammar)


def checked_stops(stop: str | Sequence[str]) -> tuple[str, ...]:
    """One or more strings that end an answer.

    Raises:
        UsageError: one is empty, or no string.
    """
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    if any(not isinstance(text, str) or not text for text in stops):
        raise UsageError("A stop string is empty. Leave it out, or give some text.")
    return stops
