"""DFlash and DSpark heads draft, and the text stays the target's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import localspec
from localspec import (
    Drafting,
    DraftMismatch,
    Engine,
    LocalspecError,
    ModelInvalid,
    ModelOptions,
    NativeError,
)
from localspec.drafters.block import BlockHead
from localspec.llama import hidden
from localspec.llama.context import Context
from tests.engine.conftest import TINY_OPTIONS, ModelFiles
from tests.engine.test_exact_distribution import PROMPT, check_every_outcome
from tests.engine.test_heads import GREEDY, followers
from tests.engine.test_loading_failures import Alive, alive
from tests.policy.timed import Clock
from tests.support import block_heads, ggufs
from tests.support.agreed_time import DRAFT_SECONDS, agree_on_time
from tests.support.greedy import divergence, plain_text
from tests.support.sessions import a_session, make_drafts_cheap, steps
from tests.support.together import together

pytestmark = pytest.mark.nightly

__all__ = ["alive"]

OPTIONS = ModelOptions(context=256, threads=1)
KINDS: dict[str, dict[str, Any]] = {
    "dflash": {},
    "dspark": {"markov": True},
    # As speculators writes it: the first row says nothing. And what an M-RoPE target's head has.
    "dspark, bonus": {"markov": True, "anchored": False, "confidence": True},
    "dflash, sections": {"sections": True},
}
WAYS: dict[str, dict[str, Any]] = {
    "chain": {"depth": 4},
    "tree": {"width": 3, "depth": 3},
    "auto": {},
}


def drafting_of(kind: str, way: str) -> Drafting:
    named = {} if way == "auto" else {"drafter": kind.partition(",")[0]}
    return Drafting(**(WAYS[way] | named))


TOKENS = 40
TIE = 0.01  # logits closer than this may change places with what else is in a pass


BEHIND = ("", " old", " house and", " tree", " dog", " and", " red", " the", " small", " big")
"""What prompts have behind their beginning, to choose from."""


def clearest(context: Context, prompt: Sequence[int]) -> float:
    """The smallest gap between the two best tokens anywhere in the answer."""
    return min(plain_text(context, prompt, TOKENS).gaps)


class Told:
    """A target, and what it says.

    Attributes:
        prompts: whose answers have no near tie, which another pass may break otherwise: where these
            are depends on the processor's kernels.
        answers: to the prompts, greedy; `tokens` of the prompts.
        follows: what comes behind each token of them first.
    """

    def __init__(self, folder: Path) -> None:
        # As wide as to tell all followers apart.
        self.target = ggufs.tiny_llama(folder / "target.gguf", dim=192, ff=64)
        with localspec.load(self.target, draft=None, options=TINY_OPTIONS) as plain:
            tokenize = partial(plain.model.vocabulary.tokenize, special=True, add_bos=True)
            with closing(Context(plain.model, TINY_OPTIONS)) as context:
                texts = (f"{PROMPT}{more}" for more in BEHIND)
                clear = (text for text in texts if clearest(context, tokenize(text)) > TIE)
                self.prompts = list(islice(clear, 3))
            assert len(self.prompts) == 3
            self.tokens = [tokenize(text) for text in self.prompts]
            self.answers = [said(plain, text)[0] for text in self.prompts]
        whole = zip(self.tokens, self.answers, strict=True)
        self.follows = followers([[*prompt, *answer] for prompt, answer in whole])

    def head(self, path: Path, kind: str, **more: Any) -> Path:
        return block_heads.block(
            path, self.target, layers=(0, 1), follows=self.follows, **KINDS[kind], **more
        )


def said(engine: Engine, text: str, drafting: Drafting | None = None) -> tuple[list[int], int]:
    """A greedy answer, and how many tokens of a head were accepted in it."""
    stream = engine.stream(text, max_tokens=TOKENS, sampling=GREEDY, drafting=drafting)
    tokens = [token for chunk in stream for token in chunk.token_ids]
    counted = stream.stats.by_drafter.get(engine.head_source)
    return tokens, counted.accepted if counted else 0


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return Told(tmp_path_factory.mktemp("told"))


@pytest.fixture(scope="module", params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def headed(kind: str, tmp_path_factory: pytest.TempPathFactory, told: Told) -> Iterator[Engine]:
    path = told.head(tmp_path_factory.mktemp("block") / "head.gguf", kind)
    with localspec.load(told.target, draft=path, options=TINY_OPTIONS) as engine:
        assert engine.head_source == kind.partition(",")[0]
        yield engine


@pytest.fixture(scope="module")
def clock(headed: Engine) -> Clock:
    return agree_on_time(headed)


def accepted_of(engine: Engine, told: Told, drafting: Drafting, clock: Clock) -> int:
    """Tokens of the head that were accepted in answers that are plain decoding's."""
    accepted = 0
    for prompt, expected in zip(told.tokens, told.answers, strict=True):
        session = a_session(engine, prompt, TOKENS, GREEDY)
        came = list(steps(engine, session, drafting, clock=clock))
        assert session.context[len(prompt) :] == expected
        accepted += sum(step.sources.count(engine.head_source) for step in came)
    return accepted


@pytest.mark.parametrize("way", sorted(WAYS))
def test_greedy_text_is_that_of_plain_decoding(
    headed: Engine, kind: str, told: Told, clock: Clock, way: str
) -> None:
    make_drafts_cheap(headed, draft=DRAFT_SECONDS)
    assert accepted_of(headed, told, drafting_of(kind, way), clock) > TOKENS


@pytest.fixture(scope="module", params=["dflash", "dspark"])
def tiny_headed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_pair: ModelFiles
) -> Iterator[Engine]:
    """A target with random weights, and a head that knows what it likes best to say after some."""
    with localspec.load(tiny_pair.target, draft=None, options=TINY_OPTIONS) as plain:
        text = plain.model.vocabulary.tokenize(PROMPT, special=True, add_bos=True)
        context = Context(plain.model, TINY_OPTIONS)
        best = [int(token) for token in context.extend(text)[-1].argsort()[:-4:-1]]
        follows = {text[-1]: best[0]}
        for token in best:
            follows[token] = int(context.extend([token])[-1].argmax())
            context.truncate(len(text))
        context.close()
    path = block_heads.block(
        tmp_path_factory.mktemp("tiny-block") / "head.gguf",
        tiny_pair.target,
        layers=(0, 1),
        follows=follows,
        **KINDS[request.param],
    )
    with localspec.load(tiny_pair.target, draft=path, options=TINY_OPTIONS) as engine:
        yield engine


@pytest.fixture(scope="module")
def tiny_headed_clock(tiny_headed: Engine) -> Clock:
    return agree_on_time(tiny_headed)


@pytest.mark.parametrize(
    "drafting",
    [{"depth": 2, "rule": "block"}, {"depth": 2, "width": 2, "rule": "token"}, {}],
    ids=["chain", "tree", "auto"],
)
def test_sampled_text_has_exactly_the_targets_distribution(
    tiny_headed: Engine, tiny_headed_clock: Clock, drafting: dict[str, Any]
) -> None:
    named = drafting and {"drafter": tiny_headed.head_source, **drafting}
    check_every_outcome(tiny_headed, Drafting(**named), 3, 3, clock=tiny_headed_clock)


def test_auto_leaves_it_where_it_does_not_pay(headed: Engine, told: Told, clock: Clock) -> None:
    make_drafts_cheap(headed, draft=0.5)
    assert accepted_of(headed, told, Drafting(), clock) == 0
    assert headed.draft_costs is not None


def test_its_cache_is_the_text_and_nothing_else(headed: Engine, kind: str, told: Told) -> None:
    """After an answer that was cut short as well, and in the conversation that follows."""
    assert isinstance(headed._parts.head, BlockHead)
    cache, drafting = headed._parts.head.cache, drafting_of(kind, "chain")
    headed._target.forget()
    stream = headed.stream(told.prompts[1], max_tokens=30, sampling=GREEDY, drafting=drafting)
    for chunk in stream:
        if chunk.step is not None and chunk.step.accepted:
            stream.close()
            break
    text = [*told.tokens[1], *told.answers[1]]
    assert cache.tokens == text[: len(cache.tokens)]
    assert len(cache.tokens) >= len(told.tokens[1]) - 1
    assert said(headed, told.prompts[1], drafting)[0] == told.answers[1]
    assert cache.tokens == text[: len(cache.tokens)]
    assert len(cache.tokens) > len(told.tokens[1])
    assert cache.known_from() == 0, "no state was lacking"


def test_it_picks_up_where_the_target_decoded_without_it(
    headed: Engine, kind: str, told: Told
) -> None:
    """Of text that was read while nobody asked for hidden states it knows nothing."""
    headed._target.forget()
    assert isinstance(headed._parts.head, BlockHead)
    headed._parts.head.forget()
    assert said(headed, told.prompts[0], Drafting(drafter="none"))[0] == told.answers[0]
    tokens, accepted = said(headed, told.prompts[0], drafting_of(kind, "chain"))
    assert tokens == told.answers[0]
    assert accepted > 0
    assert headed._parts.head.cache.known_from() > 0


def test_it_drafts_to_the_end_of_the_context(tmp_path: Path, told: Told) -> None:
    """Where a whole block has no room any more."""
    path = told.head(tmp_path / "head.gguf", "dflash", size=16)
    options = replace(TINY_OPTIONS, context=32)
    with localspec.load(told.target, draft=path, options=options) as engine:
        ways = [Drafting(drafter="dflash", depth=15), Drafting(drafter="none")]
        texts = []
        for drafting in ways:
            stream = engine.stream(PROMPT, max_tokens=400, sampling=GREEDY, drafting=drafting)
            texts.append([token for chunk in stream for token in chunk.token_ids])
        assert texts[0] == texts[1]
        assert len(texts[0]) > 20


def test_answers_side_by_side_are_each_that_of_plain_decoding(tmp_path: Path, told: Told) -> None:
    """Each has a head of its own, and hidden rows of passes that all share."""
    path = told.head(tmp_path / "head.gguf", "dspark")
    options = replace(TINY_OPTIONS, parallel=3)
    with localspec.load(told.target, draft=path, options=options) as engine:
        make_drafts_cheap(engine)
        drafting = drafting_of("dspark", "tree")
        came = together([partial(said, engine, text, drafting) for text in told.prompts])
    found = [one for one in came if not isinstance(one, BaseException)]
    assert len(found) == len(told.prompts), came
    with localspec.load(told.target, draft=None, options=TINY_OPTIONS) as plain:
        context = Context(plain.model, TINY_OPTIONS)
        for (got, _), prompt, expected in zip(found, told.tokens, told.answers, strict=True):
            parted = divergence(context, prompt, expected, got)
            assert parted is None or abs(parted[1]) < TIE
        context.close()
    assert sum(accepted for _, accepted in found) > TOKENS


TINY: dict[str, Any] = {"layers": (0, 1)}
FAULTS: dict[str, tuple[dict[str, Any], type[LocalspecError], str]] = {
    "no layers": (
        {
            "layers": (),
        },
        ModelInvalid,
        "names no layers",
    ),
    "layer": ({"layers": (1, 2)}, DraftMismatch, "input of layer 2, .* layers 0 to 1"),
    "block": ({"size": 1}, ModelInvalid, "blocks are of 1 token"),
    "chain without a block": ({"markov": True, "size": None}, ModelInvalid, "lacks dflash.block_s"),
    "mask": ({"mask": None}, ModelInvalid, "no token that masks"),
    "another mask": ({"mask": 9000}, ModelInvalid, "no token that masks"),
    "d2t": ({"d2t": (5, 9000)}, ModelInvalid, "d2t names tokens"),
    "d2t alone": ({"d2t": (5, 6), "without": "output.weight"}, ModelInvalid, "no output matrix"),
    "heads": ({"attention.head_count_kv": 4}, ModelInvalid, "2 attention heads and 4"),
    "lengths": (
        {"attention.key_length": 16},
        ModelInvalid,
        "rotates 32 numbers of heads that have",
    ),
    "rope": ({"rope.dimension_count": 66}, ModelInvalid, "rotates 66 numbers of heads"),
    "no width": ({"embedding_length": None}, ModelInvalid, "lacks dflash.embedding_length"),
    "ff": ({"feed_forward_length": 128}, ModelInvalid, "cannot be opened"),
    "no fc": ({"without": "fc.weight"}, ModelInvalid, "cannot be opened"),
    "half a chain": ({"markov": True, "without": "markov_w2.weight"}, ModelInvalid, "opened"),
}


@pytest.mark.parametrize("what", sorted(FAULTS))
def test_a_head_that_does_not_fit_is_refused(
    tmp_path: Path, alive: Alive, tiny_pair: ModelFiles, what: str
) -> None:
    made, error, said = FAULTS[what]
    target = tiny_pair.target
    path = block_heads.block(tmp_path / "head.gguf", target, depth=1, **TINY | made)
    with pytest.raises(error, match=said) as refused:
        localspec.load(target, draft=path, options=OPTIONS)
    assert str(refused.value).count(". ") >= 1, "a next step"


def test_a_head_of_another_model_is_refused(
    tmp_path: Path, alive: Alive, tiny_pair: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = block_heads.block(tmp_path / "head.gguf", depth=1)
    with pytest.raises(DraftMismatch, match=r"384 numbers, and those of .* have 64"):
        localspec.load(tiny_pair.target, draft=path, options=OPTIONS)
    other = ggufs.tiny_llama(tmp_path / "other.gguf", swap_tokens=(300, 301))
    path = block_heads.block(tmp_path / "swapped.gguf", other, depth=1, layers=(0, 1))
    with pytest.raises(DraftMismatch, match="another vocabulary: token 300"):
        localspec.load(tiny_pair.target, draft=path, options=OPTIONS)
    longer = ggufs.tiny_llama(tmp_path / "longer.gguf", vocab_size=8200)
    path = block_heads.block(tmp_path / "longer-head.gguf", longer, depth=1, layers=(0, 1))
    with pytest.raises(DraftMismatch, match=r"vocabulary of 8200 tokens, .* one of 8192"):
        localspec.load(tiny_pair.target, draft=path, options=OPTIONS)
    path = block_heads.block(tmp_path / "head.gguf", depth=1)
    with pytest.raises(ModelInvalid, match=r"trained head.*--draft"):
        localspec.load(path, options=OPTIONS)
    monkeypatch.setattr(hidden, "TAPPED", frozenset())
    with pytest.raises(NativeError, match=r"architecture llama.*--draft none"):
        localspec.load(draft=path, options=OPTIONS)


@pytest.mark.parametrize("markov", [False, True])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_head_is_refused(
    tmp_path: Path, alive: Alive, tiny_pair: ModelFiles, share: float, markov: bool
) -> None:
    target = tiny_pair.target
    path = block_heads.block(tmp_path / "head.gguf", target, depth=1, markov=markov, **TINY)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ModelInvalid, match=r"[Dd]ownload it again"):
        localspec.load(target, draft=path, options=OPTIONS)
