"""What is kept of conversations besides the history: by default nothing."""

from __future__ import annotations

from dataclasses import dataclass

from localspec.errors import UsageError
from localspec.tui.control.host import Host


@dataclass(frozen=True, slots=True)
class Switch:
    """A command and the preference of that name; `on`, `off`: sentences for the user."""

    name: str
    on: str
    off: str


def turn(host: Host, switch: Switch, argument: str) -> None:
    """Set a switch, or only report it; UsageError for another argument."""
    if argument not in ("", "on", "off"):
        raise UsageError(f"/{switch.name} takes on or off.")
    if argument == "on" and switch is LEARN:
        from localspec.retrieval import learning

        learning.require()  # raises where a package is missing
    if argument:
        setattr(host.preferences, switch.name, argument == "on")
        follow(host)
        host.save_preferences()
    host.tell(switch.on if getattr(host.preferences, switch.name) else switch.off)


def follow(host: Host) -> None:
    host.conversing.learns = host.preferences.learn
    host.conversing.records = host.preferences.record


LEARN = Switch(
    "learn",
    "Conversations are learned from now on, each after its next answer. A second copy is kept as "
    "tokens in localspec's data folder, and drafts are looked up there. The output does not "
    "change. Deleting a conversation deletes that copy too; /learn off ends it.",
    "Conversations are not learned. What was learned of earlier ones stays until they are deleted, "
    "or until 'localspec learn --forget history'. /learn on begins it.",
)
RECORD = Switch(
    "record",
    "Answers are recorded from now on: prompt and answer as tokens, with the 32 likeliest tokens "
    "at each position, in localspec's data folder, for 'localspec distill' "
    "to train a draft with. The output does not change, and nothing leaves the "
    "machine. Deleting a conversation removes what was recorded of it; 'localspec distill --list' "
    "shows how much there is, and where; /record off ends it.",
    "Answers are not recorded. What was recorded of earlier ones stays until their conversations "
    "are deleted, or until 'localspec distill --forget history'. /record on begins it.",
)
