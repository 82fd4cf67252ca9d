"""The drafter of each token of an answer, and the speed-up, for clients that request them
(`"speculation": true`), such as the page."""

import codecs
import time
from typing import Any

from localspec import Chunk, Engine, Stream
from localspec.chat.figures import Meter, baseline
from localspec.chat.words import NAMES, line, main_reason, source_name

_INTERVAL = 0.1
_SAME = (
    *("tokens", "passes", "speed_up", "times_plain", "beside", "prompt_tokens", "cached_tokens"),
    *("context_used", "context_length", "lossless", "seed", "notices"),
)


class Speculation:
    def __init__(self, engine: Engine, stream: Stream) -> None:
        self._vocabulary = engine.model.vocabulary
        self._draft = None if engine.draft is None else engine.draft.name
        self._meter = Meter(
            stream.stats, engine.plain_seconds, engine.context_length, baseline(engine)
        )
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._due = time.monotonic()

    def step(self, chunk: Chunk) -> dict[str, Any]:
        """The tokens of a step as (text, source), and at intervals the current figures. A character
        of several tokens belongs to the last one."""
        if chunk.step is None:
            return {}
        self._meter.add(chunk.step)
        tokens = [
            (self._decode(self._vocabulary.piece(token)), source)
            for token, source in zip(chunk.token_ids, chunk.sources, strict=True)
            if not self._vocabulary.ends(token)
        ]
        report: dict[str, Any] = {"tokens": tokens}
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + _INTERVAL
            report |= self.figures()
        return report

    def figures(self) -> dict[str, Any]:
        figures = self._meter.figures()
        return {
            "summary": line(figures, draft=self._draft),
            "figures": {
                **{name: getattr(figures, name) for name in _SAME},
                "tokens_per_second": figures.speed or None,
                "tokens_per_pass": figures.tokens_per_pass or None,
                "drafters": [
                    {"source": source, "name": _label(source), "accepted": kept, "tested": tested}
                    for source, (kept, tested) in figures.by_drafter.items()
                ],
                "undrafted": sum(figures.reasons.values()),
                "reason": main_reason(figures.reasons) if figures.reasons else None,
            },
        }


def _label(source: str) -> str:
    return source_name(source).removeprefix("the ") if source.partition(":")[0] in NAMES else source
