"""The keys of the chat, wherever the focus is."""

from __future__ import annotations

from textual.binding import Binding

KEYS = (
    Binding("f1", "keys", "Keys", show=False, priority=True),
    Binding("escape", "stop", "Stop", show=False),
    Binding("ctrl+n", "new", "New", priority=True),
    Binding("ctrl+o", "command('model')", "Model", priority=True),
    Binding("ctrl+t", "tokens", "Tokens", priority=True),
    Binding("ctrl+g", "figures", "Figures", priority=True),
    Binding("ctrl+b", "sidebar", "List", priority=True),
    Binding("ctrl+f", "search", "Search", priority=True, show=False),
    Binding("ctrl+r", "command('regenerate')", "Again", priority=True, show=False),
    Binding("ctrl+s", "command('set')", "Settings", show=False),
    Binding("f2", "command('why')", "Why this speed", show=False),
    Binding("question_mark", "keys", "Keys", show=False),
    Binding("ctrl+c", "interrupt", "Copy, stop, or leave", show=False, priority=True),
    # In the input it takes back what was written, as long as there is something.
    Binding("ctrl+z", "suspend_process", "Suspend", show=False),
    Binding("ctrl+q", "quit", "Quit", priority=True),
)
