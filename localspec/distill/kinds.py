"""The kinds of drafts to train: draft models, EAGLE-3 heads and Medusa heads (dev/heads.md)."""

import json
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.bench.scaled_gguf import Shape
from localspec.distill import network, shape, weights
from localspec.distill.distill_request import DistillRequest, Notice
from localspec.distill.frequent import FrequentPart, KeptTokens
from localspec.distill.network import Labels, Output, Tensor, torch
from localspec.distill.trace import saving
from localspec.distill.weights import Fact, TrainingFacts, Weights
from localspec.errors import ModelInvalid
from localspec.files import write_atomically
from localspec.gguf.file import ARRAY, I32, STRING, U32, Array, GGUFFile
from localspec.gguf.writer import NewTensor
from localspec.llama.options import ModelOptions
from localspec.pairing.forecast import active_bytes, measured_curve
from localspec.text import parameter_count

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """A batch of answers. `tokens`: int [answers, longest], padded at the end. `places`: int [n],
    indices into flattened `tokens` of positions with labels; `left`: int [n], how many more
    positions of the same answer follow."""

    tokens: Tensor
    places: Tensor
    left: Tensor
    labels: Labels

    def later(self, count: int) -> tuple[Tensor, Labels]:
        """Indices of positions that at least `count` others follow, and the labels of these."""
        found = torch.nonzero(self.left >= count)[:, 0]
        return found, self.labels.at(found + count)


class DraftKind(ABC):
    """A draft to train. `shape`: of the draft, or of a head's target; `part`: the target's tokens
    that it has, None for all; `label`: for its file name; `parameters`: number of trained ones."""

    shape: Shape
    part: KeptTokens | None
    label: str
    parameters: int
    description: str

    @abstractmethod
    def initial(self) -> Weights: ...

    def begin(self, put: Callable[[npt.NDArray[Any]], Tensor]) -> None:  # noqa: B027
        """Prepare for `outputs`; `put` makes tensors on the training device."""

    @abstractmethod
    def outputs(self, made: Tensors, batch: TrainingBatch) -> list[Output]:
        """The outputs for a batch, by depth."""

    @abstractmethod
    def write(self, path: Path, made: Weights, trained: TrainingFacts) -> None: ...


class Head(DraftKind):
    """A head that reads hidden states of its frozen target."""

    def __init__(self, target: Path, part: KeptTokens | None) -> None:
        self.shape, self.target = weights.read(target)
        self.part = part
        self.frozen: Tensors = {}
        self.parameters = sum(values.size for values in self.initial().values())
        self.description = f"{self.label}, {parameter_count(self.parameters)} parameters"

    def begin(self, put: Callable[[npt.NDArray[Any]], Tensor]) -> None:
        self.frozen = {name: put(values) for name, values in self.target.items()}

    def output_matrix(self) -> npt.NDArray[np.float32]:
        """The target's output matrix for the tokens that the head can predict."""
        matrix: npt.NDArray[np.float32] = network.output_matrix(self.target, self.shape)
        return matrix.copy() if self.part is None else matrix[self.part.kept]

    def token_map(self) -> list[NewTensor]:
        """The target's id of each row of the output matrix."""
        if self.part is None:
            return []
        kept = self.part.kept
        return [NewTensor("d2t", kept.shape, "I64", kept.astype("<i8").tobytes())]


def given_shape(request: DistillRequest, target: Shape) -> Shape | None:
    """The shape of a draft that is tuned, or that the request sets; None to choose one. Raises
    UsageError, or ModelInvalid if it does not fit the target."""
    if request.begun_from is None:
        return None if request.shape is None else shape.parse(request.shape, target)
    _, found = weights.open_llama(request.begun_from)
    if found.vocabulary != target.vocabulary:
        raise ModelInvalid(
            f"{request.begun_from} has {found.vocabulary:,} tokens and {request.target.name} "
            f"{target.vocabulary:,}. Choose a draft with its vocabulary, or leave out --from to "
            "train a new one."
        )
    return found


CALIBRATION = 1.4


class Draft(DraftKind):
    """A draft model of llama architecture."""

    part: FrequentPart | None

    def __init__(
        self,
        request: DistillRequest,
        target: GGUFFile,
        part: FrequentPart | None,
        folder: Path,
        notice: Notice,
    ) -> None:
        self._request, self._target, self.part = request, target, part
        self._tuned: Weights | None = None
        facts = weights.target_shape(target)
        if part is not None:
            facts = replace(facts, vocabulary=len(part))
        if request.begun_from is not None:
            _, self._tuned = weights.read(request.begun_from)
        if (given := given_shape(request, facts)) is not None:
            self.shape = given
        else:
            self.shape, promise = shape.choose(facts, active_bytes(target), _curve(request, folder))
            if not promise.pays:
                notice(
                    f"No shape gains much. For the best, {self.shape.describe()}, expect "
                    f"{promise.speed_up:.2f} times the speed: a pass of the draft, or a pass "
                    "over several tokens, costs too much compared with a plain one. Training runs "
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
        part = self.part
        tokenizer = weights.tokenizer_of(self._target) if part is None else part.tokenizer()
        weights.write(path, self.shape, made, tokenizer, trained, self._request.quant)


def _curve(request: DistillRequest, folder: Path) -> tuple[float, ...]:
    """T(n) ÷ T(1) of the target, measured once and kept in `folder`: a training is continued only
    with the shape that was chosen at its beginning."""
    file = folder / f"passes-{request.threads}.json"
    with suppress(OSError, ValueError, TypeError):
        return tuple(map(float, json.loads(file.read_text())))
    from localspec.llama.context import Context
    from localspec.llama.model import Model

    options = ModelOptions(context=256, threads=request.threads)
    with Model(request.target, options) as model, closing(Context.open(model, options)) as context:
        curve = measured_curve(context, CALIBRATION)
    with saving(folder):
        write_atomically(file, json.dumps(curve), private=True)
    return curve


UNROLLED = 4
"""Training passes over the head's own states (section 3.2)."""


class EagleHead(Head):
    """EAGLE-3 (Li et al. 2025): one layer that reads a token and three of the target's states, or
    its own last state. `quant`: type of its matrices."""

    label = "eagle3"

    def __init__(
        self, file: GGUFFile, part: KeptTokens | None, quant: str = weights.Q8_0, seed: int = 0
    ) -> None:
        self._file, self._quant, self._seed = file, quant, seed
        super().__init__(file.path, part)

    @property
    def layers(self) -> tuple[int, int, int]:
        """The target layers whose inputs are read: an early, a middle and a late one."""
        count = self.shape.layers
        if count >= 8:
            return 2, count // 2, count - 3
        return min(1, count - 1), count // 2, count - 1

    def initial(self) -> Weights:
        """The target's last layer applied to the last of the three states, with little weight on
        the embedding. Without a `part` the head uses the target's output matrix."""
        random = np.random.Generator(np.random.PCG64(self._seed))
        target, width, last = self.target, self.shape.width, f"blk.{self.shape.layers - 1}"
        zeros = np.zeros((width, width), np.float32)
        made: Weights = {
            "fc.weight": np.concatenate([zeros, zeros, np.eye(width, dtype=np.float32)], 1),
            "output_norm.weight": target["output_norm.weight"].copy(),
            "blk.0.attn_norm_2.weight": target[f"{last}.attn_norm.weight"].copy(),
            "blk.0.attn_norm.weight": np.ones(width, np.float32),
            "blk.0.ffn_norm.weight": target[f"{last}.ffn_norm.weight"].copy(),
        }
        for name in ("attn_q", "attn_k", "attn_v"):
            values = target[f"{last}.{name}.weight"]
            beside = random.standard_normal(values.shape) * (0.1 * values.std())
            made[f"blk.0.{name}.weight"] = np.concatenate([beside.astype(np.float32), values], 1)
        for name in ("attn_output", "ffn_gate", "ffn_up", "ffn_down"):
            made[f"blk.0.{name}.weight"] = target[f"{last}.{name}.weight"].copy()
        if self.part is not None:
            made["output.weight"] = self.output_matrix()
        return made

    def outputs(self, made: Tensors, batch: TrainingBatch) -> list[Output]:
        with torch.no_grad():
            inputs, _ = network.layer_inputs(self.frozen, self.shape, batch.tokens)
            read = torch.cat([inputs[layer] for layer in self.layers], -1)
            # The token after each position; the last one of a text has no label.
            following = torch.roll(batch.tokens, -1, 1)
            words = torch.nn.functional.embedding(following, self.frozen["token_embd.weight"])
        matrix = made.get("output.weight")
        if matrix is None:
            matrix = network.output_matrix(self.frozen, self.shape)
        g = torch.nn.functional.linear(read, made["fc.weight"])
        found, cached = [], list[tuple[Tensor, Tensor]]()
        for turn in range(UNROLLED):
            y = self._layer(made, words, g, cached)
            where, labels = batch.later(1 + turn)
            places = batch.places[where] + turn
            normed = network.norm(y, made["output_norm.weight"], self.shape.epsilon)
            found.append(Output(normed.flatten(0, 1)[places], matrix, labels))
            # The head's own state of the position before replaces the target's.
            g = torch.roll(y, 1, 1)
        return found

    def _layer(
        self, made: Tensors, words: Tensor, g: Tensor, cached: list[tuple[Tensor, Tensor]]
    ) -> Tensor:
        epsilon = self.shape.epsilon
        x = torch.cat(
            (
                network.norm(words, made["blk.0.attn_norm.weight"], epsilon),
                network.norm(g, made["blk.0.attn_norm_2.weight"], epsilon),
            ),
            -1,
        )
        angles = network.rotations(self.shape, x.shape[1], x.device)
        queries, keys, values = network.project(made, self.shape, x, angles, "blk.0")
        cached.append((keys, values))
        mixed = _attend(queries, cached).transpose(1, 2).flatten(2)
        a = g + torch.nn.functional.linear(mixed, made["blk.0.attn_output.weight"])
        normed = network.norm(a, made["blk.0.ffn_norm.weight"], epsilon)
        return a + network.feed_forward(made, normed, "blk.0")

    def write(self, path: Path, made: Weights, trained: TrainingFacts) -> None:
        facts = [
            *weights.shape_facts(self.label, replace(self.shape, layers=1)),
            ("eagle3.target_layers", ARRAY, Array(struct.pack("<3i", *self.layers), I32, 3)),
            ("eagle3.target_hidden_size", U32, self.shape.width),
            *weights.tokenizer_of(self._file),
        ]
        weights.write_file(path, facts, trained, made, self._quant, self.token_map())


def _attend(queries: Tensor, cached: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Attention of a token drafted after `turn` others (section 3.2): to these, at the `turn`
    positions before it, by the keys of their own turns; to earlier ones by those of turn 0.
    `cached`: keys and values of each turn, all [batch, heads, tokens, head width]."""
    turn = len(cached) - 1
    if not turn:
        return torch.nn.functional.scaled_dot_product_attention(queries, *cached[0], is_causal=True)
    queries = queries * queries.shape[-1] ** -0.5
    (keys, values), drafted = cached[0], cached[1:]
    # The token of turn s is turn - s positions earlier.
    drafted = [
        tuple(torch.roll(kv, turn - s, 2) for kv in pair) for s, pair in enumerate(drafted, 1)
    ]
    count = queries.shape[2]
    later = torch.ones(count, count, dtype=torch.bool, device=queries.device).triu(1 - turn)
    scores = (queries @ keys.mT).masked_fill(later, -torch.inf)
    own = torch.stack([(queries * keys).sum(-1) for keys, _ in drafted], -1)
    shares = torch.cat((scores, own), -1).softmax(-1)
    mixed = shares[..., :count] @ values
    for s, (_, values) in enumerate(drafted):
        mixed = mixed + shares[..., count + s, None] * values
    return mixed


HEADS = 4


class MedusaHeads(Head):
    """Medusa (Cai et al. 2024): head k predicts from the target's last state the token k + 1
    positions after the target's next one (section 2.1). `vocabulary`: the target's fingerprint."""

    label = "medusa"

    def __init__(
        self, target: Path, vocabulary: str, part: KeptTokens | None = None, heads: int = HEADS
    ) -> None:
        self._vocabulary, self._heads = vocabulary, heads
        super().__init__(target, part)

    def initial(self) -> Weights:
        """Blocks of zeros, with which heads repeat the target's token (section 2.1.1)."""
        width = self.shape.width
        made: Weights = {"medusa.output.weight": self.output_matrix()}
        for head in range(self._heads):
            made[f"medusa.{head}.blk.0.weight"] = np.zeros((width, width), np.float32)
            made[f"medusa.{head}.blk.0.bias"] = np.zeros(width, np.float32)
        return made

    def outputs(self, made: Tensors, batch: TrainingBatch) -> list[Output]:
        with torch.no_grad():
            last = network.states(self.frozen, self.shape, batch.tokens)
            read = last.flatten(0, 1)[batch.places]
        found = []
        for head in range(self._heads):
            where, labels = batch.later(head + 1)
            x, at = read[where], f"medusa.{head}.blk.0"
            inner = torch.nn.functional.linear(x, made[f"{at}.weight"], made[f"{at}.bias"])
            x = x + torch.nn.functional.silu(inner)
            found.append(Output(x, made["medusa.output.weight"], labels))
        return found

    def write(self, path: Path, made: Weights, trained: TrainingFacts) -> None:
        facts: list[Fact] = [
            ("general.architecture", STRING, "medusa"),
            ("medusa.embedding_length", U32, self.shape.width),
            ("medusa.vocab_size", U32, self.shape.vocabulary),
            ("medusa.head_count", U32, self._heads),
            ("medusa.block_count", U32, 1),
            ("medusa.target_vocabulary", STRING, self._vocabulary),
        ]
        weights.write_file(path, facts, trained, made, weights.F16, self.token_map())
