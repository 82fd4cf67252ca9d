"""Make a draft from a target and prompts: record, plan, train, write.

In on-policy rounds, the draft continues texts, and the target corrects it: GKD (Agarwal et al.
2023); DistillSpec (Zhou et al. 2023, section 4.1). The same weights generate the same texts, so an
interrupted training can repeat them.
"""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from localspec.distill import folders, recording, training
from localspec.distill.distill_request import DRAFT, EAGLE3, DistillRequest, Notice
from localspec.distill.frequent import FrequentPart, KeptTokens, weight_of_tokens
from localspec.distill.kinds import Draft, DraftKind, EagleHead, MedusaHeads, given_shape
from localspec.distill.network import device, torch_package
from localspec.distill.trace import Trace, saving
from localspec.distill.training import Training
from localspec.distill.training_run import ROUND, Point, Run, TrainingPlan
from localspec.distill.weights import TrainingFacts, Weights, open_llama, target_shape
from localspec.errors import TraceError, UsageError
from localspec.files import free_space
from localspec.gguf.file import GGUFFile
from localspec.gguf.reader import read_gguf, readable
from localspec.hub.local import drafts_folder
from localspec.identity import content_identity, fingerprint
from localspec.pairing.forecast import TARGET
from localspec.retrieval.texts import SkippedFiles
from localspec.text import gigabytes, printable

CONTEXT = 640


@dataclass(frozen=True, slots=True)
class DistillResult:
    """A finished draft. `new`: false if it was already trained before."""

    path: Path
    kind: DraftKind
    curve: tuple[Point, ...]
    new: bool = True


def record(
    request: DistillRequest, progress: Callable[[int], None], notice: Notice
) -> tuple[int, int]:
    """Record the target's answers to new prompts; returns answers and tokens of the whole trace."""
    with ExitStack() as stack:
        engine = stack.enter_context(
            recording.open_recorder(request.target, request.threads, CONTEXT)
        )
        vocabulary = engine.model.vocabulary
        header = folders.header_of(request.target, vocabulary)
        folder = folders.folder_of(request.target, header.identity)
        trace = stack.enter_context(Trace(folder / folders.TRACE, header))
        _require_room(trace, request.tokens)
        asked = recording.questions(
            request.prompts, engine.prompts, raw=request.raw, answers=request.answers
        )
        skipped = SkippedFiles()
        read = (recording.text_questions(path, vocabulary, skipped) for path in request.texts)
        there, tokens = trace.tokens(held_back=False) + trace.tokens(held_back=True), 0
        for answer in recording.record_answers(
            engine,
            chain(asked, chain.from_iterable(read)),
            header.k,
            longest=request.max_tokens,
            seed=request.seed,
            known=trace.keys,
            most=math.inf if request.tokens is None else request.tokens - there,
        ):
            trace.append(answer)
            tokens += len(answer.answer)
            progress(tokens)
        if left_out := skipped.sentence():
            notice(left_out)
        return len(trace), there + tokens


def require_trainable(request: DistillRequest) -> None:
    """Raise UsageError or ModelInvalid for models and shapes that cannot be trained, and for an
    --output that a draft must not replace: before the recording, which may take an hour."""
    if request.kind == DRAFT:
        given_shape(request, target_shape(read_gguf(request.target)))
    else:
        open_llama(request.target)
    out = request.out
    if out is None or not os.path.lexists(out):
        return
    file = readable(out)
    if file is None or file.text(TARGET) != content_identity(request.target):
        raise UsageError(
            f"{printable(str(out))} exists, and is not a draft that was trained for "
            f"{request.target.name}. Give --output the name of a new file."
        )


def distill(
    request: DistillRequest, progress: training.OnProgress, notice: Notice
) -> DistillResult:
    """Train on the recorded answers, and write the draft."""
    torch_package()
    identity = content_identity(request.target)
    folder = folders.folder_of(request.target, identity)
    target = read_gguf(request.target)
    try:
        trace = Trace(folder / folders.TRACE)
    except FileNotFoundError:
        raise UsageError(
            f"Nothing was recorded from {request.target.name} yet. Give prompts (files with one "
            "per line, or JSONL), --history, or --text."
        ) from None
    with trace:
        kind = _kind(request, target, trace, notice)
        if kind.part is not None:
            trace.translate(kind.part.map_record)
        training.require_memory(kind.shape, kind.parameters, request.batch)
        plan = _plan(request, kind, trace)
        run = Run.open(folder, plan)
        name = f"{request.target.stem}-{kind.label}-{plan.request_id[:6]}.gguf"
        path = request.out or drafts_folder() / folder.name / name
        if run.is_finished(plan) and path.exists():
            return DistillResult(path, kind, tuple(run.curve()), new=False)
        run = run.start_or_resume(plan)

        def texts(epoch: int, made: Weights) -> Trace:
            trained = TrainingFacts(identity, 0.0, f"{path.stem}, unfinished")
            write = partial(kind.write, made=made, trained=trained)
            return draft_texts(run, trace, request.target, epoch, write, notice)

        values, point = Training(run, trace, kind, progress, texts).run()
        kind.write(path, values, TrainingFacts(identity, point.acceptance, path.stem))
        run.finish()
    return DistillResult(path, kind, tuple(run.curve()))


def _kind(request: DistillRequest, target: GGUFFile, trace: Trace, notice: Notice) -> DraftKind:
    """The kind of draft to train, with its vocabulary."""
    size = request.vocabulary or 0
    weight = weight_of_tokens(trace) if 0 < size < trace.header.size else None
    if request.kind == DRAFT:
        part = None if weight is None else FrequentPart(target, weight, size)
        return Draft(request, target, part, trace.path.parent, notice)
    kept = None
    if weight is not None:
        kept = KeptTokens(np.argsort(-weight, kind="stable")[:size].tolist(), weight)
    if request.kind == EAGLE3:
        return EagleHead(target, kept, request.quant, request.seed)
    return MedusaHeads(request.target, trace.header.vocabulary, kept)


def _plan(request: DistillRequest, kind: DraftKind, trace: Trace) -> TrainingPlan:
    longest = min(CONTEXT, kind.shape.context)
    return TrainingPlan(
        kind=request.kind,
        begun_from=content_identity(request.begun_from) if request.begun_from else "",
        shape=asdict(kind.shape),
        records=len(trace),
        steps=training.plan_steps(trace, request.batch, longest, request.epochs, request.seed),
        epochs=request.epochs,
        tokens=request.batch,
        rate=request.learning_rate,
        seed=request.seed,
        threads=request.threads,
        device=device(request.device).type,
        longest=longest,
        rounds=request.rounds,
        vocabulary="" if kind.part is None else fingerprint({"kept": kind.part.kept.tolist()}),
    )


def _require_room(trace: Trace, most: int | None) -> None:
    needed = (most or 10_000) * trace.header.layout(0, 1).itemsize
    free = free_space(trace.path.parent)
    if needed > free:
        raise TraceError(
            f"Recording takes about {gigabytes(needed)}, and {trace.path.parent} has "
            f"{gigabytes(int(free))}. Make room, ask for fewer --tokens, or set LOCALSPEC_HOME to "
            "a folder that has it."
        )


CONTINUATION = 48
"""Tokens that the draft generates: more than it ever drafts at once."""


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
    with recording.open_recorder(draft, plan.threads, plan.longest) as engine:
        begun = _beginnings(plan, trace, epoch)
        said = list(
            recording.record_answers(engine, begun, 1, longest=CONTINUATION, seed=plan.seed)
        )
    given = [
        recording.RecordedQuestion(tuple(record.prompt.tolist()), 0, tuple(record.answer.tolist()))
        for record in sorted(said, key=lambda record: record.key)  # because some finish sooner
    ]
    with (
        Trace(partial, trace.header) as made,
        recording.open_recorder(target, plan.threads, plan.longest) as engine,
    ):
        found = recording.record_answers(engine, given, trace.header.k, longest=CONTINUATION)
        for record in sorted(found, key=lambda record: record.key):
            made.append(record)
    with saving(folder):
        draft.unlink()
        partial.replace(path)
    return Trace(path)


def _beginnings(
    plan: TrainingPlan, trace: Trace, epoch: int
) -> Iterator[recording.RecordedQuestion]:
    """Beginnings of answers to continue, enough for their share of an epoch's tokens."""
    random = np.random.Generator(np.random.PCG64([plan.seed, epoch, 1]))
    numbers = [n for n in trace.numbers(held_back=False) if n < plan.records]
    wanted = sum(trace.lengths(n)[1] for n in numbers) / training.DRAFT_INTERVAL
    for number in random.permutation(numbers):
        if wanted <= 0:
            return
        record = trace.record(int(number))
        text = np.concatenate([record.prompt, record.answer])
        end = int(random.integers(len(record.prompt), len(text)))
        begin = text[max(0, end + CONTINUATION + 1 - plan.longest) : end]
        if len(begin):
            wanted -= CONTINUATION
            yield recording.RecordedQuestion(tuple(begin.tolist()), epoch)
