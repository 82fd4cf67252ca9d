"""Options that save conversations."""

from __future__ import annotations

from pathlib import Path

from localspec.cli.options import in_panel

_session = in_panel("Sessions")

SESSION = {
    "session": _session(
        Path,
        "--session",
        "FILE",
        "Continue the conversation in this file and save it there, with the models' caches. "
        "The file is created if it does not exist.",
    ),
    "prompt_cache": _session(
        str,
        "--prompt-cache",
        "SIZE",
        "Cache conversations on disk, up to this size (2GB); the least recently used are "
        "dropped. Default 0: off. (LOCALSPEC_PROMPT_CACHE)",
        advanced=True,
    ),
}
