"""The expected gain of drafts made from a model's own file, on this machine."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np
import numpy.typing as npt

from localspec.gguf.file import GGUFFile
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.options import ModelOptions
from localspec.llama.time_ratio import time_ratio
from localspec.llama.without_layers import MAX_TOKENS, WithoutLayers
from localspec.pairing.forecast import Forecast, active_bytes, best, measured_curve
from localspec.policy.calibration import WHOLE

MINUTE = 60.0
"""Seconds for the search over layers."""
SHARES = (1 / 12, 1 / 6, 1 / 4, 1 / 3, 1 / 2, 2 / 3)
"""Shares of the inner layers to leave out (Zhang et al. 2024, Draft & Verify, section 3.2)."""

CALIBRATION = (
    """The history of bread begins long before writing. People who gathered wild grain ground it \
between stones, mixed it with water and baked it in the ashes of a fire. The flat cakes that came \
of it kept for weeks and could be carried. Yeast came later, most likely by accident: a dough that \
was left standing began to rise, and somebody baked it all the same.""",
    """def count_words(path):
    counts = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            for word in line.lower().split():
                counts[word] = counts.get(word, 0) + 1
    return sorted(counts.items(), key=lambda item: item[1], reverse=True)
""",
)
"""Texts for choosing layers. The model only reads them: generating would take longer."""

VALIDATION = (
    """"Where did you find it?" asked the girl. The old man put the lantern on the table and sat \
down. "At the end of the harbour, under the nets," he said. "It was there all the time. Nobody \
looks under nets." She turned the little box over in her hands, but there was no key and no lid.""",
    """To change the wheel of a bicycle, turn it upside down so that it stands on the saddle and \
the handlebar. Then:
1. Open the brake, so that the tyre can pass between its pads.
2. Loosen the nuts on both sides of the axle with a spanner.
3. Lift the wheel out of the fork and put the new one in its place.
4. Tighten the nuts, close the brake and check that the wheel turns freely.
""",
)
"""Texts for the final estimate: the best of many trials looks better than it is."""

_Read = tuple[list[int], npt.NDArray[np.int64]]


class DraftTrial:
    """Estimates the speed-up from drafts that are made from the model, which must outlive this.
    `check` is called before each trial; its exceptions are passed on. `curve`: T(n) ÷ T(1), n = 1 …
    DEEPEST + 1, as measured here."""

    def __init__(
        self, model: Model, file: GGUFFile, options: ModelOptions, check: Callable[[], object]
    ) -> None:
        self._model, self._file, self._check = model, file, check
        self._options = replace(options, context=256, parallel=1)
        with closing(Context(model, self._options)) as context:
            self.curve = measured_curve(context, WHOLE[0])
        self._passes = WithoutLayers(model, self._options)
        self._searched, self._judged = map(self._read, (CALIBRATION, VALIDATION))

    def close(self) -> None:
        self._passes.close()

    def forecast(self, cost: float, agreement: float) -> Forecast:
        """Forecast for a draft by its cost, relative to a plain pass, and its acceptance."""
        return best(cost, agreement, self.curve)

    def of_file(self, path: Path) -> Forecast:
        with (
            Model(path, self._options) as draft,
            closing(WithoutLayers(draft, self._options)) as passes,
        ):
            agreement = _agreement(passes, self._judged, ())
        return self.forecast(time_ratio(self._model, path, self._options), agreement)

    def fewer_layers(self, cost: float, agreement: float) -> tuple[tuple[int, ...], Forecast]:
        """The best layers to leave out, and the forecast without them. With all layers, a draft
        pass costs `cost` plain passes, and is right at a share of `agreement` of the positions."""
        deadline, order = perf_counter() + MINUTE, self.order()
        found: list[tuple[tuple[int, ...], Forecast]] = []
        for count in dict.fromkeys(max(1, int(len(order) * share)) for share in SHARES):
            if found and perf_counter() > deadline:
                break
            self._check()
            left_out = tuple(sorted(order[:count]))
            right = _agreement(self._passes, self._searched, left_out)
            expected = self.forecast(cost * self.share(left_out), agreement * right)
            found.append((left_out, expected))
        return max(found, key=lambda candidate: candidate[1].speed_up)

    def share(self, left_out: Sequence[int]) -> float:
        """The cost of a pass without these layers ÷ with all, by the bytes that it reads."""
        gone = tuple(f"blk.{layer}." for layer in left_out)
        tensors = tuple(t for t in self._file.tensors if not t.name.startswith(gone))
        return active_bytes(replace(self._file, tensors=tensors)) / active_bytes(self._file)

    def order(self) -> list[int]:
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
