"""Who may rest on whom, how large each room may be, and which tests run when.

No circle of imports, and none from a lower layer to a higher one; those inside functions and those
for types alone count.
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
    ("gguf",),
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
    ("doctor", "verify", "distill"),
    ("quality",),
    ("chat",),
    ("history",),
    ("tui", "server", "llm_plugin"),
    ("cli",),
    ("__main__",),
)
"""From the bottom up; rooms that stand side by side do not rest on one another."""
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
    # What re-exports the public API stands above everything, and is asked for names of it only.
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
    """Imports between rooms that do not go down."""
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
    # Prepares answers, as the engine did; vocabularies, marks that are text; tells of full disks.
    "answering": (248, 10),
    "async_engine": (313, 7),  # other event loops are refused in words
    "bench": (2_043, 85),  # three peers, shapes
    "cgroups": (60, 10),  # threads above a container's limit stop each other
    "chat": (851, 58),  # names that terminals quote; the line of figures, from answer_line
    # Three peers; signals; Textual's variables; models typed as prompts; misuse names its verb;
    # models and drafts are found before the server listens. Names of other programs;
    # files that change while they are open.
    # Heads in doctor and show; answers without tokens in bench.
    # Options of other verbs are named with their verb; a race that is stopped; what auto takes.
    "cli": (5_061, 156),  # logs tell of waits for standard input; streams left without blocking
    # Protocol of caches; values and biases of any type; drafters call their sources.
    "decoding": (2_193, 90),
    # Drafts and heads of the frequent tokens; what --output must not replace; one shape; failures.
    "distill": (2_516, 143),
    "doctor": (248, 12),  # answers on a busy machine are found
    "drafters": (2_309, 65),  # the same; plans that options force; windows of small caches
    "engine": (397, 10),  # what nobody holds is freed; vocabularies are told before an answer
    "errors": (143, 20),  # lacking folders, threads, libraries, /proc; the log; extras
    "files": (165, 12),  # locks where there are none; what is in place of a GGUF, or unreadable
    # Missing parts, from hub; value types, and room for models, from bench; holes of downloads.
    "gguf": (1_745, 81),  # pieces of a cut file are to be joined; the latest files are read once
    # Damage to schema and index, and a lack of locks, are found; what it cannot take gets a file.
    "history": (1_567, 56),
    # Damaged files of the cache are named, with the commands that get them again.
    # Names are compared without what ollama spells otherwise.
    "hub": (1_738, 74),  # copied addresses; waits for other downloads can end
    "identity": (62, 10),  # hashes whole files, for bench and hub
    "kernels": (10, 10),
    "keywords": (231, 11),  # the options of answers, from engine; names of other tools
    # Drafts compute some outputs alone; closed models are told; weights move into huge pages.
    # Patterns are ECMA's; the tables of types, which the kernels share, come from gguf.
    # Hyphens beside classes, tokens of grammars and bounds close to 0 are read or refused in words.
    # Escapes of ECMA and Python in patterns; forced text of grammars of tokens; graphs are kept;
    # grammars of custom tools are checked without a model; interrupts while a model is read, or a
    # context is made; the load of other programs may be unknown.
    # OpenAPI's nulls, zod's nothing and addresses, keys of dictionaries, pydantic's decimals and
    # closed parts of a whole are enforced. Alternatives of oneOf are told apart as written.
    # Sets that exclude quotes, within JSON; dialects of schemas.
    # Looks ahead, leap years, versions of UUIDs, base64; names of keys by length or format; what is
    # unevaluated; which properties of an object are required. What these allow was refused, or
    # invalid dates and texts were accepted. Threads that gevent replaced are refused.
    # Refusals ahead and behind in patterns; pointers and references; names that go together.
    # Constants that crash llguidance; aborts without memory; cores of hybrids and containers.
    # Endless references, listed or many optional names; GBNF that longest matches would misread.
    "llama": (6_187, 252),  # GBNF by characters; context lengths of 0; frozen programs
    "llm_plugin": (100, 10),  # tells reasoning from answers, and the system prompt of earlier turns
    "loading": (905, 25),  # Medusa heads are read here; figures of busy machines are not kept
    "pairing": (895, 56),  # forecasts know experts and instruction sets; containers' memory
    "paths": (71, 12),  # file:// addresses
    # What steps cost is told apart from what busy spells do; models left out are measured again,
    # and what was measured on a busy machine is corrected at once.
    "policy": (2_052, 70),
    # Ids, queues and channels of families' calls; marks and tags around thoughts, not quoted ones;
    # results in the order of calls; roles that a template drops; generators are measured.
    "prompting": (1_975, 67),  # texts beside thoughts and calls; Muse's channels; Hy4
    "quality": (386, 15),  # suites are named before files are sought; fields of questions
    "race": (278, 18),
    "remote": (633, 20),
    "retrieval": (656, 37),  # says where else learned texts may be
    "scheduling": (1_364, 22),  # three rooms' slots; ends, forks, lost signals, loops that wait
    "self_draft": (424, 14),  # the texts of trials came from pairing
    # Calls in GLM's and DeepSeek's formats, what coding agents send, log-probabilities,
    # images that tools give, calls in the formats of twelve further families, wishes to think.
    # Calls that are left open, or named with their numbers; custom tools, whose input is text by a
    # grammar; calls that end within a value; prose that begins with a call in Python.
    # Infill and near-JSON have files; log-probabilities end with texts; reads n_indent; Step3.
    # Calls of Kimi K3; models that are unloaded after an answer; requests do not wait for each
    # other's models, and are told which are unloaded. Contents as lists of texts, results of any
    # JSON, and thoughts that are kept, as further servers take them.
    # Half a request does not keep a server from ending. Broken calls are read alike wherever pieces
    # end; thoughts between calls; probabilities of end tokens; base64 as mail and URLs have it.
    # Failed results; usage in every event; empty lines after bodies; ends of loading; few files.
    # Tools that a conversation adds and removes; messages of agents; all fields of a response;
    # models of ollama that are not loaded, or only embed; searches for tools.
    "server": (6_026, 205),  # the page at / has a file; half-closed requests; call formats apart
    "sessions": (663, 22),  # chooses the caches that it keeps; files that cannot be mapped
    "settings": (120, 10),
    "signals": (88, 10),  # signals in imports that lose them; the shell that is told of a kill
    "stream": (233, 10),  # no generator, which would keep a stream alive; refuses copies
    "text": (136, 13),  # counts, rates, finite JSON, paths of files; joiners in names
    # Takes the size of the terminal; says from the start that the model is being opened; pastes,
    # signals, and terminals that are closed. The place that is read stays; text is copied as it was
    # written, to the desktop as well; keys of other chats. Bytes that are no text; the first keys.
    # Of long texts the end is drawn. Threads that render share a document.
    "tui": (4_844, 100),  # downloads that wait can be left
    "typed": (93, 10),  # functions name themselves; numbers that no float holds; scalars
    "verify": (1_293, 62),  # compares a certificate with what is here
    "worker_threads": (43, 10),
    "tests": (39_717, None),  # systems with limits and slow cores; conversations in memory
    "tools": (3_377, None),  # larger models on paper, an agent's session, masks of schemas
}
"""Lines of Python, and public names of modules: of each room, and lines of the tests and the tools.

Lower a number as its room shrinks. Raise it only with the reason beside it.
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


# The page on the architecture names files and layers that there are.

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


# `make check` starts no process and no terminal: files that do are marked for `make nightly`.


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
