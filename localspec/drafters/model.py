"""The draft model as a source: chains drawn from it, trees of its choices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

from localspec.decoding.auto_sources import Growing, Prediction, RankedLogits
from localspec.decoding.interfaces import Plan
from localspec.decoding.sampling import Row, Rows
from localspec.decoding.session import Session
from localspec.decoding.tree import ROOT, TokenTree
from localspec.drafters.draft_model import Cache, DraftModel
from localspec.drafters.draft_passes import ChainPasses, DraftPasses, TreePasses
from localspec.drafters.draft_sampler import DraftSampler
from localspec.drafters.parallel import ParallelReader
from localspec.policy.acceptance_estimator import logit

PRIORS = {
    "greedy": (0.16, 1.43, 0.51, 0.45),
    "sampled": (1.1, 0.6, 0.0, 0.1),
    "coupled": (0.66, 0.95, -0.05, 0.13),
    "chosen": (-0.36, 1.15, 0.32, 0.17),
    "second": (1.1, 1.0, 2.4),
    "second coupled": (-0.26, 0.38, -0.08),
}
"""Where a pair begins, not where it stays. Features: 1, logit of the best token's probability,
entropy of the row in nats, agreement with what was looked up (-4 to 4).

"greedy" and "chosen" were fitted to the embedded pair (`stories:even`) and
SmolLM2, Q4_0 drafted by Q4_1 (`questions-tuning`), each pair weighing the same, 48 tokens a prompt,
T = 0 and 0.8; the others are the weights before, of 8,374 places of the embedded pair alone, all of
its prompts. Log-loss without learning, fitted against before, with the standard error of
the difference (second: 0.008); the last two on a prompt of each suite of `questions`:

| judged on | greedy | chosen | sampled: not taken | second: not taken |
|---|---|---|---|---|
| `stories:odd` | 0.365, 0.369 ± 0.003 | 0.508, 0.537 ± 0.003 | 0.543, 0.543 | 0.546, 0.549 |
| `questions` | 0.360, 0.369 ± 0.003 | 0.480, 0.481 ± 0.002 | 0.493, 0.494 | 0.540, 0.555 |
| 3 layers fewer | 0.479, 0.480 ± 0.004 | 0.531, 0.530 ± 0.004 | 0.616, 0.617 | 0.524, 0.507 |
| 6 layers fewer | 0.541, 0.532 ± 0.005 | 0.554, 0.553 ± 0.006 | 0.653, 0.649 | 0.576, 0.539 |

"coupled" and "second coupled" were fitted to twelve prompts a suite of `stories:even` alone, at
T = 0.8 (0.430, with the weights of "sampled" 0.463; 0.572, with those of "second" 0.772); on
`stories:odd` 0.486, 0.516 and 0.593, 0.720. "sampled", fitted to the same places, has 0.497 there:
with the noise known, more is known.

So on a weaker draft nothing fitted is known to be better: all expect too much of it (greedy 0.64
where 0.50 comes true without 6 layers, before 0.61) until they have learned. More features were
tried: margin of the best two, entropy of the target's last row, whether the last token was right,
all three together take 0.0085 ± 0.004 off the greedy loss on `stories:odd` and 0.002 ± 0.003 on
`questions`: not worth computing."""


class DraftModelSource:
    """A draft model; implements `localspec.decoding.auto_sources.ModelSource`.

    Args:
        model: the cache, shared.
        greedy: draft the most probable token even where the session samples. Sampled drafts are
            accepted with probability Σ min(p, q), greedy ones with p of their token; coupled ones
            see `localspec.decoding.acceptance.SampleMatch`.
        reader: reads on while the target verifies, where the two can run side by side.
    """

    priors: Mapping[str, tuple[float, ...]] = PRIORS
    hidden: tuple[int, ...] = ()

    def __init__(
        self,
        model: DraftModel,
        *,
        name: str = "model",
        greedy: bool = False,
        reader: ParallelReader | None = None,
    ) -> None:
        self.name = name
        self._model = model
        self._greedy = greedy
        self._reader = reader
        self._passes: DraftPasses = ChainPasses(model)
        self._samplers: dict[int, DraftSampler] = {}

    @property
    def native_seconds(self) -> float:
        hidden = 0.0 if self._reader is None else self._reader.native_seconds
        return self._model.cache.native_seconds - hidden

    @property
    def credit(self) -> str:
        return self.name + self._model.suffix

    @property
    def passes(self) -> Cache:
        return self._model.cache

    def begin(self, prompt: Sequence[int]) -> None:
        if self._reader is not None:
            self._reader.forget()
        self._model.begin(prompt)

    def committed(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        known = self._reader is not None and self._reader.holds(context)
        self._model.sync(context, whole=known)

    def propose(self, session: Session, plan: Plan, tree: TokenTree) -> None:
        """A chain, token by token, with further candidates beside each.

        With `plan.width` above 1 every place gets that many candidates, drawn without replacement;
        the first one is followed, the others cost no pass of the draft model.
        """
        model, context = self._model, session.context
        unread, credit = model.to_read(context)[len(model.cache.tokens) :], self.credit
        thresholds = plan.min_confidence or plan.min_likelihood
        if not (tree.tokens or thresholds or plan.width > 1) and self._chooses(session):
            self._choose(session, tree, unread, min(plan.depth, model.room(context)))
            return
        node = tree.tip()
        path = tree.path_tokens(node)
        sampler = DraftSampler(session, path, greedy=self._greedy)
        unread, likelihood = [*unread, *path], 1.0
        for _ in range(min(plan.depth, model.room(context) - len(path))):
            if not sampler.open:
                break
            row = self._next_row(unread)
            if thresholds:
                confident, likelihood = sampler.confident(row, plan, likelihood)
                if not confident:
                    break
            drawn = sampler.candidates(row, plan.width)
            token, q = drawn[0]
            followed = tree.add(token, node, credit, q)
            for sibling, q_sibling in drawn[1:]:
                tree.add(sibling, node, credit, q_sibling)
            node, unread = followed, [token]
            sampler.advance(token)

    def _chooses(self, session: Session) -> bool:
        """Whether the arg-max of each row is drafted, and nothing else is looked at."""
        sampler = session.sampler
        choice = self._greedy or sampler.greedy
        return choice and session.constraint is None and not sampler.adjusts

    def _choose(self, session: Session, tree: TokenTree, unread: Sequence[int], most: int) -> None:
        """A chain of those: `propose` without what few of its calls need, as each function that is
        called first behind a pass has to be fetched from memory."""
        next_row, ends = self._next_row, session.ends
        node, credit = ROOT, self.credit
        for _ in range(most):
            token = int(next_row(unread).argmax())
            node = tree.add(token, node, credit)
            if ends(token):
                break
            unread = (token,)

    def _next_row(self, unread: Sequence[int]) -> Row:
        """What follows the last of these tokens, which are read for it."""
        row: Row = self._model.read(unread)[0]
        self._model.cache.checkpoint()
        return row

    # In `auto`.

    def kind(self, session: Session) -> str:
        if session.sampler.greedy:
            return "greedy"
        if self._greedy:
            return "chosen"
        return "coupled" if session.coupled else "sampled"

    def reads(self, prompt: Sequence[int], known: int) -> int:
        return self._model.reads(prompt, known)

    def unread(self, session: Session) -> int:
        return self._model.unread(session)

    def held(self, session: Session) -> int:
        return self._model.length(session.context)

    def room(self, session: Session) -> int:
        return self._model.room(session.context)

    def branches(self, session: Session) -> int:
        # A reader goes on from a chain.
        return 1 if self._reader is not None else self._model.branches

    def start(self, growing: Growing) -> None:
        session = growing.session
        self._samplers = {ROOT: DraftSampler(session, (), greedy=self._greedy)}
        if growing.branching and self.branches(session) > 1:
            self._passes = TreePasses(self._model)
        else:
            ahead = None if self._reader is None else self._reader.take(session.context)
            self._passes = ChainPasses(self._model, ahead)

    def knows(self, growing: Growing, node: int) -> bool:
        return self._passes.knows(growing, node)

    def expand(self, growing: Growing, nodes: Sequence[int]) -> None:
        if not all(self._passes.knows(growing, node) for node in nodes):
            self._passes.read(growing, nodes)
        for node in nodes:
            sampler = self._sampler(growing, node)
            if not sampler.open or not self._passes.knows(growing, node):
                continue
            row = self._passes.row(node)
            logits = sampler.ranked(row, 3 if growing.branching else 1)
            best = logits.tokens[0]
            features = features_of(logits, growing.hint(node))
            if not growing.drawn:
                growing.offer(node, best, features, logits=logits)
            elif growing.worth_drawing(node, features):
                token, q = sampler.candidates(row, 1)[0]
                growing.offer(node, token, features, proposal=q)

    def verifying(self, session: Session, tree: TokenTree) -> AbstractContextManager[object]:
        return self._reading(session, tree)

    @contextmanager
    def _reading(self, session: Session, tree: TokenTree) -> Iterator[None]:
        """While the target verifies the tree, read on as if its main branch were accepted."""
        assert self._reader is not None, "the plan overlaps what cannot run side by side"
        self._reader.start(session.context, tree.path_tokens(tree.tip()))
        try:
            yield
        finally:
            self._reader.stop()

    def _sampler(self, growing: Growing, node: int) -> DraftSampler:
        """What may be said behind a candidate."""
        found = self._samplers.get(node)
        if found is None:
            above = self._sampler(growing, growing.parent(node))
            found = self._samplers[node] = above.forked(growing.token(node))
        return found


def features_of(logits: RankedLogits, hint: Prediction | None) -> tuple[float, ...]:
    """Of the first choice, see PRIORS. `hint`: what is looked up at the same place."""
    agreement = 0.0
    if hint is not None:
        agreement = hint.weight if hint.token == logits.tokens[0] else -hint.weight
    return 1.0, logit(logits.probs[0]), logits.entropy, agreement
