"""`localspec run`, stopped and continued at random moments: its text stays the same. Run by
`tools.endure`."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time

from tools.endure.outcome import Outcome, tell

COMMAND = (sys.executable, "-m", "localspec", "run", "-m", "demo")
RUN = (*COMMAND, "Once upon a time", "--temp", "0", "-n", "150")
WAYS = (("-d", "none", "--drafter", "none"), ("--exact",))
"""Those that promise the same text whatever the time does to plans."""
RUNNING, STOPPED = (0.05, 0.6), (0.02, 0.5)
"""Seconds."""
PATIENCE = 300.0


def suspended(count: int, seed: int) -> Outcome:
    outcome = Outcome("commands stopped and continued", unit="commands")
    wanted = [_run(way, None)[0] for way in WAYS]
    stops = 0
    for number in range(count):
        which = number % len(WAYS)
        said, stopped = _run(WAYS[which], random.Random(f"{seed}/{number}"))
        outcome.count += 1
        stops += stopped
        if said != wanted[which]:
            outcome.failures.append(f"{number}, {WAYS[which]}: {said!r}, not {wanted[which]!r}")
    if not stops:
        outcome.failures.append("none was stopped before it ended")
    ways = " or ".join(" ".join(way) for way in WAYS)
    outcome.seen = f"stopped {stops} times; {ways}, {len(wanted[0][1])} characters each"
    return outcome


def _run(way: tuple[str, ...], dice: random.Random | None) -> tuple[tuple[int, str], int]:
    """Exit code and text of one, stopped at random moments, and how often it was."""
    with subprocess.Popen([*RUN, *way, "-q"], stdout=subprocess.PIPE, text=True) as process:
        watchdog = threading.Timer(PATIENCE, process.kill)
        watchdog.start()
        stops = 0
        while dice is not None and process.poll() is None:
            time.sleep(dice.uniform(*RUNNING))
            if process.poll() is None:
                process.send_signal(signal.SIGSTOP)
                time.sleep(dice.uniform(*STOPPED))
                process.send_signal(signal.SIGCONT)
                stops += 1
        assert process.stdout is not None
        text = process.stdout.read()
        watchdog.cancel()
    return (process.returncode, text), stops


if __name__ == "__main__":
    tell(suspended(int(sys.argv[2]), int(sys.argv[3])))
