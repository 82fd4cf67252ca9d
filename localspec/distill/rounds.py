"""On-policy rounds: the draft continues texts, and the target corrects it.

GKD (Agarwal et al. 2023); DistillSpec (Zhou et al. 2023, section 4.1). The same weights generate
the same texts, so an interrupted training can repeat them.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from localspec.distill.distill_request import Notice
from localspec.distill.recording import RecordedQuestion, open_recorder, record_answers
from localspec.distill.trace import Trace
from localspec.distill.training_run import ROUND, Run, TrainingPlan, saving
from localspec.errors import TraceError

CONTINUATION = 48
"""Tokens that the draft generates: more than it ever drafts at once."""
DRAFT_INTERVAL = 2
"""One in DRAFT_INTERVAL steps is on the draft's texts."""


def draft_texts(
    run: Run,
    trace: Trace,
    target: Path,
    epoch: int,
    write: Callable[[Path], None],
    notice: Notice,
) -> Trace:
    """The draft's texts for an epoch with the target's distributions, generated if missing. `write`
    writes the current draft. A TraceError if writing fails; otherwise raises as
    `localspec.llama.model.Model`."""
    folder, plan = run.folder, run.plan
    path = folder / f"{ROUND}{epoch}"
    with suppress(FileNotFoundError, TraceError):  # a damaged file is replaced
        return Trace(path)
    notice(
        f"On-policy round {epoch - plan.epochs + plan.rounds + 1} of {plan.rounds}: the draft "
        "generates and the target corrects."
    )
    draft, partial = path.with_name(f"{path.name}.gguf"), path.with_name(f"{path.name}.new")
    with saving(folder):
        for old in folder.glob(f"{partial.name}*"):  # including SQLite's journals
            old.unlink()
    write(draft)
    with open_recorder(draft, plan.threads, plan.longest) as engine:
        begun = _beginnings(plan, trace, epoch)
        said = list(record_answers(engine, begun, 1, longest=CONTINUATION, seed=plan.seed))
    given = [
        RecordedQuestion(tuple(record.prompt.tolist()), 0, tuple(record.answer.tolist()))
        for record in sorted(said, key=lambda record: record.key)  # because some finish sooner
    ]
    with (
        Trace(partial, trace.header) as made,
        open_recorder(target, plan.threads, plan.longest) as engine,
    ):
        found = record_answers(engine, given, trace.header.k, longest=CONTINUATION)
        for record in sorted(found, key=lambda record: record.key):
            made.append(record)
    with saving(folder):
        draft.unlink()
        partial.replace(path)
    return Trace(path)


def _beginnings(plan: TrainingPlan, trace: Trace, epoch: int) -> Iterator[RecordedQuestion]:
    """Beginnings of answers to continue, enough for their share of an epoch's tokens."""
    random = np.random.Generator(np.random.PCG64([plan.seed, epoch, 1]))
    numbers = [n for n in trace.numbers(held_back=False) if n < plan.records]
    wanted = sum(trace.lengths(n)[1] for n in numbers) / DRAFT_INTERVAL
    for number in random.permutation(numbers):
        if wanted <= 0:
            return
        record = trace.record(int(number))
        text = np.concatenate([record.prompt, record.answer])
        end = int(random.integers(len(record.prompt), len(text)))
        begin = text[max(0, end + CONTINUATION + 1 - plan.longest) : end]
        if len(begin):
            wanted -= CONTINUATION
            yield RecordedQuestion(tuple(begin.tolist()), epoch)
