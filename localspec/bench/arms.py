"""localspec's own configurations as arms of the benchmark."""

import shlex
from collections.abc import Callable, Sequence

from localspec.bench.samples import Arm, Question, Sample
from localspec.decoding.params import SamplingParams
from localspec.drafters.options import Drafting
from localspec.drafters.registry import REGISTRY
from localspec.engine import Engine

PLAIN = "plain"
AUTO = "auto"
COLD = "auto, cold"
_DEPTHS = range(1, 9)

KNOWLEDGE = {
    AUTO: "answered a prompt of each suite beforehand, and keeps learning.",
    COLD: "starts each answer without any measurements.",
}


class LocalspecArm(Arm):
    """A drafting configuration. It does not own `engine`; COLD needs a separate one, as it drops
    measurements and learned data before each answer."""

    def __init__(self, engine: Engine, name: str, drafting: Drafting) -> None:
        self.name, self.practises = name, name == AUTO
        self.command = _command(engine, drafting)
        self._engine = engine
        self._drafting = drafting
        self._forgets = name == COLD

    def generate(self, question: Question) -> Sample:
        if self._forgets:
            self._engine.forget()
        stream = self._engine.stream(
            question.prompt.text,
            max_tokens=question.max_tokens,
            sampling=SamplingParams(temperature=question.temperature, seed=question.seed),
            drafting=self._drafting,
            reuse=False,
        )
        with stream:
            tokens = [token for chunk in stream for token in chunk.token_ids]
        stats = stream.stats
        return Sample(
            tokens=max(stats.generated_tokens - 1, 0),
            seconds=stats.decode_seconds,
            passes=max(stats.target_passes - 1, 0),
            drafted=stats.drafted,
            tested=stats.tested,
            accepted=stats.accepted,
            text=stream.text,
            token_ids=tuple(tokens),
            calibration_seconds=stats.calibration_seconds,
        )


def localspec_arms(
    engine: Engine, which: Sequence[str], another: Callable[[], Engine]
) -> list[LocalspecArm]:
    """The arms of the named groups, in the order of the report. `another`: opens the pair again for
    COLD."""
    has_model = engine.draft is not None and not engine.head_source
    groups = {
        "plain": {PLAIN: Drafting(drafter="none")},
        "auto": {AUTO: Drafting()},
        "cold": {COLD: Drafting()},
        "drafters": {
            name: Drafting(drafter=name)
            for name, registered in REGISTRY.items()
            if name != "grammar"  # no prompt of the benchmark has one
            and (engine.learned or not registered.needs_datastore)
            and registered.needs_head in ("", engine.head_source)
            and (has_model or not registered.needs_model)
        },
    }
    if has_model:
        groups["depths"] = {
            f"model depth {depth}": Drafting(drafter="model", depth=depth) for depth in _DEPTHS
        }
        groups["trees"] = {
            "model depth 3 width 2": Drafting(drafter="model", depth=3, width=2),
            # Accepted by matching the target's sample, as in other engines.
            "arg-max depth 3": Drafting(drafter="model", depth=3, sampled=False),
        }
    return [
        LocalspecArm(another() if name == COLD else engine, name, drafting)
        for group, arms in groups.items()
        if group in which
        for name, drafting in arms.items()
    ]


def _command(engine: Engine, drafting: Drafting) -> str:
    words = ["localspec", "run", "--raw", "-m", str(engine.model.path)]
    words += ["-d", "none" if engine.draft is None else str(engine.draft_path)]
    words += ["--drafter", drafting.drafter]
    if drafting.depth is not None:
        words += ["--depth", str(drafting.depth)]
    if drafting.width != 1:
        words += ["--width", str(drafting.width)]
    if not drafting.sampled:
        words += ["--greedy-drafts"]
    return shlex.join(words)
