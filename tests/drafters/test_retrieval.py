"""Retrieval: drafts from learned texts."""

from collections.abc import Iterator

import pytest

from localspec import Drafting, Engine
from localspec.decoding.interfaces import Plan
from localspec.decoding.tree import ROOT, TokenTree
from localspec.drafters.composition import sources
from localspec.drafters.registry import Parts
from localspec.drafters.retrieval import RetrievalSource
from localspec.errors import UsageError
from localspec.policy.profile import PairProfile
from localspec.retrieval.datastore import Datastore
from localspec.retrieval.learner import LearnedVocabulary, forget, learn
from localspec.retrieval.manifest import root
from tests.decoding.exact import EXACT, MODEL
from tests.drafters.composed import TEXT, gap_and_drafts, steps_of
from tests.support.asking import PLAIN, ask
from tests.support.drafting import proposed as drafted
from tests.support.greedy import CLEAR
from tests.support.learned import learned
from tests.support.sessions import make_drafts_cheap
from tests.support.toys import GREEDY, session_of

pytestmark = pytest.mark.usefixtures("home")


def proposed(datastore: Datastore, text: list[int], *, depth: int, width: int = 1) -> TokenTree:
    source, plan = RetrievalSource(datastore), Plan("retrieval", depth, width)
    return drafted(source, session_of(text, size=100), plan)


def test_most_frequent_continuation_is_drafted() -> None:
    known = learned([1, 2, 3, 4, 5], [9, 1, 2, 7, 8], [6, 1, 2, 3, 4, 6])
    assert proposed(known, [1, 2], depth=2).tokens == [3, 4]
    assert proposed(known, [9, 1, 2], depth=4).tokens == [7, 8], "the longest ending first"
    assert proposed(known, [2], depth=3).tokens == [], "one token is not enough by name"
    assert proposed(known, [50, 51], depth=3).tokens == []


def test_tree_has_the_most_frequent_branches() -> None:
    known = learned([1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 6, 7])
    tree = proposed(known, [1, 2], depth=2, width=3)
    ends = [node for node in range(len(tree)) if not tree.children(node)]
    assert [tree.path_tokens(node) for node in ends] == [[3, 4], [6, 7]]
    assert set(tree.sources) == {"retrieval"}
    assert tree.proposals == [None] * len(tree), "its tokens are chosen, not drawn"
    assert len(proposed(known, [1, 2], depth=2).children(ROOT)) == 1


def test_tokens_outside_the_vocabulary_are_not_proposed() -> None:
    known = learned([1, 2, 3, 4, 90, 5])
    known.size = 50
    assert proposed(known, [1, 2], depth=5).tokens == [3, 4]
    source = RetrievalSource(known)
    position = source.position(session_of([1, 2], size=50, params=GREEDY))
    assert [p.token for p in source.predict(position)] == [3, 4]


def test_without_learned_texts_retrieval_is_refused() -> None:
    for parts in (Parts(), Parts(datastore=Datastore(lambda: "nothing", 10))):
        assert {source.name for source in sources(parts)[0]} == {"ngram", "grammar"}
        with pytest.raises(UsageError, match=r"'retrieval' has nothing .* 'localspec learn PATH"):
            steps_of(Drafting(drafter="retrieval"), parts, PairProfile(), MODEL, TEXT, 1)


@pytest.mark.parametrize("width", [None, 1, 2])
def test_sampled_text_is_the_targets(width: int | None) -> None:
    known = learned([0, 0, 1, 2], [0, 0, 2, 1], [1, 2, 0], [2, 2, 2, 1], [1, 0, 0, 1], [2, 1, 1, 0])
    drafting = Drafting() if width is None else Drafting(drafter="retrieval", width=width)
    gap, drafted = gap_and_drafts(drafting, lambda: Parts(datastore=known), "retrieval")
    assert gap < EXACT
    assert drafted > 10


@pytest.fixture
def learned_engine(engine: Engine) -> Iterator[Engine]:
    """An engine that learned its own greedy answer."""
    answer = ask(engine, CLEAR, PLAIN).completion()
    vocabulary = engine.model.vocabulary
    facts = LearnedVocabulary(vocabulary.fingerprint(), vocabulary.size, "tale")
    text = vocabulary.tokenize(f"{CLEAR}{answer.text}")
    learn(facts, {"answer": [text]})
    yield engine
    forget(root() / facts.fingerprint, ["answer"])
    assert engine.learned == 0


@pytest.mark.parametrize("drafting", [Drafting(), Drafting(drafter="retrieval", width=2)])
def test_retrieval_does_not_change_answers(learned_engine: Engine, drafting: Drafting) -> None:
    plain = ask(learned_engine, CLEAR, PLAIN).completion()
    make_drafts_cheap(learned_engine, draft=0.02)
    found = ask(learned_engine, CLEAR, drafting).completion()
    assert found.text == plain.text
    assert found.stats.by_drafter["retrieval"].accepted > 20
    assert found.stats.target_passes < 20
    assert found.stats.notices == plain.stats.notices
