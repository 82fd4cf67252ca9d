"""`-d self`: choose, make and store a draft from the target's own file.

The weights are copied: llama.cpp refuses a file with more tensors than its graph has.
"""

import json
import logging
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from localspec import paths
from localspec.errors import UsageError
from localspec.gguf.adapters import require_fitting
from localspec.gguf.file import GGUFFile
from localspec.gguf.reader import read_gguf
from localspec.gguf.writer import require_room, writing
from localspec.identity import fingerprint, machine
from localspec.llama import kernels, library
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.options import ModelOptions, identity_with_adapters
from localspec.llama.outcomes import Outcomes
from localspec.llama.quantize import quantize
from localspec.llama.time_ratio import time_ratio
from localspec.llama.types import FILE_TYPES
from localspec.llama.without_layers import MAX_TOKENS, WithoutLayers
from localspec.pairing.forecast import Forecast, active_bytes, best, measured_curve
from localspec.policy.calibration import WHOLE
from localspec.self_draft.recipe import (
    Recipe,
    SelfDraftRequest,
    can_leave_out_layers,
    smaller_quantizations,
)
from localspec.text import gigabytes, printable

MINUTE = 60.0
"""Seconds for the search over layers."""
SHARES = (1 / 12, 1 / 6, 1 / 4, 1 / 3, 1 / 2, 2 / 3)
"""Shares of the inner layers to leave out (Zhang et al. 2024, Draft & Verify, section 3.2)."""

_TEXTS = Path(__file__).with_name("texts.json")
"""Texts for choosing layers, and others for the final estimate: the best of many trials looks
better than it is. The model only reads them: generating would take longer."""

_Read = tuple[list[int], npt.NDArray[np.int64]]

outcomes = Outcomes("self_drafts", 500)
MIN_BITS = {"Q8_0": 8.5, "Q4_0": 4.5, "Q2_K": 2.6}
"""Least bits per weight, by quantization."""
_ALL_LAYERS = "no layers can be left out, as they are too few, or differ"

logger = logging.getLogger("localspec.self_draft")


@dataclass(frozen=True, slots=True)
class SelfDraft:
    """The draft, None if none pays; `words`: a sentence about it, or why there is none."""

    path: Path | None
    words: str


def self_draft(
    target: Path,
    request: SelfDraftRequest,
    options: ModelOptions,
    check: Callable[[], object] = lambda: None,
) -> SelfDraft:
    """The requested draft of a model's own file, made if it does not exist. The result is stored
    for this file, this machine and this version of llama.cpp. `check` is called regularly; its
    exceptions are passed on. Raises LocalspecError."""
    if options.rpc:
        raise UsageError(
            "With --rpc the passes run elsewhere, and -d self would measure them here. Leave "
            "out --rpc once to have the draft made, then name its file with -d."
        )
    require_fitting(options.adapters, target)
    file = read_gguf(target)
    facts = facts_of(target, request, options)
    known = _known(facts, target)
    if known is not None:
        return known
    logger.info("looking for a draft in %s", target.name)
    options = replace(options, context=256, parallel=1)
    with (
        Model(target, options, adapters=options.adapters) as model,
        closing(WithoutLayers(model, options)) as passes,
    ):
        return _DraftSearch(model, passes, file, options, facts, check).run(request)


class _DraftFile(NamedTuple):
    recipe: Recipe
    path: Path
    forecast: Forecast


class _DraftSearch:
    """Makes drafts from the model, and estimates their speed-ups by its `passes`. `check` is called
    before each trial; its exceptions are passed on."""

    def __init__(
        self,
        model: Model,
        passes: WithoutLayers,
        file: GGUFFile,
        options: ModelOptions,
        facts: dict[str, Any],
        check: Callable[[], object],
    ) -> None:
        self._model, self._file, self._facts, self._check = model, file, facts, check
        self._target, self._passes, self._options = model.path, passes, options
        with closing(Context.open(model, options)) as context:
            self._curve = measured_curve(context, WHOLE[0])
        texts = json.loads(_TEXTS.read_text(encoding="utf-8"))
        self._searched, self._judged = self._read(texts["search"]), self._read(texts["judge"])

    def run(self, request: SelfDraftRequest) -> SelfDraft:
        if request.quant is not None:
            if request.quant == FILE_TYPES.get(self._file.integer("general.file_type") or -1):
                raise UsageError(
                    f"{self._target.name} is already in {request.quant}. Name a smaller "
                    "quantization, or write -d self for the best one."
                )
            return self._store(self._make(Recipe(request.quant)))
        if request.count is not None:
            self._require_layers(request.count)
            left_out = sorted(self._order()[: request.count])
            return self._store(self._make(Recipe(None, tuple(left_out))))
        return self._best()

    def _best(self) -> SelfDraft:
        """All layers in fewer bits, or fewer layers in the best of these, if that pays."""
        made, tried = list[_DraftFile](), list[str]()
        chosen: _DraftFile | None = None
        bits = 8 * self._file.weight_bytes / max(1, self._file.n_parameters)
        try:
            for quant in smaller_quantizations(self._file):
                least = MIN_BITS[quant] / bits  # if a pass only had to read weights
                if best(least, 1.0, self._curve).pays:
                    made.append(self._make(Recipe(quant)))
                    tried.append(f"{made[-1].recipe.description} {_describe(made[-1].forecast)}")
                else:
                    tried.append(
                        f"in {quant} a pass would cost at least {least:.2f} of the model's"
                    )
            tried.append(self._fewer_layers(made))
            paying = (draft for draft in made if draft.forecast.pays)
            chosen = max(paying, key=_speed, default=None)
        finally:
            for draft in made:
                if draft is not chosen:
                    draft.path.unlink(missing_ok=True)
        if chosen is not None:
            return self._store(chosen)
        words = (
            f"No draft made from {self._target.name} itself pays here: "
            f"{'; '.join(tried)}. Choose a smaller model with -d, or force one, as in -d "
            f"self:{smaller_quantizations(self._file)[0]}."
        )
        self._write({"draft": None, "words": words})
        return SelfDraft(None, words)

    def _fewer_layers(self, made: list[_DraftFile]) -> str:
        """Append a draft with fewer layers to `made` if it pays more; returns a clause about it."""
        if not can_leave_out_layers(self._file):
            return _ALL_LAYERS
        whole = max(made, key=_speed, default=None)
        quant, cost, agreement = None, 1.0, 1.0
        if whole is not None and whole.forecast.cost < 1.0:
            quant, cost = whole.recipe.quant, whole.forecast.cost
            agreement = whole.forecast.acceptance
        left_out, expected = self._choose_layers(cost, agreement)
        recipe = Recipe(quant, left_out)
        if expected.pays and (whole is None or expected.speed_up > _speed(whole)):
            made.append(self._make(recipe))
            expected = made[-1].forecast
        return f"{recipe.description} {_describe(expected)}"

    def _store(self, made: _DraftFile) -> SelfDraft:
        path, size = made.path, made.path.stat().st_size
        words = (
            f"The draft is {self._target.name} {made.recipe.description}, {gigabytes(size)} "
            f"in {path}: {_describe(made.forecast)}. 'localspec rm {path}' removes it."
        )
        self._write({"draft": path.name, "size": size, "words": words})
        return SelfDraft(path, words)

    def _make(self, recipe: Recipe) -> _DraftFile:
        """Make the file of a draft, and time it."""
        folder = _folder()
        named = self._file.text("general.name") or self._target.stem
        name = f"{self._target.stem}-self-{recipe.label}-{fingerprint(self._facts)[:12]}.gguf"
        path = folder / name
        least = int(self._file.weight_bytes * self._share(recipe.left_out))
        if recipe.quant in MIN_BITS:
            least = min(least, int(self._file.n_parameters * MIN_BITS[recipe.quant] / 8))
        logger.info("making %s", path)
        with writing(path) as partial:
            require_room(folder, least)
            quantize(
                self._target,
                partial,
                recipe.quant,
                self._options.fixed_threads,
                again=True,
                leave_out=recipe.left_out,
                name=f"{named} {recipe.description}",
            )
        with (
            Model(path, self._options) as draft,
            closing(WithoutLayers(draft, self._options)) as passes,
        ):
            agreement = _agreement(passes, self._judged, ())
        cost = time_ratio(self._model, path, self._options)
        return _DraftFile(recipe, path, best(cost, agreement, self._curve))

    def _require_layers(self, count: int) -> None:
        name = printable(self._target.name)
        if not can_leave_out_layers(self._file):
            raise UsageError(
                f"{name}: {_ALL_LAYERS}. Write -d self:{smaller_quantizations(self._file)[0]} "
                "for a smaller quantization of it."
            )
        inner = (self._file.own_integer("block_count") or 0) - 2
        if count > inner:
            raise UsageError(f"Of {name}, 1 to {inner} layers can be left out, not {count}.")

    def _write(self, record: dict[str, Any]) -> None:
        outcomes.store(self._facts, {"source": str(self._target.resolve())} | record)

    def _choose_layers(self, cost: float, agreement: float) -> tuple[tuple[int, ...], Forecast]:
        """The best layers to leave out, and the forecast without them. With all layers, a draft
        pass costs `cost` plain passes, and is right at a share of `agreement` of the positions."""
        deadline, order = perf_counter() + MINUTE, self._order()
        found: list[tuple[tuple[int, ...], Forecast]] = []
        for count in dict.fromkeys(max(1, int(len(order) * share)) for share in SHARES):
            if found and perf_counter() > deadline:
                break
            self._check()
            left_out = tuple(sorted(order[:count]))
            right = _agreement(self._passes, self._searched, left_out)
            expected = best(cost * self._share(left_out), agreement * right, self._curve)
            found.append((left_out, expected))
        return max(found, key=lambda candidate: candidate[1].speed_up)

    def _share(self, left_out: Sequence[int]) -> float:
        """The cost of a pass without these layers ÷ with all, by the bytes that it reads."""
        gone = tuple(f"blk.{layer}." for layer in left_out)
        tensors = tuple(t for t in self._file.tensors if not t.name.startswith(gone))
        return active_bytes(replace(self._file, tensors=tensors)) / active_bytes(self._file)

    def _order(self) -> list[int]:
        """Layers between the first and the last, those that change least first (Men et al. 2024,
        ShortGPT)."""
        influences: dict[int, float] = {}
        for tokens, _ in self._searched:
            self._check()
            for layer, influence in self._passes.influences(tokens).items():
                influences[layer] = influences.get(layer, 0.0) + influence
        inner = range(1, self._model.layers - 1)
        return sorted(inner, key=lambda layer: influences[layer])

    def _read(self, of: Sequence[str]) -> list[_Read]:
        found = []
        for text in of:
            self._check()
            tokens = self._model.vocabulary.tokenize(text, add_bos=True)
            tokens = tokens[:MAX_TOKENS]
            found.append((tokens, self._passes.choices(tokens, ())))
        return found


def _agreement(passes: WithoutLayers, of: Sequence[_Read], left_out: Sequence[int]) -> float:
    """The share of positions at which the predictions without some layers are the same."""
    same = [passes.choices(tokens, left_out) == expected for tokens, expected in of]
    return float(np.concatenate(same).mean())


def _speed(made: _DraftFile) -> float:
    return made.forecast.speed_up


def _describe(forecast: Forecast) -> str:
    promise = (
        f"expected {forecast.speed_up:.2f} times the speed" if forecast.pays else "no gain expected"
    )
    return (
        f"a pass takes {forecast.cost:.2f} times as long as the model's and predicts "
        f"{forecast.acceptance:.0%} of its tokens, {promise}"
    )


def facts_of(target: Path, request: SelfDraftRequest, options: ModelOptions) -> dict[str, Any]:
    """Everything on which the choice of a draft depends."""
    return {
        "file": identity_with_adapters(target, options.adapters),
        "machine": machine(),
        "library": library.version(),
        "kernels": kernels.status_for(options.kernels).identity,
        "wish": asdict(request),
        "gpu_layers": options.gpu_layers,
    }


def _folder() -> Path:
    return paths.cache_folder() / "self"


def _known(facts: dict[str, Any], target: Path) -> SelfDraft | None:
    known = outcomes.get(facts)
    if known is None or known.get("source") != str(target.resolve()):
        return None
    words, draft = printable(str(known.get("words")), 4000), known.get("draft")
    if draft is None:
        return SelfDraft(None, words)
    path = _folder() / Path(str(draft)).name
    with suppress(OSError):
        return SelfDraft(path, words) if path.stat().st_size == known.get("size") else None
    return None
