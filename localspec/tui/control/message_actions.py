"""Actions on one message, by key or command. All raise UsageError where it does not allow them."""

from __future__ import annotations

from localspec.chat import words
from localspec.chat.conversation import ASSISTANT, USER, Message
from localspec.chat.figures import Figures
from localspec.errors import UsageError
from localspec.prompting.reasoning import told_apart
from localspec.tui.control.host import Host


def run(host: Host, action: str, message: str) -> None:
    """What a key does with the message of that id."""
    conversing = host.conversing
    if action == "regenerate":
        conversing.regenerate(message)
    elif action.startswith("branch"):
        conversing.branch(1 if action == "branch_next" else -1, message)
    else:
        actions = {"copy": copy, "copy_code": copy_code, "edit": edit, "why": explain}
        actions[action](host, conversing.conversation.messages[message])


def edit(host: Host, message: Message) -> None:
    """Put it into the input, to be sent again."""
    if message.role != USER:
        raise UsageError("Only your own messages can be edited. r answers again.")
    host.composer.begin_edit(message.id, message.content)


def copy(host: Host, message: Message) -> None:
    """Copy its text; of an answer without its reasoning, where there is more."""
    said = told_apart(message.content)[1] if message.role == ASSISTANT else message.content
    host.copy(said or message.content)


def copy_code(host: Host, message: Message) -> None:
    """Copy its code block, or have one chosen."""
    from localspec.tui.rendering.markdown_lines import code_blocks

    blocks = [block for block in code_blocks(message.content) if block.code.strip()]
    if not blocks:
        raise UsageError("There is no code block in this message.")
    if len(blocks) == 1:
        host.copy(blocks[0].code)
        return
    offered = [
        (str(number), f"{block.language or 'text'}: {block.code.strip().splitlines()[0][:48]}")
        for number, block in enumerate(blocks)
    ]
    host.ask("Copy which code block?", offered, lambda answer: host.copy(blocks[int(answer)].code))


def explain(host: Host, message: Message) -> None:
    """Show why it was as fast as it was."""
    if not message.stats:
        raise UsageError("Only answers have figures. Choose one of them.")
    from textual.widgets import Label, Markdown

    from localspec.tui.screens.dialogs import ReadingScreen

    figures = Figures.from_dict(message.stats)
    text = words.explain(figures, model=message.model, draft=message.draft)
    host.push_screen(ReadingScreen(Label("Why this speed"), Markdown(text, open_links=False)))
