"""Trained heads of every kind draft, and the text stays the target's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import cache, partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import llama_cpp
import pytest

import localspec
from localspec import Drafting, Engine, NativeError
from localspec.drafters.trained_head import FedHead
from localspec.llama.context import Context
from localspec.policy.budget import Budget
from localspec.policy.cost_curve import CostCurve
from tests.engine.conftest import TINY_OPTIONS
from tests.engine.test_exact_distribution import PROMPT, check_every_outcome
from tests.engine.test_loading_failures import Alive, alive
from tests.policy.measuring import Clock
from tests.support import block_heads, ggufs, heads, inside, mtp
from tests.support.agreed_time import DRAFT_SECONDS, agree_on_time
from tests.support.asking import GREEDY, PLAIN, asked, said, tokens_of
from tests.support.greedy import plain_text
from tests.support.sessions import a_session, make_drafts_cheap, steps
from tests.support.together import together

pytestmark = pytest.mark.nightly
__all__ = ["alive"]

TOKENS = 40
TIE = 0.01  # logits closer than this may change places with what else is in a pass
BEHIND = ("", " old", " house and", " tree", " dog", " and", " red", " the", " small", " big")
"""What prompts have behind their beginning, to choose from."""


class Told:
    """A target, and what it says.

    Attributes:
        prompts: whose answers have no near tie, which another pass may break otherwise: where these
            are depends on the processor's kernels.
        answers: to the prompts, greedy; `tokens` of the prompts.
        follows: what comes first behind each token of these, and of what may be sampled.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        with localspec.load(target, draft=None, options=TINY_OPTIONS) as plain:
            tokenize = partial(plain.model.vocabulary.tokenize, special=True, add_bos=True)
            with closing(Context(plain.model, TINY_OPTIONS)) as context:

                def is_clear(text: str) -> bool:
                    return min(plain_text(context, tokenize(text), TOKENS).gaps) > TIE

                texts = (f"{PROMPT}{more}" for more in BEHIND)
                self.prompts = list(islice(filter(is_clear, texts), 3))
                assert len(self.prompts) == 3
                self.tokens = [tokenize(text) for text in self.prompts]
                self.answers = [said(plain, text, count=TOKENS) for text in self.prompts]
                self.follows = dict[int, int]()
                for prompt, answer in zip(self.tokens, self.answers, strict=True):
                    for token, follower in pairwise([*prompt, *answer]):
                        self.follows.setdefault(token, follower)
                text = tokenize(PROMPT)
                context.clear()
                for token in map(int, context.extend(text)[-1].argsort()[:-4:-1]):
                    self.follows.setdefault(token, int(context.extend([token])[-1].argmax()))
                    context.truncate(len(text))


def answer(engine: Engine, text: str, drafting: Drafting | None = None) -> tuple[list[int], int]:
    """A greedy answer, and how many tokens of a head were accepted in it."""
    stream = asked(engine, text, drafting, TOKENS)
    tokens = tokens_of(stream)
    counted = stream.stats.by_drafter.get(engine.head_source)
    return tokens, counted.accepted if counted else 0


class Kind(NamedTuple):
    """`source`: the drafter's name; `target`: writes one; `head`: writes a head of it that knows
    what follows each token, None for one in the target's own file."""

    source: str
    target: Callable[..., Path]
    head: Callable[..., Path] | None


def llama(path: Path) -> Path:
    """As wide as to tell all followers apart."""
    return ggufs.tiny_llama(path, dim=192, ff=64)


def block(**made: Any) -> Callable[..., Path]:
    return partial(block_heads.block, layers=(0, 1), **made)


KINDS: Mapping[str, Kind] = {
    "eagle": Kind("eagle", llama, partial(heads.eagle, layers=(0, 1, 1), lens=1)),
    "medusa": Kind("medusa", llama, partial(heads.medusa, cut=False)),
    "dflash": Kind("dflash", llama, block()),
    "dspark": Kind("dspark", llama, block(markov=True)),
    # As speculators writes it: the first row says nothing, and tokens have other numbers.
    # And what an M-RoPE target's head has.
    "dspark, bonus": Kind(
        "dspark",
        llama,
        block(markov=True, anchored=False, confidence=True, d2t=range(8191, -1, -1)),
    ),
    "dflash, sections": Kind("dflash", llama, block(sections=True)),
    "glm4moe": Kind("mtp", mtp.glm, None),
    "qwen35": Kind("mtp", mtp.qwen, None),
}
RARE = ("dspark, bonus", "dflash, sections")
FED = [name for name in KINDS if name not in ("medusa", *RARE)]


def of_kinds(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", names, indirect=True, scope="module")


@pytest.fixture(scope="module")
def tellings(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Callable[..., Path]], Told]:
    """What targets say, found out once for each."""
    return cache(lambda make: Told(make(tmp_path_factory.mktemp("told") / "target.gguf")))


@pytest.fixture(
    scope="module",
    params=[pytest.param(k, marks=[pytest.mark.nightly] * (k in RARE)) for k in KINDS],
)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture(scope="module")
def told(kind: Kind, tellings: Callable[[Callable[..., Path]], Told]) -> Told:
    return tellings(kind.target)


def opened(kind: Kind, told: Told, folder: Path, options: Any = TINY_OPTIONS) -> Engine:
    if kind.head is None:
        own = kind.target(folder / "with.gguf", follows=told.follows)
        return localspec.load(own, draft="self", options=options)
    path = kind.head(folder / "head.gguf", told.target, follows=told.follows)
    return localspec.load(told.target, draft=path, options=options)


@pytest.fixture(scope="module")
def headed(kind: Kind, told: Told, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with opened(kind, told, tmp_path_factory.mktemp("headed")) as engine:
        assert engine.head_source == kind.source
        yield engine


@pytest.fixture(scope="module")
def clock(headed: Engine) -> Clock:
    return agree_on_time(headed)


CHAIN, TREE, AUTO = {"depth": 4}, {"width": 3, "depth": 3}, dict[str, int]()
for_ways = pytest.mark.parametrize("way", [CHAIN, TREE, AUTO], ids=["chain", "tree", "auto"])


def drafting_of(kind: Kind, way: Mapping[str, Any]) -> Drafting:
    return Drafting(drafter=kind.source, **way) if way else Drafting()


def accepted_of(engine: Engine, told: Told, drafting: Drafting, clock: Clock) -> int:
    """Tokens of the head that were accepted in answers that are plain decoding's."""
    accepted = 0
    for prompt, expected in zip(told.tokens, told.answers, strict=True):
        session = a_session(engine, prompt, TOKENS, GREEDY)
        came = list(steps(engine, session, drafting, clock=clock))
        assert session.context[len(prompt) :] == expected
        accepted += sum(step.sources.count(engine.head_source) for step in came)
    return accepted


@for_ways
def test_greedy_text_is_that_of_plain_decoding(
    headed: Engine, kind: Kind, told: Told, clock: Clock, way: dict[str, Any]
) -> None:
    make_drafts_cheap(headed, draft=DRAFT_SECONDS)
    assert accepted_of(headed, told, drafting_of(kind, way), clock) > TOKENS


@of_kinds("eagle", "medusa", "dflash", "dspark", "glm4moe")
@pytest.mark.parametrize(
    "way",
    [{"depth": 2, "rule": "block"}, {"depth": 2, "width": 2, "rule": "token"}, {}],
    ids=["chain", "tree", "auto"],
)
def test_sampled_text_has_exactly_the_targets_distribution(
    headed: Engine, kind: Kind, clock: Clock, way: dict[str, Any]
) -> None:
    """Of a recurrent target the outcomes cannot be walked through: it reads its text anew for each
    of them, in passes of other sizes, which round differently."""
    # Medusa's first token of a draft is never right here: it knows what follows the next token.
    sizes = (2, 4) if kind.source == "medusa" else (3, 3)
    check_every_outcome(headed, drafting_of(kind, way), *sizes, clock=clock)


def test_auto_leaves_it_where_it_does_not_pay(headed: Engine, told: Told, clock: Clock) -> None:
    make_drafts_cheap(headed, draft=0.5)
    assert accepted_of(headed, told, Drafting(), clock) == 0
    assert headed.draft_costs is not None


def fed_head(engine: Engine) -> FedHead:
    head = inside.parts(engine).head
    assert isinstance(head, FedHead)
    return head


@of_kinds(*FED)
def test_its_cache_is_the_text_and_nothing_else(headed: Engine, kind: Kind, told: Told) -> None:
    """After an answer that was cut short as well, and in the conversation that follows."""
    cache, drafting = fed_head(headed).cache, drafting_of(kind, CHAIN)
    inside.slot(headed).cache.clear()
    fed_head(headed).forget()  # another test may have left it without states
    stream = asked(headed, told.prompts[1], drafting, 30)
    for chunk in stream:
        if chunk.step is not None and chunk.step.accepted:
            stream.close()
            break
    text = [*told.tokens[1], *told.answers[1]]
    assert cache.tokens == text[: len(cache.tokens)]
    assert len(cache.tokens) >= len(told.tokens[1]) - 1
    assert said(headed, told.prompts[1], drafting, count=TOKENS) == told.answers[1]
    assert cache.tokens == text[: len(cache.tokens)]
    assert len(cache.tokens) > len(told.tokens[1])


@of_kinds("eagle", "dflash", "dspark", "glm4moe")
def test_it_picks_up_where_the_target_decoded_without_it(
    headed: Engine, kind: Kind, told: Told
) -> None:
    """Of text that was read while nobody asked for hidden states it knows nothing."""
    inside.slot(headed).cache.clear()
    fed_head(headed).forget()
    assert said(headed, told.prompts[0], PLAIN, count=TOKENS) == told.answers[0]
    tokens, accepted = answer(headed, told.prompts[0], drafting_of(kind, CHAIN))
    assert tokens == told.answers[0]
    assert accepted > 0


@of_kinds("dflash")
def test_it_drafts_to_the_end_of_the_context(tmp_path: Path, told: Told) -> None:
    """Where a whole block has no room any more."""
    big = Kind("dflash", llama, block(size=16))
    with opened(big, told, tmp_path, replace(TINY_OPTIONS, context=32)) as engine:
        drafted = said(engine, PROMPT, Drafting(drafter="dflash", depth=15), count=400)
        assert drafted == said(engine, PROMPT, PLAIN, count=400)
        assert len(drafted) > 20


@of_kinds("eagle", "dspark", "glm4moe")
@pytest.mark.parametrize("way", [TREE, AUTO], ids=["tree", "auto"])
def test_answers_side_by_side_are_each_that_of_plain_decoding(
    kind: Kind, told: Told, way: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a head of its own, and hidden rows of passes that all share."""
    # Passes cost what was agreed on: on a slow processor `auto` would find the head too dear.
    monkeypatch.setattr(CostCurve, "observe", lambda *_, **__: None)
    monkeypatch.setattr(Budget, "settle", lambda *_, **__: None)
    with opened(kind, told, tmp_path, replace(TINY_OPTIONS, parallel=3)) as engine:
        make_drafts_cheap(engine)
        drafting = drafting_of(kind, way)
        came = together([partial(answer, engine, text, drafting) for text in told.prompts])
    found = [one for one in came if not isinstance(one, BaseException)]
    assert [tokens for tokens, _ in found] == told.answers, came
    assert sum(accepted for _, accepted in found) > (TOKENS if way else 3)


@of_kinds("eagle")
def test_a_shape_means_the_head_where_there_is_one(headed: Engine, told: Told) -> None:
    answer = asked(headed, told.prompts[0], Drafting(depth=2), 20).completion()
    assert set(answer.stats.by_drafter) == {"eagle"}


@of_kinds("medusa")
def test_typical_acceptance_is_lossy_and_says_so(headed: Engine, told: Told) -> None:
    drafting = Drafting(drafter="medusa", rule="typical")
    stats = headed.generate(told.prompts[0], max_tokens=20, drafting=drafting).stats
    assert not stats.lossless
    assert headed.generate(told.prompts[0], max_tokens=5).stats.lossless


# MTP layers are found in the target's own file, and left out where they fail.


@pytest.fixture(scope="module")
def of_glm(tellings: Callable[[Callable[..., Path]], Told]) -> Told:
    return tellings(mtp.glm)


@pytest.fixture(scope="module")
def with_layer(of_glm: Told) -> Path:
    return mtp.glm(of_glm.target.with_name("with.gguf"), follows=of_glm.follows)


def answers_without(engine: Engine, of_glm: Told) -> None:
    assert engine.head_source == ""
    assert answer(engine, of_glm.prompts[0])[0] == of_glm.answers[0]


@pytest.mark.parametrize("draft", ["auto", "file", "target"])
def test_the_layer_is_found(of_glm: Told, with_layer: Path, tmp_path: Path, draft: str) -> None:
    """In the model's own file without being asked for, in that file by name, in one of its own."""
    alone = mtp.glm(tmp_path / "head.gguf", follows=of_glm.follows, trunk=False)
    target = with_layer if draft != "file" else mtp.glm(tmp_path / "trunk.gguf", mtp=False)
    named = {"file": alone, "target": with_layer}.get(draft, draft)
    with localspec.load(target, draft=named, options=TINY_OPTIONS) as engine:
        assert engine.head_source == "mtp"
        drafting = drafting_of(KINDS["glm4moe"], CHAIN)
        tokens, accepted = answer(engine, of_glm.prompts[0], drafting)
    assert tokens == of_glm.answers[0]
    assert accepted > TOKENS // 2


@pytest.mark.parametrize("without", ["nextn.eh_proj", "attn_q"])
def test_auto_leaves_out_layers_that_are_damaged(
    tmp_path: Path, alive: Alive, of_glm: Told, without: str
) -> None:
    """The model without them is as good."""
    path = mtp.glm(tmp_path / "model.gguf", without=f"blk.2.{without}.weight")
    with localspec.load(path, draft="auto", options=TINY_OPTIONS) as engine:
        assert engine.why_no_draft
        answers_without(engine, of_glm)


@pytest.mark.parametrize("parallel", [1, 3])
@pytest.mark.parametrize("draft", ["auto", "self"])
def test_auto_leaves_out_layers_whose_cache_finds_no_memory(
    monkeypatch: pytest.MonkeyPatch,
    alive: Alive,
    of_glm: Told,
    with_layer: Path,
    parallel: int,
    draft: str,
) -> None:
    """Whoever asked for them is of_glm; of several answers' caches the last one finds none."""
    real, asked = llama_cpp.llama_init_from_model, 0

    def last_fails(*arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        return real(*arguments) if asked <= parallel else None  # the target's is the first

    monkeypatch.setattr(llama_cpp, "llama_init_from_model", last_fails)
    options = replace(TINY_OPTIONS, parallel=parallel)
    if draft == "self":
        with pytest.raises(NativeError, match="shorter one with --ctx"):
            localspec.load(with_layer, draft=draft, options=options)
        return
    with localspec.load(with_layer, draft=draft, options=options) as engine:
        assert asked == parallel + 1
        assert engine.draft_path is None
        assert "the MTP layers of with.gguf fail: No context" in (engine.why_no_draft or "")
        answers_without(engine, of_glm)
