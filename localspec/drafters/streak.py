"""How many tokens in a row, up to now, a lookup source said right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from localspec.decoding.auto_sources import Prediction


class Streak:
    """Compares what a source said first at each place of the text with what came.

    Attributes:
        length: tokens in a row.
    """

    __slots__ = ("_at", "_said", "length")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A new text."""
        self.length = 0
        self._said: list[int] | None = None
        self._at = -1

    def at(self, count: int) -> None:
        """The committed text has so many tokens."""
        if self._at != count:
            self._said, self._at = None, count

    def noted(self, predictions: Iterator[Prediction]) -> Iterator[Prediction]:
        """The same predictions, behind the committed text; what is said there the first time is
        kept, as far as it is asked for."""
        if self._said is not None:
            return predictions
        self._said = []
        return self._keeping(predictions, self._said)

    def _keeping(self, predictions: Iterator[Prediction], said: list[int]) -> Iterator[Prediction]:
        for prediction in predictions:
            said.append(prediction.token)
            yield prediction

    def committed(self, context: Sequence[int]) -> None:
        """What came."""
        for said, token in zip(self._said or (), context[self._at :], strict=False):
            if said != token:
                self.length = 0
                break
            self.length += 1
        self._said, self._at = None, -1
