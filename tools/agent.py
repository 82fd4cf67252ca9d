"""Time an agent's session with servers: seconds to the first token, tokens per second after it.

    python -m tools.agent TARGET [DRAFT] [--llama-server PROGRAM] [--tokens 7000] [--rounds 3]

A system prompt with tools and about `--tokens` of files of this repository, and a question (cold);
another file and a question about it (warm); a function to repeat with another name (edit). Then the
server is restarted and gets the last request again (from disk): localspec with --prompt-cache,
llama-server with its slot saved and restored. Only one server runs at a time; figures are medians
of the rounds. `localspec, off` has llama.cpp's kernels.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from localspec.bench.child import HOST, Child, free_port
from localspec.gguf.reader import read_gguf

ROOT = Path(__file__).parents[1]
PATIENCE = 1800.0
SYSTEM = "You are a programmer's assistant. These tools are there:\n" + "\n".join(
    json.dumps({"name": name, "parameters": {"type": "object", "properties": {"path": {}}}})
    for name in ("read_file", "write_file", "list_folder", "run_tests", "search")
)
FUNCTION = '''```python
def even_numbers(numbers):
    """Return the even numbers of a list, in their order."""
    return [number for number in numbers if number % 2 == 0]
```'''
QUESTION = "Write a short Python function that returns the even numbers of a list. Only code."
EDIT = "Rename the function to evens, and print all of it again."
REPLY = "It is a part of a Python program that makes local language models faster."
STEPS = ("cold", "warm", "edit", "from disk")


class Reply(NamedTuple):
    """A reply: seconds to the first token, tokens per second after it, prompt tokens, text."""

    first: float
    speed: float
    prompt: int
    text: str


class Server(NamedTuple):
    name: str
    command: Sequence[str]
    port: int
    environment: Mapping[str, str] = {}

    @property
    def saves(self) -> bool:
        return "--slot-save-path" in self.command

    @contextmanager
    def running(self) -> Iterator[None]:
        with closing(
            Child(self.name, self.command, environment=os.environ | self.environment)
        ) as child:
            child.wait_until_healthy(f"http://{HOST}:{self.port}", PATIENCE)
            yield

    def _connection(self) -> closing[HTTPConnection]:
        return closing(HTTPConnection(HOST, self.port, timeout=PATIENCE))

    def slot(self, action: str) -> None:
        with self._connection() as connection:
            connection.request("POST", f"/slots/0?action={action}", '{"filename": "slot"}')
            assert connection.getresponse().status == 200, f"{self.name} cannot {action} its slot"

    def ask(self, messages: list[dict[str, str]], most: int) -> Reply:
        body = {"messages": messages, "max_tokens": most, "temperature": 0, "stream": True}
        body |= {"stream_options": {"include_usage": True}, "cache_prompt": True}
        text, first, last, usage = "", 0.0, 0.0, {"prompt_tokens": 0, "completion_tokens": 0}
        with self._connection() as connection:
            began = time.perf_counter()
            connection.request("POST", "/v1/chat/completions", json.dumps(body))
            reply = connection.getresponse()
            assert reply.status == 200, reply.read()
            for line in reply:
                if not line.startswith(b"data: {"):
                    continue
                event: dict[str, Any] = json.loads(line[6:])
                usage = event.get("usage") or usage
                word = "".join(one["delta"].get("content") or "" for one in event["choices"])
                if word:
                    text, last = text + word, time.perf_counter()
                    first = first or last
        speed = (usage["completion_tokens"] - 1) / max(1e-9, last - first)
        return Reply(first - began, speed, usage["prompt_tokens"], text)


def files() -> Iterator[str]:
    for path in sorted((ROOT / "localspec").rglob("*.py")):
        yield f"{path.relative_to(ROOT)}:\n\n{path.read_text('utf-8')}"


def session(server: Server, characters: int) -> dict[str, Reply]:
    read = "\n\n".join(files())
    messages = [{"role": "system", "content": SYSTEM}]
    turns = (
        ("cold", f"{read[:characters]}\n\nWhat is in these files? One sentence.", 32),
        ("warm", f"{read[characters : characters + 2000]}\n\nAnd in this one? One sentence.", 32),
        ("edit", EDIT, 120),
    )
    found = {}
    with server.running():
        for name, text, most in turns:
            if name == "edit":
                messages.append({"role": "user", "content": QUESTION})
                messages.append({"role": "assistant", "content": FUNCTION})
            messages.append({"role": "user", "content": text})
            found[name] = server.ask(messages, most)
            # A fixed reply, so that all servers get the same prompt.
            messages.append({"role": "assistant", "content": REPLY})
        if server.saves:
            server.slot("save")
    with server.running():
        if server.saves:
            server.slot("restore")
        found["from disk"] = server.ask(messages[:-1], turns[-1][2])
    return found


def servers(args: argparse.Namespace, folder: Path) -> Iterator[Server]:
    port = free_port()
    models = ["-m", args.target, "-c", str(args.tokens + 2500)]
    draft = ["-d", args.draft or "none"]
    own = [sys.executable, "-m", "localspec", "serve", *models, *draft, "--port", str(port)]
    for name, kernels in (("localspec", "auto"), ("localspec, off", "off")):
        home = {"LOCALSPEC_KERNELS": kernels, "LOCALSPEC_HOME": str(folder / kernels)}
        yield Server(name, [*own, "--prompt-cache", "4GB"], port, home)
    if args.llama_server:
        (folder / "slots").mkdir()
        theirs = [args.llama_server, *models, "--port", str(port), "-np", "1", "-t"]
        theirs += [str(os.cpu_count()), "--slot-save-path", str(folder / "slots")]
        # It cuts contexts to the length that the model was trained for.
        architecture = read_gguf(Path(args.target)).architecture
        theirs += ["--override-kv", f"{architecture}.context_length=int:{args.tokens + 2500}"]
        yield Server("llama-server", theirs, port)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("draft", nargs="?")
    parser.add_argument("--llama-server")
    parser.add_argument("--tokens", type=int, default=7000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    found: dict[str, dict[str, list[Reply]]] = defaultdict(lambda: defaultdict(list))
    with tempfile.TemporaryDirectory() as name:
        for number in range(args.rounds):
            folder = Path(name, str(number))
            folder.mkdir()
            for server in servers(args, folder):
                for step, one in session(server, 3 * args.tokens).items():
                    found[server.name][step].append(one)
                    print(f"{server.name}, {step}: {one}", file=sys.stderr, flush=True)
    print("| server | " + " | ".join(f"{step}: first token, tok/s" for step in STEPS) + " |")
    print("|---|" + "---:|" * len(STEPS))
    for name, steps in found.items():
        cells = [
            f"{median(one.first for one in steps[step]):.2f} s, "
            f"{median(one.speed for one in steps[step]):.1f}"
            for step in STEPS
        ]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
