"""Search queries as users type them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.chat.conversation import USER, Attachment, Conversation
from localspec.history.history import History
from localspec.history.statements import END, MARK
from tests.history.histories import put

TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "Ein Füchslein läuft; C++ und self.assertEqual(foo_bar, 3.14)",
    "编程语言是什么？我想学Python编程。",
    "ひらがなとカタカナ",
    "안녕하세요 세계",
    f"control {MARK}characters{END} \x1b[31m and\nlines",
    "AND OR NOT NEAR",
)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    history = History(tmp_path_factory.mktemp("search") / "history.db")
    for number, text in enumerate(TEXTS):
        conversation = Conversation(id=str(number) * 32, title=f"Number {number}", titled_by="user")
        conversation.add(USER, text, attachments=[Attachment(f"file{number}.txt", "secret")])
        put(history, conversation)
    yield history
    history.close()


def hits(history: History, query: str) -> set[int]:
    """The numbers of the texts found."""
    return {int(hit.conversation[0]) for hit in history.search(query)}


FOUND = [
    ((0,), ("quick", "QUICK fox", "fox qui", '"brown fox"', "fox ++ ???", 'fox "', "fox*")),
    ((0,), ("-fox", "^the", "fox\0dog")),
    ((0,), ("qui", '"brown fo')),  # the last word may go on, and a phrase that is not finished
    ((), ("qui fox", '"brown fo"', '"fox brown"')),  # others may not
    ((1,), ("fuchslein", "FÜCHS", "self.assertEqual", "foo_ba", "3.14")),
    ((1, 5), ("c++",)),  # one letter, and control goes on with it
    ((2,), ("编程", "语言是", "python")),
    ((3,), ("カタ", "ひらがな", "file3")),
    ((4,), ("세계", "안녕")),
    ((5,), ("characters",)),
    ((5, 6), ("AND",)),
    ((6,), ("AND OR NOT",)),
    (range(7), ("number",)),  # titles
    ((), ("学习", "NEAR(quick", "secret", "text:fox", "", "   ", '"', '""', "*", "++")),
]


@pytest.mark.parametrize(
    ("query", "numbers"), [(query, {*numbers}) for numbers, queries in FOUND for query in queries]
)
def test_search_queries(history: History, query: str, numbers: set[int]) -> None:
    assert hits(history, query) == numbers


@given(st.text(alphabet='"*+-^(){}:AND OR NEAR\0\\;%_\x02\x03aé编\udcff', max_size=30))
def test_any_query_is_valid(history: History, query: str) -> None:
    history.search(query)
    assert history.trouble is None


def test_snippets_mark_hits(history: History) -> None:
    (hit,) = history.search("brown fo")
    assert (hit.role, hit.title, hit.message is not None) == (USER, "Number 0", True)
    assert [text for text, marked in hit.parts if marked] == ["brown", "fox"]
    assert "".join(text for text, _ in hit.parts).startswith("The quick brown fox jumps")
    (hit,) = history.search("characters")  # which has control characters
    rest = " [31m and lines file5.txt"
    assert hit.parts == [("control ", False), ("characters", True), (rest, False)]


def test_search_order(tmp_path: Path) -> None:
    history = History(tmp_path / "history.db")
    for number in range(3):
        conversation = Conversation(title="walrus" if number == 0 else "x", titled_by="user")
        conversation.add(USER, f"walrus {number}")
        put(history, conversation)
    hits = history.search("walrus")
    snippets = [hit.snippet.replace(MARK, "").replace(END, "") for hit in hits]
    assert snippets == ["walrus", "walrus 2", "walrus 1", "walrus 0"]
    assert [hit.message is None for hit in hits] == [True, False, False, False]
    assert len(history.search("walrus", limit=2)) == 2
    assert history.search("walrus", limit=0) == []
    history.close()


def test_hits_per_conversation_are_limited(tmp_path: Path) -> None:
    history = History(tmp_path / "history.db")
    for words, title in ((1, "old"), (200, "long")):
        conversation = Conversation(title=title, titled_by="user")
        for number in range(words):
            conversation.add(USER, f"walrus {number}")
        put(history, conversation)
    assert [hit.title for hit in history.search("walrus")] == ["long"] * 5 + ["old"]
    history.close()
