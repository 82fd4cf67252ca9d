"""Why a step of `auto` is drafted or not, in the words that users read."""

from __future__ import annotations

from localspec.decoding.interfaces import Plan
from localspec.planning.answer_state import LookupValue
from localspec.planning.resting import RESTING

UNMEASURED = Plan(None, reason="the cost of a pass is not measured yet")
NOTHING = Plan(None, reason="nothing repeats here, and there is no draft model")
TOO_SHORT = Plan(
    None,
    reason="nothing repeats here, and the draft model would hardly earn back in this answer what "
    "it takes to read the prompt",
)
CONFIRMING = Plan(None, reason="passes have changed their pace, and a plain one tells by how much")
UNCOVERED = Plan(
    None, reason="drafting has cost more than it saved lately, and waits until that is made up for"
)
UNLIKELY = Plan(None, reason="what was looked up is too unlikely to pay for its verification")
LOSING = Plan(None, reason="the draft model has not paid for itself lately; it is asked again soon")
LEADING = "the draft model leads"
COPYING = "the text repeats itself"
LOOKING_AHEAD = "looking ahead costs little here"
REVIEWING = "the draft model has not paid for itself lately, and is tried on the last few tokens"
ASLEEP = Plan(None, reason=RESTING)
HOPELESS = Plan(
    None, reason="passes are so short here that planning drafts costs more than it brings"
)


def reason(asks: str | None, reviews: str | None, looked_up: LookupValue) -> str:
    """Why something is verified, in words."""
    if reviews is not None:
        return REVIEWING
    if asks is not None:
        return LEADING
    return COPYING if looked_up.pays else LOOKING_AHEAD
