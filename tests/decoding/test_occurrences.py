"""What penalties look at, against counting it anew for every look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from localspec.decoding.occurrences import Occurrences, PenaltyWindow
from tests.support.toys import examples

SIZE = 7
tokens = st.lists(st.integers(0, SIZE - 1), max_size=12)


def counted(occurrences: Occurrences) -> dict[int, int]:
    """Token to how often it occurred; checks what the attributes promise."""
    ids, counts = occurrences.ids.tolist(), occurrences.counts.tolist()
    assert ids == sorted(set(ids))
    assert all(count > 0 for count in counts)
    return dict(zip(ids, counts, strict=True))


def slow(text: Sequence[int], path: Sequence[int], last: int) -> dict[int, int]:
    """Cut off what lies too far back, and count the rest."""
    whole = [*text, *path]
    return dict(Counter(whole if last < 0 else whole[max(0, len(whole) - last) :]))


@examples(200)
@given(
    prompt=tokens,
    last=st.sampled_from([-1, 1, 2, 3, 5, 64]),
    steps=st.lists(st.tuples(tokens, st.lists(tokens, max_size=3)), max_size=6),
)
def test_window_counts_what_lies_within_it_while_the_text_grows(
    prompt: list[int], last: int, steps: list[tuple[list[int], list[list[int]]]]
) -> None:
    """Paths are imagined, any number of them behind the same text, longer than the window too."""
    text = list(prompt)
    window = PenaltyWindow(text, last, SIZE)
    for new, paths in steps:
        text += new
        for path in [*paths, []]:
            assert counted(window.behind(path)) == slow(text, path, last)
