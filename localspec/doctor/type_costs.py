"""T(n) of a model in other quantizations, measured here without having the files.

A few of its layers are timed in each type (`localspec.doctor.weight_types`), in two numbers of them
where they are not all: what the second number adds is what layers cost, and the rest is the
vocabulary's. The types of the file at hand are timed the same way, in turns with each other one, so
only ratios to it are taken from here: whatever a part costs otherwise than the whole cancels out,
and so does a machine that is faster at one time than at another.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import psutil

from localspec import paths
from localspec.doctor.checkup import SIZES
from localspec.doctor.weight_types import (
    QUANTS,
    WeightTypes,
    layer_bytes,
    own_types,
    part_bytes,
    sample,
    types_in,
    why_not_cut,
    write_part,
)
from localspec.errors import LocalspecError
from localspec.gguf.file import GGUFFile
from localspec.llama import library
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.options import ModelOptions
from localspec.pairing.memory import n_layers
from localspec.pairing.pair_memory import available
from localspec.planning.calibration import measure

LONG, QUICK = 20.0, 5.0
"""Seconds that it takes at most."""
LARGE = 256 << 20
"""Bytes of the layers that are timed: more than caches hold from one pass to the next."""
ROUNDS = 4
LEAST_ROUNDS = 2
ROUND = (1, 2, 3, 1, 4, 5, 6, 1, 7, 8, 9)
"""SIZES in the order they are timed. Plain passes wait for memory, which others use as well: their
fastest one takes more tries to be met."""
FIRST_SHARE = 0.6
"""Of the time for a type, for the larger of two parts."""
_CONTEXT = 256
_PREFIX = "types-"


@dataclass(frozen=True, slots=True)
class TypeCosts:
    """What passes of one quantization cost.

    Attributes:
        quant, size, own: as in `WeightTypes`.
        relative: T(n) ÷ T(n) of the file at hand, by n.
    """

    quant: str
    size: int
    own: bool
    relative: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class TypeMeasurements:
    """What came out.

    Attributes:
        costs: of the file at hand first, then of what there was time for.
        seconds: that all of it took.
        why: no more was measured; half a sentence, empty where everything was.
    """

    costs: tuple[TypeCosts, ...]
    seconds: float
    why: str = ""


def measure_types(
    file: GGUFFile,
    options: ModelOptions,
    seconds: float,
    *,
    tell: Callable[[str], None] = lambda text: None,
    stopped: Callable[[], bool] = lambda: False,
) -> TypeMeasurements:
    """Time the usual quantizations of a model, those of a size like the file's own first.

    Leaves nothing behind, and never raises for a lack of disk, memory or time: it says so.

    Args:
        seconds: it takes at most, but for a pass or a loading that has begun.
        stopped: asked between rounds; what was measured until then counts.
    """
    started = perf_counter()
    bench = _Bench(file, options, started + seconds, tell, stopped)
    why = ""
    try:
        with _folder() as folder:
            bench.run(folder)
    except _Stop as stop:
        why = str(stop)
    except LocalspecError as error:
        why = str(error).split(". ")[0]
    except OSError as error:
        why = f"{paths.cache_folder()} cannot be written: {error.strerror or error}"
    costs = tuple(bench.costs)
    return TypeMeasurements(costs if len(costs) > 1 else (), perf_counter() - started, why)


class _Stop(Exception):
    """No more can be measured; says why."""


class _Bench:
    def __init__(
        self,
        file: GGUFFile,
        options: ModelOptions,
        end: float,
        tell: Callable[[str], None],
        stopped: Callable[[], bool],
    ) -> None:
        self.costs: list[TypeCosts] = []
        self._file, self._end = file, end
        self._options = replace(options, context=_CONTEXT)
        self._tell, self._stopped = tell, stopped
        self._folder = Path()

    def run(self, folder: Path) -> None:
        self._folder = folder
        self._check_offload()
        own = own_types(self._file)
        self._tell(f"what its weights cost in {own.quant}")
        counts = self._counts(own)
        with ExitStack() as opened:
            # They stay open: each type is timed beside them, pass by pass.
            parts = [opened.enter_context(self._open(own, count)) for count in counts]
            self.costs.append(TypeCosts(own.quant, own.size, True, dict.fromkeys(SIZES, 1.0)))
            others = [types_in(self._file, quant, folder) for quant in QUANTS if quant != own.quant]
            others.sort(key=lambda types: abs(types.size - own.size))
            for number, types in enumerate(others):
                self._tell(f"what its weights would cost in {types.quant}")
                end = self._portion(len(others) - number)
                relative = self._relative(own, parts, types, counts, end)
                self.costs.append(TypeCosts(types.quant, types.size, False, relative))

    def _check_offload(self) -> None:
        layers = self._options.gpu_layers
        if library.accelerated() and 0 < layers <= n_layers(self._file):
            raise _Stop("with some layers on a device and others not, a few cannot stand for all")

    def _counts(self, own: WeightTypes) -> tuple[int, ...]:
        """How many layers to time: all, or two numbers of them."""
        file, layers = self._file, n_layers(self._file)
        share = layer_bytes(file, own) / max(1, layers)
        count = layers if share <= 0 else max(2, round(LARGE / share))
        if count >= layers and self._fits(own, layers):
            return (layers,)
        why = why_not_cut(file)
        if why is not None:
            raise _Stop(why)
        count = min(count, layers)
        if not self._fits(own, count):
            raise _Stop("there is not enough memory or disk beside it")
        return count, max(1, count // 4)

    def _fits(self, own: WeightTypes, count: int) -> bool:
        """Two parts of each size at a time, the smaller with a quarter of the layers, in up to 8.5
        bits, and as much again for rewritten weights."""
        size = part_bytes(self._file, own, sample(self._file, own, count))
        size = size * 9 * self._file.n_parameters // (8 * max(1, self._file.weight_bytes))
        return 6 * size < available()[0] and 3 * size < shutil.disk_usage(self._folder).free

    @contextmanager
    def _open(self, types: WeightTypes, count: int) -> Iterator[Context]:
        """So many layers, ready to be timed. The file is gone once it is open, where that can be:
        a process that is killed then leaves nothing."""
        self._check()
        path = self._folder / f"{types.quant}-{count}.gguf"
        try:
            write_part(path, self._file, types, sample(self._file, types, count))
            with ExitStack() as opened:
                model = opened.enter_context(Model(path, self._options, progress=self._loading))
                with suppress(OSError):
                    path.unlink()
                context = opened.enter_context(closing(Context(model, self._options)))
                # The first passes allocate, and page the weights in.
                context.extend(context.filler(max(SIZES)), 1)
                context.extend(context.filler(1), 1)
                yield context
        finally:
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def _relative(
        self,
        own: WeightTypes,
        parts: Sequence[Context],
        types: WeightTypes,
        counts: tuple[int, ...],
        end: float,
    ) -> dict[int, float]:
        """T(n) of the model in these types ÷ T(n) in its own, by n."""
        timed = []
        for part, count in zip(parts, counts, strict=True):
            with self._open(types, count) as context:
                now = perf_counter()
                share = 1.0 if count == counts[-1] else FIRST_SHARE
                timed.append(self._side_by_side(part, context, now + (end - now) * share))
        mine = self._whole(own, counts, [curve for curve, _ in timed])
        theirs = self._whole(types, counts, [curve for _, curve in timed])
        return {n: theirs[n] / mine[n] for n in SIZES}

    def _whole(
        self, types: WeightTypes, counts: tuple[int, ...], curves: Sequence[dict[int, float]]
    ) -> dict[int, float]:
        """T(n) of the whole model, from those of its parts."""
        if len(counts) == 1:
            return curves[0]
        curve, few = curves
        whole = layer_bytes(self._file, types)
        timed, less = (
            layer_bytes(self._file, types, sample(self._file, types, count)) for count in counts
        )
        factor = (whole - timed) / (timed - less)
        return {n: curve[n] + factor * max(0.0, curve[n] - few[n]) for n in SIZES}

    def _side_by_side(
        self, one: Context, other: Context, end: float
    ) -> tuple[dict[int, float], dict[int, float]]:
        """T(n) of both, in turns: what else the machine does falls on both alike."""
        found: tuple[dict[int, float], dict[int, float]] = {}, {}
        filler = one.filler(max(SIZES))
        for done in range(ROUNDS):
            if done >= LEAST_ROUNDS and perf_counter() > end:
                break
            for n in ROUND:
                self._check()
                for context, best in zip((one, other), found, strict=True):
                    measure(context, filler, [n], best, float("inf"))
        return found

    def _portion(self, parts: int) -> float:
        now = perf_counter()
        return now + max(0.0, self._end - now) / parts

    def _loading(self, _fraction: float) -> None:
        self._check()

    def _check(self) -> None:
        if self._stopped():
            raise _Stop("it was interrupted")
        if perf_counter() > self._end:
            raise _Stop("there was no time for more")


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder that is removed, and with it those of processes that were killed."""
    parent = paths.cache_folder()
    parent.mkdir(parents=True, exist_ok=True)
    for old in parent.glob(f"{_PREFIX}*"):
        process = old.name.removeprefix(_PREFIX).partition("-")[0]
        if process.isdigit() and not psutil.pid_exists(int(process)):
            shutil.rmtree(old, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{psutil.Process().pid}-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
