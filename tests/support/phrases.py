"""Drafts of known phrases: a complete new source."""

from collections.abc import Iterator, Mapping, Sequence

from localspec.decoding.sources import LookupSource, Prediction


class PhraseSource(LookupSource):
    """Predicts the rest of a phrase that the text has begun."""

    name = "phrases"
    priors: Mapping[str, tuple[float, ...]] = {"phrase": (0.5,)}

    def __init__(self, phrases: Sequence[Sequence[int]]) -> None:
        self._phrases = [list(phrase) for phrase in phrases]

    def predict(self, position: list[int]) -> Iterator[Prediction]:
        for phrase in self._phrases:
            for begun in range(len(phrase) - 1, 0, -1):
                if position[-begun:] == phrase[:begun]:
                    yield from (Prediction(token, (1.0,)) for token in phrase[begun:])
                    return
