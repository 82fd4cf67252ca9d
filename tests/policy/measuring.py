"""Fixed costs, a scripted lookup source, drafters without a clock, and a clock moved by passes."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from localspec.decoding.interfaces import PassRequest, PassResult, Step
from localspec.decoding.loop import Drafter
from localspec.decoding.sampling import Rows
from localspec.decoding.session import Session
from localspec.decoding.sources import LookupSource, Prediction
from localspec.drafters.draft_model import DraftModel
from localspec.policy.acceptance_estimator import logit
from localspec.policy.cost_curve import CostCurve
from localspec.policy.profile import PairProfile
from tests.support.toys import ToyCache, ToyModel, ToyTarget, with_start

UNIT = 0.01  # seconds of a pass over one token, much more than localspec's own work
MODEL = DraftModel(ToyCache(with_start([1, 1, 1])), 4)
"""The draft model of profiles."""

TILES = (1.0, 1.8, 2.6, 1.7, 2.5, 3.3, 4.1, 3.1)
"""T(n)/T(1) of kernels that work in tiles of four: a pass over 4 costs less than one over 2."""
SHAPES: Mapping[str, Sequence[float]] = {
    "flat": (1.0, 1.01, 1.02, 1.03, 1.04, 1.05, 1.06, 1.07),
    "tiles": TILES,
    "steep": (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5),
    "ruinous": (1.0, 2.1, 3.2, 4.3, 5.4, 6.5, 7.6, 8.7),
}


class FixedCurve(CostCurve):
    def observe(self, n: int, context: int, seconds: float, *, alike: bool = True) -> None:
        """Nothing to learn."""


def curve(shape: Sequence[float], unit: float = UNIT) -> FixedCurve:
    """T(n) = shape[n − 1] units; beyond its end in proportion."""
    made = FixedCurve()
    made.learn({n: unit * times for n, times in enumerate(shape, 1)}, 0)
    return made


def profile_of(target: Sequence[float], draft: Sequence[float] | None = (0.05,)) -> PairProfile:
    """The profile of a new pair; `draft` in the same unit, None without a draft model."""
    profile = PairProfile()
    profile.target = curve(target)
    if draft is not None:
        profile.source(MODEL).costs = curve(draft)
    return profile


def clockless(drafter: Drafter, profile: PairProfile) -> None:
    """Have a drafter observe costs by its profile's curves instead of measured seconds."""
    observe = drafter.observe

    def observe_by_curves(step: Step) -> None:
        target = profile.target.seconds(1 + len(step.tree), step.context_length)
        own, row = profile.step_overhead, profile.row_overhead
        whole, draft = step.draft.expected_seconds, 0.0
        if whole is not None:
            draft = max(0.0, whole - target - own - (1 + len(step.tree)) * row)
        seconds = target + draft + own + len(step.tree) * row
        observe(step._replace(seconds=seconds, target_seconds=target, draft_seconds=draft))

    vars(drafter)["observe"] = observe_by_curves


def expects(token: int, chance: float) -> Prediction:
    """A prediction whose estimator starts with this chance."""
    return Prediction(token, (1.0, logit(chance)))


class ListedSource(LookupSource):
    """Predicts the same tokens after every text. `predictions` may be changed."""

    priors: Mapping[str, tuple[float, ...]] = {"any": (0.0, 1.0)}

    def __init__(self, predictions: Sequence[Prediction], name: str = "listed") -> None:
        self.name = name
        self.predictions = predictions

    def position(self, session: Session) -> int:
        return 0

    def advance(self, position: int, token: int) -> int:
        expected = self.predictions[position : position + 1]
        return position + 1 if expected and expected[0].token == token else len(self.predictions)

    def predict(self, position: int) -> Iterator[Prediction]:
        return iter(self.predictions[position:])


OWN = 50e-6  # seconds of localspec's own work between two readings of the clock
CAPACITY = 8192

Cost = Callable[[int], float]  # current seconds of a pass over so many tokens


class Clock:
    """Moved by passes, and a little by each reading."""

    now = 0.0

    def __call__(self) -> float:
        self.now += OWN
        return self.now


class TimedTarget(ToyTarget):
    def __init__(self, model: ToyModel, clock: Clock, cost: Cost) -> None:
        super().__init__(model, capacity=CAPACITY)
        self.clock, self.cost = clock, cost

    def forward(self, request: PassRequest) -> PassResult:
        spent = self.cost(len(request.context) - len(self.cache) + len(request.tree))
        self.clock.now += spent
        return PassResult(super().forward(request).rows, spent)


class TimedCache(ToyCache):
    def __init__(self, model: ToyModel, clock: Clock, cost: Cost) -> None:
        super().__init__(model, capacity=CAPACITY)
        self.clock, self.cost = clock, cost

    def extend(self, tokens: Sequence[int], outputs: int = 1) -> Rows:
        spent = self.cost(len(tokens))
        self.native_seconds += spent - 1.0  # a toy's own pass counts as one
        self.clock.now += spent
        return super().extend(tokens, outputs)
