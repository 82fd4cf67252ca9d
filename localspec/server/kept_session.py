"""The conversation of `localspec serve --session FILE`: taken up when the model is open, kept when
the server ends.

What is kept is the latest conversation that was answered, in the shape that `localspec run` and
`localspec chat` go on with: messages, or a text where it is no plain chat.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from localspec import Engine, Stream
from localspec.errors import SessionError

_ROLES = ("system", "user", "assistant")

Told = str | Sequence[Mapping[str, Any]]
"""A text, or messages."""


class ServedSession:
    """See the module.

    Args:
        path: the file.
        tell: told what could not be used or kept, sentences.
    """

    def __init__(self, path: Path, tell: Callable[[str], object]) -> None:
        self._path, self._tell = path, tell
        self._latest: tuple[Told | None, Stream] | None = None

    def take_up(self, engine: Engine) -> None:
        """Have the engine go on with what is in the file.

        Raises:
            SessionError: it is something else, or cannot be read.
        """
        for notice in engine.open_session(self._path).notices:
            self._tell(notice)

    def answered(self, prompt: Told | None, stream: Stream) -> None:
        """An answer came to its end; `prompt` is None where token ids were sent."""
        self._latest = prompt, stream

    def keep(self, engine: Engine) -> None:
        """Keep the latest conversation, if there was any; what was in the file stays else."""
        if self._latest is None:
            return
        try:
            engine.save_session(self._path, _conversation(engine, *self._latest))
        except SessionError as error:
            self._tell(str(error))


def _conversation(engine: Engine, prompt: Told | None, stream: Stream) -> Any:
    if isinstance(prompt, str):
        return prompt + stream.text
    if prompt is None or not all(map(_plain, prompt)):
        data = b"".join(engine.token_bytes(token) for token in stream.context)
        return data.decode("utf-8", "replace")
    messages = [{"role": one["role"], "content": one["content"]} for one in prompt]
    begun = ""
    if messages[-1]["role"] == "assistant":  # the answer went on with it
        begun = messages.pop()["content"]
    return [*messages, {"role": "assistant", "content": begun + stream.text}]


def _plain(message: Mapping[str, Any]) -> bool:
    return message["role"] in _ROLES and isinstance(message.get("content"), str)
