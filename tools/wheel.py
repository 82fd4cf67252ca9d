"""Build the wheel for release: twice, with equal results, a checksum and a list of parts.

    python -m tools.wheel [--to dist]

The second build is from a copy with other file times and another path. The wheel has the compiled
kernels, unless LOCALSPEC_BUILD_KERNELS is off. The list of parts (SBOM, CycloneDX) has the wheel,
its compiled code, and its dependencies. `cyclonedx-py` of the extra `release` lists a whole
environment, from which the wheel's transitive requirements are kept, by the markers of this
platform and without extras.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from email import message_from_bytes
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parents[1]
PARTS = ("localspec", "models", "hatch_build.py", "pyproject.toml", "README.md", "LICENSE")


def build(source: Path, to: Path) -> Path:
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(to)]
    env = {"LOCALSPEC_BUILD_KERNELS": "require"} | os.environ
    done = subprocess.run(command, cwd=source, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"The wheel cannot be built:\n{done.stdout}{done.stderr}")
    (wheel,) = to.glob("*.whl")
    return wheel


def copy(to: Path) -> Path:
    """The sources elsewhere, as if they had been written at another time."""
    to.mkdir()
    for name in PARTS:
        source = REPOSITORY / name
        if source.is_dir():
            made = shutil.ignore_patterns("__pycache__", "*.so", "*.dylib")
            shutil.copytree(source, to / name, ignore=made)
        else:
            shutil.copyfile(source, to / name)
    for path in to.rglob("*"):
        os.utime(path, (1e9, 1e9))
    return to


def twice(folder: Path) -> Path:
    """The wheel, in an empty folder; SystemExit if two builds differ."""
    wheel = build(REPOSITORY, folder / "one")
    again = build(copy(folder / "copy"), folder / "two")
    if wheel.read_bytes() != again.read_bytes():
        raise SystemExit(f"Two builds of {wheel.name} differ. Compare them: diffoscope.org")
    return wheel


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


def parts(tool: str, wheel: Path, sha256: str) -> dict[str, Any]:
    """The list; `tool` is the path of `cyclonedx-py`."""
    command = [tool, "environment", "--pyproject", "pyproject.toml", "--output-reproducible"]
    command += ["--of", "JSON", sys.executable]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=Path, default=REPOSITORY / "dist", help="default dist")
    to: Path = parser.parse_args().to
    to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        wheel = Path(shutil.copy(twice(Path(folder)), to))
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (to / "SHA256SUMS").write_text(f"{digest}  {wheel.name}\n")
    print(f"{wheel}: built twice, equal, sha256 {digest}")
    tool = shutil.which("cyclonedx-py", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if tool is None:
        print("No list of parts: install the extra 'release' to create it.")
        return
    path = to / f"{wheel.stem}.cdx.json"
    found = parts(tool, wheel, digest)
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{path}: the wheel and {len(found['components'])} parts that it needs here, CycloneDX")


if __name__ == "__main__":
    main()
