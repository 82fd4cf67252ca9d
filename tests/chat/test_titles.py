"""Titles and file names."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.chat.titles import NEW, SLUG_LENGTH, TITLE_LENGTH, slug, title_from


@pytest.mark.parametrize(
    ("text", "title"),
    [
        *(("", NEW), (" \n\t\n", NEW), ("```", NEW), ("Hello", "Hello"), ("???", "???")),
        ("\n\n  Hello   there \nmore", "Hello there"),
        ("# A *fine* `title` with __marks__", "A fine title with marks"),
        ("> - [ ] 1. do **it** now", "do it now"),
        *(("[the link](https://a.b) here", "the link here"), ("![picture](a.png)", "picture")),
        ("snake_case_name and 2 * 3 * 4", "snake_case_name and 2 * 3 * 4"),
        *(("```python\nprint(1)\n```", "print(1)"), ("---\nAfter a rule", "After a rule")),
        ("a\x1b[31mred\x07\u202edrow", "a [31mred drow"),
        ("编程语言是什么", "编程语言是什么"),
        (
            "Explain to me how the speculative decoding of language models works",
            "Explain to me how the speculative decoding of…",
        ),
        ("exactly forty-eight characters are in this title", None),
        ("x" * 60, "x" * 47 + "…"),
    ],
)
def test_titles(text: str, title: str | None) -> None:
    assert title_from(text) == (text if title is None else title)


@given(st.text(alphabet=st.characters(), max_size=300))
def test_any_text_gives_a_printable_title(text: str) -> None:
    title = title_from(text)
    assert 1 <= len(title) <= TITLE_LENGTH
    assert not any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in title)
    assert title == title.strip()


def test_huge_paste_is_read_partly() -> None:
    assert title_from("word " * 2_000_000) == "word word word word word word word word word…"


@pytest.mark.parametrize(
    ("title", "name"),
    [
        *(("What is this?", "what-is-this"), ("../../etc/passwd", "etc-passwd")),
        *(("", "conversation"), ("???", "conversation"), ("CON", "con-conversation")),
        *(("Füchse & Wölfe", "füchse-wölfe"), ("snake_case", "snake-case")),
        *(("word " * 40, "-".join(["word"] * 12)), ("x" * 100, "x" * SLUG_LENGTH)),
    ],
)
def test_file_names(title: str, name: str) -> None:
    assert slug(title) == name
