"""Trained heads of every kind draft without changing the target's text."""

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
from tests.engine.test_loading_failures import Unfreed, unfreed
from tests.policy.measuring import Clock
from tests.support import block_heads, ggufs, heads, inside, mtp
from tests.support.agreed_time import DRAFT_SECONDS, agree_on_time
from tests.support.asking import GREEDY, PLAIN, ask, generate, tokens_of
from tests.support.greedy import plain_text
from tests.support.sessions import a_session, make_drafts_cheap, steps
from tests.support.together import together

pytestmark = pytest.mark.nightly
__all__ = ["unfreed"]

TOKENS = 40
TIE = 0.01  # logits closer than this may swap with other tokens in the same pass
ENDINGS = ("", " old", " house and", " tree", " dog", " and", " red", " the", " small", " big")
"""Endings of prompts to choose from."""


class Answers:
    """A target's greedy answers. `prompts`: with answers without near-ties, which passes of other
    sizes may break differently; their positions depend on the processor's kernels. `answers`: to
    the prompts, whose token ids are `tokens`; `follows`: the first follower of each token in these
    texts, and of tokens that may be sampled."""

    def __init__(self, target: Path) -> None:
        self.target = target
        with localspec.load(target, draft=None, options=TINY_OPTIONS) as plain:
            tokenize = partial(plain.model.vocabulary.tokenize, special=True, add_bos=True)
            with closing(Context.open(plain.model, TINY_OPTIONS)) as context:

                def is_clear(text: str) -> bool:
                    return min(plain_text(context, tokenize(text), TOKENS).gaps) > TIE

                texts = (f"{PROMPT}{more}" for more in ENDINGS)
                self.prompts = list(islice(filter(is_clear, texts), 3))
                assert len(self.prompts) == 3
                self.tokens = [tokenize(text) for text in self.prompts]
                self.answers = [generate(plain, text, count=TOKENS) for text in self.prompts]
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
    """Return a greedy answer and the number of accepted tokens of the head."""
    stream = ask(engine, text, drafting, TOKENS)
    tokens = tokens_of(stream)
    counted = stream.stats.by_drafter.get(engine.head_source)
    return tokens, counted.accepted if counted else 0


AnswersOf = Callable[[Callable[..., Path]], Answers]  # of the targets that a function writes


class Kind(NamedTuple):
    """The drafter's name, a function that writes a target, and one that writes a head of it; None
    where the head is in the target's file."""

    source: str
    target: Callable[..., Path]
    head: Callable[..., Path] | None


def llama(path: Path) -> Path:
    """Write a model wide enough to tell all followers apart."""
    return ggufs.tiny_llama(path, dim=192, ff=64)


def block_head(**made: Any) -> Callable[..., Path]:
    return partial(block_heads.block, layers=(0, 1), **made)


# As speculators writes it: the first row predicts nothing, and token ids are mapped.
SPECULATORS = {"markov": True, "anchored": False, "confidence": True, "d2t": range(8191, -1, -1)}
KINDS: Mapping[str, Kind] = {
    "eagle": Kind("eagle", llama, partial(heads.eagle, layers=(0, 1, 1), lens=1)),
    "medusa": Kind("medusa", llama, partial(heads.medusa, cut=False)),
    "dflash": Kind("dflash", llama, block_head()),
    "dspark": Kind("dspark", llama, block_head(markov=True)),
    "dspark, bonus": Kind("dspark", llama, block_head(**SPECULATORS)),
    "dflash, sections": Kind("dflash", llama, block_head(sections=True)),  # of an M-RoPE target
    "glm4moe": Kind("mtp", mtp.glm, None),
    "qwen35": Kind("mtp", mtp.qwen, None),
}
VARIANTS = ("dspark, bonus", "dflash, sections")
STATE_HEADS = [name for name in KINDS if name not in ("medusa", *VARIANTS)]


def for_kinds(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", names, indirect=True, scope="module")


@pytest.fixture(scope="module")
def answers_of(tmp_path_factory: pytest.TempPathFactory) -> AnswersOf:
    """Answers of a target, computed once for each."""
    return cache(lambda make: Answers(make(tmp_path_factory.mktemp("target") / "target.gguf")))


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture(scope="module")
def expected(kind: Kind, answers_of: AnswersOf) -> Answers:
    return answers_of(kind.target)


def open_engine(kind: Kind, expected: Answers, folder: Path, options: Any = TINY_OPTIONS) -> Engine:
    if kind.head is None:
        own = kind.target(folder / "with.gguf", follows=expected.follows)
        return localspec.load(own, draft="self", options=options)
    path = kind.head(folder / "head.gguf", expected.target, follows=expected.follows)
    return localspec.load(expected.target, draft=path, options=options)


@pytest.fixture(scope="module")
def engine(
    kind: Kind, expected: Answers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    with open_engine(kind, expected, tmp_path_factory.mktemp("engine")) as engine:
        assert engine.head_source == kind.source
        yield engine


@pytest.fixture(scope="module")
def clock(engine: Engine) -> Clock:
    return agree_on_time(engine)


CHAIN, TREE, AUTO = {"depth": 4}, {"width": 3, "depth": 3}, dict[str, int]()
for_ways = pytest.mark.parametrize("way", [CHAIN, TREE, AUTO], ids=["chain", "tree", "auto"])


def drafting_of(kind: Kind, way: Mapping[str, Any]) -> Drafting:
    return Drafting(drafter=kind.source, **way) if way else Drafting()


def count_accepted(engine: Engine, expected: Answers, drafting: Drafting, clock: Clock) -> int:
    """Check that answers equal plain decoding, and count accepted tokens of the head."""
    accepted = 0
    for prompt, tokens in zip(expected.tokens, expected.answers, strict=True):
        session = a_session(engine, prompt, TOKENS, GREEDY)
        came = list(steps(engine, session, drafting, clock=clock))
        assert session.context[len(prompt) :] == tokens
        accepted += sum(step.sources.count(engine.head_source) for step in came)
    return accepted


@for_ways
def test_greedy_text_is_that_of_plain_decoding(
    engine: Engine, kind: Kind, expected: Answers, clock: Clock, way: dict[str, Any]
) -> None:
    make_drafts_cheap(engine, draft=DRAFT_SECONDS)
    assert count_accepted(engine, expected, drafting_of(kind, way), clock) > TOKENS


@for_kinds("eagle", "medusa", "dflash", "dspark", "glm4moe")
@pytest.mark.parametrize(
    "way",
    [{"depth": 2, "rule": "block"}, {"depth": 2, "width": 2, "rule": "token"}, {}],
    ids=["chain", "tree", "auto"],
)
def test_sampled_text_has_exactly_the_targets_distribution(
    engine: Engine, kind: Kind, clock: Clock, way: dict[str, Any]
) -> None:
    """Recurrent targets are left out: they read the text again for each outcome, in passes of other
    sizes, which round differently."""
    # Medusa's first drafted token is never right here: it predicts what follows the next token.
    sizes = (2, 4) if kind.source == "medusa" else (3, 3)
    check_every_outcome(engine, drafting_of(kind, way), *sizes, clock=clock)


def state_head(engine: Engine) -> FedHead:
    head = inside.slot(engine).parts.head
    assert isinstance(head, FedHead)
    return head


@for_kinds(*STATE_HEADS)
def test_cache_holds_only_committed_text(engine: Engine, kind: Kind, expected: Answers) -> None:
    """After an interrupted answer, and in the answer that continues it."""
    cache, drafting = state_head(engine).cache, drafting_of(kind, CHAIN)
    inside.slot(engine).cache.clear()
    state_head(engine).forget()  # of states of other tests
    stream = ask(engine, expected.prompts[1], drafting, 30)
    for chunk in stream:
        if chunk.step is not None and chunk.step.accepted:
            stream.close()
            break
    text = [*expected.tokens[1], *expected.answers[1]]
    assert cache.tokens == text[: len(cache.tokens)]
    assert len(cache.tokens) >= len(expected.tokens[1]) - 1
    assert generate(engine, expected.prompts[1], drafting, count=TOKENS) == expected.answers[1]
    assert cache.tokens == text[: len(cache.tokens)]
    assert len(cache.tokens) > len(expected.tokens[1])


@for_kinds("eagle", "dflash", "dspark", "glm4moe")
def test_head_drafts_after_missing_states(engine: Engine, kind: Kind, expected: Answers) -> None:
    inside.slot(engine).cache.clear()
    state_head(engine).forget()
    assert generate(engine, expected.prompts[0], PLAIN, count=TOKENS) == expected.answers[0]
    tokens, accepted = answer(engine, expected.prompts[0], drafting_of(kind, CHAIN))
    assert tokens == expected.answers[0]
    assert accepted > 0


@for_kinds("dflash")
def test_block_is_cut_at_the_end_of_the_context(tmp_path: Path, expected: Answers) -> None:
    big = Kind("dflash", llama, block_head(size=16))
    with open_engine(big, expected, tmp_path, replace(TINY_OPTIONS, context=32)) as engine:
        drafted = generate(engine, PROMPT, Drafting(drafter="dflash", depth=15), count=400)
        assert drafted == generate(engine, PROMPT, PLAIN, count=400)
        assert len(drafted) > 20


@for_kinds("eagle", "dspark", "glm4moe")
@pytest.mark.parametrize("way", [TREE, AUTO], ids=["tree", "auto"])
def test_parallel_answers_equal_plain_decoding(
    kind: Kind,
    expected: Answers,
    way: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each answer has its own head; hidden rows come from shared passes."""
    # Fixed costs: on a slow processor `auto` would leave the head out.
    monkeypatch.setattr(CostCurve, "observe", lambda *_, **__: None)
    monkeypatch.setattr(Budget, "settle", lambda *_, **__: None)
    with open_engine(kind, expected, tmp_path, replace(TINY_OPTIONS, parallel=3)) as engine:
        make_drafts_cheap(engine)
        drafting = drafting_of(kind, way)
        came = together([partial(answer, engine, text, drafting) for text in expected.prompts])
    found = [one for one in came if not isinstance(one, BaseException)]
    assert [tokens for tokens, _ in found] == expected.answers, came
    assert sum(accepted for _, accepted in found) > (TOKENS if way else 3)


# MTP layers in the target's own file are used, and left out if they fail.


@pytest.fixture(scope="module")
def glm(answers_of: AnswersOf) -> Answers:
    return answers_of(mtp.glm)


@pytest.fixture(scope="module")
def with_layer(glm: Answers) -> Path:
    return mtp.glm(glm.target.with_name("with.gguf"), follows=glm.follows)


def check_without_head(engine: Engine, glm: Answers) -> None:
    assert engine.head_source == ""
    assert answer(engine, glm.prompts[0])[0] == glm.answers[0]


@pytest.mark.parametrize("draft", ["auto", "file", "target"])
def test_mtp_layer_is_used(glm: Answers, with_layer: Path, tmp_path: Path, draft: str) -> None:
    """By default from the model's file, by naming that file, and from a separate file."""
    separate = mtp.glm(tmp_path / "head.gguf", follows=glm.follows, trunk=False)
    target = with_layer if draft != "file" else mtp.glm(tmp_path / "trunk.gguf", mtp=False)
    named = {"file": separate, "target": with_layer}.get(draft, draft)
    with localspec.load(target, draft=named, options=TINY_OPTIONS) as engine:
        assert engine.head_source == "mtp"
        drafting = drafting_of(KINDS["glm4moe"], CHAIN)
        tokens, accepted = answer(engine, glm.prompts[0], drafting)
    assert tokens == glm.answers[0]
    assert accepted > TOKENS // 2


@pytest.mark.parametrize("without", ["nextn.eh_proj", "attn_q"])
def test_damaged_layers(tmp_path: Path, unfreed: Unfreed, glm: Answers, without: str) -> None:
    path = mtp.glm(tmp_path / "model.gguf", without=f"blk.2.{without}.weight")
    with localspec.load(path, draft="auto", options=TINY_OPTIONS) as engine:
        assert engine.why_no_draft
        check_without_head(engine, glm)


@pytest.mark.parametrize("parallel", [1, 3])
@pytest.mark.parametrize("draft", ["auto", "self"])
def test_auto_leaves_out_layers_without_cache_memory(
    monkeypatch: pytest.MonkeyPatch,
    unfreed: Unfreed,
    glm: Answers,
    with_layer: Path,
    parallel: int,
    draft: str,
) -> None:
    """A named head raises an error instead. The last of several answers' caches fails."""
    real, calls = llama_cpp.llama_init_from_model, 0

    def last_fails(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        return real(*arguments) if calls <= parallel else None  # the target's is the first

    monkeypatch.setattr(llama_cpp, "llama_init_from_model", last_fails)
    options = replace(TINY_OPTIONS, parallel=parallel)
    if draft == "self":
        with pytest.raises(NativeError, match="shorter one with --ctx"):
            localspec.load(with_layer, draft=draft, options=options)
        return
    with localspec.load(with_layer, draft=draft, options=options) as engine:
        assert calls == parallel + 1
        assert engine.draft_path is None
        assert "the MTP layers of with.gguf fail: No context" in (engine.why_no_draft or "")
        check_without_head(engine, glm)
