"""Detection of answers that repeat endlessly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.decoding.repetition import LEAST, TIMES, WINDOW, period


@given(
    st.lists(st.integers(0, 5), max_size=40),
    st.lists(st.integers(0, 5), min_size=1, max_size=WINDOW // TIMES),
)
def test_repeated_ending_is_found(before: list[int], circle: list[int]) -> None:
    times = max(TIMES, -(-LEAST // len(circle))) + 1
    found = period([*before, *circle * times])
    assert 0 < found <= len(circle)
    assert [*circle * times][-LEAST:] == [*circle * times][-LEAST - found : -found]


@pytest.mark.parametrize(
    "tokens",
    [[], [1], [1] * (LEAST - 1), [*range(100)] * (TIMES - 1), [*[7] * 200, 8], [*range(600)]],
)
def test_other_texts_do_not_repeat(tokens: list[int]) -> None:
    assert period(tokens) == 0
