"""On-policy rounds: the draft continues texts, and the target corrects it.

GKD (Agarwal et al. 2023); DistillSpec (Zhou et al. 2023, section 4.1). The same weights make the
same texts, so a training that is killed makes them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from localspec.distill.distill_request import Notice
from localspec.distill.recording import RecordedQuestion, opened, recorded
from localspec.distill.trace import Trace
from localspec.distill.training_run import ROUND, Run, TrainingPlan, written
from localspec.errors import TraceError

CONTINUED = 48
"""Tokens that the draft says: more than it is ever asked for at once."""
OWN = 2
"""Of so many steps one is on the draft's own texts."""


def own_texts(
    run: Run,
    trace: Trace,
    target: Path,
    epoch: int,
    write: Callable[[Path], None],
    notice: Notice,
) -> Trace:
    """The draft's texts for an epoch, each with the target's distributions; made where they are not
    there yet. `write` writes the draft as it is now. A TraceError if the disk refuses; and as
    `localspec.llama.model.Model`."""
    folder, plan = run.folder, run.plan
    path = folder / f"{ROUND}{epoch}"
    with suppress(FileNotFoundError, TraceError):  # a damaged one is made again
        return Trace(path)
    notice(
        f"On-policy round {epoch - plan.epochs + plan.rounds + 1} of {plan.rounds}: the draft "
        "generates and the target corrects."
    )
    draft, partial = path.with_name(f"{path.name}.gguf"), path.with_name(f"{path.name}.new")
    with written(folder):
        for old in folder.glob(f"{partial.name}*"):  # and what SQLite keeps beside it
            old.unlink()
    write(draft)
    with opened(draft, plan.threads, plan.longest) as context:
        begun = _beginnings(plan, trace, epoch)
        said = list(recorded(context, begun, 1, longest=CONTINUED, seed=plan.seed))
    given = [
        RecordedQuestion(tuple(each.prompt.tolist()), 0, tuple(each.answer.tolist()))
        for each in sorted(said, key=lambda each: each.key)  # as some finish sooner
    ]
    with (
        Trace(partial, trace.header) as made,
        opened(target, plan.threads, plan.longest) as context,
    ):
        for record in recorded(context, given, trace.header.k, longest=CONTINUED):
            made.append(record)
    with written(folder):
        draft.unlink()
        partial.replace(path)
    return Trace(path)


def _beginnings(plan: TrainingPlan, trace: Trace, epoch: int) -> Iterator[RecordedQuestion]:
    """Beginnings of answers, enough for their share of an epoch's tokens."""
    random = np.random.Generator(np.random.PCG64([plan.seed, epoch, 1]))
    numbers = [n for n in trace.numbers(held_back=False) if n < plan.records]
    wanted = sum(trace.lengths(n)[1] for n in numbers) / OWN
    for number in random.permutation(numbers):
        if wanted <= 0:
            return
        record = trace.record(int(number))
        text = np.concatenate([record.prompt, record.answer])
        end = int(random.integers(len(record.prompt), len(text)))
        begin = text[max(0, end + CONTINUED + 1 - plan.longest) : end]
        if len(begin):
            wanted -= CONTINUED
            yield RecordedQuestion(tuple(begin.tolist()), epoch)
