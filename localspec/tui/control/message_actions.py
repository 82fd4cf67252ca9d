"""Actions on one message, by key or command."""

from __future__ import annotations

from localspec.chat import words
from localspec.chat.conversation import ASSISTANT, USER, Message
from localspec.chat.figures import Figures
from localspec.errors import UsageError
from localspec.prompting.reasoning import told_apart
from localspec.tui.control.dialogs import Dialogs
from localspec.tui.control.host import Host


class MessageActions:
    """All raise UsageError where the message does not allow the action."""

    def __init__(self, host: Host, dialogs: Dialogs) -> None:
        self._host = host
        self._dialogs = dialogs

    def run(self, action: str, message: str) -> None:
        """What a key does."""
        conversing = self._host.conversing
        found = conversing.conversation.messages[message]
        if action == "copy":
            self.copy(found)
        elif action == "copy_code":
            self.copy_code(found)
        elif action == "regenerate":
            conversing.regenerate(message)
        elif action == "edit":
            self.edit(found)
        elif action.startswith("branch"):
            conversing.branch(1 if action == "branch_next" else -1, message)
        elif action == "why":
            self.explain(found)

    def edit(self, message: Message) -> None:
        """Put it into the input, to be sent again."""
        if message.role != USER:
            raise UsageError("Only your own messages can be edited. r answers again.")
        self._host.composer.begin_edit(message.id, message.content)

    def copy(self, message: Message) -> None:
        """Copy its text; of an answer without its reasoning, where there is more."""
        said = told_apart(message.content)[1] if message.role == ASSISTANT else message.content
        self._host.copy(said or message.content)

    def copy_code(self, message: Message) -> None:
        """Copy its code block, or have one chosen."""
        from localspec.tui.rendering.markdown_lines import code_blocks

        blocks = code_blocks(message.content)
        if not blocks:
            raise UsageError("There is no code block in this message.")
        if len(blocks) == 1:
            self._host.copy(blocks[0].code)
        else:
            self._dialogs.choose_code(blocks)

    def explain(self, message: Message) -> None:
        """Show why it was as fast as it was."""
        if not message.stats:
            raise UsageError("Only answers have figures. Choose one of them.")
        from localspec.tui.screens.reading_screen import ReadingScreen

        text = words.explain(
            Figures.from_dict(message.stats), model=message.model, draft=message.draft
        )
        self._host.push_screen(ReadingScreen("Why this speed", text))
