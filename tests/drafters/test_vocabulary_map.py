"""Vocabulary maps: the method of mapping, and the text and control tokens of real models."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from localspec import ModelOptions
from localspec.decoding.interfaces import Plan
from localspec.drafters.byte_vocabulary import ByteVocabulary, control
from localspec.drafters.heterogeneous import HeterogeneousDraftModel
from localspec.drafters.vocabulary_map import VocabularyMap, match
from localspec.llama.model import Model
from tests.decoding.exact import run
from tests.support import retokenised
from tests.support.sessions import module_model
from tests.support.tongues import VOCABULARIES, heterogeneous
from tests.support.toys import GREEDY, START, ToyCache, ToyModel, ToyTarget, session_of, with_start


def test_tokenizer_that_changes_the_text_is_not_used() -> None:
    letters = [b"a", b"b", b"ab", b"A"]

    def lower(text: bytes) -> Sequence[int]:
        return [token for token, _ in ByteVocabulary(letters).encode(text.lower())]

    assert [token for token, _ in ByteVocabulary(letters, lower).encode(b"Aab")] == [3, 2]


# Methods of mapping: through text, or shared tokens.

ALTERNATES = ToyModel([[0, 1, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0]])
"""A draft model that repeats "ba"."""


def draft_model(
    way: str = "auto", spelled: str = "finer", *, capacity: int = 64
) -> HeterogeneousDraftModel:
    return heterogeneous(ToyCache(ALTERNATES, capacity=capacity), VOCABULARIES[spelled], way=way)


def answer(
    model: HeterogeneousDraftModel, target: ToyModel, prompt: Sequence[int] = (START, 0, 1)
) -> None:
    session = session_of(prompt, params=GREEDY)
    model.draws(greedy=True)
    run(session, ToyTarget(target, capacity=400), model, Plan("model", 3))


@pytest.mark.parametrize(
    ("way", "spelled", "shared", "taken", "draws"),
    [
        ("auto", "other ids", 100, "shared", True),
        ("auto", "finer", 75, "text", False),
        ("shared", "finer", 75, "shared", True),
        ("text", "other ids", 100, "text", True),
        ("text", "finer", 75, "text", False),
    ],
)
def test_choice_of_a_method(way: str, spelled: str, shared: int, taken: str, draws: bool) -> None:
    """The finer vocabulary lacks "ab" of the sample "abab". Composed tokens are chosen if much is
    missing, and for greedy texts."""
    model = draft_model(way, spelled)
    assert model.credit == f"model:{taken}"
    how = "through text" if taken == "text" else "on the shared ones"
    assert model.summary == f"different vocabulary: {shared}% of tokens shared, drafting {how}"
    for greedy in (True, False):
        assert model.draws(greedy=greedy) is draws
        assert model.cache.chosen is (greedy or not draws)


def test_method_follows_the_accepted_tokens() -> None:
    says_ab, says_a_b = with_start([0, 0, 1]), with_start([[0, 1, 0], [1, 0, 0], [0, 1, 0]])
    model = draft_model()
    for _ in range(6):
        answer(model, says_ab)
    assert model.credit == "model:text", "every token was a composed one"
    model, mostly_shared = draft_model(capacity=400), [0, 1, 0, 1, 0, 1, 0, 1, 0, 2] * 26
    for _ in range(2):
        answer(model, says_a_b, mostly_shared)
    model.draws(greedy=True)
    assert model.credit == "model:shared", "composed tokens were never right"


# Vocabularies of real models as bytes, and their shared tokens.


OPTIONS = ModelOptions(context=64, threads=1)
TEXTS = [
    b"",
    b"The fox ran.",
    b" leading and  double spaces   ",
    b"no_space;x=1\n\n\tdef f(a):\n    return a\n",
    "Zoë — 你好, мир! 😀".encode(),
    "😀".encode()[:2],
    "ab😀".encode()[:4] + b" cd",
    b"\xff\xfe raw \xc3",
    b"<|user|> as text, </s> too",
]


target = module_model("target_path", OPTIONS)


@pytest.fixture(
    scope="module",
    params=[
        partial(retokenised.permuted, removed=0.5),
        retokenised.sentencepiece,
        retokenised.bytewise,
    ],
    ids=["bpe", "spm", "bytes"],
)
def draft(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, draft_path: Path
) -> Iterator[Model]:
    path = request.param(tmp_path_factory.mktemp("vocabulary") / "draft.gguf", draft_path)
    with Model(path, OPTIONS) as model:
        yield model


@pytest.fixture(scope="module")
def matched(target: Model, draft: Model) -> VocabularyMap:
    return match(target.vocabulary, draft.vocabulary)


@pytest.mark.parametrize("text", TEXTS)
def test_both_spell_every_text(matched: VocabularyMap, text: bytes) -> None:
    """SentencePiece adds a space before a text; incomplete characters are bytes."""
    for vocabulary in (matched.target, matched.draft):
        pieces = vocabulary.encode(text)
        assert b"".join(vocabulary.spelled[token] for token, _ in pieces) == text
        assert [end for _, end in pieces][-1:] == ([len(text)] if text else [])


def test_text_is_tokenized_as_by_the_model(matched: VocabularyMap, draft: Model) -> None:
    text = "Once upon a time, there was a little girl."
    written = [token for token, _ in matched.draft.encode(text.encode())]
    own = draft.vocabulary.tokenize(text)
    space = matched.draft.spelled[own[0]].startswith(b" ")
    assert written[1:] == own[1:] if space else written == own


def test_control_tokens_match_by_role(matched: VocabularyMap, target: Model, draft: Model) -> None:
    user = target.vocabulary.tokenize("<|user|>", special=True)
    assert len(user) == 1
    assert matched.target.spelled[user[0]] == control(b"<|user|>")
    named = draft.vocabulary.tokenize("<|user|>", special=True)
    assert matched.same[user[0]] == named[0]
    assert matched.same[target.vocabulary.bos] == draft.vocabulary.bos
    turn = target.vocabulary.tokenize("<|end|>", special=True)[0]
    assert draft.vocabulary.ends(int(matched.same[turn]))


def test_missing_control_token_is_text(matched: VocabularyMap, target: Model, draft: Model) -> None:
    system = target.vocabulary.tokenize("<|system|>", special=True)[0]
    if matched.same[system] < 0:
        assert matched.written[system] == b"<|system|>"
        plain = matched.draft.encode(matched.written[system])
        assert len(plain) > 1
    else:
        assert matched.written[system] == control(b"<|system|>")
