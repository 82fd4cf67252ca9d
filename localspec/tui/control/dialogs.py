"""Questions of the chat, and what follows from the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from localspec.errors import LocalspecError
from localspec.tui.control.conversation_list import ConversationList
from localspec.tui.control.host import Host
from localspec.tui.screens.question import QuestionScreen

if TYPE_CHECKING:
    from localspec.tui.rendering.markdown_lines import CodeBlock


class Dialogs:
    """Asks in a worker of the app: nothing else may wait for an answer."""

    def __init__(self, host: Host, conversation_list: ConversationList) -> None:
        self._host = host
        self._conversation_list = conversation_list

    def overflow(self, error: str) -> None:
        answers = [
            ("drop", "Go on without the oldest turns"),
            ("anew", "Begin a new conversation with this message"),
            ("leave", "Leave it as it is"),
        ]

        async def ask() -> None:
            conversing = self._host.conversing
            conversation = conversing.overfull or conversing.conversation
            answer = await self._answer(
                f"The conversation has outgrown the context. {error}", answers
            )
            if answer == "drop":
                if conversing.conversation is not conversation:
                    self._host.show(conversation)
                self._host.attempt(conversing.drop_oldest)
            elif answer == "anew":
                last = conversation.path()[-1]
                self._host.show(self._host.new_conversation())
                await conversing.send(last.content, last.attachments)

        self._ask(ask)

    def choose_code(self, blocks: Sequence[CodeBlock]) -> None:
        offered = [
            (str(number), f"{block.language or 'text'}: {block.code.strip().splitlines()[0][:48]}")
            for number, block in enumerate(blocks)
            if block.code.strip()
        ]

        async def ask() -> None:
            answer = await self._answer("Copy which code block?", offered)
            if answer is not None:
                self._host.copy(blocks[int(answer)].code)

        self._ask(ask)

    def delete(self, conversation: str) -> None:

        async def ask() -> None:
            answer = await self._answer(
                "Delete this conversation? It cannot be brought back.",
                [("keep", "Keep it"), ("delete", "Delete it")],
            )
            if answer == "delete":
                await self._delete(conversation)

        self._ask(ask)

    async def _delete(self, conversation: str) -> None:
        conversing = self._host.conversing
        conversing.forget(conversation)
        try:
            await asyncio.wrap_future(self._host.store.delete([conversation]))
        except LocalspecError as error:
            self._host.tell(str(error), error=True)
            return
        if conversing.conversation.id == conversation:
            self._host.show(self._host.new_conversation())
        self._conversation_list.list()

    def _ask(self, ask: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def asked() -> None:
            try:
                await ask()
            except LocalspecError as error:
                self._host.tell(str(error), error=True)

        self._host.run_worker(asked(), group="dialog")

    async def _answer(self, text: str, answers: Sequence[tuple[str, str]]) -> str | None:
        return await self._host.push_screen_wait(QuestionScreen(text, answers))
