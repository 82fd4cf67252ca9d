"""Converts tokens to text during generation: whole characters, without stop strings."""

import codecs
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from localspec.errors import UsageError

OPENS, CLOSES = "<think>", "</think>"
"""Marks around the reasoning that precedes an answer."""
THOUGHTS = {
    OPENS: CLOSES,
    "[THINK]": "[/THINK]",  # Magistral, Ministral
    "<seed:think>": "</seed:think>",  # Seed-OSS
    "<thought>": "</thought>",  # EXAONE Deep, as text
    "<|START_THINKING|>": "<|END_THINKING|>",  # Command A
    "<mm:think>": "</mm:think>",  # MiniMax M3
    "<|inner_prefix|>": "<|inner_suffix|>",  # Apertus
    "<|channel>": "<channel|>",  # Gemma 4, with a first line "thought"
    **{f"<ifm|{one}>": f"</ifm|{one}>" for one in ("think", "think_fast", "think_faster")},
    "Here are my reasoning steps:": "[BEGIN FINAL RESPONSE]",  # Apriel, as text
    "<|open|>think<|sep|>": "<|close|>think<|sep|><|open|>response<|sep|>",  # Kimi K3
}
"""Marks of several families; the text of an answer always has those of the first."""
CHANNEL, FINAL = "<|channel|>", "<|channel|>final<|message|>"
ANALYSIS = "<|channel|>analysis<|message|>"
"""gpt-oss's marks before any message, before its answer, and before its thoughts."""
SOLAR, TAGGED, _MINIMAX = "assistant<|think|>", "<|close|>", "]<]minimax[>["
MUSE, _EOM, _APRIEL = " to=self<|message|>", "<|eom|>", "[BEGIN FINAL RESPONSE]"
TEXTS = {
    _APRIEL: {"Here are my reasoning steps:": OPENS, _APRIEL: CLOSES, "\n[END FINAL RESPONSE]": ""},
    MUSE: {MUSE: ANALYSIS, " to=user<|message|>": FINAL},
    "<thought>": {"<thought>": OPENS, "</thought>": CLOSES},
}
"""How marks that are text, not tokens, are spelled in an answer, by a mark of the template."""
SPELLINGS = {
    SOLAR: {  # in gpt-oss's format
        "<|begin|>": "<|start|>",
        "<|think|>": ANALYSIS,
        "<|content|>": FINAL,
        "<|tool_calls|>": f"{CHANNEL}commentary<|message|><|tool_calls|>",
        "<|end|>": "<|end|>",
    },
    MUSE: {"<|start|>": "<|start|>", "<|message|>": "<|message|>", _EOM: "<|end|>"},  # as gpt-oss's
    TAGGED: {"<|open|>": "<", TAGGED: "</", "<|sep|>": ">"},  # Kimi K3's delimit tags
    _MINIMAX: {_MINIMAX: ""},  # before each tag of MiniMax M3
}
"""How tokens are spelled in an answer, by a mark of the template."""
BEGINNINGS = {
    SOLAR: ("<|think|>", "<|end|><|begin|>assistant", "<|content|>"),
    CHANNEL: (ANALYSIS, "<|end|><|start|>assistant", FINAL),
    MUSE: (MUSE, f"{_EOM}<|start|>assistant", " to=user<|message|>"),
    TAGGED: (*list(THOUGHTS.items())[-1], ""),
}
"""Marks before a thought, between it and a text, and before a text, by a mark of the template."""
_THOUGHTS = {OPENS: CLOSES, CHANNEL: FINAL}
_CHECKPOINT = re.compile(r"</?think:([\w-]+)>")


def marks_in(text: str) -> dict[str, str]:
    """Marks of `THOUGHTS` that a text has, and Hy3's and Hy4's, named after checkpoints."""
    named = {f"<think:{one}>": f"</think:{one}>" for one in _CHECKPOINT.findall(text)}
    pairs = [*THOUGHTS.items(), *named.items()]
    return {opens: closes for opens, closes in pairs if opens in text or closes in text}


class Detokenizer:
    """Joins the bytes of tokens, releasing only text that later tokens cannot change. The stop
    string that is complete first ends the answer. `ending`: control tokens that also end it, and
    their spelling; `texts`: marks to be spelled differently. `thinks`: True if the text begins
    within a thought, False if it may begin with one; stop strings are ignored in thoughts.
    `after`: a regular expression for the beginning of the answer; stop strings are ignored up to
    the end of its match."""

    def __init__(
        self,
        piece: Callable[[int], bytes],
        stop: Sequence[str],
        *,
        ending: Mapping[int, str] = MappingProxyType({}),
        texts: Mapping[str, str] = MappingProxyType({}),
        thinks: bool | None = None,
        after: str = "",
    ) -> None:
        self.stopped: str | None = None
        self._piece = piece
        self._stop, self._ending = tuple(stop), ending
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._held = self._released = self._spelling = ""
        self._texts = texts
        self._thinks = thinks
        self._thought, self._closes = "", CLOSES
        self._gap = False  # after a thought, until text follows
        self._begun = ""
        try:
            self._after = re.compile(after) if after else None
        except re.error as error:
            raise UsageError(
                f"stop-after is not a regular expression: {error}. Correct it."
            ) from None

    def push(self, token: int) -> bool:
        if self.stopped is None and not self._thinks and token in self._ending:
            self.finish()
            self.stopped = self.stopped or self._ending[token]
            return True
        return self._append(self._decode(self._piece(token)), final=False)

    def finish(self) -> None:
        """Release the text held back after the last token, an incomplete character as U+FFFD."""
        self._append(self._decode(b"", final=True), final=True)

    def take(self) -> str:
        """Return the text released since the last call."""
        text, self._released = self._released, ""
        return text

    def _append(self, text: str, *, final: bool) -> bool:
        if self.stopped is not None:
            return True
        text = self._spell(text, final=final) if self._texts else text
        if not self._stop:
            self._released += text
            return False
        begin = 0 if self._thinks is None else self._end_of_thought(text, len(self._held))
        text = self._held + text
        undecided, begin = begin < 0 and not final, max(begin, 0)
        if self._gap and text[begin:]:
            begin = len(text) - len(text[begin:].lstrip("\n"))
            self._gap = begin == len(text)
        if self._after is not None:
            self._begun += text[begin:]
            match = self._after.match(self._begun)
            begin = len(text) - (len(self._begun) - match.end() if match else 0)
            self._after = None if match else self._after
        found = [(at, stop) for stop in self._stop if (at := text.find(stop, begin)) >= 0]
        if found and not undecided:
            end, self.stopped = min(found, key=lambda match: match[0])
        else:
            held = [held_back(text[begin:], stop) for stop in self._stop if not final]
            end = min(len(text) - max(held, default=0), *(at for at, _ in found), len(text))
            self._held = text[end:]
        self._released += text[:end]
        return self.stopped is not None

    def _spell(self, text: str, *, final: bool) -> str:
        text = self._spelling + text
        for mark, spelled in self._texts.items():
            text = text.replace(mark, spelled)
        held = 0 if final else max(held_back(text, mark) for mark in self._texts)
        self._spelling = text[len(text) - held :]
        return text[: len(text) - held]

    def _end_of_thought(self, text: str, held: int) -> int:
        """The end of the thoughts in `held` characters and a further text; -1 while undecided."""
        self._thought += text
        if self._thinks is False:
            beginning = self._thought.lstrip()
            if any(opens.startswith(beginning) for opens in _THOUGHTS):
                return -1
            begun = [closes for opens, closes in _THOUGHTS.items() if beginning.startswith(opens)]
            self._thinks, self._closes = (True, begun[0]) if begun else (None, "")
        if self._thinks is None:
            return 0
        before, at = len(self._thought) - len(text), self._thought.find(self._closes)
        if at < 0:
            self._thought = self._thought[1 - len(self._closes) :]
            return held + len(text)
        self._thinks, self._gap = None, True
        return held + at + len(self._closes) - before


def held_back(text: str, mark: str, *, also: str = "") -> int:
    """Length of the longest suffix of a text that may begin a mark; characters of `also` before it
    are included."""
    most = min(len(text), len(mark) - 1)
    length = next(n for n in range(most, -1, -1) if text.endswith(mark[:n]))
    rest = text[: len(text) - length]
    return length + len(rest) - len(rest.rstrip(also)) if also else length
