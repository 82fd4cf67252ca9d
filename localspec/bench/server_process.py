"""A server in another process, which ends with this one."""

from __future__ import annotations

import atexit
import json
import os
import re
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any

from localspec.errors import NativeError, UsageError

HOST = "127.0.0.1"
_POLL = 0.02
_STOP_TIMEOUT = 5.0
_STAMP = re.compile(r"^[\d.]+ [A-Z] ")
_ERROR = re.compile(r"error|fail|assert|abort|fatal|cannot|couldn't", re.IGNORECASE)

# A proxy of the environment has no business with a server of ours.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


class ServerProcess:
    """Starts llama-server, asks it, ends it.

    Args:
        name: for messages.
        command: program and arguments but host and port.
        start_timeout, answer_timeout: seconds.
    """

    def __init__(
        self, name: str, command: Sequence[str], *, start_timeout: float, answer_timeout: float
    ) -> None:
        self.log: Path | None = None
        self._name = name
        self._command = list(command)
        self._start_timeout, self._answer_timeout = start_timeout, answer_timeout
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""

    def start(self) -> None:
        """Start it if it does not run, and wait until it is healthy.

        Raises:
            UsageError: the command is no program.
            NativeError: it ends, or takes longer than `start_timeout`.
        """
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        with (
            tempfile.NamedTemporaryFile(prefix="llama-server-", suffix=".log", delete=False) as log,
            socket.socket() as probe,
        ):
            self.log = Path(log.name)
            probe.bind((HOST, 0))
            port = probe.getsockname()[1]
            probe.close()
            self.address = f"http://{HOST}:{port}"
            # Not in a session of its own: what ends us from a terminal shall end it as well.
            atexit.register(self.close)
            try:
                self._process = subprocess.Popen(
                    [*self._command, "--host", HOST, "--port", str(port)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=_environment(),
                )
            except OSError as error:
                self.close()
                raise UsageError(
                    f"{self._command[0]} cannot be run: {error.strerror}. "
                    "Name the llama-server program of a llama.cpp build."
                ) from None
        try:
            self._wait_until_healthy()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the process; may be repeated."""
        atexit.unregister(self.close)
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(_STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self.log is not None:
            self.log.unlink(missing_ok=True)
            self.log = None

    def _wait_until_healthy(self) -> None:
        assert self._process is not None
        give_up = time.monotonic() + self._start_timeout
        while True:
            if self._process.poll() is not None:
                raise NativeError(
                    f"{self._name} ended while it started: {self._last_words(first=True)}"
                )
            try:
                with _open(f"{self.address}/health", timeout=5):
                    return
            except (OSError, HTTPException):
                pass  # not listening yet, or 503: loading
            if time.monotonic() > give_up:
                raise NativeError(
                    f"{self._name} was not ready after {self._start_timeout:g} seconds: "
                    f"{self._last_words(first=True)}"
                )
            time.sleep(_POLL)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request and wait for the reply.

        Raises:
            NativeError: the server refuses it, takes longer than `answer_timeout`, or dies.
        """
        assert self._process is not None
        request = urllib.request.Request(
            self.address + path,
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with _open(request, timeout=self._answer_timeout) as response:
                reply: dict[str, Any] = json.load(response)
                return reply
        except urllib.error.HTTPError as error:
            raise NativeError(f"{self._name} refused the prompt: {_told(error)}.") from None
        except TimeoutError:
            raise NativeError(
                f"{self._name} did not answer within {self._answer_timeout:g} seconds. "
                "Ask for fewer tokens, or take a smaller model."
            ) from None
        except (OSError, HTTPException, ValueError) as error:
            # The connection ends a moment before the process does.
            try:
                self._process.wait(1)
            except subprocess.TimeoutExpired:
                raise NativeError(
                    f"{self._name} broke off its answer: {error or type(error).__name__}"
                ) from None
            raise NativeError(
                f"{self._name} died while it answered: {self._last_words(first=False)}"
            ) from None

    def _last_words(self, *, first: bool) -> str:
        """The line of the log that tells most: the `first` or last error if there is one.

        At the start the first error causes the others; later, earlier ones were survived.
        """
        assert self.log is not None
        text = self.log.read_text(encoding="utf-8", errors="replace")
        lines = [_STAMP.sub("", line).strip() for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if _ERROR.search(line)]
        told = errors or lines or ["its log is empty"]
        line = told[0 if errors and first else -1]
        status = self._process.poll() if self._process is not None else None
        return line if status is None else f"{line} (exit status {status})"


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_")}


def _told(error: urllib.error.HTTPError) -> str:
    try:
        message = json.loads(error.read())["error"]["message"]
    except (OSError, ValueError, KeyError, TypeError):
        return f"HTTP status {error.code}"
    return str(message).rstrip(".")
