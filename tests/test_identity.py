"""What a stored figure is known by."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from localspec.identity import file_identity, fingerprint, machine


def test_files_are_known_by_name_size_and_time(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"1234")
    first = file_identity(path)
    assert (first["name"], first["size"]) == ("a.gguf", 4)
    os.utime(path, ns=(0, first["modified"] + 1))
    assert file_identity(path) != first
    os.utime(path, ns=(0, first["modified"]))
    assert file_identity(path) == first
    path.write_bytes(b"12345")
    os.utime(path, ns=(0, first["modified"]))
    assert file_identity(path) != first


def test_a_file_that_is_gone_has_no_identity(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        file_identity(tmp_path / "a.gguf")


def test_machine_is_the_same_each_time_and_fits_into_json() -> None:
    assert machine() == machine()
    assert json.loads(json.dumps(machine())) == machine()


def test_order_of_the_facts_does_not_matter() -> None:
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})
