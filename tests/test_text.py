"""Text is released when no later token can change it, and shown so that it steers nothing."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from localspec.text import TextAssembler, gibibytes, gigabytes, listed, printable


def assembler(pieces: list[bytes], stop: tuple[str, ...] = ()) -> TextAssembler:
    return TextAssembler(pieces.__getitem__, stop)


def test_half_a_character_waits_for_the_other() -> None:
    fox = "🦊".encode()
    text = assembler([fox[:1], fox[1:3], fox[3:], b"!"])
    assert [text.push([i]) for i in range(4)] == ["", "", "🦊", "!"]


def test_half_a_character_at_the_end_is_replaced() -> None:
    text = assembler([b"a", "é".encode()[:1]])
    assert text.push([0, 1]) == "a"
    assert text.finish() == "\ufffd"
    assert text.text == "a\ufffd"


def test_the_beginning_of_a_stop_string_waits() -> None:
    text = assembler([b"one <", b"|", b"end|", b"> two"], ("<|end|>",))
    assert [text.push([i]) for i in range(4)] == ["one ", "", "", ""]
    assert text.stopped == "<|end|>"
    assert text.text == "one "
    assert text.push([0]) == text.finish() == ""


def test_what_only_looked_like_a_stop_string_is_released() -> None:
    text = assembler([b"a<|e", b"xit|>"], ("<|end|>",))
    assert [text.push([0]), text.push([1])] == ["a", "<|exit|>"]


def test_the_earliest_of_several_stop_strings_counts() -> None:
    text = assembler([b"xx later first"], ("first", "later"))
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
    text = assembler(pieces, (stop,))
    released = "".join(text.push([i]) for i in range(len(pieces))) + text.finish()
    assert released == whole.split(stop)[0] == text.text
    assert (text.stopped == stop) == (stop in whole)


def test_text_from_elsewhere_cannot_steer_a_terminal() -> None:
    assert printable(" a\x1b[31m\nb\u202ec ") == "a\ufffd[31m b\ufffdc"
    assert printable("x" * 300, 10) == "x" * 9 + "…"


def test_many_names_are_counted() -> None:
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert listed(list("abcdef")) == "a, b, c, d and 2 more"


def test_sizes_for_people() -> None:
    assert [gigabytes(n) for n in (7, 1_500, 4_700_000_000)] == ["7 B", "1.5 kB", "4.7 GB"]
    assert [gibibytes(n) for n in (7, 1_536, 5 << 30)] == ["7 bytes", "1.5 KiB", "5.0 GiB"]
