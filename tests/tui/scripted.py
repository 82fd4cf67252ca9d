"""An engine that generates scripted answers in real steps, and pauses where a test requires it.

Streams are localspec's own `Stream`; only passes are made up. Nothing waits for time to go by.
"""

import re
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from localspec import Engine, GenerationStats, SamplingParams, Stream
from localspec.decoding.interfaces import PROMPT, TARGET, Draft, Plan, Step
from localspec.decoding.session import Session
from localspec.decoding.stats import AccountStatement
from localspec.decoding.tree import TokenTree
from localspec.errors import Cancelled
from localspec.prompting.detokenizer import Detokenizer
from localspec.scheduling.task import Task
from localspec.tui.session.background_engine import BackgroundEngine, PairReference

PLAIN = 0.05
"""Seconds of a plain pass."""
WRONG = "(wrong) "
"""A rejected proposal."""

PASSES = (
    *(("ngram", 3, 0), ("model", 2, 2), (None, 0, 0)),
    *(("ngram", 0, 1), ("model", 4, 0), ("cascade", 2, 1)),
)
"""Passes of the target, again and again: who drafts, None in a plain one, how many of the proposed
words are accepted, and how many after them are not."""
NEVER = "drafts would not pay here"


class Hold:
    """A point where the engine waits for the test, or the test for the engine."""

    def __init__(self) -> None:
        self._reached, self._let_go = threading.Event(), threading.Event()

    @property
    def reached(self) -> bool:
        return self._reached.is_set()

    def release(self) -> None:
        self._let_go.set()

    def wait(self, going_on: Callable[[], object] = lambda: None) -> None:
        """Called by the engine; `going_on` may raise, and is called repeatedly."""
        self._reached.set()
        while not self._let_go.wait(0.01):
            going_on()


@dataclass
class Reply:
    """One answer. `holds`: by steps after which the engine waits; 0 is while it reads the prompt;
    `error`: raised after the last step, or instead of the stream (`at_once`)."""

    text: str
    holds: Mapping[int, Hold] = field(default_factory=dict)
    error: BaseException | None = None
    at_once: bool = False


@dataclass(frozen=True)
class Request:
    messages: Sequence[Mapping[str, Any]]
    sampling: SamplingParams
    max_tokens: int | None
    overflow: str

    @property
    def last(self) -> str:
        """The user's last message."""
        return str(self.messages[-1]["content"])


def weights(path: Path, size: int) -> SimpleNamespace:
    """The part of a model's interface that the chat uses."""
    kernels = SimpleNamespace(in_use=True)
    return SimpleNamespace(name=path.stem, path=path, size=size, kernels=kernels)


class Script:
    """Replaces `localspec.load`, and is the script of all its engines. `answers`: in order; after
    them "Answer N." with N counting; `asked`: all questions so far; `loaded`: all pairs so far;
    `troubles`: why a model does not load, by reference; `loading`: where loading waits, by
    reference; `closed`: engines that were closed; `thinks`: whether prompts begin a thought, see
    `Engine.stream`."""

    def __init__(self, *answers: Reply | str) -> None:
        self.answers = deque(Reply(a) if isinstance(a, str) else a for a in answers)
        self.asked: list[Request] = []
        self.loaded: list[PairReference] = []
        self.troubles: dict[str | None, BaseException] = {}
        self.loading: dict[str | None, Hold] = {}
        self.closed = 0
        self.notices: tuple[str, ...] = ()
        self.thinks: bool | None = None
        self.engine = partial(BackgroundEngine, loader=self.load)

    def load(
        self,
        model: str | None,
        *,
        draft: str | None,
        progress: Callable[[float], None],
        **_options: object,
    ) -> Engine:
        self.loaded.append(PairReference(model, draft))
        progress(0.25)
        hold = self.loading.get(model)
        if hold is not None:
            hold.wait(lambda: progress(0.5))
        if model in self.troubles:
            raise self.troubles[model]
        progress(1.0)
        return cast("Engine", ScriptedEngine(self, model or "tale", draft))


class ScriptedEngine:
    """The part of an engine's interface that the chat uses."""

    context_length = 512
    profile = SimpleNamespace(stock=1.0)

    def __init__(self, script: Script, model: str, draft: str | None) -> None:
        self.model = weights(Path(model), 14_000_000)
        self.draft: SimpleNamespace | None = None
        if draft not in (None, "none"):
            name = f"{self.model.name}-small" if draft == "auto" else str(draft)
            self.draft = weights(Path(name), 3_000_000)
        self.why_draft: str | None = None
        self.notices = script.notices
        self.prompts = SimpleNamespace(thinks=lambda messages, free: script.thinks)
        self._script = script
        self._pieces: list[bytes] = []
        self._ids: dict[str, int] = {}
        self._interrupted = threading.Event()
        self._closed = False

    def token_bytes(self, token: int) -> bytes:
        return self._pieces[token]

    def plain_seconds(self, context_length: int) -> float:
        return PLAIN

    def close(self) -> None:
        assert not self._closed
        self._closed = True
        self._script.closed += 1

    def stream(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int | None,
        sampling: SamplingParams,
        overflow: str,
        progress: Callable[[int, int], None],
        logprobs: int | None = None,
        thinks: bool | None = None,
    ) -> Stream:
        script = self._script
        script.asked.append(Request(list(messages), sampling, max_tokens, overflow))
        said = script.answers.popleft() if script.answers else Reply(f"Answer {len(script.asked)}.")
        if said.at_once and said.error is not None:
            raise said.error
        self._interrupted.clear()
        stats = GenerationStats(
            prompt_tokens=sum(len(str(m["content"]).split()) for m in messages),
            rule="block",
            seed=7,
            account=AccountStatement(saved=0.2, fund=0.35, pair_saved=12.3),
        )

        def start() -> Generator[tuple[Step, str], None, None]:
            self._wait(said, 0, lambda: progress(1, 4))
            return self._steps(said, max_tokens, stats.prompt_tokens, assembler, session)

        assembler = Detokenizer(self.token_bytes, ())
        session = SimpleNamespace(context=(), dropped=0, finish=None)
        return Stream(
            lambda owner, on_item: _Answer(start),
            lambda task: self._interrupted.set(),
            cast("Session", session),
            assembler,
            stats,
        )

    def _wait(self, said: Reply, step: int, going_on: Callable[[], object]) -> None:
        def check() -> None:
            going_on()
            if self._interrupted.is_set():
                raise Cancelled("Stopped on request.")

        if step in said.holds:
            check()
            said.holds[step].wait(check)

    def _steps(
        self, said: Reply, max_tokens: int | None, length: int, assembler: Detokenizer, session: Any
    ) -> Generator[tuple[Step, str], None, None]:
        words = deque(re.findall(r"\S+\s*|\s+", said.text))
        left = max_tokens if max_tokens is not None else len(words)
        passes = chain([(PROMPT, None, 0, 0)], ((None, *each) for each in cycle(PASSES)))
        for number, (plan, source, right, wrong) in enumerate(passes, start=1):
            if not words or left <= 0:
                break
            taken = [words.popleft() for _ in range(min(right + 1, len(words), left))]
            left -= len(taken)
            step = self._step(plan, source, taken, wrong, length)
            for token in step.tokens:  # as `Session.extend` would
                assembler.push(token)
            length += len(taken)
            if said.error is None and (not words or left <= 0):
                session.finish = "length" if words else "stop"
            yield step, assembler.take()
            self._wait(said, number, lambda: None)
        if said.error is not None:
            raise said.error

    def _step(
        self, plan: Plan | None, source: str | None, words: list[str], wrong: int, length: int
    ) -> Step:
        """A step whose last word is the target's."""
        tokens = [self._id(word) for word in words]
        fallen = [self._id(WRONG)] * wrong
        tree = TokenTree() if source is None else TokenTree.chain([*tokens[:-1], *fallen], source)
        drafted, accepted = len(tree), len(tokens) - 1
        verify, draft = PLAIN + 0.002 * drafted, 0.004 * drafted * (source != "ngram")
        return Step(
            tokens,
            [source or TARGET] * accepted + [TARGET],
            plan or Plan(source, depth=drafted, reason="" if source else NEVER),
            Draft(tree),
            list(range(accepted)),
            list(range(min(drafted, accepted + 1))),
            length,
            verify + draft + 0.001,
            verify,
            draft,
        )

    def _id(self, word: str) -> int:
        if word not in self._ids:
            self._ids[word] = len(self._pieces)
            self._pieces.append(word.encode())
        return self._ids[word]


class _Answer(Task):
    """The task whose steps a stream reads."""

    ready = property(lambda self: True)
    over = False

    def __init__(self, start: Callable[[], Iterator[tuple[Step, str]]]) -> None:
        super().__init__((), lambda task: None)
        self._start = start

    def items(self) -> Iterator[tuple[Step, str]]:
        try:
            yield from self._start()
        finally:
            self.over = True

    def wait(self, seconds: float | None = None) -> None:
        """Nothing runs beside the reader."""
