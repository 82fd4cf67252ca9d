"""Copying through clipboard programs, for terminals that block OSC 52."""

import os
import shutil
import subprocess
from contextlib import suppress

_PROGRAMS = {
    "pbcopy": "",
    "wl-copy": "WAYLAND_DISPLAY",
    "xclip -selection clipboard": "DISPLAY",
    "xsel --clipboard --input": "DISPLAY",
    "tmux load-buffer -w -": "TMUX",
}
"""Commands that read a text, and the environment variable that each requires."""


def copy_text(text: str) -> None:
    """Copy a text with every available program; failures are ignored."""
    for command, variable in _PROGRAMS.items():
        name, *options = command.split()
        program = shutil.which(name)
        if program is None or not (os.environ.get(variable) or not variable):
            continue
        whole, data, nothing = [program, *options], text.encode(), subprocess.DEVNULL
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                whole, input=data, stdout=nothing, stderr=nothing, timeout=5, check=False
            )
