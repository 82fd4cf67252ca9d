"""`localspec` as a process of its own."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

TIMEOUT = 120.0
"""Seconds, a hundred times what any of these processes takes."""
LOCALSPEC = (sys.executable, "-m", "localspec")


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    def succeeded(self) -> str:
        """Standard output of a program that did not fail."""
        assert self.code == 0, self.err
        return self.out

    def sentence(self) -> str:
        """The only line on standard error."""
        assert self.err.endswith("\n")
        assert self.err.count("\n") == 1, self.err
        assert self.err.startswith("localspec: ")
        return self.err.removeprefix("localspec: ").rstrip()

    def refused(self, *causes: str, code: int = 2) -> None:
        """Nothing was printed but a sentence that has all these words in it."""
        assert (self.code, self.out) == (code, "")
        for cause in causes:
            assert cause in self.sentence()


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, **more}


def finished(*arguments: str, command: tuple[str, ...] = LOCALSPEC, **options: Any) -> Result:
    """Run to the end, without standard input unless `options` say otherwise."""
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, **options}
    options |= {"stderr": subprocess.PIPE, "text": True, "encoding": "utf-8", "timeout": TIMEOUT}
    done = subprocess.run([*command, *arguments], check=False, **options)
    return Result(done.returncode, done.stdout or "", done.stderr)


def run_python(code: str, *arguments: object, **options: Any) -> Result:
    return finished(*map(str, arguments), command=(sys.executable, "-c", code), **options)


def patched(code: str) -> tuple[str, ...]:
    """The command behind Python code that changes something in localspec."""
    text = f"import sys\nfrom localspec.cli.main import main\n{code}\nsys.exit(main(sys.argv[1:]))"
    return (sys.executable, "-c", text)


def with_closed(redirection: str) -> tuple[str, ...]:
    """The command behind a shell redirection such as `>&-`."""
    return ("sh", "-c", f'exec "$@" {redirection}', "sh", *LOCALSPEC)


@contextmanager
def running(
    *arguments: str, command: tuple[str, ...] = LOCALSPEC, stdin: str = ""
) -> Iterator[subprocess.Popen[str]]:
    """A process that can be interrupted, with pipes on all of its streams."""
    pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen([*command, *arguments], text=True, encoding="utf-8", **pipes)
    # Should it hang, its pipes end, and the test with it.
    watchdog = threading.Timer(TIMEOUT, process.kill)
    watchdog.start()
    with process:
        try:
            assert process.stdin is not None
            process.stdin.write(stdin)
            process.stdin.close()
            process.stdin = None  # communicate() would close it again
            yield process
        finally:
            watchdog.cancel()
            process.kill()


def line(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline()


def event(process: subprocess.Popen[str], name: str) -> dict[str, Any]:
    """Read JSON lines up to the first event of that name."""
    while True:
        text = line(process.stdout)
        assert text, f"no event {name!r}"
        found: dict[str, Any] = json.loads(text)
        if found["event"] == name:
            return found
