"""The conversation of `localspec run --session`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from localspec import Engine
from localspec.errors import SessionError, UsageError

Prompt = str | list[dict[str, Any]]


class RunSession:
    """A conversation in a file: a list of messages, or a text with `--raw`.

    `notices` say what of it could not be used. Raises SessionError for other or unreadable files.
    """

    def __init__(self, engine: Engine, path: Path) -> None:
        self._engine, self._path = engine, path
        opened = engine.open_session(path)
        self._said: Prompt | None = _conversation(opened.conversation)
        self.notices = list(opened.notices)

    def behind(self, prompt: Prompt) -> Prompt:
        """The conversation and this prompt; UsageError if one is a text and the other a chat."""
        said = self._said
        if said is None:
            return prompt
        if isinstance(said, str) and isinstance(prompt, str):
            return said + prompt
        if isinstance(said, str) or isinstance(prompt, str):
            kept, other = ("a text", "with") if isinstance(said, str) else ("a chat", "without")
            raise UsageError(
                f"The session in {self._path} is {kept}. Go on {other} --raw, or give another file."
            )
        if prompt[0]["role"] == "system":  # what was said last holds
            said = [message for message in said if message["role"] != "system"]
            return [prompt[0], *said, *prompt[1:]]
        return [*said, *prompt]

    def keep(self, prompt: Prompt, answer: str) -> list[str]:
        """Save the conversation with an answer; returns sentences about what failed."""
        said: Prompt
        if isinstance(prompt, str):
            said = prompt + answer
        else:
            said = [*prompt, {"role": "assistant", "content": answer}]
        try:
            self._engine.save_session(self._path, said)
        except SessionError as error:
            return [str(error)]
        return []


def _conversation(found: Any) -> Prompt | None:
    """A stored conversation; `localspec chat` stores more than the messages."""
    if isinstance(found, str):
        return found
    if isinstance(found, dict):
        system = found.get("system")
        found = [*([{"role": "system", "content": system}] if system else []), *found["messages"]]
    if isinstance(found, Sequence) and found and all(isinstance(one, dict) for one in found):
        return [{"role": str(one["role"]), "content": str(one["content"])} for one in found]
    return None
