"""From a target and prompts to a draft on disk: record, plan, train, write."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from localspec.distill import draft_kinds, folders, training
from localspec.distill.distill_request import DRAFT, DistillRequest, Notice
from localspec.distill.draft_kinds import Making
from localspec.distill.frequent import FrequentPart, KeptTokens, MappedTrace, weight_of_tokens
from localspec.distill.prompts import pieces, questions
from localspec.distill.recording import RecordedQuestion, Recorder
from localspec.distill.rounds import OnPolicyRounds
from localspec.distill.torch_room import device, torch_package
from localspec.distill.trace import Answers, Trace, bytes_of
from localspec.distill.training import Training
from localspec.distill.training_run import Point, Run, TrainingPlan
from localspec.distill.weights import Trained, Weights
from localspec.errors import TraceError, UsageError
from localspec.gguf.file import GGUFFile
from localspec.gguf.reader import read_gguf
from localspec.identity import content_identity, fingerprint
from localspec.llama.options import ModelOptions
from localspec.retrieval.texts import SkippedFiles
from localspec.text import gigabytes

SEATS = 24
CONTEXT = 640


@dataclass(frozen=True, slots=True)
class Distilled:
    """`new`: whether anything was left to be trained."""

    path: Path
    making: Making
    curve: tuple[Point, ...]
    new: bool = True


def record(
    request: DistillRequest, progress: Callable[[int], None], notice: Notice
) -> tuple[int, int]:
    """Have the target answer new prompts; returns answers and tokens of the whole trace."""
    from localspec.llama.model import Model
    from localspec.llama.shared_context import SharedContext
    from localspec.prompting.prompt import PromptBuilder

    with ExitStack() as opened:
        options = ModelOptions(parallel=SEATS, threads=request.threads)
        model = opened.enter_context(Model(request.target, options))
        context = min(CONTEXT, model.trained_context)
        options = replace(options, context=context)
        vocabulary = model.vocabulary
        header = folders.header_of(request.target, vocabulary)
        folder = folders.folder_of(request.target, header.identity)
        trace = opened.enter_context(Trace(folder / folders.TRACE, header))
        _require_room(trace, request.tokens)
        shared = SharedContext(model, options, each=True)
        opened.enter_context(closing(shared))
        skipped = SkippedFiles()

        def everything() -> Iterator[RecordedQuestion]:
            builder = PromptBuilder(model, context)
            yield from questions(
                request.prompts,
                builder,
                lambda text: vocabulary.tokenize(text, special=True, add_bos=True),
                raw=request.raw,
                answers=request.answers,
            )
            begins = (vocabulary.bos,) if vocabulary.adds_bos and vocabulary.bos >= 0 else ()
            for path in request.texts:
                yield from pieces(
                    path,
                    lambda text: vocabulary.tokenize(text, special=False, add_bos=False),
                    begins,
                    skipped,
                )

        there = trace.tokens(held_back=False) + trace.tokens(held_back=True)
        recorder = Recorder(
            shared, header.k, longest=request.max_tokens, seed=request.seed, progress=progress
        )
        most = None if request.tokens is None else max(0, request.tokens - there)
        recorder.record(everything(), trace.keys, trace.append, most)
        left_out = skipped.sentence()
        if left_out:
            notice(left_out)
        return len(trace), there + recorder.tokens


def distill(request: DistillRequest, progress: training.OnProgress, notice: Notice) -> Distilled:
    """Train on what was recorded, and write the draft."""
    torch_package()
    identity = content_identity(request.target)
    folder = folders.folder_of(request.target, identity)
    target = read_gguf(request.target)
    try:
        trace = Trace(folder / folders.TRACE)
    except FileNotFoundError:
        raise UsageError(
            f"Nothing was recorded of {request.target.name} yet. Give prompts (files with a prompt "
            "a line, or JSONL), --history, or --text."
        ) from None
    with trace:
        made, answers, part = _making(request, target, trace, notice)
        training.require_memory(made.shape, made.parameters, request.batch)
        plan = _plan(request, made, answers, part)
        run = Run.opened(folder, plan)
        drafts = folders.drafts_of(request.target, identity)
        path = request.out or drafts / f"{request.target.stem}-{made.label}-{plan.asked[:6]}.gguf"
        if run.finished_with(plan) and path.exists():
            return Distilled(path, made, tuple(run.curve()), new=False)
        run = run.begun(plan)

        def own_texts(epoch: int, weights: Callable[[], Weights]) -> Trace:
            trained = Trained(identity, 0.0, f"{path.stem}, unfinished")
            write = lambda draft: made.write(draft, weights(), trained)  # noqa: E731
            return OnPolicyRounds(run.folder, run.plan, trace, request.target, write, notice).texts(
                epoch
            )

        under_way = Training(run, answers, made.begun, made.learner, progress, own_texts)
        values, point = under_way.finished()
        made.write(path, values, Trained(identity, point.acceptance, path.stem))
        run.finish()
    return Distilled(path, made, tuple(run.curve()))


def _making(
    request: DistillRequest, target: GGUFFile, trace: Trace, notice: Notice
) -> tuple[Making, Answers, KeptTokens | None]:
    vocabulary, size = trace.header.vocabulary, request.vocabulary
    if size is None or size >= trace.header.size:
        if request.kind == DRAFT:
            return draft_kinds.draft(request, target, None, notice), trace, None
        return draft_kinds.head(request, target, vocabulary, None), trace, None
    weight = weight_of_tokens(trace)
    if request.kind != DRAFT:
        said = KeptTokens(np.argsort(-weight, kind="stable")[:size].tolist(), weight)
        made = draft_kinds.head(request, target, vocabulary, said)
        return made, MappedTrace(trace, said), said
    part = FrequentPart(target, weight, size)
    made = draft_kinds.draft(request, target, part, notice)
    return made, MappedTrace(trace, part), part


def _plan(
    request: DistillRequest, made: Making, trace: Answers, part: KeptTokens | None
) -> TrainingPlan:
    longest = min(CONTEXT, made.shape.context)
    return TrainingPlan(
        kind=request.kind,
        begun_from=content_identity(request.begun_from) if request.begun_from else "",
        shape=asdict(made.shape),
        records=len(trace),
        steps=training.plan_steps(trace, request.batch, longest, request.epochs, request.seed),
        epochs=request.epochs,
        tokens=request.batch,
        rate=request.learning_rate,
        hard=request.hard,
        seed=request.seed,
        threads=request.threads,
        device=device(request.device).type,
        longest=longest,
        rounds=request.rounds,
        vocabulary="" if part is None else fingerprint({"kept": part.kept.tolist()}),
    )


def _require_room(trace: Trace, most: int | None) -> None:
    needed = bytes_of(trace.header, 0, most or 10_000)
    free = shutil.disk_usage(trace.path.parent).free
    if needed > free:
        raise TraceError(
            f"Recording takes about {gigabytes(needed)}, and {trace.path.parent} has "
            f"{gigabytes(free)}. Make room, ask for fewer --tokens, or set LOCALSPEC_HOME to a "
            "folder that has it."
        )
