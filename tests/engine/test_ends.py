"""The end of an answer does not depend on drafts: text, token ids, counts, log-probabilities and
finish reason are those of plain decoding, whatever was accepted after the end."""

import itertools
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from localspec import Drafting, Engine, NativeError, SamplingParams, load
from tests.engine.conftest import TINY_OPTIONS, ModelFiles
from tests.support import ggufs
from tests.support.asking import PLAIN, ask, tokens_of

# Log-probabilities have the same bits only where rows do not depend on their passes.
pytestmark = pytest.mark.usefixtures("kernels")

LENGTH = 32
DRAFTERS = {
    "ngram": Drafting(drafter="ngram", depth=12),
    "ngram tree": Drafting(drafter="ngram", depth=6, width=3),
    "model": Drafting(drafter="model", depth=12),
    "model tree": Drafting(drafter="model", depth=4, width=3),
    "auto": Drafting(),
    "auto, deep": Drafting(depth=16),
}
PROMPTS = (
    "The fox was very hungry. He saw a bird and",
    "Once upon a time, there was a little girl. Once upon a time, there was",
    "Tom and Lily went to the park. Tom saw a dog. Lily saw a dog. Tom saw",
)
CAPS = (2, 9, LENGTH)
GRAMMAR = 'root ::= "Once upon" (" a time" | " the time") ("," | ".") " there was a" [a-z ]{3}'


def run(
    engine: Engine, prompt: str, drafting: Drafting, *, cap: int = LENGTH, **more: Any
) -> dict[str, Any]:
    """Everything visible of an answer but statistics of drafting."""
    with ask(engine, prompt, drafting, cap, logprobs=2, **more) as stream:
        chunks = list(stream)
    steps = [chunk.step for chunk in chunks if chunk.step is not None]
    assert "".join(chunk.text for chunk in chunks) == stream.text
    assert stream.stats.accepted == sum(len(step.accepted_nodes) for step in steps)
    assert stream.stats.accepted <= stream.stats.generated_tokens
    return {
        "text": stream.text,
        "ended": (stream.finish_reason, stream.stopped, stream.stats.generated_tokens),
        "tokens": tokens_of(chunks),
        "logprobs": [one for step in steps for one in step.logprobs],
        "context": list(stream.context),
    }


def stops_in(text: str) -> list[tuple[str, ...]]:
    """Stop strings within a text: short, long, overlapping, and some that never occur."""
    words = text.split(" ")
    middle = len(text) // 2
    return [
        (),
        (text[middle : middle + 1],),
        (text[middle - 3 : middle + 9], text[middle + 1 : middle + 3]),
        (text[5:40], text[12:15]),
        (" ".join(words[1:9]), words[3], "never"),
        (text[-1:], text[1:-2]),
        ("\n", ".", "☃"),
    ]


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_ends_are_those_of_plain_decoding(engine: Engine, prompt: str, drafter: str) -> None:
    whole = _plain(engine, prompt)["text"]
    crossed = 0
    stops = stops_in(whole)
    for cap, stop in [
        *zip(itertools.cycle(CAPS), stops, strict=False),
        *((LENGTH, stop) for stop in stops),
    ]:
        how: Any = {"cap": cap, "stop": stop}
        # The prediction continues after every end, and so do drafts.
        found = run(engine, prompt, DRAFTERS[drafter], prediction=whole, **how)
        assert found == _plain(engine, prompt, **how), how
        crossed += found["ended"][1] is not None
    assert crossed > len(CAPS)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_ends_of_a_grammar_are_those_of_plain_decoding(engine: Engine, drafter: str) -> None:
    whole = "Once upon a time, there was a little girl. She liked to play"
    for cap, stop in itertools.product((3, LENGTH), ((), ("upon a time, there", "time"))):
        how: Any = {"cap": cap, "stop": stop, "grammar": GRAMMAR}
        found = run(engine, PROMPTS[0], DRAFTERS[drafter], prediction=whole, **how)
        assert found == _plain(engine, PROMPTS[0], **how)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_draft_without_possible_tokens_is_harmless(engine: Engine, drafter: str) -> None:
    """It passes the stop string and reaches the end of the grammar, where end tokens are banned."""
    ends = filter(engine.model.vocabulary.ends, range(engine.model.vocabulary.size))
    banned = SamplingParams(temperature=0.0, logit_bias=dict.fromkeys(ends, -math.inf))
    how: Any = {"grammar": "root ::= [a-z ]{20}", "prediction": " wanted to eat it so"}
    how["sampling"] = banned
    with pytest.raises(NativeError, match="No token is possible"):
        run(engine, PROMPTS[0], DRAFTERS[drafter], **how)
    how["stop"] = (" it",)
    plain = run(engine, PROMPTS[0], PLAIN, **how)
    assert run(engine, PROMPTS[0], DRAFTERS[drafter], **how) == plain


def test_tokens_never_said(tiny: Engine, tiny_pair: ModelFiles, tmp_path: Path) -> None:
    """Such as images' marks, as Gemma 4 lists them: like a bias against them, drafts included."""
    never = sorted(set(tokens_of(ask(tiny, PROMPTS[0], PLAIN, LENGTH))))
    banned = SamplingParams(temperature=0.0, logit_bias=dict.fromkeys(never, -math.inf))
    plain = [tokens_of(ask(tiny, one, PLAIN, LENGTH, sampling=banned)) for one in PROMPTS]
    model = ggufs.tiny_llama(tmp_path / "never.gguf", never=never)
    with load(model, draft=tiny_pair.draft, options=TINY_OPTIONS) as engine:
        for way in (PLAIN, *DRAFTERS.values()):
            assert [tokens_of(ask(engine, one, way, LENGTH)) for one in PROMPTS] == plain


@cache
def _plain(engine: Engine, prompt: str, **how: Any) -> dict[str, Any]:
    return run(engine, prompt, PLAIN, **how)
