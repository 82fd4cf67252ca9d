"""Build the wheel for release: twice, with equal results, a checksum and a list of parts.

    python -m tools.wheel [--to dist]

The second build is from a copy with other file times and another path. The wheel has the compiled
kernels, unless LOCALSPEC_BUILD_KERNELS is off. The list of parts (SBOM, CycloneDX) needs
`cyclonedx-py` of the extra `release`.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.parts import parts

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
    found = parts(tool, wheel, digest, REPOSITORY)
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{path}: the wheel and {len(found['components'])} parts that it needs here, CycloneDX")


if __name__ == "__main__":
    main()
