"""Programs of a model: what passes, and what the limits stop."""

import pytest

from localspec.quality import programs

pytestmark = [pytest.mark.nightly, pytest.mark.skipif("sys.platform == 'win32'")]


@pytest.mark.parametrize(
    ("program", "right"),
    [
        ("assert 1 + 1 == 2", True),
        ("assert 1 + 1 == 3", False),
        ("import sys\nsys.exit(0)", False),
        ("import os\nos._exit(0)", False),
        ("this is not a program", False),
        ("import math\nassert math.isqrt(9) == 3\nprint('said')", True),
    ],
)
def test_program_that_ends_passes(program: str, right: bool) -> None:
    assert programs.runs_to_end(program) == right


@pytest.mark.parametrize(
    "harm",
    [
        "kept = bytearray(1 << 30)",
        "open('large', 'wb').write(bytes(4 << 20))",
        "print('x' * (2 << 20))",
        "files = [open('/dev/null') for _ in range(64)]",
        "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (60, 60))",
    ],
    ids=["memory", "disk", "output", "files", "more time"],
)
def test_resource_limits(harm: str) -> None:
    assert not programs.runs_to_end(harm)


def test_endless_programs_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "SECONDS", 0.5)
    assert not programs.runs_to_end("import time\nwhile True: time.sleep(0.1)")


def test_no_network() -> None:
    if not programs.without_network():
        pytest.skip("this system does not let users have namespaces")
    assert programs.runs_to_end(
        "import socket\n"
        "try:\n    socket.create_connection(('127.0.0.1', 1), 1)\n"
        "except OSError as error:\n    assert error.errno in (101, 99), error\n"
    )
