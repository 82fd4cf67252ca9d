"""MTP layers draft, and the text stays the target's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
from gguf import LlamaFileType

import localspec
from localspec import (
    Drafting,
    DraftMismatch,
    Engine,
    LocalspecError,
    ModelInvalid,
    NativeError,
    SamplingParams,
    UsageError,
)
from localspec.bench.arms import localspec_arms
from localspec.drafters.eagle import EagleHead
from localspec.llama.context import Context
from localspec.tui.rendering.palette import Palette
from tests.engine.conftest import TINY_OPTIONS, ModelFiles
from tests.engine.test_exact_distribution import PROMPT, check_every_outcome
from tests.engine.test_heads import followers
from tests.engine.test_loading_failures import Alive, alive
from tests.policy.timed import Clock
from tests.support import ggufs, mtp
from tests.support.agreed_time import DRAFT_SECONDS, agree_on_time
from tests.support.sessions import a_session, make_drafts_cheap, steps
from tests.support.together import together

pytestmark = pytest.mark.nightly

__all__ = ["alive"]

GREEDY = SamplingParams(temperature=0)
WAYS = {
    "chain": Drafting(drafter="mtp", depth=4),
    "tree": Drafting(drafter="mtp", width=3, depth=3),
    "auto": Drafting(),
}
TOKENS = 40


class Told:
    """A target without its MTP layer, what it says, and a layer that knows what follows each token.

    Attributes:
        answers: to PROMPT and what begins like it, greedy.
        path: with the layer.
    """

    def __init__(self, folder: Path, architecture: str) -> None:
        make = mtp.MAKERS[architecture]
        with localspec.load(make(folder / "plain.gguf"), draft=None, options=TINY_OPTIONS) as plain:
            tokenize = partial(plain.model.vocabulary.tokenize, special=True, add_bos=True)
            self.prompts = [PROMPT, f"{PROMPT} old", f"{PROMPT} house and"]
            self.answers = [
                [t for chunk in self.asked(plain, text) for t in chunk.token_ids]
                for text in self.prompts
            ]
            texts = zip(map(tokenize, self.prompts), self.answers, strict=True)
            self.follows = followers([[*prompt, *answer] for prompt, answer in texts])
            # And what may be sampled first.
            text, context = tokenize(PROMPT), Context(plain.model, TINY_OPTIONS)
            best = [int(token) for token in context.extend(text)[-1].argsort()[:-4:-1]]
            for token in best:
                self.follows.setdefault(token, int(context.extend([token])[-1].argmax()))
                context.truncate(len(text))
            context.close()
        self.path = make(folder / "with.gguf", follows=self.follows)

    @staticmethod
    def asked(engine: Engine, text: str, drafting: Drafting | None = None) -> Any:
        return engine.stream(text, max_tokens=TOKENS, sampling=GREEDY, drafting=drafting)


@pytest.fixture(scope="module", params=sorted(mtp.MAKERS))
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Told:
    return Told(tmp_path_factory.mktemp("mtp"), request.param)


@pytest.fixture(scope="module")
def opened(told: Told) -> Iterator[Engine]:
    """With what its own file carries."""
    with localspec.load(told.path, draft="self", options=TINY_OPTIONS) as engine:
        yield engine


@pytest.fixture(scope="module")
def clock(opened: Engine) -> Clock:
    return agree_on_time(opened)


@pytest.fixture(scope="module")
def glm(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return Told(tmp_path_factory.mktemp("glm"), "glm4moe")


def accepted_of(engine: Engine, told: Told, drafting: Drafting, clock: Clock) -> int:
    """Tokens of the layer that were accepted in answers that are plain decoding's."""
    accepted = 0
    for text, expected in zip(told.prompts, told.answers, strict=True):
        prompt = engine.model.vocabulary.tokenize(text, special=True, add_bos=True)
        session = a_session(engine, prompt, TOKENS, GREEDY)
        came = list(steps(engine, session, drafting, clock=clock))
        assert session.context[len(prompt) :] == expected
        accepted += sum(step.sources.count("mtp") for step in came)
    return accepted


@pytest.mark.parametrize("way", sorted(WAYS))
def test_greedy_text_is_that_of_plain_decoding(
    opened: Engine, told: Told, clock: Clock, way: str
) -> None:
    make_drafts_cheap(opened, draft=DRAFT_SECONDS)
    assert accepted_of(opened, told, WAYS[way], clock) > TOKENS


def test_auto_leaves_it_where_it_does_not_pay(opened: Engine, told: Told, clock: Clock) -> None:
    make_drafts_cheap(opened, draft=0.5)
    assert accepted_of(opened, told, Drafting(), clock) == 0


@pytest.fixture(scope="module")
def attending(glm: Told) -> Iterator[Engine]:
    """Of a recurrent target the outcomes cannot be walked through: it reads its text anew for each
    of them, in passes of other sizes, which round differently."""
    with localspec.load(glm.path, draft="self", options=TINY_OPTIONS) as engine:
        yield engine


@pytest.fixture(scope="module")
def attending_clock(attending: Engine) -> Clock:
    return agree_on_time(attending)


@pytest.mark.parametrize(
    ("drafting", "top_k"),
    [
        (Drafting(drafter="mtp", depth=2, rule="block"), 3),
        (Drafting(drafter="mtp", depth=2, width=2, rule="token"), 2),
        (Drafting(), 3),
    ],
    ids=["chain", "tree", "auto"],
)
def test_sampled_text_has_exactly_the_targets_distribution(
    attending: Engine, attending_clock: Clock, drafting: Drafting, top_k: int
) -> None:
    check_every_outcome(attending, drafting, top_k, 3, clock=attending_clock)


def test_its_cache_is_the_text_and_nothing_else(opened: Engine, told: Told) -> None:
    """After an answer that was cut short as well, and in the conversation that follows."""
    assert isinstance(opened._parts.head, EagleHead)
    cache = opened._parts.head.cache
    drafting = Drafting(drafter="mtp", depth=4)
    stream = told.asked(opened, told.prompts[1], drafting)
    for chunk in stream:
        if chunk.step is not None and chunk.step.accepted:
            stream.close()
            break
    text = opened.model.vocabulary.tokenize(told.prompts[1], special=True, add_bos=True)
    text += told.answers[1]
    assert cache.tokens == text[: len(cache.tokens)]
    got = [t for chunk in told.asked(opened, told.prompts[1], drafting) for t in chunk.token_ids]
    assert got == told.answers[1]
    assert cache.tokens == text[: len(cache.tokens)]
    assert cache.known_from() == 0, "no state was lacking"


@pytest.mark.parametrize("draft", ["auto", "file", "target"])
def test_the_layer_is_found(glm: Told, tmp_path: Path, draft: str) -> None:
    """In the model's own file without being asked for, in that file by name, in one of its own."""
    alone = mtp.glm(tmp_path / "head.gguf", follows=glm.follows, trunk=False)
    target = glm.path if draft != "file" else mtp.glm(tmp_path / "trunk.gguf", mtp=False)
    named = {"file": alone, "target": glm.path}.get(draft, draft)
    with localspec.load(target, draft=named, options=TINY_OPTIONS) as engine:
        assert engine.head_source == "mtp"
        stream = glm.asked(engine, glm.prompts[0], WAYS["chain"])
        assert [t for chunk in stream for t in chunk.token_ids] == glm.answers[0]
        assert stream.stats.by_drafter["mtp"].accepted > TOKENS // 2
        assert "mtp" in [arm.name for arm in localspec_arms(engine, ["drafters"])]


def test_without_a_layer_it_says_what_it_needs(glm: Told) -> None:
    with (
        localspec.load(glm.path, draft=None, options=TINY_OPTIONS) as engine,
        pytest.raises(UsageError, match=r"'mtp' needs a trained head.*--draft, or self"),
    ):
        engine.generate("A", max_tokens=2, drafting=WAYS["chain"])
    assert Palette({}, dark=True).mark("mtp").name == "MTP layer"


def test_answers_side_by_side_are_each_that_of_plain_decoding(glm: Told) -> None:
    """Each has a cache of its own over the layer, and states of passes that all share."""
    options = replace(TINY_OPTIONS, parallel=3)
    with localspec.load(glm.path, draft="self", options=options) as engine:
        make_drafts_cheap(engine)

        def answer(text: str) -> tuple[list[int], int]:
            stream = glm.asked(engine, text, WAYS["tree"])
            tokens = [t for chunk in stream for t in chunk.token_ids]
            return tokens, stream.stats.by_drafter["mtp"].accepted

        came = together([partial(answer, text) for text in glm.prompts])
    found = [one for one in came if not isinstance(one, BaseException)]
    assert [tokens for tokens, _ in found] == glm.answers, came
    assert sum(accepted for _, accepted in found) > TOKENS


HEADS: dict[str, tuple[dict[str, Any], type[LocalspecError], str]] = {
    "layers": ({"layers": 3}, DraftMismatch, "with 3 layers and states of 64"),
    "width": ({"dim": 32}, DraftMismatch, "states of 32 numbers, .* and 64"),
    "vocabulary": ({"swap_tokens": (300, 301)}, DraftMismatch, "vocabulary: token 300"),
    "several": ({"count": 2}, ModelInvalid, "computes a single one"),
    "no projection": ({"without": "blk.2.nextn.eh_proj.weight"}, ModelInvalid, "eh_proj.*missing"),
    "no norm": ({"without": "blk.2.nextn.hnorm.weight"}, ModelInvalid, "hnorm.* is missing"),
    "no experts": ({"without": "blk.2.ffn_gate_inp.weight"}, ModelInvalid, "inp.* is missing"),
    "no attention": ({"without": "blk.2.attn_q.weight"}, ModelInvalid, "cannot be opened"),
    "wide": ({"wide": 3}, ModelInvalid, r"eh_proj.*\(192, 64\), which does not fit"),
}


@pytest.mark.parametrize("what", sorted(HEADS))
def test_a_layer_that_does_not_fit_is_refused(
    tmp_path: Path, alive: Alive, glm: Told, what: str
) -> None:
    made, kind, said = HEADS[what]
    path = mtp.glm(tmp_path / "head.gguf", trunk=False, **made)
    with pytest.raises(kind, match=said) as refused:
        localspec.load(glm.path, draft=path, options=TINY_OPTIONS)
    assert str(refused.value).count(". ") >= 1, "a next step"


@pytest.mark.parametrize("what", ["no projection", "no attention"])
def test_auto_leaves_out_layers_that_are_damaged(
    tmp_path: Path, alive: Alive, glm: Told, what: str
) -> None:
    """The model without them is as good."""
    path = mtp.glm(tmp_path / "model.gguf", **HEADS[what][0])
    with localspec.load(path, draft="auto", options=TINY_OPTIONS) as engine:
        assert engine.head_source == ""
        assert engine.why_no_draft
        assert [t for c in glm.asked(engine, glm.prompts[0]) for t in c.token_ids] == glm.answers[0]


@pytest.mark.parametrize("parallel", [1, 3])
@pytest.mark.parametrize("draft", ["auto", "self"])
def test_auto_leaves_out_layers_whose_cache_finds_no_memory(
    monkeypatch: pytest.MonkeyPatch, alive: Alive, glm: Told, parallel: int, draft: str
) -> None:
    """Whoever asked for them is told; of several answers' caches the last one finds none."""
    real, asked = llama_cpp.llama_init_from_model, 0

    def last_fails(*arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        return real(*arguments) if asked <= parallel else None  # the target's is the first

    monkeypatch.setattr(llama_cpp, "llama_init_from_model", last_fails)
    options = replace(TINY_OPTIONS, parallel=parallel)
    if draft == "self":
        with pytest.raises(NativeError, match="shorter one with --ctx"):
            localspec.load(glm.path, draft=draft, options=options)
        return
    with localspec.load(glm.path, draft=draft, options=options) as engine:
        assert asked == parallel + 1
        assert engine.head_source == ""
        assert engine.draft_path is None
        assert "the MTP layers of with.gguf fail: No context" in (engine.why_no_draft or "")
        assert [t for c in glm.asked(engine, glm.prompts[0]) for t in c.token_ids] == glm.answers[0]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_layer_is_refused(
    tmp_path: Path, alive: Alive, glm: Told, share: float
) -> None:
    path = mtp.glm(tmp_path / "head.gguf", trunk=False)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ModelInvalid, match=r"[Dd]ownload it again"):
        localspec.load(glm.path, draft=path, options=TINY_OPTIONS)


def test_a_layer_is_no_draft_for_another_architecture(
    tmp_path: Path, alive: Alive, tiny_pair: ModelFiles
) -> None:
    path = mtp.glm(tmp_path / "head.gguf", trunk=False)
    with pytest.raises(DraftMismatch, match=r"architecture glm4moe, .* is of llama"):
        localspec.load(tiny_pair.target, draft=path, options=TINY_OPTIONS)
    with pytest.raises(ModelInvalid, match=r"trained head.*--draft"):
        localspec.load(path, options=TINY_OPTIONS)


@pytest.mark.parametrize("architecture", ["gemma4-assistant"])
def test_heads_of_other_kinds_are_known_and_refused(
    tmp_path: Path, alive: Alive, architecture: str
) -> None:
    path = tmp_path / "head.gguf"
    writer = ggufs._writer(path, architecture, "x", LlamaFileType.MOSTLY_F16, {})
    ggufs._finish(writer, path)
    with pytest.raises(ModelInvalid, match=rf"architecture {architecture}.*--draft none"):
        localspec.load(draft=path, options=TINY_OPTIONS)
