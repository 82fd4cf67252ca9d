"""Generate thousands of answers in one process, and check that nothing leaks from cancelled ones,
failing drafters and closed models. Run by `tools.endure`."""

import gc
import json
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

import localspec
from localspec import Drafting, Engine, ModelOptions, SamplingParams
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.named import Cascade
from localspec.drafters.registry import REGISTRY, Parts, Registration
from localspec.llama.sequences import shared_prefix
from tests.support.ggufs import tiny_hybrid
from tools.endure.outcome import Outcome

PROMPTS = Path(__file__).parents[2] / "tests" / "data" / "prompts.jsonl"
GREEDY = SamplingParams(temperature=0)
DRAFTINGS = (
    Drafting(),
    Drafting(drafter="model", depth=3),
    Drafting(drafter="ngram", width=3, depth=2),
    Drafting(drafter="none"),
)
CANCELLED = 0.1
TIE = 0.5
"""Logits closer than this may swap in a pass of another size."""
TOKENS, ANSWERS = 24, 40
AT_ONCE = 4
FAILING = 0.1
WARM = 2
"""Rounds of opening each model before resources are compared."""
MORE = 24.0
"""MiB that the process may grow from its second quarter to its last."""


class FaultError(Exception):
    """The error raised by the failing drafter."""


class _FailingDraft(DraftModel):
    """A drafter that fails within a tree, with drafted tokens in its cache."""

    name = "failing"
    calls = 0

    @property
    def credit(self) -> str:
        self.calls += 1
        if self.calls == 3:
            raise FaultError
        return super().credit


def _failing(made_of: Parts) -> Cascade:
    """The failing drafter, used only by name: in `auto` it would share the draft model's cache."""
    assert made_of.model is not None
    return Cascade("failing", _FailingDraft(made_of.model.cache, made_of.model.vocabulary))


def answers(home: Path, minutes: int, seed: int) -> Outcome:
    """Generate answers, one model after another, and check the process after each."""
    REGISTRY["failing"] = Registration(_failing, needs_model=True)
    tiny = tiny_hybrid(home / "tiny.gguf")
    models = (
        ModelOptions(context=1024, threads=1),
        ModelOptions(context=1024, threads=1, parallel=AT_ONCE),
        ModelOptions(context=256, threads=1),
    )
    outcome, seen = Outcome("answers, one model after another", unit="answers"), Counter[str]()
    expected: dict[str, list[int]] = {}
    process, held = psutil.Process(), []
    end, number = time.monotonic() + 60 * minutes, 0
    # Compare each model at least once, however short the time.
    while time.monotonic() < end or number <= WARM * len(models):
        which = number % len(models)
        model = tiny if which == 2 else None
        with localspec.load(model, options=models[which]) as engine:
            _ask(engine, random.Random(f"{seed}/{number}"), expected, seen, outcome, model is None)
            if engine.parallel > 1 and ids_held(engine):
                outcome.failures.append(f"model {number}: {ids_held(engine)} sequence ids are held")
        number += 1
        gc.collect()
        held.append((process.memory_info().rss / 2**20, process.num_fds(), process.num_threads()))
    warm = WARM * len(models)
    for n, what in ((1, "open files"), (2, "threads")):
        before, after = max(each[n] for each in held[:warm]), max(each[n] for each in held[warm:])
        if after > before:
            outcome.failures.append(f"{what}: {before:.0f}, later {after:.0f}")
    quarter = max(1, len(held) // 4)
    second, last = (_mean(part) for part in (held[quarter : 2 * quarter], held[-quarter:]))
    if last - second > MORE:
        outcome.failures.append(f"memory: {second:.0f} MiB, later {last:.0f} MiB")
    came = ", ".join(f"{many} {what}" for what, many in sorted(seen.items()))
    outcome.seen = (
        f"{number} models opened; {came}; "
        f"memory {second:.0f} MiB in the second quarter, {last:.0f} in the last; "
        f"{held[-1][1]} open files, {held[-1][2]} threads"
    )
    return outcome


def _mean(held: list[tuple[float, int, int]]) -> float:
    return sum(each[0] for each in held) / len(held)


def _ask(
    engine: localspec.Engine,
    dice: random.Random,
    expected: dict[str, list[int]],
    seen: Counter[str],
    outcome: Outcome,
    compared: bool,
) -> None:
    prompts = [json.loads(line)["prompt"] for line in PROMPTS.read_text().splitlines()][:24]
    lock = threading.Lock()
    for prompt in prompts if compared and not expected else ():
        expected[prompt] = answer(engine, prompt, Drafting(drafter="none"), TOKENS)[1]

    def one(throw: int) -> None:
        own = random.Random(throw)
        prompt, drafting = own.choice(prompts), own.choice(DRAFTINGS)
        if compared and own.random() < FAILING:
            drafting = Drafting(drafter="failing", depth=4)
        cancelled_at = own.randrange(TOKENS) if own.random() < CANCELLED else -1
        if not compared:
            prompt, drafting = "a", Drafting()
        try:
            context, tokens = answer(engine, prompt, drafting, TOKENS, cancelled_at)
        except FaultError:
            with lock:
                seen["with an error of the drafter"] += 1
                outcome.count += 1
            return
        distance = gap(engine, context, expected[prompt], tokens) if compared else None
        with lock:
            outcome.count += 1
            seen["cancelled"] += cancelled_at >= 0
            seen["diverged at a tie"] += distance is not None and distance < TIE
            if distance is not None and distance >= TIE:
                outcome.failures.append(f"{prompt[:40]!r} got a wrong answer, gap {distance:.2f}")

    throws = [dice.getrandbits(32) for _ in range(ANSWERS)]
    with ThreadPoolExecutor(AT_ONCE if engine.parallel > 1 else 1) as clients:
        list(clients.map(one, throws))


def gap(
    engine: localspec.Engine, context: list[int], whole: list[int], tokens: list[int]
) -> float | None:
    """The gap of the logits of two answers' first different tokens; None for a prefix."""
    same = shared_prefix(whole, tokens)
    if same == len(tokens):
        return None
    row = engine.logits([*context, *tokens[:same]])
    return abs(float(row[whole[same]] - row[tokens[same]])) if same < len(whole) else TIE


def answer(
    engine: localspec.Engine, prompt: str, drafting: Drafting, count: int, cancelled_at: int = -1
) -> tuple[list[int], list[int]]:
    """Tokens of a prompt and of its answer, cancelled after `cancelled_at` tokens."""
    stream = engine.stream(prompt, max_tokens=count, sampling=GREEDY, drafting=drafting)
    before = [*stream.context]
    tokens: list[int] = []
    for chunk in stream:
        tokens += chunk.token_ids
        if 0 <= cancelled_at <= len(tokens):
            stream.cancel()
    return before, tokens


def ids_held(engine: Engine) -> int:
    """Number of answers' sequence ids with cells; ids of kept texts do not count."""
    return sum(
        shared.length(number) > 0
        for shared in {cache.shared for cache in engine.slots.contexts}
        for number in range(shared.answers * shared.leaves)
    )
