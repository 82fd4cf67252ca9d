"""Killed while it saves, the next start reads the session before or the new one, never a part."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from localspec.sessions.session_file import SessionFile

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no signal that stops a process"),
]

REPOSITORY = Path(__file__).parents[2]
KILLS = 30
SAVES = """
import itertools, sys
from pathlib import Path
import numpy as np
from localspec.sessions.session_file import write

for number in itertools.count():
    write(Path(sys.argv[1]), {"number": number}, {"numbers": np.full(2_000_000, number, np.int32)})
    print(number, flush=True)
"""


def test_thirty_kills(tmp_path: Path) -> None:
    path, dice = tmp_path / "killed.session", random.Random(7)
    within = 0
    for _ in range(KILLS):
        child = subprocess.Popen(
            [sys.executable, "-c", SAVES, str(path)], cwd=REPOSITORY, stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        for _ in range(dice.randint(1, 4)):
            least = int(child.stdout.readline())
        child.send_signal(signal.SIGSTOP)
        for _ in range(200):  # until it is in the middle of a file
            if list(tmp_path.glob("*.partial")):
                break
            child.send_signal(signal.SIGCONT)
            time.sleep(dice.uniform(0.0, 0.01))
            child.send_signal(signal.SIGSTOP)
        within += bool(list(tmp_path.glob("*.partial")))
        child.kill()
        child.wait()
        child.stdout.close()
        file = SessionFile(path)
        assert file.facts["number"] >= least
        assert (file.part("numbers") == file.facts["number"]).all()
    assert within > KILLS // 2, "most are in the middle of a file"
