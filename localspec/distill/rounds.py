"""On-policy rounds: the draft continues texts, and the target corrects it.

GKD (Agarwal et al. 2023); DistillSpec (Zhou et al. 2023, section 4.1). The same weights make the
same texts, so a training that is killed makes them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from localspec.distill.recording import RecordedQuestion, Recorder
from localspec.distill.trace import Trace, TraceRecord
from localspec.distill.training_run import ROUND, TrainingPlan, written
from localspec.errors import TraceError
from localspec.llama.options import ModelOptions

CONTINUED = 48
"""Tokens that the draft says: more than it is ever asked for at once."""
SEATS = 24
OWN = 2
"""Of so many steps one is on the draft's own texts."""


@dataclass(frozen=True, slots=True)
class OnPolicyRounds:
    """Makes the texts of each round, where they are not there yet. `write` writes the draft as it
    is at that moment."""

    folder: Path
    plan: TrainingPlan
    trace: Trace
    target: Path
    write: Callable[[Path], None]
    notify: Callable[[str], None]

    def texts(self, epoch: int) -> Trace:
        """The draft's texts for an epoch, each with the target's distributions. A TraceError if the
        disk refuses; and as `localspec.llama.model.Model`."""
        path = self.folder / f"{ROUND}{epoch}"
        with suppress(FileNotFoundError, TraceError):  # a damaged one is made again
            return Trace(path)
        self.notify(
            f"On-policy round {epoch - self.plan.epochs + self.plan.rounds + 1} of "
            f"{self.plan.rounds}: the draft generates and the target corrects."
        )
        draft, partial = path.with_name(f"{path.name}.gguf"), path.with_name(f"{path.name}.new")
        with written(self.folder):
            for old in self.folder.glob(f"{partial.name}*"):  # and what SQLite keeps beside it
                old.unlink()
        self.write(draft)
        said: list[TraceRecord] = []
        self._recorded(draft, self._beginnings(epoch), said.append, 1)
        with Trace(partial, self.trace.header) as trace:
            # In the order of keys, as some finish sooner.
            given = (
                RecordedQuestion(tuple(each.prompt.tolist()), 0, tuple(each.answer.tolist()))
                for each in sorted(said, key=lambda each: each.key)
            )
            self._recorded(self.target, given, trace.append, trace.header.k)
        with written(self.folder):
            draft.unlink()
            partial.replace(path)
        return Trace(path)

    def _recorded(
        self,
        path: Path,
        questions: Iterator[RecordedQuestion],
        append: Callable[[TraceRecord], object],
        k: int,
    ) -> None:
        from localspec.llama.model import Model
        from localspec.llama.shared_context import SharedContext

        options = ModelOptions(parallel=SEATS, threads=self.plan.threads, context=self.plan.longest)
        with ExitStack() as opened:
            model = opened.enter_context(Model(path, options))
            shared = SharedContext(model, options, each=True)
            opened.enter_context(closing(shared))
            recorder = Recorder(shared, k, longest=CONTINUED, seed=self.plan.seed)
            recorder.record(questions, (), append)

    def _beginnings(self, epoch: int) -> Iterator[RecordedQuestion]:
        """Beginnings of answers, enough for their share of an epoch's tokens."""
        random = np.random.Generator(np.random.PCG64([self.plan.seed, epoch, 1]))
        numbers = [n for n in self.trace.numbers(held_back=False) if n < self.plan.records]
        wanted = sum(self.trace.lengths(n)[1] for n in numbers) / OWN
        for number in random.permutation(numbers):
            if wanted <= 0:
                return
            record = self.trace.record(int(number))
            text = np.concatenate([record.prompt, record.answer])
            end = int(random.integers(len(record.prompt), len(text)))
            begin = text[max(0, end + CONTINUED + 1 - self.plan.longest) : end]
            if len(begin):
                wanted -= CONTINUED
                yield RecordedQuestion(tuple(begin.tolist()), epoch)
