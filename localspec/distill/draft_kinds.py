"""How each kind of draft is made: initial weights, learner, file."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from localspec.bench.scaled_gguf import Shape
from localspec.distill import shape, trained_heads, weights
from localspec.distill.distill_request import EAGLE3, DistillRequest, Notice
from localspec.distill.frequent import FrequentPart, KeptTokens
from localspec.distill.learners import DraftLearner, EagleLearner, MedusaLearner
from localspec.distill.training import MakesLearner
from localspec.distill.weights import Trained, Weights
from localspec.errors import ModelInvalid
from localspec.gguf.file import GGUFFile
from localspec.llama.options import ModelOptions

CALIBRATION = 1.4


@dataclass(frozen=True, slots=True)
class Making:
    """How one draft is made. `shape`: of the draft, of a head its target's; `parameters` are
    trained; `label`: for the file's name; `begun` gives the initial weights; `learner`: see
    `training.Training`."""

    shape: Shape
    parameters: int
    label: str
    description: str
    begun: Callable[[], Weights]
    learner: MakesLearner
    write: Callable[[Path, Weights, Trained], None]


def head(
    request: DistillRequest, target: GGUFFile, vocabulary: str, part: KeptTokens | None
) -> Making:
    """How to make a head. `vocabulary`: the target's fingerprint; `part`: the tokens that it can
    say, None for all."""
    found, values = weights.read(request.target)
    kept = None if part is None else part.kept

    if request.kind == EAGLE3:
        layers = trained_heads.target_layers(found.layers)
        return _head(
            found,
            trained_heads.initial_eagle(values, found, request.seed, kept),
            EAGLE3,
            lambda put: EagleLearner(found, _put(values, put), layers),
            lambda path, made, trained: trained_heads.write_eagle(
                path, made, found, layers, target, trained, request.quant, kept
            ),
        )
    return _head(
        found,
        trained_heads.initial_medusa(values, found, kept),
        request.kind,
        lambda put: MedusaLearner(found, _put(values, put), trained_heads.HEADS),
        lambda path, made, trained: trained_heads.write_medusa(
            path, made, found, trained, vocabulary, kept
        ),
    )


def _head(
    found: Shape,
    begun: Weights,
    label: str,
    learner: MakesLearner,
    write: Callable[[Path, Weights, Trained], None],
) -> Making:
    parameters = sum(values.size for values in begun.values())
    description = f"{label}, {parameters / 1e6:.1f} M parameters"
    return Making(found, parameters, label, description, lambda: begun, learner, write)


def _put(values: Weights, put: Callable[[Any], Any]) -> dict[str, Any]:
    return {name: put(each) for name, each in values.items()}


def draft(
    request: DistillRequest, target: GGUFFile, part: FrequentPart | None, notice: Notice
) -> Making:
    """How to make a draft model; `part` are its tokens, None for the target's."""
    found, begun = _beginning(request, target, part, notice)
    tokenizer = None if part is None else part.tokenizer()
    return Making(
        found,
        found.parameters,
        f"draft-{found.width}x{found.layers}",
        found.describe(),
        begun,
        lambda _: DraftLearner(found),
        lambda path, made, trained: weights.write(
            path, found, made, target, trained, request.quant, tokenizer
        ),
    )


def _beginning(
    request: DistillRequest, target: GGUFFile, part: FrequentPart | None, notice: Notice
) -> tuple[Shape, Callable[[], Weights]]:
    facts, kept = weights.target_facts(target), None
    if part is not None:
        facts, kept = replace(facts, vocabulary=len(part)), part.kept
    if request.begun_from is not None:
        found, values = weights.read(request.begun_from)
        if found.vocabulary != facts.vocabulary:
            raise ModelInvalid(
                f"{request.begun_from} has {found.vocabulary:,} tokens and {request.target.name} "
                f"{facts.vocabulary:,}. Choose a draft of the target's vocabulary, or leave out "
                "--from to make one."
            )
        return found, lambda: values
    if request.shape is not None:
        found = shape.parse(request.shape, facts)
    else:
        found, promise = shape.choose(facts, _measured(request))
        if not promise.pays:
            notice(
                f"No shape gains much: the best, {found.describe()}, about {promise.speed_up:.2f} "
                "times the speed, because a draft's pass, or a pass over several tokens, costs too "
                "much compared with a plain one. It is trained anyway."
            )
    return found, lambda: weights.initial(found, request.target, request.seed, kept)


def _measured(request: DistillRequest) -> tuple[float, ...]:
    """T(n) ÷ T(1) of the target here and now."""
    from localspec.llama.context import Context
    from localspec.llama.model import Model
    from localspec.pairing.forecast import measured_curve

    options = ModelOptions(context=256, threads=request.threads)
    with Model(request.target, options) as model, closing(Context(model, options)) as context:
        return measured_curve(context, CALIBRATION)
