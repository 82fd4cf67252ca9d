"""Train a draft; a training may be interrupted at any moment and continued."""

import math
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.bench.scaled_gguf import Shape
from localspec.cgroups import available_memory
from localspec.distill import network
from localspec.distill.kinds import DraftKind, TrainingBatch
from localspec.distill.network import Labels, Metrics, Tensor, device, torch
from localspec.distill.trace import Trace, TraceRecord
from localspec.distill.training_run import Point, Run
from localspec.distill.weights import Weights
from localspec.errors import LocalspecError, UsageError
from localspec.signals import delayed_signals
from localspec.text import gigabytes

HARD = 0.1
"""The share of the cross entropy in the loss."""
BETAS, EPSILON, DECAY, CLIP = (0.9, 0.95), 1e-8, 0.01, 1.0
WARM_UP, LAST = 0.03, 0.1
"""Shares: of the steps until the learning rate is reached, and of the rate at the end."""
MAX_HELD_BACK, MIN_HELD_BACK = 6000, 1000
"""Held-back tokens to measure, and their minimum in a short training: ± 0.013 and ± 0.03."""
POINTS = 24
"""Measurements of a training after the first."""
PART = 5
"""Minimum trained tokens per measured token, apart from MIN_HELD_BACK."""
WINDOW = 64
"""Batches whose answers are sorted by length, to reduce padding."""
DRAFT_INTERVAL = 2
"""One in DRAFT_INTERVAL steps of a round is on the draft's texts."""
PAUSE = 30.0
"""Seconds between checkpoints."""
Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """Steps done and in all, seconds left, recent loss in nats per token, last measurement."""

    step: int
    steps: int
    left: float
    loss: float | None
    point: Point


OnProgress = Callable[[TrainingProgress], None]
DraftTexts = Callable[[int, Weights], Trace]


def require_memory(shape: Shape, parameters: int, tokens: int) -> None:
    """Raise a LocalspecError if memory is too small, as the system would kill the process. Training
    needs weights, gradients and two means of the trained `parameters`, and activations of a step.
    `shape`: of the draft, or of a head's target."""
    needed = 16 * parameters + 4 * (shape.parameters if parameters != shape.parameters else 0)
    needed += 4 * tokens * shape.layers * (10 * shape.width + 4 * shape.feed_forward)
    needed, free = needed + 4 * 4 * network.CHUNK, available_memory()[0]
    if needed > free:
        raise LocalspecError(
            f"Training this draft takes about {gigabytes(needed)} of memory, and {gigabytes(free)} "
            "are free. Use a smaller --shape or --batch, or close other programs."
        )


def batches(lengths: Sequence[int], most: int, seed: int, number: int) -> list[list[int]]:
    """Every answer once, as batches of indices into `lengths`, determined by the seed. A batch has
    at most `most` tokens with padding; a longer answer is a separate batch."""
    random = np.random.Generator(np.random.PCG64([seed, number]))
    order = random.permutation(len(lengths))
    mean = max(1.0, float(np.mean(lengths))) if len(lengths) else 1.0
    window = max(1, int(WINDOW * most / mean))
    found: list[list[int]] = []
    for start in range(0, len(order), window):
        here = sorted(order[start : start + window].tolist(), key=lambda i: (lengths[i], i))
        found.append([])
        for index in here:
            if found[-1] and lengths[index] * (len(found[-1]) + 1) > most:
                found.append([])
            found[-1].append(index)
    return [found[i] for i in random.permutation(len(found))]


def plan_steps(trace: Trace, plan_tokens: int, longest: int, epochs: int, seed: int) -> int:
    """Steps of all epochs over the current trace; a UsageError if it is too small."""
    training, held = (trace.numbers(held_back=part) for part in (False, True))
    if not training or not held:
        raise UsageError(
            f"The recording has {len(training)} answers to train on and {len(held)} to measure "
            "with (one prompt in twenty is held back). Give more prompts (files with one per "
            "line, or JSONL), --history, or --text, or chat with /record on."
        )
    lengths = _lengths(trace, training, longest)
    return sum(len(batches(lengths, plan_tokens, seed, n)) for n in range(epochs))


class Training:
    """The remaining training of a run. `draft_texts`: generates the draft's texts for an epoch from
    its weights, if the plan has rounds. A UsageError without torch, or without the device."""

    def __init__(
        self,
        run: Run,
        trace: Trace,
        kind: DraftKind,
        progress: OnProgress,
        draft_texts: DraftTexts,
    ) -> None:
        self._run, self._trace, self._progress = run, trace, progress
        self._draft_texts, self._plan = draft_texts, (plan := run.plan)
        self._device = device(plan.device)
        torch.set_num_threads(plan.threads)
        torch.use_deterministic_algorithms(True, warn_only=True)
        kind.begin(self._tensor)
        self._kind, known = kind, run.checkpoint()
        weights = kind.initial() if known is None else known["weights"]
        self._weights = {name: self._tensor(values) for name, values in weights.items()}
        for tensor in self._weights.values():
            tensor.requires_grad_(True)
        self._step, self._before = 0, 0.0
        if known is not None:
            self._step, self._before = known["step"], known["seconds"]
        with delayed_signals():  # torch imports more here
            self._adam = torch.optim.AdamW(
                [
                    {"params": [t for t in self._weights.values() if t.dim() > 1]},
                    {
                        "params": [t for t in self._weights.values() if t.dim() == 1],
                        "weight_decay": 0,
                    },
                ],
                betas=BETAS,
                eps=EPSILON,
                weight_decay=DECAY,
            )
        if known is not None:
            self._adam.load_state_dict(known["adam"])
        self._began = perf_counter()
        self._point = next(iter(reversed(run.curve())), None)
        numbers = [n for n in trace.numbers(held_back=False) if n < plan.records]
        self._numbers, self._lengths = numbers, _lengths(trace, numbers, plan.longest)
        self._held = self._held_back_batches()

    def run(self) -> tuple[Weights, Point]:
        """Train to the end; returns the weights and their last measurement. A TraceError if the
        disk fails; the last checkpoint is kept."""
        plan, recent, kept = self._plan, Metrics(), perf_counter()
        if self._point is None:
            self._point = self._measure(self._step, None)
        every = max(1, plan.steps // POINTS)
        seen, done_here = 0, 0
        for number in range(plan.epochs):
            own: list[list[TraceRecord]] | None = None
            order = batches(self._lengths, plan.tokens, plan.seed, number)
            for place, batch in enumerate(order):
                seen += 1
                if seen <= self._step:
                    continue
                if own is None and number >= plan.epochs - plan.rounds:
                    own = self._round(number)
                if own and place % DRAFT_INTERVAL:  # the draft's tokens are not hard labels
                    recent += self._train_step(seen, own[place // DRAFT_INTERVAL % len(own)], 0.0)
                else:
                    records = [self._trace.record(self._numbers[i]) for i in batch]
                    recent += self._train_step(seen, records, HARD)
                self._step, done_here = seen, done_here + 1
                if seen % every == 0 or seen == plan.steps:
                    self._point = self._measure(seen, recent.mean_loss)
                    recent = Metrics()
                if perf_counter() - kept > PAUSE:
                    self._save()
                    kept = perf_counter()
                left = (perf_counter() - self._began) / done_here * (plan.steps - seen)
                loss = recent.mean_loss if recent.tokens else None
                self._progress(TrainingProgress(seen, plan.steps, left, loss, self._point))
        self._save()
        return self._numpy(self._weights), self._point

    def _round(self, epoch: int) -> list[list[TraceRecord]]:
        """The draft's texts in batches; every second step is on one of them."""
        self._save()
        with self._draft_texts(epoch, self._numpy(self._weights)) as trace:
            texts = [trace.record(n) for n in range(len(trace))]
            lengths = _lengths(trace, range(len(trace)), self._plan.longest)
        groups = batches(lengths, self._plan.tokens, self._plan.seed, epoch)
        return [[texts[n] for n in group] for group in groups]

    def _train_step(self, step: int, records: Sequence[TraceRecord], hard: float) -> Metrics:
        measured, states, gradients = Metrics(), [], []
        for output in self._kind.outputs(self._weights, self._batch(records)):
            gradient, found = network.chunked_loss(output, hard, backward=True)
            measured += found
            states.append(output.states)
            gradients.append(gradient)
        torch.autograd.backward(states, gradients)
        torch.nn.utils.clip_grad_norm_(self._weights.values(), CLIP)
        for group in self._adam.param_groups:
            group["lr"] = self._rate(step)
        self._adam.step()
        self._adam.zero_grad()
        return measured

    def _rate(self, step: int) -> float:
        plan = self._plan
        warm = max(1, round(WARM_UP * plan.steps))
        if step <= warm:
            return plan.rate * step / warm
        way = (step - warm) / max(1, plan.steps - warm)
        return plan.rate * (LAST + (1.0 - LAST) * 0.5 * (1.0 + math.cos(math.pi * way)))

    def _measure(self, step: int, loss: float | None) -> Point:
        depths = defaultdict[int, Metrics](Metrics)
        with torch.no_grad():
            for batch in self._held:
                for depth, output in enumerate(self._kind.outputs(self._weights, batch)):
                    depths[depth] += network.chunked_loss(output, HARD, backward=False)[1]
        found = sum(depths.values(), Metrics())
        if not math.isfinite(found.mean_loss):
            raise LocalspecError(
                f"The training has failed: after {step} of {self._plan.steps} steps, the weights "
                f"are not numbers. Give a lower --rate than {self._plan.rate:g}."
            )
        point = Point(
            step,
            self._tokens(step),
            round(self._seconds, 1),
            None if loss is None else round(loss, 4),
            round(found.mean_loss, 4),
            round(found.agreement, 4),
            round(found.acceptance, 4),
            tuple(round(depth.agreement, 4) for depth in depths.values())
            if len(depths) > 1
            else (),
        )
        self._run.note(point)
        return point

    def _tokens(self, step: int) -> int:
        whole = sum(self._trace.lengths(n)[1] for n in self._numbers) * self._plan.epochs
        return round(whole * step / max(1, self._plan.steps))

    @property
    def _seconds(self) -> float:
        return self._before + perf_counter() - self._began

    def _save(self) -> None:
        weights = {name: tensor.detach() for name, tensor in self._weights.items()}
        times = {"step": self._step, "seconds": self._seconds}
        self._run.save(times | {"weights": weights, "adam": self._adam.state_dict()})

    def _held_back_batches(self) -> list[TrainingBatch]:
        """Held-back answers in batches, always the same."""
        whole = self._tokens(self._plan.steps)
        most = min(MAX_HELD_BACK, max(MIN_HELD_BACK, whole // (PART * POINTS)))
        numbers = [n for n in self._trace.numbers(held_back=True) if n < self._plan.records]
        counts = np.cumsum([self._trace.lengths(number)[1] for number in numbers])
        found = numbers[: 1 + int(np.searchsorted(counts, most))]
        lengths = _lengths(self._trace, found, self._plan.longest)
        groups = batches(lengths, self._plan.tokens, 0, 0)
        return [self._batch([self._trace.record(found[i]) for i in group]) for group in groups]

    def _batch(self, records: Sequence[TraceRecord]) -> TrainingBatch:
        cut = [_inputs(record, self._plan.longest) for record in records]
        longest = max(len(tokens) for tokens, _ in cut)
        tokens = np.zeros((len(cut), longest), np.int64)
        places = []
        for row, (text, start) in enumerate(cut):
            tokens[row, : len(text)] = text
            places.append(row * longest + np.arange(start, len(text)))
        counts = [len(each) for each in places]
        fields = (
            [record.answer if record.following is None else record.following for record in records],
            *([getattr(record, name) for record in records] for name in ("ids", "log_p", "rest")),
        )
        labels = Labels(
            *(
                self._tensor(np.concatenate([one[:n] for one, n in zip(each, counts, strict=True)]))
                for each in fields
            )
        )
        left = np.concatenate([np.arange(n)[::-1] for n in counts])
        where = self._tensor(np.concatenate(places))
        return TrainingBatch(self._tensor(tokens), where, self._tensor(left), labels)

    def _tensor(self, values: Array) -> Tensor:
        return torch.from_numpy(np.array(values)).to(self._device)

    def _numpy(self, tensors: Mapping[str, Tensor]) -> Weights:
        return {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}


def _inputs(record: TraceRecord, longest: int) -> tuple[Array, int]:
    """The tokens of an answer that the draft reads, and the position of the first label."""
    text = np.concatenate([record.prompt, record.answer[:-1]])
    start = len(record.prompt) - 1
    if len(text) > longest:
        # Cut the beginning of the prompt except one token, then the end of the answer.
        gone = min(start, len(text) - longest)
        text, start = text[gone : gone + longest], start - gone
    return text, start


def _lengths(trace: Trace, numbers: Sequence[int], longest: int) -> list[int]:
    return [min(longest, sum(trace.lengths(n)) - 1) for n in numbers]


def lower_priority() -> None:
    """Give other programs priority, as a training takes hours."""
    with suppress(AttributeError, OSError):
        os.nice(19 - os.nice(0))
