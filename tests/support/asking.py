"""Asking an engine for greedy answers, drafted in every way."""

from collections.abc import Iterable
from typing import Any

from localspec import Chunk, Drafting, Engine, SamplingParams, Stream

COUNT = 41  # tokens of an answer
GREEDY = SamplingParams(temperature=0)
ENDLESS = SamplingParams(temperature=0, logit_bias={0: -1e9, 4: -1e9})  # for built-in models
PLAIN = Drafting(drafter="none")
WAYS = {
    "none": PLAIN,
    "ngram": Drafting(drafter="ngram"),
    "ngram tree": Drafting(drafter="ngram", width=4, depth=4),
    "lookahead": Drafting(drafter="lookahead", width=4),
    "model": Drafting(drafter="model", depth=4),
    "model tree": Drafting(drafter="model", width=3, depth=3),
    "while confident": Drafting(drafter="model", depth=8, min_confidence=0.3, min_likelihood=0.1),
    "token rule": Drafting(drafter="model", rule="token"),
    "cascade": Drafting(drafter="cascade", depth=6),
    "model+ngram": Drafting(drafter="model+ngram", depth=6),
    "ngram+model": Drafting(drafter="ngram+model", depth=6),
    "auto": Drafting(),
    "auto tree": Drafting(width=3),
}


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def assistant(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def tokens_of(chunks: Iterable[Chunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


def ask(
    engine: Engine,
    prompt: Any,
    drafting: Drafting | None = None,
    count: int | None = COUNT,
    **more: Any,
) -> Stream:
    """Start a greedy answer."""
    options = {"max_tokens": count, "sampling": GREEDY, "drafting": drafting, **more}
    return engine.stream(prompt, **options)


def generate(
    engine: Engine, prompt: Any, drafting: Drafting | None = None, **more: Any
) -> list[int]:
    """The tokens of a greedy answer."""
    return tokens_of(ask(engine, prompt, drafting, **more))
