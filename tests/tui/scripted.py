"""An engine that gives written answers in real steps, and waits where a test wants it to.

Streams are localspec's own `Stream`; only passes are made up. Nothing waits for time to go by.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
from localspec.stream import Piece
from localspec.tui.session.events import PairReference

PLAIN = 0.05
"""Seconds of a plain pass."""
WRONG = "(wrong) "
"""A rejected proposal."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of the target. `source`: who drafts; None for a plain pass; `right`, `wrong`:
    proposed words that are accepted, and words after them that are not."""

    source: str | None = None
    right: int = 0
    wrong: int = 0


PASSES = (
    Pass("ngram", right=3),
    Pass("model", right=2, wrong=2),
    Pass(),
    Pass("ngram", wrong=1),
    Pass("model", right=4),
    Pass("cascade", right=2, wrong=1),
)
NEVER = "drafts would not pay here"


class Hold:
    """Where the engine waits for the test, or the test for it."""

    def __init__(self) -> None:
        self._reached, self._let_go = threading.Event(), threading.Event()

    @property
    def reached(self) -> bool:
        """Whether the engine waits here, or did."""
        return self._reached.is_set()

    def release(self) -> None:
        self._let_go.set()

    def wait(self, going_on: Callable[[], object] = lambda: None) -> None:
        """Called by the engine; `going_on` may raise, and is called repeatedly."""
        self._reached.set()
        while not self._let_go.wait(0.01):
            going_on()


@dataclass
class Says:
    """One answer. `holds`: by steps after which the engine waits; 0 is while it reads the prompt;
    `error`: raised after the last step, or instead of the stream (`at_once`); `unmeasured`: the
    cost of passes is not known before."""

    text: str
    holds: Mapping[int, Hold] = field(default_factory=dict)
    error: BaseException | None = None
    at_once: bool = False
    unmeasured: bool = False


@dataclass(frozen=True)
class Asked:
    messages: Sequence[Mapping[str, Any]]
    sampling: SamplingParams
    max_tokens: int | None
    overflow: str

    @property
    def last(self) -> str:
        """The user's last message."""
        return str(self.messages[-1]["content"])


@dataclass(frozen=True)
class Weights:
    """What the chat uses of a model."""

    name: str
    path: Path
    size: int
    kernels: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(in_use=True))


class Scripted:
    """Replaces `localspec.load`, and is the script of all its engines.

    Attributes:
        answers: in order; after them "Answer N." with N counting.
        asked: all questions so far.
        loaded: all pairs so far.
        troubles: why a model does not load, by reference.
        loading: where loading waits, by reference.
        closed: engines that were closed.
        thinks: whether prompts begin a thought, see `Engine.stream`.
    """

    def __init__(self, *answers: Says | str) -> None:
        self.answers = deque(Says(a) if isinstance(a, str) else a for a in answers)
        self.asked: list[Asked] = []
        self.loaded: list[PairReference] = []
        self.troubles: dict[str | None, BaseException] = {}
        self.loading: dict[str | None, Hold] = {}
        self.closed = 0
        self.notices: tuple[str, ...] = ()
        self.thinks: bool | None = None

    def load(
        self,
        model: str | None,
        *,
        draft: str | None,
        offline: bool | None,
        options: object,
        drafting: object,
        progress: Callable[[float], None],
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
    """What the chat uses of an engine."""

    context_length = 512
    profile = SimpleNamespace(stock=1.0)

    def __init__(self, script: Scripted, model: str, draft: str | None) -> None:
        self.model = Weights(Path(model).stem, Path(model), 14_000_000)
        self.draft: Weights | None = None
        if draft not in (None, "none"):
            name = f"{self.model.name}-small" if draft == "auto" else str(draft)
            self.draft = Weights(Path(name).stem, Path(name), 3_000_000)
        self.why_draft: str | None = None
        self.notices = script.notices
        self.prompts = SimpleNamespace(thinks=lambda messages, free: script.thinks)
        self._script = script
        self._pieces: list[bytes] = []
        self._ids: dict[str, int] = {}
        self._measured = True
        self._interrupted = threading.Event()
        self._closed = False

    def token_bytes(self, token: int) -> bytes:
        return self._pieces[token]

    def plain_seconds(self, context_length: int) -> float | None:
        return PLAIN if self._measured else None

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
        script.asked.append(Asked(list(messages), sampling, max_tokens, overflow))
        said = script.answers.popleft() if script.answers else Says(f"Answer {len(script.asked)}.")
        if said.at_once and said.error is not None:
            raise said.error
        self._measured = not said.unmeasured
        self._interrupted.clear()
        stats = GenerationStats(
            prompt_tokens=sum(len(str(m["content"]).split()) for m in messages),
            rule="block",
            seed=7,
            account=AccountStatement(saved=0.2, fund=0.35, refused=1, pair_saved=12.3),
        )

        def start() -> Generator[Piece, None, None]:
            self._wait(said, 0, lambda: progress(1, 4))
            self._measured = True
            return self._steps(said, max_tokens, stats.prompt_tokens, assembler)

        assembler = Detokenizer(self.token_bytes, ())
        return Stream(
            lambda owner, told: _Answer(start),
            lambda task: self._interrupted.set(),
            cast("Session", _Ending()),
            assembler,
            stats,
        )

    # Within

    def _wait(self, said: Says, step: int, going_on: Callable[[], object]) -> None:
        hold = said.holds.get(step)
        if hold is None:
            return

        def check() -> None:
            going_on()
            if self._interrupted.is_set():
                raise Cancelled("Stopped on request.")

        check()
        hold.wait(check)

    def _steps(
        self, said: Says, max_tokens: int | None, length: int, assembler: Detokenizer
    ) -> Generator[Piece, None, None]:
        words = deque(re.findall(r"\S+\s*|\s+", said.text))
        left = max_tokens if max_tokens is not None else len(words)
        for number, each in enumerate(chain([None], cycle(PASSES)), start=1):
            if not words or left <= 0:
                break
            right = 0 if each is None or each.source is None else each.right
            taken = [words.popleft() for _ in range(min(right + 1, len(words), left))]
            left -= len(taken)
            step = self._step(each, taken, length)
            for token in step.tokens:  # as `Session.extend` would
                assembler.push(token)
            length += len(taken)
            over = said.error is None and (not words or left <= 0)
            finish = ("length" if words else "stop") if over else None
            yield Piece(step, assembler.take(), length, finish)
            self._wait(said, number, lambda: None)
        if said.error is not None:
            raise said.error

    def _step(self, each: Pass | None, words: list[str], length: int) -> Step:
        """The last word is the target's own."""
        tokens = [self._id(word) for word in words]
        tree, drafted = TokenTree(), 0
        if each is None:
            plan = PROMPT
        elif each.source is None:
            plan = Plan(None, reason=NEVER)
        else:
            wrong = [self._id(WRONG)] * each.wrong
            tree = TokenTree.chain([*tokens[:-1], *wrong], each.source)
            drafted = len(tree)
            plan = Plan(each.source, depth=drafted)
        accepted = len(tokens) - 1
        tests = min(drafted, accepted + 1)
        source = each.source if each is not None and each.source is not None else TARGET
        verify, draft = PLAIN + 0.002 * drafted, 0.004 * drafted * (source != "ngram")
        return Step(
            tokens,
            [source] * accepted + [TARGET],
            plan,
            Draft(tree),
            list(range(accepted)),
            list(range(tests)),
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
    """What a stream reads."""

    ready = over = property(lambda self: True)

    def __init__(self, start: Callable[[], Iterator[Piece]]) -> None:
        super().__init__((), lambda task: None)
        self._start = start

    def items(self) -> Iterator[Piece]:
        return self._start()


class _Ending:
    context: Sequence[int] = ()
    dropped = 0
