"""The conversation of `localspec serve --session FILE`: the last one that was answered, saved for
`localspec run` and `localspec chat` as well."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from localspec import Engine, Stream
from localspec.errors import SessionError
from localspec.server.answer_figures import text_of_tokens

_ROLES = ("system", "user", "assistant")

Prompted = str | Sequence[Mapping[str, Any]]


class ServedSession:
    """Restores and saves the conversation. `notify` is called with messages about failures."""

    def __init__(self, path: Path, notify: Callable[[str], object]) -> None:
        self._path, self._notify = path, notify
        self._latest: tuple[Prompted | None, Stream] | None = None

    def restore(self, engine: Engine) -> None:
        """Continue the conversation in the file. Raises SessionError if it cannot be read."""
        for notice in engine.open_session(self._path).notices:
            self._notify(notice)

    def record_answer(self, prompt: Prompted | None, stream: Stream) -> None:
        """Remember the latest answer; `prompt` is None if token ids were sent."""
        self._latest = prompt, stream

    def save(self, engine: Engine) -> None:
        if self._latest is not None:
            try:
                engine.save_session(self._path, _conversation(engine, *self._latest))
            except SessionError as error:
                self._notify(str(error))


def _conversation(engine: Engine, prompt: Prompted | None, stream: Stream) -> Any:
    if isinstance(prompt, str):
        return prompt + stream.text
    if prompt is None or not all(
        one["role"] in _ROLES and isinstance(one.get("content"), str) for one in prompt
    ):
        return text_of_tokens(stream.context, engine, special=False)
    messages = [{"role": one["role"], "content": one["content"]} for one in prompt]
    begun = ""
    if messages[-1]["role"] == "assistant":  # the answer continued it
        begun = messages.pop()["content"]
    return [*messages, {"role": "assistant", "content": begun + stream.text}]
