"""Draft models as a kind of draft: shape, initial weights, outputs, file."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from localspec.distill import network, shape, weights
from localspec.distill.distill_request import DistillRequest, Notice
from localspec.distill.frequent import FrequentPart
from localspec.distill.kinds import DraftKind, Tensors, TrainingBatch
from localspec.distill.losses import Output
from localspec.distill.weights import TrainingFacts, Weights
from localspec.errors import ModelInvalid
from localspec.gguf.file import GGUFFile
from localspec.llama.options import ModelOptions

CALIBRATION = 1.4


class Draft(DraftKind):
    part: FrequentPart | None

    def __init__(
        self, request: DistillRequest, target: GGUFFile, part: FrequentPart | None, notice: Notice
    ) -> None:
        self._request, self._target, self.part = request, target, part
        self._tuned: Weights | None = None
        facts = weights.target_facts(target)
        if part is not None:
            facts = replace(facts, vocabulary=len(part))
        if request.begun_from is not None:
            self.shape, self._tuned = weights.read(request.begun_from)
            if self.shape.vocabulary != facts.vocabulary:
                raise ModelInvalid(
                    f"{request.begun_from} has {self.shape.vocabulary:,} tokens and "
                    f"{request.target.name} {facts.vocabulary:,}. Choose a draft of the target's "
                    "vocabulary, or leave out --from to make one."
                )
        elif request.shape is not None:
            self.shape = shape.parse(request.shape, facts)
        else:
            self.shape, promise = shape.choose(facts, _measure_curve(request))
            if not promise.pays:
                notice(
                    f"No shape gains much: the best, {self.shape.describe()}, about "
                    f"{promise.speed_up:.2f} times the speed, because a draft's pass, or a pass "
                    "over several tokens, costs too much compared with a plain one. It is trained "
                    "anyway."
                )
        self.label = f"draft-{self.shape.width}x{self.shape.layers}"
        self.parameters, self.description = self.shape.parameters, self.shape.describe()

    def initial(self) -> Weights:
        if self._tuned is not None:
            return self._tuned
        kept = None if self.part is None else self.part.kept
        return weights.initial(self.shape, self._request.target, self._request.seed, kept)

    def outputs(self, made: Tensors, batch: TrainingBatch) -> list[Output]:
        states = network.states(made, self.shape, batch.tokens)
        matrix = network.output_matrix(made, self.shape)
        return [Output(states.flatten(0, 1)[batch.places], matrix, batch.labels)]

    def write(self, path: Path, made: Weights, trained: TrainingFacts) -> None:
        tokenizer = None if self.part is None else self.part.tokenizer()
        quant = self._request.quant
        weights.write(path, self.shape, made, self._target, trained, quant, tokenizer)


def _measure_curve(request: DistillRequest) -> tuple[float, ...]:
    """T(n) ÷ T(1) of the target, measured now."""
    from localspec.llama.context import Context
    from localspec.llama.model import Model
    from localspec.pairing.forecast import measured_curve

    options = ModelOptions(context=256, threads=request.threads)
    with Model(request.target, options) as model, closing(Context(model, options)) as context:
        return measured_curve(context, CALIBRATION)
