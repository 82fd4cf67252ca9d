"""localspec's CPU kernels, and the fallback to llama.cpp's with a reason.

Faults are tested in a copy of the package with a damaged library.
"""

import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest

import localspec
from localspec import Drafting, ModelOptions, SamplingParams, paths
from localspec.decoding.sampling import Rows
from localspec.decoding.tree import ROOT
from localspec.kernels import library_path
from localspec.llama import child_process, ggml, kernels_file, sequences
from localspec.llama import kernels as decided
from localspec.llama.context import Context
from localspec.llama.kernels_file import BUFFER, load, supported
from localspec.llama.kernels_test import Backend, SelfTest
from localspec.llama.model import Model
from localspec.loading.caches import cost_identity
from tests.cli.process import environment, finished, run_python
from tests.support.ggufs import tiny_llama
from tests.support.toys import token_tree

pytestmark = pytest.mark.nightly

PACKAGE = Path(localspec.__file__).parent
GREEDY = SamplingParams(temperature=0.0)
STORY = "Once upon a time there was a fox."


class PackageCopy:
    """A copy of the package in its own folder, which runs `localspec run`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        package = folder / "localspec"
        shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
        models = paths.embedded(paths.EMBEDDED_TARGET).parent
        if not (package / "models").exists():
            (folder / "models").symlink_to(models)
        self.library = package / library_path().relative_to(PACKAGE)
        self.original = self.library.read_bytes()

    def change(self, change: Callable[[bytes], bytes] | None) -> None:
        """Replace the library; None removes it."""
        self.library.unlink(missing_ok=True)
        if change is not None:
            self.library.write_bytes(change(self.original))

    def run(self, *arguments: str, **variables: str) -> tuple[str, dict[str, Any]]:
        """The answer and its statistics."""
        env = environment(PYTHONPATH=str(self.folder)) | variables
        asked = ("run", STORY, "--raw", "--temp", "0", "-n", "16", "--json", "-t", "1", *arguments)
        done = finished(*asked, cwd=self.folder, env=env)
        assert (done.code, done.err) == (0, "")
        return done.json["text"], done.json["stats"]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> PackageCopy:
    if not library_path().is_file():
        pytest.skip(f"{library_path()} was not built, see docs/install.md")
    return PackageCopy(tmp_path_factory.mktemp("copy"))


def other_version(library: bytes) -> bytes:
    here = f"llama-cpp-python {llama_cpp.__version__}".encode()
    assert here in library
    return library.replace(here, here[:-1] + b"x")


def wrong_table(library: bytes) -> bytes:
    """Change one value of the table of IQ4_NL, stored as bytes or with an offset of 128."""
    table = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
    for moved in (0, 128):
        right = bytes((value + moved) % 256 for value in table)
        if right in library:
            return library.replace(right, right[:5] + bytes([right[5] ^ 16]) + right[6:])
    raise AssertionError("the library has no table of IQ4_NL")


def test_kernels_are_used_and_reported(copy: PackageCopy) -> None:
    copy.change(lambda library: library)
    text, stats = copy.run()
    assert stats["kernels"].startswith("localspec's, ")
    plain, _ = copy.run("--drafter", "none")
    assert text == plain
    off, stats = copy.run("--kernels", "off", "--drafter", "none")
    assert stats["kernels"] == "llama.cpp's: the option kernels is off"
    assert off.split()[:3] == plain.split()[:3]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (None, "they were not built: install a C++ compiler, then reinstall localspec"),
        (lambda library: b"", "cannot be loaded"),
        (lambda library: library[: len(library) // 2], "reinstall localspec"),
        (other_version, "they were built for llama-cpp-python"),
        (wrong_table, "their self-test failed: MUL_MAT over IQ4_NL with n = 65 is wrong in row"),
    ],
    ids=["missing", "empty", "truncated", "another version", "wrong_table"],
)
def test_fallback_without_a_valid_library(
    copy: PackageCopy, tmp_path: Path, change: Callable[[bytes], bytes] | None, words: str
) -> None:
    copy.change(change)
    text, stats = copy.run(LOCALSPEC_HOME=str(tmp_path))
    assert stats["kernels"].startswith("llama.cpp's: ")
    assert words in stats["kernels"]
    assert text == copy.run("--kernels", "off", LOCALSPEC_HOME=str(tmp_path))[0]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("off", "the option kernels is off"),
        ("neon-dotprod" if sys.platform != "darwin" else "avx2", "requests "),
    ],
)
def test_environment_variable_selects_kernels(copy: PackageCopy, value: str, words: str) -> None:
    if os.uname().machine in ("aarch64", "arm64"):
        value = value.replace("neon-dotprod", "avx2")
    copy.change(lambda library: library)
    _, stats = copy.run(LOCALSPEC_KERNELS=value)
    assert stats["kernels"].startswith("llama.cpp's: ")
    assert words in stats["kernels"]


def test_all_instruction_sets_give_the_same_answer(copy: PackageCopy) -> None:
    copy.change(lambda library: library)
    found = {name: copy.run(LOCALSPEC_KERNELS=name) for name in supported(load(library_path()))}
    assert found
    for name, (_, stats) in found.items():
        assert stats["kernels"] == f"localspec's, {name}"
    assert len({text for text, _ in found.values()}) == 1


def test_models_with_and_without_kernels_in_one_process(kernels: None) -> None:
    before = decided.taken_count()
    with localspec.load(context=256, threads=1, kernels="off") as stock:
        assert decided.taken_count() == before
        assert not stock.model.kernels.in_use
        with localspec.load(context=256, threads=1) as ours:
            assert decided.taken_count() > before
            assert ours.model.kernels.in_use
            assert ours.draft is not None
            assert ours.draft.kernels.in_use
            for engine in (stock, ours):
                words = {
                    engine.generate(STORY, max_tokens=24, sampling=GREEDY, drafting=how).text
                    for how in (Drafting(drafter="none"), Drafting(drafter="model", depth=3))
                }
                assert len(words) == 1
            tokens = ours.tokenize(STORY)
            # Different kernels give close, but not equal numbers.
            rows = [engine.logits(tokens) for engine in (stock, ours)]
            assert 0.0 < abs(rows[0] - rows[1]).max() < 2.0
            identities = [
                cost_identity([engine.model], ModelOptions())["kernels"] for engine in (stock, ours)
            ]
            assert identities[0] == ["stock"] != identities[1]


def test_restored_state_is_in_the_order_of_positions(
    kernels: None, target_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After trees, cells are out of order, also in a state; the next row is the same."""
    options = ModelOptions(context=256, threads=1)

    with Model(target_path, options) as model:

        def row(context: Context) -> Rows:
            return np.array(context.extend([77])[-1])

        def restored() -> Rows:
            with closing(Context.open(model, options)) as other:
                other.set_state(held, state)
                return row(other)

        with closing(Context.open(model, options)) as context:
            context.extend([*range(40, 60)])
            for _ in range(4):
                tree = token_tree(*((token, ROOT) for token in range(60, 68)))
                context.branch([50], tree)
                context.commit(tree, [7])
            context.extend([*range(70, 90)])
            held, state = list(context.tokens), context.state()
            after_trees = row(context)
        with closing(Context.open(model, options)) as fresh:
            fresh.extend(held)
            plain = row(fresh)
        assert np.array_equal(after_trees, plain)
        assert np.array_equal(restored(), plain)
        monkeypatch.setattr(sequences, "positions", lambda _: None)
        assert not np.array_equal(restored(), plain), "here the order of cells makes a difference"


def test_models_whose_weights_move_or_stay(
    kernels: None, target_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Model(target_path, ModelOptions(context=64, gpu_layers=1)) as with_device:
        assert with_device.kernels.in_use
    with Model(target_path, ModelOptions(), vocabulary_only=True) as words:
        assert words.kernels.why_not == "its weights are used as stored in the file"
    monkeypatch.setattr(ggml, "cpu_weight_buffers", lambda: {"AMX": 1})
    with Model(target_path, ModelOptions(context=64)) as for_amx:
        assert not for_amx.kernels.in_use


def test_crashed_or_hanging_self_test_fails(kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def why_not(program: str, since: float | None = None) -> str:
        """The status of a new process; `since`: seconds since a self-test that is kept hung."""
        kept = since and {"why_not": "it hung before", "failed": time.time() - since}
        command = [sys.executable, "-c", program]
        monkeypatch.setattr(child_process, "command", lambda *_: command)
        monkeypatch.setattr(kernels_file.self_tests, "get", lambda _: kept)
        monkeypatch.setattr(decided, "_decided", None)
        return str(decided.status().why_not)

    monkeypatch.setattr(kernels_file.self_tests, "store", lambda *_: None)
    crashes, hangs = "import os; os.abort()", "import threading; threading.Event().wait()"
    assert why_not(crashes).startswith("their self-test crashed (signal 6)")
    for since, why in ((60.0, "it hung before"), (4000.0, "their self"), (-4000.0, "their self")):
        assert why_not(crashes, since).startswith(why)
    monkeypatch.setattr(decided, "TIMEOUT", 0.2)
    hung = why_not(hangs)
    assert hung.startswith("their self-test hung; it is repeated in an hour")


def test_self_test_detects_varying_bits(kernels: None) -> None:
    """Rows of llama.cpp's layout depend on the size of the pass."""
    layouts = ggml.cpu_weight_buffers()
    with Backend(1) as backend:
        assert SelfTest(backend, layouts[BUFFER], (1, 4, 8)).first_fault() is None
        other = next(layout for name, layout in layouts.items() if name == "CPU_REPACK")
        fault = SelfTest(backend, other, (1, 4, 8)).first_fault()
    assert fault is not None
    assert "gives different bits than with n = 8" in fault


HUGE_PAGES_PROGRAM = """
import ctypes, mmap, sys, threading, time
from pathlib import Path
import localspec
from localspec.llama import compute_thread

def huge_kb():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("AnonHuge")).split()[1])

def answer():
    sampling = localspec.SamplingParams(temperature=0.0)
    return engine.stream("Once upon a time", max_tokens=8, sampling=sampling).completion().text

THP_DISABLE, COLLAPSE, libc = 41, 25, ctypes.CDLL(None)
memory = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.write(bytes(8 << 20))
try:
    memory.madvise(COLLAPSE)
except OSError as error:
    sys.exit(f"cannot collapse: {error}")
memory.close()
assert libc.prctl(THP_DISABLE, 1, 0, 0, 0) == 0
enabled, when_idle = threading.Event(), compute_thread.when_idle
compute_thread.when_idle = lambda step: when_idle(lambda: enabled.is_set() and step())
with localspec.load(draft=None, options=localspec.ModelOptions(context=256)) as engine:
    before, usual = answer(), huge_kb()
    assert libc.prctl(THP_DISABLE, 0, 0, 0, 0) == 0
    enabled.set()
    answer()
    until = time.monotonic() + 60
    while huge_kb() < usual + (8 << 10) and time.monotonic() < until:
        time.sleep(0.1)
    print(usual, huge_kb(), answer() == before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="pages of Linux")
def test_idle_thread_moves_weights_into_huge_pages(kernels: None) -> None:
    done = run_python(HUGE_PAGES_PROGRAM)
    if "cannot collapse" in done.err:
        pytest.skip(done.err)
    assert (done.code, done.err) == (0, "")
    usual, huge, same = done.out.split()
    assert int(usual) < 2048
    assert int(huge) > 8192, "of 14 MB"
    assert same == "True"


BARRIER_PROGRAM = """
import sys
from contextlib import closing
from pathlib import Path
from threading import Thread

import numpy as np

from localspec import ModelOptions
from localspec.llama import compute_thread
from localspec.llama.context import Context
from localspec.llama.model import Model

compute_thread.is_current = lambda: True  # passes run in several threads, as by other packages


def compute(option, threads, rows):
    options = ModelOptions(context=256, threads=threads, kernels=option)
    with Model(Path(sys.argv[1]), options) as model:
        with closing(Context.open(model, options)) as context:
            for _ in range(100):
                context.clear()
                rows.append(np.array(context.extend([*range(40, 60)])[-1]))


ways = [("auto", 1), ("off", 1), ("auto", 2), ("off", 2), ("auto", 5)]
rows = [[] for _ in ways]
for way, found in list(zip(ways, rows))[:2]:
    compute(*way, found)
threads = [Thread(target=compute, args=(*way, found)) for way, found in zip(ways, rows)]
for thread in threads[2:]:
    thread.start()
for thread in threads[2:]:
    thread.join()
print({(way[0], row.tobytes() == rows[way[0] == "off"][0].tobytes())
       for way, found in zip(ways, rows) for row in found} == {("auto", True), ("off", True)})
"""


def test_teams_with_and_without_kernels_compute_at_once(kernels: None, target_path: Path) -> None:
    """Each team of threads waits with one barrier: they come to an end, with the same bits."""
    done = run_python(BARRIER_PROGRAM, target_path)
    assert (done.code, done.out, done.err) == (0, "True\n", "")


def reuses(context: Context, sizes: list[int]) -> int:
    """In how many passes over these numbers of tokens llama.cpp used a graph again."""
    before, held = int(llama_cpp.llama_perf_context(context.handle).n_reused), len(context.tokens)
    for n in sizes:
        context.extend(context.filler(n), n)
        context.truncate(held)
    return int(llama_cpp.llama_perf_context(context.handle).n_reused) - before


@pytest.mark.skipif(sys.platform != "linux", reason="tables of Linux")
def test_graph_is_built_once_for_each_size(kernels: None, target_path: Path) -> None:
    sizes, options = [1, 4, 2, 1, 8, 4], ModelOptions(context=256, threads=1)
    with Model(target_path, options) as model, closing(Context.open(model, options)) as context:
        context.extend(context.filler(3))
        reuses(context, sizes)
        assert reuses(context, sizes) == len(sizes)
        reuses(context, list(range(1, 17)))  # more sizes than are kept
        reuses(context, sizes)
        assert reuses(context, sizes) == len(sizes)


def walk(context: Context, seed: int) -> list[Rows]:
    """Rows of passes of many sizes, with trees, prompts and truncations between them."""
    random, rows = np.random.default_rng(seed), list[Rows]()
    for _ in range(120):
        held = len(context.tokens)
        token = int(random.integers(10, 200))
        match random.integers(5):
            case 0 if held < 400:
                context.extend([token + i for i in range(random.integers(17, 40))], 0)
            case 1 if held:
                context.truncate(int(random.integers(held)))
            case 2:
                tree = token_tree((token, ROOT), (token + 1, ROOT), (token + 2, 0))
                rows.append(context.branch([token], tree).copy())
                context.commit(tree, [0, 2][: random.integers(3)])
            case _:
                count = int(random.integers(1, 14))
                outputs = int(random.integers(1, count + 1))
                rows.append(context.extend([token + i for i in range(count)], outputs).copy())
    return rows


@pytest.mark.parametrize("seed", range(3))
def test_kept_graphs_give_the_same_bits(kernels: None, target_path: Path, seed: int) -> None:
    options = ModelOptions(context=1024, threads=1)
    with (
        Model(target_path, options) as model,
        closing(Context.open(model, options)) as keeping,
        closing(Context.open(model, options)) as building,
    ):
        decided.drop_graphs(building.handle)
        found, expected = walk(keeping, seed), walk(building, seed)
        assert len(found) == len(expected) > 40
        assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_caches_take_memory_as_they_are_filled(kernels: None, tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m.gguf", dim=768, layers=8, heads=12, ff=768)
    options = ModelOptions(threads=1, context=4096)  # 96 MiB
    with Model(path, options) as model:
        before = resident()
        with closing(Context.open(model, options)) as context:
            context.extend(context.filler(16), 1)
            assert resident() < before + 32 * 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_graphs_are_freed_with_their_context(kernels: None, target_path: Path) -> None:
    def open_and_close(times: int) -> int:
        for _ in range(times):
            with closing(Context.open(model, options)) as context:
                reuses(context, list(range(1, 13)))
        return resident()

    options = ModelOptions(context=256, threads=1)
    with Model(target_path, options) as model:
        before = open_and_close(10)
        assert open_and_close(20) < before + 10 * 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_repacked_weights_leave_memory(kernels: None, tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m.gguf", dim=768, layers=8, heads=12, ff=768)
    with path.open("r+b") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    path.read_bytes()  # from the disk, into huge pages where the system has them
    options = ModelOptions(threads=1, context=64)
    with Model(path, options) as model, closing(Context.open(model, options)) as context:
        context.extend(context.filler(1), 1)  # which reads the small tensors as well
        smaps = Path("/proc/self/smaps").read_text()
    found = re.findall(rf"{path}\n(?:.*\n){{3}}Rss: *(\d+) kB", smaps)
    assert found
    assert sum(map(int, found)) << 10 < path.stat().st_size / 10
