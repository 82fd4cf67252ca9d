"""Other programs in separate processes, and their error messages."""

import json
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from threading import TIMEOUT_MAX, Timer
from typing import Any

import httpx2

from localspec.errors import NativeError, UsageError

HOST = "127.0.0.1"
START_TIMEOUT, ANSWER_TIMEOUT = 120.0, 600.0
"""Seconds that other programs may take."""
_POLL = 0.02
_STOP_TIMEOUT = 30.0
_STAMP = re.compile(r"^[\d.]+ [A-Z] ")
_ERROR = re.compile(r"error|fail|assert|abort|fatal|cannot|couldn't", re.IGNORECASE)

# Without the environment's proxy, which cannot reach a server on this machine.
direct = partial(httpx2.request, trust_env=False, verify=False)


class Child:
    """A process in the terminal's session, which gets its signals, too. `name`: for errors;
    `advice`: a sentence for the error if it cannot be run; `piped`: it reads and writes lines of
    JSON. Raises UsageError: it cannot be run."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        advice: str = "",
        environment: Mapping[str, str] | None = None,
        piped: bool = False,
    ) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else self._log,
                stderr=self._log,
                env=environment,
                encoding="utf-8",
            )
        except OSError as error:
            self._log.close()
            raise UsageError(f"{command[0]} cannot be run: {error.strerror}. {advice}") from None

    @property
    def running(self) -> bool:
        return not self._log.closed and self.process.poll() is None

    def wait_until_healthy(self, address: str, seconds: float) -> None:
        """Wait until it answers llama-server's health checks at `address`. Raises NativeError, and
        closes it, if it ended or was not ready within `seconds`."""
        give_up = time.monotonic() + seconds
        try:
            while not _is_healthy(address):
                if not self.running:
                    why = "exited while starting"
                elif time.monotonic() > give_up:
                    why = f"was not ready after {seconds:g} seconds"
                else:
                    time.sleep(_POLL)
                    continue
                raise NativeError(f"{self.name} {why}: {self.error_line(first=True)}")
        except BaseException:
            self.close()
            raise

    def ask(self, what: Any, done: str, limit: float = TIMEOUT_MAX) -> Any:
        """Write a line of JSON; then as `receive`."""
        with suppress(OSError):  # it has ended; `receive` reports the reason
            print(json.dumps(what), file=self.process.stdin, flush=True)
        return self.receive(done, limit)

    def receive(self, done: str, limit: float = TIMEOUT_MAX) -> Any:
        """The next line of JSON. Raises NativeError: it ended, or had not `done` it after `limit`
        seconds. `done`: a participle for the message."""
        assert self.process.stdout is not None
        timer = Timer(limit, self.process.kill)
        timer.start()
        try:
            line = self.process.stdout.readline()
            late = not timer.is_alive()
        finally:
            timer.cancel()
        if line:
            return json.loads(line)
        if late:
            raise NativeError(f"{self.name} had not {done} after {limit:g} seconds.")
        self.process.wait(_STOP_TIMEOUT)
        raise NativeError(f"{self.name} exited before it had {done}: {self.error_line()}")

    def error_line(self, *, first: bool = False) -> str:
        """The most useful line of the log: the `first` or last error if there is one.

        At the start the first error causes the others; later, earlier errors were not fatal.
        """
        self._log.seek(0)
        text = self._log.read().decode("utf-8", "replace")
        lines = [_STAMP.sub("", line).strip() for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if _ERROR.search(line)]
        line = (errors or lines or ["its log is empty"])[0 if errors and first else -1]
        status = self.process.poll()
        return line if status is None else f"{line} (exit status {status})"

    def close(self) -> None:
        """End the process; may be repeated."""
        if self._log.closed:
            return
        self.process.terminate()
        try:
            self.process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            with suppress(OSError):  # of unread input
                if stream is not None:
                    stream.close()
        self._log.close()


def _is_healthy(address: str) -> bool:
    with suppress(httpx2.HTTPError):  # not listening yet
        return direct("GET", f"{address}/health", timeout=5).is_success  # 503: loading
    return False


def free_port() -> int:
    with socket.create_server((HOST, 0)) as found:
        port: int = found.getsockname()[1]
        return port
