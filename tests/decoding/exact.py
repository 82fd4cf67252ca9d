"""The real loop over toy models: its steps, and exact distributions of whole texts."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from localspec.decoding import acceptance
from localspec.decoding.interfaces import TARGET, Draft, PassRequest, Plan, Step
from localspec.decoding.loop import Drafter, speculate
from localspec.decoding.random_source import SeededRandom
from localspec.decoding.session import Session
from localspec.decoding.sources import Source
from localspec.decoding.tree import TokenTree
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.named import Cascade
from tests.support import toys
from tests.support.drafting import EagerNgram, ToyDrafter, as_source, cascade_of, proposed

Text = tuple[int, ...]

EXACT = 1e-9
"""Distributions closer than this are equal."""
MODEL = toys.with_start([[0.5, 0.4, 0.1], [0.1, 0.5, 0.4], [0.4, 0.1, 0.5]])
DRAFT = toys.with_start([[0.1, 0.2, 0.7], [0.7, 0.1, 0.2], [0.2, 0.7, 0.1]])
"""Everywhere two tokens are left of the target's p after a rejection."""
REPEATS = (0, 1, 2, 0, 1, 2, 0, toys.START)
"""A prompt for which the n-gram drafts."""


def generate(
    random: SeededRandom,
    model: toys.ToyModel,
    drafter: Drafter,
    rule: acceptance.AcceptanceRule,
    *,
    prompt: Sequence[int] = (toys.START,),
    count: int = 4,
    target: toys.ToyTarget | None = None,
    **options: Any,
) -> Text:
    """The text of up to `count` tokens by the real loop. `options`: of `session_of`."""
    session = toys.session_of(prompt, size=model.size, random=random, count=count, **options)
    if isinstance(random, toys.EnumeratingSource):
        random.coupled = rule.coupled
    target = target or toys.ToyTarget(model)
    drafter.begin(prompt)
    for _ in speculate(session, drafter, rule, target):
        assert target.cache == session.context[:-1]
    return tuple(session.context[len(prompt) :])


def verify(
    random: SeededRandom,
    model: toys.ToyModel,
    source: Source,
    plan: Plan,
    rule: acceptance.AcceptanceRule,
    **options: Any,
) -> tuple[acceptance.Verdict, TokenTree]:
    """The verdict of a rule on one draft, and the draft. `options`: of `session_of`."""
    session = toys.session_of((toys.START, 0), size=model.size, random=random, **options)
    source.begin(session.context)
    tree = proposed(source, session, plan)
    rows = toys.ToyTarget(model).forward(PassRequest(session.context, tree)).rows
    return rule.accept(acceptance.Verification(rows, tree, session), random), tree


def drafted(
    model: toys.ToyModel,
    build: Callable[[], Source],
    plan: Plan,
    rule: acceptance.AcceptanceRule,
    **options: Any,
) -> dict[Text, float]:
    """Exact distribution with a drafter, new for each run. `options`: of `generate`."""
    plan, limits = plan._replace(drafter=build().name), toys.ToyTarget(model).limits

    def once(random: toys.EnumeratingSource) -> Text:
        drafter = ToyDrafter(build(), plan, limits, trees=rule.trees)
        return generate(random, model, drafter, rule, **options)

    return toys.enumerate_outcomes(once)


def undrafted(model: toys.ToyModel, **options: Any) -> dict[Text, float]:
    rule = acceptance.SpeculativeSampling()
    return toys.enumerate_outcomes(
        lambda random: generate(random, model, Drafter(), rule, **options)
    )


def texts(
    model: toys.ToyModel, prompt: Sequence[int] = (toys.START,), count: int = 4
) -> dict[Text, float]:
    """The model's distribution of texts, computed without the code under test."""
    found: dict[Text, float] = {}

    def walk(text: Text, weight: float) -> None:
        if len(text) == count:
            found[text] = weight
            return
        for token, p in enumerate(model.probabilities([*prompt, *text])):
            if p > 0.0:
                walk((*text, token), weight * float(p))

    walk((), 1.0)
    return found


def gap(one: Mapping[Text, float], other: Mapping[Text, float]) -> float:
    """Largest difference between the probabilities of a text."""
    return max(abs(one.get(text, 0.0) - other.get(text, 0.0)) for text in {*one, *other})


def model_drafter(draft: toys.ToyModel, *, greedy: bool = False) -> DraftModel:
    return as_source(DraftModel(toys.ToyCache(draft), draft.size), greedy=greedy)


def cascade(draft: toys.ToyModel) -> Cascade:
    """A draft model that also reads the n-gram's predictions."""
    return cascade_of(DraftModel(toys.ToyCache(draft), draft.size))


DRAFTERS: dict[str, Callable[[toys.ToyModel], Source]] = {
    "ngram": lambda draft: EagerNgram(),
    "model": model_drafter,
    "greedy model": lambda draft: model_drafter(draft, greedy=True),
    "cascade": cascade,
    "model+ngram": lambda draft: Cascade("model+ngram", model_drafter(draft), EagerNgram()),
    "ngram+model": lambda draft: Cascade("ngram+model", EagerNgram(), model_drafter(draft)),
}
"""Drafters with a draft model."""


CYCLE = toys.ToyModel([[0, 1, 0], [0, 0, 1], [1, 0, 0]])
"""0 1 2 0 1 2 …"""
LIVELY = toys.with_start([[5, 3, 2], [1, 5, 4], [4, 1, 5]])
OTHER = toys.with_start([[1, 2, 7], [7, 1, 2], [2, 7, 1]])


def run(
    session: Session,
    target: toys.ToyTarget,
    source: Source,
    plan: Plan,
    rule: acceptance.AcceptanceRule | None = None,
) -> list[Step]:
    """All steps of an answer. The target's cache is compared with the text after each."""
    source.begin(session.context)
    steps, rule = [], rule or acceptance.GreedyMatch()
    drafter = ToyDrafter(source, plan, target.limits, trees=rule.trees)
    for step in speculate(session, drafter, rule, target):
        assert target.cache == session.context[:-1]
        steps.append(step)
    assert target.cache == session.context[:-1]
    return steps


def step_of(
    plan: Plan,
    tree: TokenTree | None = None,
    *,
    path: Sequence[int] = (),
    tests: Sequence[int] = (),
    seconds: tuple[float, float, float] = (1.0, 0.5, 0.25),
    context_length: int = 1,
) -> Step:
    """A step as the loop returns it, with token 0 from the target at its end. `seconds`: of the
    step, of the target in it, of the draft model in it."""
    tree = tree or TokenTree()
    return Step(
        tokens=[*(tree.tokens[node] for node in path), 0],
        sources=[*(tree.sources[node] for node in path), TARGET],
        plan=plan,
        draft=Draft(tree),
        path=list(path),
        tests=list(tests),
        context_length=context_length,
        seconds=seconds[0],
        target_seconds=seconds[1],
        draft_seconds=seconds[2],
    )
