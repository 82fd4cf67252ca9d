"""Prompts from the package's suites and from users' files, and as a model reads them."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from localspec.bench.samples import BenchPrompt
from localspec.engine import Engine
from localspec.errors import UsageError
from localspec.files import require_file
from localspec.prompting.marked_text import unmarked
from localspec.prompting.prompt import Prompt
from localspec.prompting.template import Message, check_messages
from localspec.text import decoded

BUILT_IN = Path(__file__).with_name("prompts.jsonl")
"""Eight prompts each of seven kinds, for the built-in pair."""

SETS = {
    "stories": BUILT_IN,
    "questions": Path(__file__).with_name("questions.jsonl"),
    "questions-tuning": Path(__file__).with_name("questions_tuning.jsonl"),
    "public": Path(__file__).with_name("public.jsonl"),
}
""""questions" (Spec-Bench's, of 13 kinds) and "public" (six each of HumanEval, GSM8K, MMLU and
TruthfulQA) are for judging: nothing may be fitted to them.
"""

SUITES = ("story", "continue", "math", "qa", "code", "copy", "noise")

_SHAPE = '{"prompt": "…", "suite": "…", "id": "…"}'


def load_suites(
    files: Sequence[Path] = (),
    *,
    suites: Sequence[str] | None = None,
    per_suite: int | None = None,
) -> list[BenchPrompt]:
    """Read prompts, interleaved: the first of each suite, then the second, and so on. `files`:
    keys of SETS, or JSONL, an object per line: `prompt` (raw text with its chat markers), `turns`
    (as in Spec-Bench) or `messages` (the last one the user's); optionally `suite` or `family`
    (default: the file's stem) and `id` (default: counted). Without files, the stories; `suites`:
    which of them, None for all; `per_suite`: prompts of each at most. Raises UsageError: a file is
    missing, empty or malformed, or a suite is in none."""
    found: dict[str, dict[str, BenchPrompt]] = {}
    for named in files or (BUILT_IN,):
        path = named if named.exists() else SETS.get(str(named), named)
        for number, line in prompt_lines(path, _SHAPE):
            try:
                prompt = _prompt(line, path, found)
            except UsageError as error:
                raise UsageError(f"{path}, line {number} {error}") from None
            found.setdefault(prompt.suite, {})[prompt.id] = prompt
    for suite in suites or ():
        if suite not in found:
            raise UsageError(f"There is no suite '{suite}'. Choose from {', '.join(found)}.")
    return interleaved(
        [*prompts.values()][:per_suite]
        for suite, prompts in found.items()
        if suites is None or suite in suites
    )


def interleaved(suites: Iterable[Sequence[BenchPrompt]]) -> list[BenchPrompt]:
    """The first prompt of each suite, then the second, and so on."""
    mixed = chain.from_iterable(zip_longest(*suites))
    return [prompt for prompt in mixed if prompt is not None]


def by_suite(prompts: Iterable[BenchPrompt]) -> dict[str, list[BenchPrompt]]:
    found: dict[str, list[BenchPrompt]] = {}
    for prompt in prompts:
        found.setdefault(prompt.suite, []).append(prompt)
    return found


def prompt_lines(path: Path, shape: str) -> list[tuple[int, str]]:
    """Non-blank lines, numbered from 1. UsageError: the file cannot be read, or has none."""
    text = decoded(require_file(path, streams=True), str(path))
    # JSON strings may contain the other line separators of splitlines().
    lines = [(n, line) for n, line in enumerate(re.split(r"\r?\n", text), 1) if line.strip()]
    if not lines:
        raise UsageError(f"{path} holds no prompts. Write one per line: {shape}.")
    return lines


def _prompt(line: str, path: Path, known: Mapping[str, Mapping[str, BenchPrompt]]) -> BenchPrompt:
    """The prompt of a line; the message of a UsageError continues a sentence with its number."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"is not JSON: {error}. Write one object per line: {_SHAPE}") from None
    fields = entry if isinstance(entry, dict) else {}
    suite = _name(fields, "suite") or _name(fields, "family") or path.stem
    name = _name(fields, "id") or f"{suite}-{len(known.get(suite, ()))}"
    if name in known.get(suite, ()):
        raise UsageError(f"repeats the id '{name}' of suite '{suite}'. Give each its own id.")
    text = fields.get("prompt")
    if text == "":
        raise UsageError("has an empty prompt. Leave the line out.")
    if isinstance(text, str):
        return BenchPrompt(name, suite, text)
    if "turns" in fields and "prompt" not in fields:
        turns = fields["turns"] if isinstance(fields["turns"], list) else []
        if not turns or not all(turn and isinstance(turn, str) for turn in turns):
            raise UsageError(
                'has "turns" that is not a list of user messages. Write it like '
                '{"turns": ["…", "…"]}'
            )
        first, *later = turns
        asked: Message = {"role": "user", "content": first}
        return BenchPrompt(name, suite, first, (asked,), tuple(later))
    if "messages" in fields and "prompt" not in fields:
        messages = _messages(fields["messages"])
        return BenchPrompt(name, suite, str(messages[-1]["content"]), messages)
    raise UsageError(
        f'has no text in "prompt", no "turns" and no "messages". Write it like {_SHAPE}'
    )


def _messages(value: Any) -> tuple[Message, ...]:
    try:
        if not isinstance(value, list):
            raise UsageError("It is not a list.")
        check_messages(value)
        if value[-1]["role"] != "user":
            raise UsageError("The last one is not the user's.")
    except UsageError as error:
        raise UsageError(f'has "messages" that cannot be answered: {error}') from None
    return tuple(value)


def _name(fields: dict[str, Any], key: str) -> str:
    value = fields.get(key, "")
    # A number is a valid id, too.
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise UsageError(f'has "{key}" that is not text. Write it like {_SHAPE}')
    return value


def prompt_for(engine: Engine, prompt: BenchPrompt) -> Prompt:
    """The prompt for `Engine.stream`: messages, or raw text without messages or a template."""
    if prompt.messages and engine.model.chat_template is not None:
        return prompt.messages
    if prompt.messages:
        return "\n\n".join(str(message["content"]) for message in prompt.messages)
    return prompt.text


def render_prompts(engine: Engine, prompts: Sequence[BenchPrompt]) -> list[BenchPrompt]:
    """Prompts with the `text` that this model reads, also for peers. Raises UsageError: the model's
    template refuses the messages."""
    return [replace(prompt, text=_text(engine, prompt)) for prompt in prompts]


def prompt_tokens(engine: Engine, text: str) -> list[int]:
    """Token ids of a prompt, as in `Engine.stream`."""
    return engine.model.vocabulary.tokenize(text, special=True, add_bos=True)


def _text(engine: Engine, prompt: BenchPrompt) -> str:
    """The text as rendered by `Engine.stream`, without the BOS, which is added to raw text."""
    given = prompt_for(engine, prompt)
    if isinstance(given, str):
        return given
    vocabulary = engine.model.vocabulary
    text = str(unmarked(engine.prompts.text(given)))
    bos = vocabulary.special_text(vocabulary.bos) if vocabulary.adds_bos else ""
    return text.removeprefix(bos)
