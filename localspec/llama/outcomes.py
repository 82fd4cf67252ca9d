import json
import logging
from pathlib import Path
from typing import Any

from localspec import paths
from localspec.files import write_atomically
from localspec.identity import fingerprint

logger = logging.getLogger("localspec.llama")


class Outcomes:
    """A JSON file in the cache folder with the latest `most` outcomes of trials, by facts."""

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, most

    @property
    def path(self) -> Path:
        return paths.cache_folder() / f"{self._name}.json"

    def all(self) -> dict[str, dict[str, Any]]:
        """All outcomes, oldest first; empty if the file cannot be used."""
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(found, dict):
            return {}
        return {key: one for key, one in found.items() if isinstance(one, dict)}

    def get(self, facts: dict[str, Any]) -> dict[str, Any] | None:
        """The outcome for these facts; None if untried."""
        return self.all().get(fingerprint(facts))

    def store(self, facts: dict[str, Any], outcome: dict[str, Any]) -> None:
        """Store an outcome, if the file can be written."""
        known = self.all()
        known.pop(key := fingerprint(facts), None)
        known[key] = outcome
        self.write(known)

    def write(self, outcomes: dict[str, dict[str, Any]]) -> None:
        """Replace the file with the latest of these outcomes, if it can be written."""
        latest = dict([*outcomes.items()][-self._most :])
        try:
            write_atomically(self.path, json.dumps(latest, indent=1))
        except (OSError, ValueError) as error:
            logger.info("could not keep the outcome of a trial: %s", error)
