"""Write the prompts for tuning the built-in draft: seven kinds of text, without those of the
benchmark.

    python -m tools.tale_prompts CORPUS OUT

CORPUS has `stories.txt` (stories between lines `<|endoftext|>`) and `qa.jsonl` (`prompt`,
`source`). OUT gets `chat.jsonl`, for `localspec distill OUT/chat.jsonl`, and `raw.jsonl`, for
`localspec distill --raw OUT/raw.jsonl`: models/MODEL_CARD.md has both commands. Texts that begin
like a prompt of `localspec/bench/prompts.jsonl`, or of a further file, are left out.
"""

import ast
import json
import random
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

JUDGED = Path(__file__).resolve().parents[1] / "localspec" / "bench" / "prompts.jsonl"
BEGINNING = 60
"""Number of letters that identify a text used for judging."""
SEED = 1
CHATS = {"gsm8k": 1700, "svamp": 400, "fairytaleqa": 1500, "self-instruct": 426}
STORIES, CONTINUED, COPIED, CODE, NOISE = 1500, 2200, 1000, 2000, 700


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    corpus, out = Path(sys.argv[1]), Path(sys.argv[2])
    judged = beginnings([JUDGED, *map(Path, sys.argv[3:])])
    rng = random.Random(SEED)
    stories = (corpus / "stories.txt").read_text(encoding="utf-8").split("<|endoftext|>")
    stories = [story.strip() for story in stories if len(story) > 400]
    asked = [json.loads(line) for line in (corpus / "qa.jsonl").open(encoding="utf-8")]
    rng.shuffle(stories)
    rng.shuffle(asked)
    chats: list[str] = []
    for source, most in CHATS.items():
        chats += [row["prompt"] for row in asked if row["source"] == source][:most]
    chats += [f"Tell me a story about {name}." for name in names(stories, rng)]
    raw = [
        *story_beginnings(stories[:CONTINUED], rng),
        *repeated_stories(stories[CONTINUED:][:COPIED], rng),
    ]
    raw += [*functions(rng), *noise(rng)]
    out.mkdir(parents=True, exist_ok=True)
    for name, prompts in (("chat", chats), ("raw", raw)):
        kept = [prompt for prompt in prompts if known_by(prompt) not in judged]
        rng.shuffle(kept)
        lines = (json.dumps({"prompt": prompt}) + "\n" for prompt in kept)
        (out / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
        print(f"{out / name}.jsonl: {len(kept)} prompts, {len(prompts) - len(kept)} left out")


def known_by(prompt: str) -> str:
    """A text's first letters, without the marks of a chat."""
    return re.sub(r"<\|\w+\|>", "", prompt).strip()[:BEGINNING]


def beginnings(files: Iterable[Path]) -> set[str]:
    rows = (json.loads(line) for file in files for line in file.open(encoding="utf-8"))
    return {known_by(row["prompt"] if "prompt" in row else row["turns"][0]) for row in rows}


def names(stories: Sequence[str], rng: random.Random) -> list[str]:
    """Subjects for stories."""
    text = "\n".join(stories)
    found = re.findall(r"\b(?:named|a|the) ([a-z]{3,9}|[A-Z][a-z]{2,8})\b", text)
    return sorted(rng.sample(sorted(set(found)), STORIES))


def story_beginnings(stories: Sequence[str], rng: random.Random) -> Iterator[str]:
    for story in stories:
        yield story[: rng.randint(80, min(900, len(story) * 2 // 3))].rsplit(" ", 1)[0]


def repeated_stories(stories: Sequence[str], rng: random.Random) -> Iterator[str]:
    """Stories that are repeated once and started a third time."""
    for story in stories:
        part = story[: rng.randint(250, 600)].rsplit(" ", 1)[0]
        begun = part[: rng.randint(20, len(part) // 2)].rsplit(" ", 1)[0]
        yield f"{part}\n\n{part}\n\n{begun}"


def functions(rng: random.Random) -> Iterator[str]:
    """Heads of functions of the standard library, and their docstrings."""
    library = Path(sysconfig.get_paths()["stdlib"])
    heads: list[str] = []
    for file in sorted(library.glob("*.py")) + sorted(library.glob("[a-z]*/*.py")):
        if "site-packages" in file.parts or "test" in str(file):
            continue
        source = file.read_text(encoding="utf-8", errors="replace")
        lines = source.splitlines()
        try:
            tree = ast.parse(source)
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef) or not ast.get_docstring(node):
                continue
            head = lines[node.lineno - 1 : node.body[0].end_lineno]
            if node.col_offset < 5 and 2 < len(head) < 16:
                heads.append("\n" + "\n".join(line[node.col_offset :] for line in head) + "\n")
    yield from rng.sample(heads, min(CODE, len(heads)))


def noise(rng: random.Random) -> Iterator[str]:
    library = Path(sysconfig.get_paths()["stdlib"])
    text = "\n".join(
        (library / name).read_text(encoding="utf-8")
        for name in ("argparse.py", "http/client.py", "logging/__init__.py", "tarfile.py")
    )
    words = re.findall(r"[a-z]{4,14}", text)
    for _ in range(NOISE):
        yield " ".join(rng.choices(words, k=rng.randint(20, 70)))


if __name__ == "__main__":
    main()
