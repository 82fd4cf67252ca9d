"""`localspec` on a pseudo-terminal, as a user sees it."""

import os
import signal
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pexpect
import pyte

from tests.cli.process import LOCALSPEC as LOCALSPEC
from tests.cli.process import patched

TIMEOUT = 60.0
"""Seconds until a test gives up; far longer than anything here takes."""
SLOWLY = """
import time
from localspec import Stream
real = Stream.__next__
Stream.__next__ = lambda stream: time.sleep(0.08) or real(stream)
"""
SLOW_CHAT = (*patched(SLOWLY), "chat")
"""`localspec chat` at 12 tokens per second, which keeps no core busy.

Plain decoding (`PLAIN`) of the built-in target then takes some seconds for an answer.
"""
CTRL_Q = "\x11"
PLAIN = ("-d", "none", "--drafter", "none", "--temp", "0")
ARRIVING = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP)
LAST_WORDS = 5.0
"""Seconds for output after the program's end."""
QUIET = 0.05
"""Seconds without output after which the screen counts as drawn."""


class Terminal:
    """A program on a separate terminal. `screen`: its content; `raw`: all output."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        home: Path,
        columns: int = 100,
        lines: int = 30,
        **environment: str,
    ) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("LOCALSPEC_")}
        for name in ("NO_COLOR", "COLORTERM", "TEXTUAL", "COLUMNS", "LINES"):
            kept.pop(name, None)
        # One thread: two on a machine that is busy wait for each other most of the time.
        said = {"TERM": "xterm-256color", "LOCALSPEC_HOME": str(home), "LOCALSPEC_THREADS": "1"}
        self.raw = b""
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self._display: list[str] = []
        self.child: Any = pexpect.spawn(
            command[0],
            list(command[1:]),
            dimensions=(lines, columns),
            env={**kept, **said, **environment},
            timeout=TIMEOUT,
            # What a shell in the background ignores, its children would.
            preexec_fn=lambda: [signal.signal(each, signal.SIG_DFL) for each in ARRIVING],  # type: ignore[arg-type]
        )
        self.child.delaybeforesend = None
        self.before: list[Any] = termios.tcgetattr(self.child.child_fd)

    @property
    def display(self) -> list[str]:
        """The lines of the screen, cached: putting them together takes a while."""
        if not self._display:
            self._display = self.screen.display
        return self._display

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.display)

    @property
    def words(self) -> str:
        """The text with white space collapsed, as lines may be wrapped anywhere."""
        return " ".join(self.text.split())

    def column(self, first: int, end: int) -> list[str]:
        """The lines of a part of the screen, by its cells."""
        return [line[first:end].strip() for line in self.display]

    def flow(self, first: int, end: int) -> str:
        """As `words`, of a part of the screen."""
        return " ".join(" ".join(self.column(first, end)).split())

    def shows_notice(self, sentence: str) -> bool:
        """Whether a notice with that sentence is shown."""
        notice = "".join(line.rpartition("▌")[2] for line in self.display)
        # It is broken at spaces, and within what has none.
        return "".join(sentence.split()) in "".join(notice.split())

    def until_notice(self, sentence: str) -> None:
        try:
            self.until(lambda: self.shows_notice(sentence))
        except AssertionError as error:
            raise AssertionError(f"no notice: {sentence!r}\n{error}") from None

    @property
    def alternate(self) -> bool:
        """Whether the program uses the alternate screen."""
        return self.raw.rfind(b"\x1b[?1049h") > self.raw.rfind(b"\x1b[?1049l")

    @property
    def cursor_shown(self) -> bool:
        return self.raw.rfind(b"\x1b[?25h") >= self.raw.rfind(b"\x1b[?25l")

    @property
    def modes(self) -> list[Any]:
        return termios.tcgetattr(self.child.child_fd)

    @property
    def restored(self) -> bool:
        """Whether the terminal is as it was before the program."""
        return self.modes == self.before and not self.alternate and self.cursor_shown

    def type(self, text: str | bytes) -> None:
        self.child.send(text)

    def take(self, timeout: float = QUIET) -> bool:
        """Read output for this time; returns False if the program has ended."""
        try:
            data = self.child.read_nonblocking(65536, timeout)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.raw += data
        self._stream.feed(data)
        self._display = []
        return True

    def until(self, condition: Callable[[], object] | str) -> None:
        """Wait until something holds, or a text is shown, however its lines break."""
        deadline = time.monotonic() + TIMEOUT
        gone: float | None = None
        wanted = condition
        while not (wanted in self.words if isinstance(wanted, str) else wanted()):
            now = time.monotonic()
            assert now < deadline, f"never {wanted!r}, but:\n{self.text}"
            if self.take():
                continue
            # What watches over the program writes after its end, a moment later.
            gone = gone or now
            assert now < gone + LAST_WORDS, f"gone before {wanted!r}, last seen:\n{self.text}"
            time.sleep(QUIET)

    def ended(self) -> int:
        """Wait for the end; returns the exit code, negative for a signal."""
        self.until(lambda: not self.take())
        self.child.wait()
        status = self.child.exitstatus
        return -self.child.signalstatus if status is None else int(status)

    def printed(self) -> str:
        """Read all output until the program's end."""
        self.ended()
        return self.raw.decode()

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.child.pid, number)


@contextmanager
def chat(
    *arguments: str, home: Path, command: Sequence[str] = (*LOCALSPEC, "chat"), **options: Any
) -> Iterator[Terminal]:
    """`localspec chat` on a terminal, killed at the end if it still runs."""
    terminal = Terminal([*command, *arguments], home=home, **options)
    try:
        yield terminal
    finally:
        if terminal.child.isalive():
            terminal.kill()
            terminal.ended()
        terminal.child.close(force=True)


@contextmanager
def complete_chat(*arguments: str, **options: Any) -> Iterator[Terminal]:
    """A chat that is left with Ctrl+Q at the end, and then exits cleanly."""
    with chat(*arguments, **options) as terminal:
        yield terminal
        terminal.type(CTRL_Q)
        assert terminal.ended() == 0, terminal.text
        assert terminal.restored
