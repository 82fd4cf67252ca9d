"""Whether answers and logits are the same bits whatever drafts, shares passes or was kept.

    python -m tools.kernel_bits [MODEL] [-d DRAFT] [--questions 20] [--tokens 64] [--context 2048]
        [--without server]

With localspec's kernels all counts have to be full; LOCALSPEC_KERNELS=off shows what they are with
stock llama.cpp. Greedy answers by every drafter that applies, deep chains and trees, and drafts of
random tokens, are compared with plain decoding's: texts in every token, and how many of the plain
answer's rows of logits come again bit for bit. Then `localspec serve` answers the same questions:
four at a time, some of them left by their clients, and the second turns of conversations, with a
restart from `--session` before each. DRAFT may be a trained head. Ends with 1 if anything differs.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import localspec
from localspec import Drafting, LocalspecError, ModelOptions
from localspec.bench.prompt_texts import rendered
from localspec.bench.samples import BenchPrompt
from localspec.bench.server_process import ServerProcess
from localspec.bench.suites import SETS, load_suites
from localspec.decoding.sampling import Rows
from localspec.decoding.sources import LookupSource, Prediction
from localspec.drafters.registry import REGISTRY, Registration
from localspec.engine import Engine
from localspec.llama.native_context import NativeContext
from localspec.verify.subject import PLAIN, Subject

WRONG = "wrong"
AT_ONCE = 4
LEFT = 4
"""Of so many clients at once, one leaves."""
PATIENCE = 600.0
RESTARTS = 3


class WrongSource(LookupSource):
    """Drafts random tokens: chains, or trees where the plan is wider."""

    name = WRONG
    priors: Mapping[str, tuple[float, ...]] = {"any": (0.0,)}

    def __init__(self, size: int) -> None:
        self._size, self._dice = size, random.Random(29)

    def begin(self, prompt: Sequence[int]) -> None:
        self._dice.seed(len(prompt))

    def expected(self, place: object) -> Iterator[Prediction]:
        while True:
            yield Prediction(self._dice.randrange(self._size), (1.0,))

    def others(self, place: object, most: int) -> list[tuple[int, float]]:
        return [(self._dice.randrange(self._size), 0.5) for _ in range(most)]


def main() -> int:
    """Compare all, and say what was found; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("-d", "--draft", default="auto")
    parser.add_argument("--questions", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--without", choices=("server",), help="what is left out")
    said = parser.parse_args()
    options = ModelOptions(context=said.context)
    with localspec.load(said.model, draft=said.draft, options=options) as engine:
        size = engine.model.vocabulary.size
        source = Registration(lambda parts: WrongSource(size), "drafts random tokens")
        with mock.patch.dict(REGISTRY, {WRONG: source}):
            fine = all(drafted(engine, said.questions, said.tokens))
        asked = load_suites([SETS["questions"]])[: said.questions]
        prompts = rendered(engine, asked, all_turns=True, max_tokens=said.tokens)
        expected = [plain_text(engine, prompt, said.tokens) for prompt in prompts]
    if said.without is None:
        fine = all([fine, *served(said, prompts, expected)])
    return int(not fine)


def drafted(engine: Engine, questions: int, tokens: int) -> Iterator[bool]:
    """Every way to draft; whether all was the same."""
    subject = Subject(engine, lambda text: None)
    ways = subject.ways()
    for name in (WRONG, "ngram", "model"):
        if name in ways:
            ways[f"{name}, 16 deep"] = Drafting(drafter=name, depth=16)
            if subject.branches:
                ways[f"{name}, 4 × 3"] = Drafting(drafter=name, depth=4, width=3)
    equal, found = dict.fromkeys(ways, 0), dict.fromkeys(ways, 0)
    tested, rows = dict.fromkeys(ways, 0), 0
    prompts = subject.prompts(questions)
    for prompt in prompts:
        with rows_seen() as plain:
            whole = subject.answer(prompt, tokens, PLAIN).tokens
        rows += len(plain)
        for name, way in ways.items():
            with rows_seen() as seen:
                answer = subject.answer(prompt, tokens, way)
            equal[name] += answer.tokens == whole
            found[name] += len(plain & seen)
            tested[name] += answer.tested
    print(f"| drafter | texts equal, of {len(prompts)} | rows equal, of {rows} | drafts tested |")
    print("|---|---:|---:|---:|")
    for name in ways:
        print(f"| {name} | {equal[name]} | {found[name]} | {tested[name]} |", flush=True)
        yield equal[name] == len(prompts) and found[name] == rows


@contextmanager
def rows_seen() -> Iterator[set[int]]:
    """Checksums of all rows of logits that passes give meanwhile."""
    seen: set[int] = set()
    give = NativeContext.logits

    def tapped(self: NativeContext, address: int, outputs: int) -> Rows:
        rows = give(self, address, outputs)
        seen.update(zlib.crc32(row) for row in rows)
        return rows

    with mock.patch.object(NativeContext, "logits", tapped):
        yield seen


def plain_text(engine: Engine, prompt: BenchPrompt, tokens: int) -> str:
    """What plain decoding says to a prompt, from an empty cache."""
    engine.clear()
    sampling = localspec.SamplingParams(temperature=0)
    with engine.stream(prompt.text, max_tokens=tokens, sampling=sampling, drafting=PLAIN) as stream:
        for _ in stream:
            pass
    return stream.text


def served(
    said: argparse.Namespace, prompts: Sequence[BenchPrompt], expected: Sequence[str]
) -> Iterator[bool]:
    """The server's answers; whether all were the same."""

    def answer(server: ServerProcess, prompt: BenchPrompt) -> str:
        body = {"prompt": prompt.text, "max_tokens": said.tokens, "temperature": 0}
        return str(server.post("/v1/completions", body)["choices"][0]["text"])

    with serving(said, "--parallel", str(AT_ONCE)) as server:

        def one(number: int) -> bool | None:
            if number % LEFT == LEFT - 1:
                leave(server, prompts[number].text, said.tokens)
                return None
            return answer(server, prompts[number]) == expected[number]

        with ThreadPoolExecutor(AT_ONCE) as clients:
            told = list(clients.map(one, range(len(prompts))))
        again = [answer(server, prompt) for prompt in prompts]
    answered = [one for one in told if one is not None]
    ways = {
        f"{AT_ONCE} at once, {told.count(None)} of {len(told)} left": answered,
        "the same behind these, one by one": [
            one == whole for one, whole in zip(again, expected, strict=True)
        ],
        "after a restart with --session": list(restarted(said, prompts, expected, answer)),
    }
    for name, same in ways.items():
        print(f"served, {name}: {sum(same)} of {len(same)} texts equal", flush=True)
        yield all(same)


def restarted(
    said: argparse.Namespace,
    prompts: Sequence[BenchPrompt],
    expected: Sequence[str],
    answer: Callable[[ServerProcess, BenchPrompt], str],
) -> Iterator[bool]:
    """Whether later turns are answered alike by a server that knows the first from a file."""
    whole = {prompt.id: text for prompt, text in zip(prompts, expected, strict=True)}
    later = [prompt for prompt in prompts if prompt.id.endswith(", turn 2")][:RESTARTS]
    first = {prompt.id: prompt for prompt in prompts}
    for prompt in later:
        before = first[prompt.id.removesuffix(", turn 2")]
        with tempfile.TemporaryDirectory() as folder:
            for each in (before, prompt):
                with serving(said, "--session", str(Path(folder, "kept.session"))) as server:
                    yield answer(server, each) == whole[each.id]


@contextmanager
def serving(said: argparse.Namespace, *more: str) -> Iterator[ServerProcess]:
    """`localspec serve` with the models."""
    command = [sys.executable, "-m", "localspec", "serve", "-c", str(said.context), *more]
    command += ["-d", said.draft, *(["-m", said.model] if said.model else [])]
    server = ServerProcess("serve", command, start_timeout=PATIENCE, answer_timeout=PATIENCE)
    with closing(server):
        server.start()
        yield server


def leave(server: ServerProcess, text: str, tokens: int) -> None:
    """Ask for an answer, and go away when it begins."""
    host = server.address.removeprefix("http://")
    body: dict[str, Any] = {"prompt": text, "max_tokens": tokens, "temperature": 0, "stream": True}
    with closing(http.client.HTTPConnection(host, timeout=PATIENCE)) as connection:
        connection.request(
            "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        connection.getresponse().read(1)


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except LocalspecError as error:
        raise SystemExit(str(error)) from None
