"""Text is released once no later token can change it."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.prompting.detokenizer import TEXTS, Detokenizer


def detokenizer(pieces: list[bytes], stop: tuple[str, ...] = ()) -> Detokenizer:
    return Detokenizer(pieces.__getitem__, stop)


def take_all(text: Detokenizer, count: int) -> list[str]:
    found = []
    for token in range(count):
        text.push(token)
        found.append(text.take())
    return found


def take_to_the_end(text: Detokenizer, count: int) -> str:
    released = "".join(take_all(text, count))
    text.finish()
    return released + text.take()


def test_incomplete_character_at_the_end_is_replaced() -> None:
    text = detokenizer([b"a", "é".encode()[:1]])
    assert take_all(text, 2) == ["a", ""]
    text.finish()
    assert text.take() == "\ufffd"


def test_first_complete_stop_string_ends_the_answer() -> None:
    text = detokenizer([b"Once", b" upon", b" a time"], ("Once upon a time", "upon"))
    assert [text.push(0), text.push(1)] == [False, True]
    assert (text.take(), text.stopped) == ("Once ", "upon")


@given(st.text(max_size=40), st.lists(st.integers(0, 60)), st.text(min_size=1, max_size=4))
def test_text_ends_before_the_stop_string(whole: str, cuts: list[int], stop: str) -> None:
    data = whole.encode("utf-8", "replace")
    whole = data.decode()
    ends = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[a:b] for a, b in itertools.pairwise(ends)]
    text = detokenizer(pieces, (stop,))
    assert take_to_the_end(text, len(pieces)) == whole.split(stop)[0]
    assert (text.stopped == stop) == (stop in whole)


@pytest.mark.parametrize(
    ("before", "thinks"),
    [("<think>\nhm STOP </think>", False), (" <think>STOP</think>", False), ("STOP</think>", True)],
)
@pytest.mark.parametrize("size", [1, 2, 5, 100])
@pytest.mark.parametrize("stop", ["STOP", "\n", "\n\n"])
def test_stop_strings_after_a_thought(before: str, thinks: bool, size: int, stop: str) -> None:
    data = f"{before}\n\nYes. {stop} No".encode()
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    text = Detokenizer(pieces.__getitem__, (stop,), thinks=thinks)
    assert "".join(take_all(text, len(pieces))) == f"{before}\n\nYes. "
    assert text.stopped == stop


@pytest.mark.parametrize("size", [1, 3, 100])
def test_marks_that_are_text_are_spelled_as_others(size: int) -> None:
    said = "Hm [BEGIN\n[BEGIN FINAL RESPONSE]\nYes\n\nNo\n[END FINAL RESPONSE]\n"
    pieces = [said[at : at + size].encode() for at in range(0, len(said), size)]
    for stop, end in (((), "\n\nNo\n"), (("\n\n",), "")):
        text = Detokenizer(pieces.__getitem__, stop, texts=next(iter(TEXTS.values())), thinks=True)
        assert take_to_the_end(text, len(pieces)) == f"Hm [BEGIN\n</think>\nYes{end}"


def test_stop_strings_do_not_apply_in_an_unclosed_thought() -> None:
    text = Detokenizer([b"<thi", b"nk>STOP", b"STOP</th"].__getitem__, ("STOP",), thinks=False)
    assert take_all(text, 3) == ["<thi", "nk>STOP", "STOP</th"]
    plain = Detokenizer([b"<this", b" STOP"].__getitem__, ("STOP",), thinks=False)
    assert take_all(plain, 2) == ["<this", " "]


@pytest.mark.parametrize("text", ["\n\nYes.", "\n\n", " <thing>\n\n"])
def test_stop_strings_apply_where_a_thought_might_have_begun(text: str) -> None:
    pieces = [letter.encode() for letter in text]
    found = Detokenizer(pieces.__getitem__, ("\n\n",), thinks=False)
    assert take_to_the_end(found, len(pieces)) == text.split("\n\n")[0]
    assert found.stopped == "\n\n"


def test_a_control_token_also_ends_the_answer() -> None:
    pieces = [b"a S", b"", b"b"]
    text = Detokenizer(pieces.__getitem__, ("STOP", "<|end|>"), ending={1: "<|end|>"})
    assert [text.push(0), text.push(1), text.push(2)] == [False, True, True]
    text.finish()
    assert (text.take(), text.stopped) == ("a S", "<|end|>")
