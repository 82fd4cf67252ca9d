"""An answer that was asked for, and what may be asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from localspec.decoding.acceptance import AcceptanceRule
from localspec.decoding.interfaces import Drafter
from localspec.decoding.sampling import Constraint, SamplingParams
from localspec.decoding.session import Session
from localspec.decoding.stats import GenerationStats
from localspec.drafters.heterogeneous import HeterogeneousDraftModel
from localspec.drafters.options import Drafting
from localspec.drafters.registry import Parts
from localspec.errors import UsageError
from localspec.llama.pictures import Picture
from localspec.prompting.detokenizer import Detokenizer
from localspec.typed import fitted

if TYPE_CHECKING:
    from localspec.llama.target import LlamaTarget
    from localspec.llama.vocabulary import Vocabulary


@dataclass(slots=True, kw_only=True)
class Answer:
    """An answer that was asked for."""

    session: Session
    detokenizer: Detokenizer
    sampling: SamplingParams
    drafting: Drafting
    rule: AcceptanceRule
    stats: GenerationStats
    prediction: Sequence[int] = ()
    reuse: bool = True
    progress: Callable[[int, int], None] | None
    pictures: Sequence[Picture] = ()


def reread(answer: Answer, target: LlamaTarget, parts: Parts, drafter: Drafter) -> None:
    """After a shift of the context: bring target and drafts to the text that is left."""
    tokens, stats = answer.session.context, answer.stats
    target.progress = None  # the prompt's is over
    target.reuse(tokens)
    parts.index.expect(tokens, answer.prediction)
    drafter.begin(tokens)
    if SHIFTED not in stats.notices:
        stats.notices.append(SHIFTED)


def vocabulary_of(parts: Parts) -> str | None:
    """How drafts are made where the draft model has another vocabulary; None where it has the
    same."""
    model = parts.model
    return model.summary if isinstance(model, HeterogeneousDraftModel) else None


SHIFTED = (
    "The context was full, and the answer went on without the oldest of the text. Open the model "
    "with a longer one (--ctx) to keep it."
)


def constraint_of(
    vocabulary: Vocabulary,
    grammar: str | None,
    json_schema: str | Mapping[str, Any] | None,
    regex: str | None,
    *,
    thinks: bool,
) -> Constraint | None:
    """What an answer has to match, None for anything; a UsageError for several, or a bad one."""
    given = [one for one in (grammar, json_schema, regex) if one is not None]
    if not given:
        return None
    if len(given) > 1:
        raise UsageError(
            "A grammar, a JSON schema and a regular expression exclude each other. Give one of "
            "them."
        )
    from localspec.llama.grammar import Grammar  # llguidance is loaded where it is used
    from localspec.llama.json_schema import parsed

    if json_schema is not None:
        return Grammar.of_schema(vocabulary, parsed(json_schema), thinks=thinks)
    if regex is not None:
        return Grammar.from_regex(vocabulary, regex, thinks=thinks)
    return Grammar(vocabulary, str(grammar), thinks=thinks)


def checked_stops(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """Stop strings, each of some text, or a UsageError."""
    stops = (stop,) if isinstance(stop, str) else tuple(() if stop is None else stop)
    stops = tuple(fitted("stop", text, str) for text in stops)
    if not all(stops):
        raise UsageError("A stop string is empty. Leave it out, or give some text.")
    return stops
