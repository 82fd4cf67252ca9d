"""Text from files, and text that a terminal is shown."""

from __future__ import annotations

import pytest

from localspec.errors import UsageError
from localspec.text import decoded, gibibytes, gigabytes, harmless, listed, printable


def test_what_a_terminal_would_obey_is_replaced() -> None:
    assert harmless("\x1b[31mred\x07 \x9bé\x7f") == "\ufffd[31mred\ufffd \ufffdé\ufffd"


@pytest.mark.parametrize("mark", ["\u202a", "\u202e", "\u2066", "\u2069"])
def test_what_turns_the_direction_of_text_is_replaced(mark: str) -> None:
    assert harmless(f"a{mark}b\u200fc") == "a\ufffdb\u200fc", "but not what Arabic text needs"


def test_lines_and_tabs_stay() -> None:
    assert harmless("one\r\n\ttwo\n") == "one\n\ttwo\n"


def test_a_byte_order_mark_is_no_text() -> None:
    assert decoded(b"\xef\xbb\xbfone", "notes.txt") == "one"


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"caf\xe9", "notes.txt is not UTF-8: byte 3 cannot be decoded"),
        (b"one\0two", "notes.txt is not text: it has a NUL at byte 3"),
    ],
)
def test_bytes_that_are_no_text_are_named(data: bytes, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        decoded(data, "notes.txt")


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
