"""Text is released when no later token can change it."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from localspec.prompting.detokenizer import Detokenizer


def detokenizer(pieces: list[bytes], stop: tuple[str, ...] = ()) -> Detokenizer:
    return Detokenizer(pieces.__getitem__, stop)


def test_half_a_character_waits_for_the_other() -> None:
    fox = "🦊".encode()
    text = detokenizer([fox[:1], fox[1:3], fox[3:], b"!"])
    assert [text.push([i]) for i in range(4)] == ["", "", "🦊", "!"]


def test_half_a_character_at_the_end_is_replaced() -> None:
    text = detokenizer([b"a", "é".encode()[:1]])
    assert text.push([0, 1]) == "a"
    assert text.finish() == "\ufffd"
    assert text.text == "a\ufffd"


def test_the_beginning_of_a_stop_string_waits() -> None:
    text = detokenizer([b"one <", b"|", b"end|", b"> two"], ("<|end|>",))
    assert [text.push([i]) for i in range(4)] == ["one ", "", "", ""]
    assert text.stopped == "<|end|>"
    assert text.text == "one "
    assert text.push([0]) == text.finish() == ""


def test_what_only_looked_like_a_stop_string_is_released() -> None:
    text = detokenizer([b"a<|e", b"xit|>"], ("<|end|>",))
    assert [text.push([0]), text.push([1])] == ["a", "<|exit|>"]


def test_the_earliest_of_several_stop_strings_counts() -> None:
    text = detokenizer([b"xx later first"], ("first", "later"))
    assert text.push([0]) == "xx "
    assert text.stopped == "later"


@given(st.text(max_size=40), st.lists(st.integers(0, 60)), st.text(min_size=1, max_size=4))
def test_any_cutting_of_any_text_gives_the_text_before_the_stop_string(
    whole: str, cuts: list[int], stop: str
) -> None:
    data = whole.encode("utf-8", "replace")
    whole = data.decode()
    ends = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[a:b] for a, b in itertools.pairwise(ends)]
    text = detokenizer(pieces, (stop,))
    released = "".join(text.push([i]) for i in range(len(pieces))) + text.finish()
    assert released == whole.split(stop)[0] == text.text
    assert (text.stopped == stop) == (stop in whole)
