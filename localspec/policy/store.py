"""Storage of profiles: one JSON file per machine × pair × settings × library."""

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from localspec import paths
from localspec.files import read_file, write_atomically
from localspec.identity import fingerprint
from localspec.policy.profile import PairProfile

FORMAT = 9  # increased when records change; older ones are dropped, and measured again

LATELY = 180.0  # seconds after which a debt of the budget is forgiven

logger = logging.getLogger("localspec.policy.store")


class ProfileStore:
    """Loads and saves the profile of one pair. Never raises, as everything can be measured again.

    Args:
        identity: everything that the figures depend on, as JSON values.
    """

    def __init__(self, identity: dict[str, Any], *, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self.identity = identity = identity | {"format": FORMAT}
        self.path = folder() / f"{fingerprint(identity)[:24]}.json"

    def load(self, profile: PairProfile) -> bool:
        """Load an earlier session's measurements; False if there are none (valid)."""
        try:
            stored = json.loads(read_file(self.path))
            if stored["identity"] != self.identity:
                return False
            profile.restore(stored["profile"])
            if abs(self._now() - float(stored["saved_at"])) > LATELY:
                profile.budget.cancel_debt()
        except FileNotFoundError:
            return False
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            logger.warning(
                "measurements in %s cannot be used, and are repeated: %s", self.path, error
            )
            return False
        return True

    def save(self, profile: PairProfile) -> None:
        record = {
            "identity": self.identity,
            "saved_at": self._now(),
            "profile": profile.as_dict(),
        }
        try:
            write_atomically(self.path, json.dumps(record))
        except OSError as error:
            logger.warning("measurements cannot be kept in %s: %s", self.path, error)

    def remove(self) -> None:
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("measurements in %s cannot be removed: %s", self.path, error)


def folder() -> Path:
    return paths.cache_folder() / "measurements"
