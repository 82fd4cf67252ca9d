"""The answers of one lane of a race: to a prompt and further questions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from localspec.stream import Stream

Prompt: TypeAlias = str | list[dict[str, str]]


class RacedConversation:
    """Iterating asks for each answer when the one before is complete.

    Args:
        ask: begins an answer.
        prompt: messages, if there are further questions.

    Attributes:
        streams: the answers so far; the first one is asked for at once.
    """

    def __init__(
        self, ask: Callable[[Prompt], Stream], prompt: Prompt, further: Sequence[str] = ()
    ) -> None:
        self.streams = [ask(prompt)]
        self._ask, self._prompt, self._further = ask, prompt, further
        self._cancelled = False

    def __iter__(self) -> Iterator[Stream]:
        prompt = self._prompt
        yield self.streams[0]
        for question in self._further:
            if self._cancelled:
                return
            assert not isinstance(prompt, str), "a bare text has no further questions"
            answer = {"role": "assistant", "content": self.streams[-1].text}
            prompt = [*prompt, answer, {"role": "user", "content": question}]
            self.streams.append(self._ask(prompt))
            if self._cancelled:  # meanwhile
                self.streams[-1].cancel()
            yield self.streams[-1]

    def cancel(self) -> None:
        """End it as soon as possible; from any thread."""
        self._cancelled = True
        self.streams[-1].cancel()
