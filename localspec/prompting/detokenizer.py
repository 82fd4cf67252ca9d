"""From tokens to text, as they come: whole characters, and nothing of a stop string."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from localspec.errors import UsageError

OPENS, CLOSES = "<think>", "</think>"
"""Around what a model thinks before it answers."""
THOUGHTS = {
    OPENS: CLOSES,
    "[THINK]": "[/THINK]",  # Magistral, Ministral
    "<seed:think>": "</seed:think>",  # Seed-OSS
    "<|START_THINKING|>": "<|END_THINKING|>",  # Command A
    "<mm:think>": "</mm:think>",  # MiniMax M3
    "<|inner_prefix|>": "<|inner_suffix|>",  # Apertus
    "<|channel>": "<channel|>",  # Gemma 4, with a first line "thought"
}
"""Tokens around it of several families: the text of an answer has those of the first."""
CHANNEL, FINAL = "<|channel|>", "<|channel|>final<|message|>"
ANALYSIS = "<|channel|>analysis<|message|>"
"""Before each message of gpt-oss, before the one that is its answer, and before its thoughts."""
SOLAR = "assistant<|think|>"
IN_CHANNELS = {
    "<|begin|>": "<|start|>",
    "<|think|>": ANALYSIS,
    "<|content|>": FINAL,
    "<|tool_calls|>": f"{CHANNEL}commentary<|message|><|tool_calls|>",
    "<|end|>": "<|end|>",
}
"""Tokens of Solar, as gpt-oss would write them."""
BEGINNINGS = {
    SOLAR: ("<|think|>", "<|end|><|begin|>assistant", "<|content|>"),
    CHANNEL: (ANALYSIS, "<|end|><|start|>assistant", FINAL),
}
"""Before a thought, between it and a text, and before a text, by what is in such a template."""
_THOUGHTS = {OPENS: CLOSES, CHANNEL: FINAL}


class Detokenizer:
    """Joins the bytes of tokens, releasing only what later tokens cannot change. Of several stop
    strings the one that is complete first ends the answer. `ending`: control tokens that end it
    likewise, and what spells them; `thinks`: True where the text begins within a thought, False
    where it may begin with one, or with channels; stop strings do not count in these, and only
    after a match of `after`, a regular expression, where the answer begins."""

    def __init__(
        self,
        piece: Callable[[int], bytes],
        stop: Sequence[str],
        *,
        ending: Mapping[int, str] = MappingProxyType({}),
        thinks: bool | None = None,
        after: str = "",
    ) -> None:
        self.stopped: str | None = None
        self._piece = piece
        self._stop, self._ending = tuple(stop), ending
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._held = ""
        self._released: list[str] = []
        self._taken = 0
        self._thinks = thinks
        self._thought, self._closes = "", CLOSES
        self._begun = ""
        try:
            self._after = re.compile(after) if after else None
        except re.error as error:
            raise UsageError(
                f"stop-after is not a regular expression: {error}. Correct it."
            ) from None

    @property
    def text(self) -> str:
        return "".join(self._released)

    def push(self, token: int) -> bool:
        if self.stopped is None and not self._thinks and token in self._ending:
            self.finish()
            self.stopped = self.stopped or self._ending[token]
            return True
        return self._append(self._decode(self._piece(token)), final=False)

    def finish(self) -> None:
        """No more tokens come: release what was held back, half a character as U+FFFD."""
        self._append(self._decode(b"", final=True), final=True)

    def take(self) -> str:
        text = "".join(self._released[self._taken :])
        self._taken = len(self._released)
        return text

    def _append(self, text: str, *, final: bool) -> bool:
        if self.stopped is not None:
            return True
        text = self._held + text
        begin = self._end_of_thought(text) if self._thinks is not None else 0
        if self._after is not None:
            self._begun += text[begin:]
            match = self._after.match(self._begun)
            begin = len(text) - (len(self._begun) - match.end() if match else 0)
            self._after = None if match else self._after
        found = [(at, stop) for stop in self._stop if (at := text.find(stop, begin)) >= 0]
        if found:
            end, self.stopped = min(found, key=lambda one: one[0])
        else:
            held = [held_back(text[begin:], stop) for stop in self._stop if not final]
            end = len(text) - max(held, default=0)
            self._held = text[end:]
        if end:
            self._released.append(text[:end])
        return bool(found)

    def _end_of_thought(self, text: str) -> int:
        self._thought += text
        if self._thinks is False:
            said = self._thought.lstrip()
            if any(opens.startswith(said) for opens in _THOUGHTS):
                return len(text)
            begun = [closes for opens, closes in _THOUGHTS.items() if said.startswith(opens)]
            self._thinks, self._closes = (True, begun[0]) if begun else (None, "")
        if self._thinks is None:
            return 0
        before, at = len(self._thought) - len(text), self._thought.find(self._closes)
        if at < 0:
            self._thought = self._thought[1 - len(self._closes) :]
            return len(text)
        self._thinks = None
        return at + len(self._closes) - before


def held_back(text: str, mark: str, *, also: str = "") -> int:
    """Length of the longest ending of a text that a mark may begin with; `also` are characters that
    belong to the mark where they precede it."""
    most = min(len(text), len(mark) - 1)
    length = next(n for n in range(most, -1, -1) if text.endswith(mark[:n]))
    rest = text[: len(text) - length]
    return length + len(rest) - len(rest.rstrip(also)) if also else length
