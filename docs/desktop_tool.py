"""A window that answers two questions side by side, and stays responsive meanwhile.

    python docs/desktop_tool.py [MODEL] [DRAFT]

`Assistant` runs an engine in an event loop, in a separate thread. That thread puts calls that show
a piece of an answer into a queue. `Window` calls `Assistant.pump` about thirty times per second,
which runs these calls: a toolkit may be used only in its own thread. Only `Window` and `TkPane`
use tkinter, so you can replace it with another toolkit.
"""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import localspec

EVERY = 33
"""Milliseconds between two calls of `Assistant.pump`."""
AT_ONCE = 50
"""Most pieces that one call shows, so that keys and mouse do not have to wait."""


class Pane(Protocol):
    """Shows an answer."""

    def add(self, text: str) -> None:
        """Append a piece of the answer."""
        ...

    def end(self, remark: str) -> None:
        """End the answer, which is complete, was stopped, or failed."""
        ...


class Assistant:
    """Answers questions, each in a pane. Call its methods in the window's thread."""

    def __init__(self, model: str | None = None, **options: Any) -> None:
        self._shown: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._loading = self._loop.create_task(self._load(model, options))
        self._thread = threading.Thread(target=self._loop.run_forever, name="assistant")
        self._thread.start()

    def ask(self, question: str, pane: Pane) -> Callable[[], object]:
        """Answer in a pane; returns a function that stops the answer."""
        tasks: list[asyncio.Task[str]] = []

        def begin() -> None:
            tasks.append(self._loop.create_task(self._answer(question, pane)))
            tasks[0].add_done_callback(lambda task: self._ended(task, pane))

        self._loop.call_soon_threadsafe(begin)
        return lambda: self._loop.call_soon_threadsafe(lambda: tasks[0].cancel())

    def pump(self) -> None:
        """Show the pieces that have arrived."""
        for _ in range(AT_ONCE):
            try:
                show = self._shown.get_nowait()
            except queue.Empty:
                return
            show()

    def close(self) -> None:
        """Stop everything and free the model."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # These run in the event loop.

    async def _load(self, model: str | None, options: Any) -> localspec.AsyncEngine:
        return await localspec.load_async(model, **options)

    async def _answer(self, question: str, pane: Pane) -> str:
        engine = await asyncio.shield(self._loading)  # stopping an answer must not stop loading
        stream = engine.stream([{"role": "user", "content": question}], max_tokens=300)
        async for chunk in stream:
            self._shown.put(partial(pane.add, chunk.text))
        stats = stream.stats
        return f"{stats.generated_tokens} tokens, {stats.tokens_per_second:.0f} per second"

    def _ended(self, task: asyncio.Task[str], pane: Pane) -> None:
        if task.cancelled():
            remark = "stopped"
        else:
            error = task.exception()
            remark = task.result() if error is None else str(error)
        self._shown.put(partial(pane.end, remark))

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if not self._loading.cancelled() and self._loading.exception() is None:
            await self._loading.result().aclose()


class Window:
    """Two panes side by side, each with a field for its question."""

    def __init__(self, assistant: Assistant) -> None:
        import tkinter as tk
        from tkinter import ttk

        self._assistant = assistant
        self._root = tk.Tk()
        self._root.title("localspec")
        self._root.protocol("WM_DELETE_WINDOW", self._root.destroy)
        for column, question in enumerate(("Tell me a story about a fox.", "And about a bear.")):
            frame = ttk.Frame(self._root, padding=8)
            frame.grid(row=0, column=column, sticky="nsew")
            self._root.columnconfigure(column, weight=1)
            TkPane(frame, assistant, question)
        self._root.rowconfigure(0, weight=1)

    def run(self) -> None:
        """Run until the window is closed."""
        self._tick()
        self._root.mainloop()

    def _tick(self) -> None:
        self._assistant.pump()
        self._root.after(EVERY, self._tick)


class TkPane:
    """A question, its answer, and a button that asks or stops."""

    def __init__(self, frame: Any, assistant: Assistant, question: str) -> None:
        import tkinter as tk
        from tkinter import ttk

        self._assistant = assistant
        self._stop: Callable[[], object] | None = None
        self._question = ttk.Entry(frame)
        self._question.insert(0, question)
        self._question.bind("<Return>", lambda _: self._press())
        self._button = ttk.Button(frame, text="Ask", command=self._press)
        self._text = tk.Text(frame, width=48, height=20, wrap="word")
        self._question.pack(fill="x")
        self._button.pack(fill="x")
        self._text.pack(fill="both", expand=True)

    def _press(self) -> None:
        if self._stop is not None:
            self._stop()
            return
        self._text.delete("1.0", "end")
        self._button["text"] = "Stop"
        self._stop = self._assistant.ask(self._question.get(), self)

    def add(self, text: str) -> None:
        self._text.insert("end", text)
        self._text.see("end")

    def end(self, remark: str) -> None:
        self.add(f"\n\n— {remark}")
        self._button["text"] = "Ask"
        self._stop = None


def main() -> None:
    model, draft = [*sys.argv[1:], None, None][:2]
    assistant = Assistant(model, draft=draft or "auto", context=4096)
    try:
        Window(assistant).run()
    finally:
        assistant.close()


if __name__ == "__main__":
    main()
