"""Options that say what is kept of a conversation."""

from __future__ import annotations

from pathlib import Path

from localspec.cli.options import in_panel

_session = in_panel("Sessions")

SESSION = {
    "session": _session(
        Path,
        "--session",
        metavar="FILE",
        help="Go on with the conversation in this file, and keep it there with what the models "
        "have read, so that it need not be decoded again. The file is made where there is none.",
    ),
    "prompt_cache": _session(
        str,
        "--prompt-cache",
        metavar="SIZE",
        help="Keep by itself what was read of conversations, up to this size on disk (2GB), the "
        "least recently used ones dropped; prompts that begin like one of them are not decoded "
        "again. Default 0, nothing. (LOCALSPEC_PROMPT_CACHE)",
    ),
}
"""The conversation in a file of its own, and those that are kept without being asked."""
