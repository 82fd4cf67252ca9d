"""The layers of imports, the size limit of each room, and which tests are nightly.

There are no import cycles, and no room imports from its own layer or a higher one. Imports inside
functions and imports for types only count as well.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "localspec"
LAYERS = (
    ("cgroups", "errors", "paths"),
    ("files", "identity", "kernels", "signals", "text", "typed", "worker_threads"),
    ("decoding",),
    ("llama",),
    ("remote",),
    ("gguf", "grammars"),
    ("policy", "prompting", "retrieval"),
    ("drafters",),
    ("keywords", "sessions"),
    ("scheduling",),
    ("stream",),
    ("answering",),
    ("engine",),
    ("settings",),
    ("hub",),
    ("pairing",),
    ("self_draft",),
    ("loading",),
    ("async_engine", "bench", "race"),
    ("async_loading", "doctor", "verify", "distill"),
    ("quality",),
    ("chat",),
    ("history",),
    ("tui", "server", "llm_plugin"),
    ("cli",),
    ("__main__",),
)
"""From the bottom up. Rooms of the same layer do not import from each other."""
INSIDE_TUI = (
    ("rendering", "session"),
    ("widgets",),
    ("screens",),
    ("control",),
    ("terminal", "app"),
)


def modules() -> dict[str, Path]:
    """Every module of the package, by its dotted name."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path, known: Mapping[str, object]) -> Iterator[str]:
    """The modules of the package that a file names in an import."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            assert node.level == 0, f"{path}: a relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else str(node.module)


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    known = modules()
    assert len(known) > 150
    # `localspec/__init__.py` re-exports the public API, so it is above all layers.
    return {
        name: {other for other in imports(path, known) if other not in (name, "localspec")}
        for name, path in known.items()
        if name != "localspec"
    }


def test_no_import_cycles(graph: Mapping[str, set[str]]) -> None:
    TopologicalSorter(graph).prepare()  # raises CycleError, which names one


def test_every_room_has_a_layer(graph: Mapping[str, set[str]]) -> None:
    rooms = {name.split(".")[1] for name in graph}
    assert rooms == {room for layer in LAYERS for room in layer}


def upwards(
    graph: Mapping[str, set[str]], layers: tuple[tuple[str, ...], ...], part: int
) -> list[str]:
    """Imports from another room that is not in a lower layer."""
    height = {room: number for number, layer in enumerate(layers) for room in layer}
    found = []
    for name, others in sorted(graph.items()):
        for other in sorted(others):
            ours, theirs = name.split("."), other.split(".")
            if part >= min(len(ours), len(theirs)) or ours[:part] != theirs[:part]:
                continue
            one, two = ours[part], theirs[part]
            if one != two and one in height and two in height and height[one] <= height[two]:
                found.append(f"{name} -> {other}")
    return found


def test_files_hold_one_subject() -> None:
    lines = {
        path: len(path.read_text(encoding="utf-8").splitlines()) for path in modules().values()
    }
    assert [path for path, count in lines.items() if count > 400] == []


def test_imports_go_down(graph: Mapping[str, set[str]]) -> None:
    assert upwards(graph, LAYERS, 1) == []


def test_imports_go_down_inside_the_tui(graph: Mapping[str, set[str]]) -> None:
    assert upwards(graph, INSIDE_TUI, 2) == []


def test_only_the_binding_imports_llama_cpp() -> None:
    for name, path in modules().items():
        if not name.startswith("localspec.llama"):
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"^\s*(import|from) llama_cpp\b", text, re.MULTILINE), path


BUDGETS: dict[str, tuple[int, int | None]] = {
    "__main__": (14, 0),
    "answering": (245, 4),  # preparation, once in engine; other vocabularies; full disks
    "async_engine": (261, 4),  # other event loops; dropped answers end at once
    "async_loading": (105, 2),  # the parameters of load, which is imported in another thread
    "bench": (2_002, 84),  # compares three other programs; scales models
    "cgroups": (60, 5),  # threads beyond a container's CPU limit stall the others
    "chat": (841, 55),  # file names as terminals quote them; the line under an answer
    # Signals; Textual's variables; models typed as prompts; options of another command; the names
    # that other programs give to commands. serve resolves models and drafts before it listens.
    # Files that change while they are open; trained heads in doctor and show; answers without
    # tokens in bench; interrupted races; the choice of -d auto; devices before a recording.
    "cli": (4_911, 151),  # refuses empty arguments; completes values that the help lists
    # The protocol of caches; values and biases of any type; drafters call their sources.
    "decoding": (2_192, 90),  # rows that are partly NaN
    # Drafts and heads with fewer tokens; files that --output must not replace; failures; what
    # cannot be trained, before the recording.
    "distill": (2_483, 141),
    "doctor": (248, 12),  # recognizes measurements on a busy machine
    "drafters": (2_131, 61),  # plans that options fix; windows of small caches
    "engine": (396, 2),  # frees unreferenced engines; sessions in the home folder
    "errors": (145, 17),  # missing folders, threads, files, extras and /proc
    "files": (175, 13),  # file systems without locks or sizes; files that are not GGUF
    # Missing parts, once in hub; value types and disk space, once in bench; control vectors.
    "gguf": (1_729, 79),  # advice for the pieces of a split file; a cache of recently read files
    # Patterns: ECMA's and Python's syntax; lookahead and lookbehind; sets that exclude quotes.
    # Schemas: OpenAPI's, zod's and pydantic's; names of keys; closed parts of allOf; dialects;
    # unevaluated, required and dependent properties; small bounds; formats; endless references.
    # Tokens and forced text; custom tools; GBNF whose longest match would be wrong; alternatives
    # of lengths and first items; arrays and objects that need endless values.
    "grammars": (1_744, 35),  # once in llama; GBNF by characters; what schemas compose; sets; IPv6
    "history": (1_552, 55),  # integers beyond SQLite's; damaged schemas; another file
    # Names damaged files, with the commands that download them again; knows ollama's spelling.
    "hub": (1_737, 74),  # pasted addresses; repositories without a model; servers without ranges
    "identity": (62, 5),  # hashes whole files, for bench and hub
    "kernels": (10, 1),
    "keywords": (231, 11),  # the options of answers, once in engine; names from other tools
    # Chosen logits; errors after closing; huge pages; kept graphs; interrupted opening; aborts when
    # memory runs out; hybrid processors and containers; gevent.
    "llama": (4_587, 219),  # calls while a model closes; whose kernels
    "llm_plugin": (100, 4),  # separates reasoning from answers; system prompts of earlier turns
    "loading": (894, 22),  # reads Medusa heads; discards measurements on a busy machine
    "pairing": (869, 54),  # forecasts for experts and instruction sets; containers' memory; links
    "paths": (71, 11),  # file:// addresses
    "policy": (2_041, 70),  # busy periods; corrects measurements on a busy machine
    # Calls by model family; reasoning marks, unless quoted; order of results; ignored roles.
    "prompting": (2_125, 74),  # continued answers, once in server; malformed calls; long texts; Hy4
    "quality": (383, 15),  # checks the suite's name before its file; programs that print endlessly
    "race": (268, 17),
    "remote": (632, 20),
    "retrieval": (712, 38),  # forgets beside damaged datastores; lines of .gitignore that hang
    "scheduling": (1_327, 20),  # slots, once in three rooms; readers that wait; exit, forks
    "self_draft": (422, 14),  # texts of trials, once in pairing
    # Tool calls: formats of sixteen families; unclosed and numbered calls; prose that begins like a
    # call; custom tools with a grammar; results of any kind; tools that come and go.
    # Requests: fields of coding agents; reasoning to keep; base64; infill; incomplete requests.
    # Models: unloading after an answer; ollama's that are not loaded; stops while one loads.
    "server": (6_118, 204),  # page.html; names of tools; kept thoughts; cut answers; token ids
    "sessions": (664, 22),  # chooses caches to keep; files that cannot be mapped or used
    "settings": (136, 4),  # values that are not UTF-8, or true
    "signals": (88, 6),  # signals during imports that swallow them; the shell that reports a kill
    "stream": (238, 4),  # no generator, which would keep a stream alive; interrupted readers
    "text": (136, 13),  # counts, rates, finite JSON, file paths; joiners in names
    # Adapts to the terminal's size; shows at once that the model is loading; pastes; signals;
    # closed terminals; keeps the scroll position; copies text as written, also to the desktop;
    # keys from other chats; invalid bytes; keys pressed during start-up. Draws only the end of
    # long texts. Rendering threads share a document.
    "tui": (5_091, 102),  # keys after Esc; open formulas; characters that are drawn as one; themes
    "typed": (98, 5),  # names of functions; huge numbers and NaN; empty paths
    "verify": (1_288, 62),  # compares a certificate with local files, versions and kernels
    "worker_threads": (55, 5),  # names the loop that is missing, once in async_engine
    "tests": (40_000, None),  # systems with limits; typed commands; pins; newer Pythons
    "tools": (3_376, None),  # estimates for larger models, an agent's session, fixed depths
}
"""For each room, the most lines of Python and the most public names; None: names are not limited.

A comment names what the lines are for. Lower a number as its room shrinks; raise it only with a
reason beside it.
"""


def python_files(room: str) -> list[Path]:
    folder = (ROOT if room in ("tests", "tools") else PACKAGE) / room
    return [*folder.rglob("*.py")] if folder.is_dir() else [folder.with_suffix(".py")]


def public_names(path: Path) -> list[str]:
    """Functions, classes and constants that a module defines without an underscore."""
    names = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            parts = [part for target in targets for part in ast.walk(target)]
            names += [part.id for part in parts if isinstance(part, ast.Name)]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(node.name)
    return [name for name in names if not name.startswith("_")]


def test_every_room_has_a_budget(graph: Mapping[str, set[str]]) -> None:
    rooms = {name.split(".")[1] for name in graph}
    assert BUDGETS.keys() == rooms | {"tests", "tools"}


@pytest.mark.parametrize("room", BUDGETS)
def test_rooms_keep_to_their_budgets(room: str) -> None:
    files = python_files(room)
    most_lines, most_names = BUDGETS[room]
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files) <= most_lines
    if most_names is not None:
        assert sum(len(public_names(path)) for path in files) <= most_names


# docs/architecture.md names only existing files, and shows the layers as they are.

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_named_files_and_classes_exist() -> None:
    named = set(re.findall(r"\b(?:localspec|tests)/[\w/]+(?:\.py|/)?", PAGE))
    assert len(named) > 15
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
    sources = "\n".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    classes = re.findall(r"`([A-Z]\w+)`", PAGE)
    assert [name for name in classes if not re.search(rf"\b{name}\b", sources)] == []


def test_page_shows_the_layers() -> None:
    picture = PAGE.split("## Layers")[1].split("```")[1]
    rooms = [line.split("  ")[1] for line in picture.splitlines() if line.strip()]
    shown = [set(room.split(", ")) for room in rooms]
    assert shown == [set(layer) for layer in reversed(LAYERS)]


# `make check` starts no processes and no terminals: tests that do are marked as nightly.


TESTS = Path(__file__).parent
PROCESSES = re.compile(
    r"^(import (subprocess|pexpect)|from tests\.(cli|server)\.process import"
    r"|from tests\.tui\.(terminals|kills) import|.*\bsleep\()",
    re.MULTILINE,
)


def test_slow_tests_are_nightly() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py")}
    slow = [path for path, text in texts.items() if PROCESSES.search(text)]
    assert [path for path in slow if "pytest.mark.nightly" not in texts[path]] == []
