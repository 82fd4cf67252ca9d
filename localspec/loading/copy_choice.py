"""Whether a pair drafts with its draft model or with a requantized copy of it.

The copy's passes are shorter, and it is right less often; how much less depends on the target. So
where a pair is opened for the first time and a copy is faster, all three read some short texts
(`localspec.pairing.agreement`), and what each draft would make of this target follows from its cost
and its acceptance (`localspec.pairing.forecast`). The copy has to promise more than the original
even if it were right less often by one standard error of the difference.

With a draft model of another vocabulary the original stays: rows of different tokens cannot be
compared place by place, and a copy that is only known to be faster may be worse.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from localspec.errors import LocalspecError
from localspec.identity import fingerprint
from localspec.llama import requantized_draft
from localspec.llama.adapters import adapted_identity
from localspec.llama.requantized_draft import Copy, CopyVerdict, Pair
from localspec.loading.cost_identity import cost_identity
from localspec.pairing.agreement import acceptances
from localspec.pairing.forecast import best
from localspec.pairing.target_curve import measured_curve, relative_curve
from localspec.planning.pair_profile import PairProfile
from localspec.planning.profile_store import ProfileStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    import numpy.typing as npt

    from localspec.llama.context import Context
    from localspec.llama.model import Model
    from localspec.llama.options import ModelOptions
    from localspec.llama.shared_context import SharedContext

ROOM = 128
"""Tokens of context that all of it takes at most."""
CALIBRATION = 0.3
"""Seconds for the target's curve, where no earlier session has measured it."""
BUSY = 0.3
"""Cores in use by other processes from which on nothing is timed."""
ROUNDS = 5
"""Passes over one token that tell what the draft model costs beside this target."""

logger = logging.getLogger("localspec.loading")


def calm(others: Callable[[], float | None]) -> bool:
    """Whether other processes leave the machine alone, as far as one can see.

    On a busy one passes take as long as the system lets threads wait for one another, whatever they
    compute: a copy of 0.7 of the time was found to take 0.97, and what is kept would be wrong.

    Args:
        others: cores that other processes use at present; None where nobody knows.
    """
    used = others()
    return used is None or used < BUSY


def pair_of(target: Model, options: ModelOptions) -> Pair:
    """By what a pair is known again whose draft model's file is known besides.

    Args:
        options: those of the pair.

    Raises:
        OSError: a file is gone.
    """
    adapters = options.draft_adapters
    facts = cost_identity([target], options) | {
        "lora_draft": [adapted_identity(one.path, [one]) for one in adapters]
    }
    return Pair(target.path, fingerprint(facts)[:24])


def words(verdict: CopyVerdict) -> str:
    """What to tell the user of a copy that is used, a sentence; empty for an original."""
    if verdict.copy is None:
        return ""
    text = (
        f"The draft is used as a {requantized_draft.QUANT} copy: "
        f"{verdict.copy.ratio:.2f} of the time"
    )
    if verdict.acceptance is not None:
        original, copy = verdict.acceptance
        text += f", accepted {copy:.2f} instead of {original:.2f} of the time"
    return f"{text}."


def weigh(
    target: Context | SharedContext,
    original: Model,
    requantized: Model,
    copy: Copy,
    options: ModelOptions,
    quiet: Callable[[], bool],
) -> CopyVerdict | None:
    """Measure what a copy is worth to a pair; None where that fails, or was disturbed.

    Args:
        target: empty, and left empty.
        original, requantized: the draft model and its copy, open, of the target's vocabulary.
        options: those of the pair.
        quiet: see `calm`.
    """
    try:
        with _passes(target, options) as passes:
            verdict = _compare(passes, original, requantized, copy, options)
        if quiet():
            return verdict
        logger.info("other processes compute: %s is compared another time", copy.path.name)
        return None
    except (OSError, LocalspecError) as error:
        logger.warning("the draft model is used as it is: %s", error)
        return None


def promises_more(
    ratio: float,
    accepted: npt.NDArray[np.float64],
    cost: float,
    curve: Sequence[float],
) -> bool:
    """Whether a copy is worth more than its original.

    Both are taken at their best depth. Where neither gains at any, the original stays.

    Args:
        ratio: seconds of a pass of the copy ÷ the original's.
        accepted: chance that their tokens are accepted at each place, [original and copy, places].
        cost: of a pass of the original, in passes of the target.
        curve: T(n) ÷ T(1) of the target, from n = 1 on.
    """
    original, copy = (float(chances.mean()) for chances in accepted)
    places = accepted.shape[1]
    if places < 2:
        return False
    unsure = float((accepted[1] - accepted[0]).std(ddof=1)) / math.sqrt(places)
    least = max(0.0, copy - unsure)
    return best(ratio * cost, least, curve).speed_up > best(cost, original, curve).speed_up


def _compare(
    target: Context, original: Model, requantized: Model, copy: Copy, options: ModelOptions
) -> CopyVerdict:
    from localspec.llama.context import Context

    small = _small(options.for_draft(ROOM))
    with ExitStack() as opened:
        drafts = [
            opened.enter_context(closing(Context(one, small))) for one in (original, requantized)
        ]
        accepted = acceptances(target, drafts)
        curve = _known_curve([original, requantized], target.model, options)
        if curve is None:
            curve = measured_curve(target, CALIBRATION)
        cost = _cost(target, drafts[0])
    better = promises_more(copy.ratio, accepted, cost, curve)
    before, after = (float(chances.mean()) for chances in accepted)
    logger.info(
        "%s beside %s: a pass costs %.2f of the target's, a copy's %.2f; right in %.2f and %.2f of "
        "all places; the %s is used",
        original.path.name,
        target.model.path.name,
        cost,
        cost * copy.ratio,
        before,
        after,
        "copy" if better else "original",
    )
    return CopyVerdict(copy if better else None, (before, after))


def _cost(target: Context, draft: Context) -> float:
    """Seconds of a pass of a draft model over one token ÷ the target's: the mean of one right
    behind a pass of the target, which takes the processor's caches, and of a second one. The median
    of ratios within a round, so that a change of the machine's pace cancels out."""
    ratios = []
    for context in (target, draft):
        context.extend([1], 1)
    for _ in range(ROUNDS):
        seconds = []
        for context, passes in ((target, 1), (draft, 2)):
            before = context.native_seconds
            for _ in range(passes):
                context.extend([1], 1)
            seconds.append((context.native_seconds - before) / passes)
        ratios.append(seconds[1] / seconds[0])
    for context in (target, draft):
        context.clear()
    return median(ratios)


def _known_curve(
    drafts: Sequence[Model], target: Model, options: ModelOptions
) -> tuple[float, ...] | None:
    """What earlier sessions measured of the target: with either draft, or alone."""
    from localspec.llama import library

    threads = options.fixed_threads or library.default_threads()
    for models in (*([target, draft] for draft in drafts), [target]):
        profile = PairProfile()
        profile.use_threads(threads, threads)
        if ProfileStore(cost_identity(models, options)).load(profile) and profile.target:
            return relative_curve(profile.target)
    return None


@contextmanager
def _passes(target: Context | SharedContext, options: ModelOptions) -> Iterator[Context]:
    """A cache of the target for a few short texts: its own, unless that is short, or for several
    answers."""
    from localspec.llama.shared_context import SharedContext
    from localspec.loading.places import open_context

    if isinstance(target, SharedContext) or target.capacity < ROOM:
        with closing(open_context(target.model, _small(options))) as own:
            yield own
        return
    try:
        yield target
    finally:
        target.clear()


def _small(options: ModelOptions) -> ModelOptions:
    return replace(options, context=ROOM, batch=128, parallel=1, parallel_chunk=128)
