"""List the parts of a wheel (SBOM, CycloneDX): itself, its compiled code, and its dependencies.

`cyclonedx-py` lists a whole environment, from which the wheel's transitive requirements are kept,
by the markers of this platform and without extras.
"""

import hashlib
import json
import subprocess
import sys
import zipfile
from email import message_from_bytes
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def dependencies(wheel: Path) -> set[str]:
    """Distributions that a wheel needs, transitively; SystemExit if one is not installed."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = message_from_bytes(archive.read(name))
    found: set[tuple[str, str]] = set()
    todo = [("", text) for text in metadata.get_all("Requires-Dist", [])]
    while todo:
        extra, text = todo.pop()
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
            continue
        distribution = canonicalize_name(wanted.name)
        for asked in ("", *wanted.extras):
            if (distribution, asked) in found:
                continue
            found.add((distribution, asked))
            try:
                todo += [(asked, more) for more in requires(distribution) or ()]
            except PackageNotFoundError:
                raise SystemExit(
                    f"{distribution} is needed and not installed here. Run 'make wheel'."
                ) from None
    return {distribution for distribution, _ in found}


def shared_libraries(wheel: Path, version: str) -> list[dict[str, Any]]:
    """Its shared libraries."""
    with zipfile.ZipFile(wheel) as archive:
        return [
            {
                "type": "library",
                "bom-ref": name,
                "name": name,
                "version": version,
                "hashes": [
                    {"alg": "SHA-256", "content": hashlib.sha256(archive.read(name)).hexdigest()}
                ],
            }
            for name in sorted(archive.namelist())
            if name.endswith((".so", ".dylib"))
        ]


def parts(tool: str, wheel: Path, sha256: str, project: Path) -> dict[str, Any]:
    """The list; `tool` is the path of `cyclonedx-py`, `project` the folder of pyproject.toml."""
    command = [tool, "environment", "--pyproject", "pyproject.toml", "--output-reproducible"]
    command += ["--of", "JSON", sys.executable]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    names = dependencies(wheel)
    found["components"] = [
        one for one in found["components"] if canonicalize_name(one["name"]) in names
    ]
    itself = found["metadata"]["component"]
    itself["hashes"] = [{"alg": "SHA-256", "content": sha256}]
    itself["components"] = shared_libraries(wheel, itself["version"])
    kept = {itself["bom-ref"], *(one["bom-ref"] for one in found["components"])}
    found["dependencies"] = [
        one | {"dependsOn": [ref for ref in one.get("dependsOn", ()) if ref in kept]}
        for one in found["dependencies"]
        if one["ref"] in kept
    ]
    return found
