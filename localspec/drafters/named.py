"""Drafting by one named source, with a fixed plan."""

from collections.abc import Sequence
from itertools import islice, takewhile
from typing import Any

from localspec.decoding.draft_sampler import DraftSampler
from localspec.decoding.interfaces import LAST, Draft, Limits, Plan
from localspec.decoding.loop import Drafter
from localspec.decoding.sampling import DEAD_ENDS, Rows, confidence
from localspec.decoding.session import Session
from localspec.decoding.sources import FIRM, LookupSource, ModelSource, Source
from localspec.decoding.tree import TokenTree
from localspec.drafters.lookahead import LEVELS, LookaheadSource
from localspec.errors import UsageError

MAX_PREDICTED = 3  # tokens that a primer may add to a pass


class Cascade(Source):
    """Two sources in sequence; only used by name. `first` drafts half of the tokens, `then` the
    other half; `primer` predicts tokens that `first`, a model, reads in the same pass."""

    def __init__(
        self,
        name: str,
        first: Source,
        then: Source | None = None,
        *,
        primer: LookupSource | None = None,
    ) -> None:
        self.name, self.first, self.then, self.primer = name, first, then, primer


class NamedDrafter(Drafter):
    """Drafts by one source with a fixed plan, as far as there is room: for `--drafter` and
    `--depth`. It is the `DraftContext` of its model. `trees`: whether the acceptance rule accepts
    branches; `columns`: of the lookahead window, if any; a UsageError if it needs more."""

    def __init__(
        self, source: Source, plan: Plan, limits: Limits, *, trees: bool = True, columns: int = 0
    ) -> None:
        self._full_plan, self._limits, self._columns = plan, limits, columns
        self._leaves = limits.max_leaves if trees else 1
        cascade = source if isinstance(source, Cascade) else Cascade(source.name, source)
        self._cascade = cascade
        parts = cascade.first, cascade.then, cascade.primer
        super().__init__(sources=[part for part in parts if part is not None])
        self._nothing = f"drafter '{source.name}' had nothing to propose"
        self._window = source if isinstance(source, LookaheadSource) else None
        if self._window is not None and self._columns < 2:
            raise UsageError(
                f"Drafter '{source.name}' tries several continuations per pass, which is not "
                "possible here: the model is recurrent, the rule accepts only chains, or depth "
                "times width is too large. Choose another drafter, or leave out --rule, --depth "
                "and --width."
            )

    def plan(self, session: Session) -> Plan:
        """The full plan, cut to the levels and tokens that are left."""
        plan, limits, held = self._full_plan, self._limits, len(session.context)
        depth = min(plan.depth, limits.max_draft, session.limit - held - 1)
        if depth < 1:
            return LAST
        nodes = min(limits.max_draft, limits.capacity - held)
        # At every level but the last, width − 1 branches may end next to the main one.
        width = min(plan.width, 1 + (self._leaves - 1) // depth, max(1, nodes // depth))
        if (depth, width) != (plan.depth, plan.width):
            plan = plan._replace(depth=depth, width=width)
        return plan

    def draft(self, session: Session, plan: Plan) -> Draft:
        self.session, self._tree, self.depth = session, TokenTree(), plan.depth
        tree, cascade = self._tree, self._cascade
        depth = plan.depth if cascade.then is None else max(1, plan.depth // 2)
        self._extend(cascade.first, plan, depth, plan.width)
        if cascade.then is not None:
            # One branch only, as it continues from unverified tokens.
            self._extend(cascade.then, plan, plan.depth - len(tree.path(tree.main_leaf())), 1)
        if self._window is not None:
            room = min(self._limits.max_draft, self._limits.capacity - len(session.context))
            if room - len(tree) >= self._columns * LEVELS:
                self._window.open_window(session, tree, self._columns)
        return Draft(tree, self._nothing)

    def verified(self, rows: Rows) -> None:
        if self._window is not None:
            self._window.verified(rows)

    def _extend(self, source: Source, plan: Plan, depth: int, width: int) -> None:
        if isinstance(source, ModelSource):
            self._draft_by_model(source, plan, depth, width)
        elif isinstance(source, LookupSource):
            self._draft_by_lookup(source, depth, width)

    def _draft_by_lookup(self, source: LookupSource, depth: int, width: int) -> None:
        tree, leaf = self._tree, self._tree.main_leaf()
        position = self._position(source, tree.path_tokens(leaf))
        chains = [_firm_tokens(source, position, depth)]
        if width > 1 and chains[0]:
            chains += (
                [token, *_firm_tokens(source, source.advance(position, token), depth - 1)]
                for token, _ in source.alternatives(position, width)
                if token != chains[0][0]
            )
        for chain in chains[:width]:
            node = leaf
            for token in chain:
                node = tree.add(token, node, source.name)

    def _draft_by_model(self, source: ModelSource, plan: Plan, depth: int, width: int) -> None:
        """Extend the first candidate at each position; the others are leaves, without a pass."""
        tree, session, credit = self._tree, self.session, source.credit
        if self._cascade.then is None:  # a cascade counts under its own name
            credit = self._cascade.name + credit[len(source.name) :]
        node = tree.main_leaf()
        self._path = tree.path_tokens(node)
        sampler = DraftSampler(session, self._path, greedy=source.greedy)
        source.start(self)
        chosen = sampler.greedy and width == 1
        least, likelihood = max(plan.min_confidence, plan.min_likelihood), 1.0
        for _ in range(min(depth, source.room(session.context) - len(self._path))):
            if not sampler.open:
                break
            if not source.knows(self._path):
                source.read(self, self._path)
            row = source.row(self._path)
            if least:
                # Decided before a token is drawn, as dropping a drawn one would bias the text.
                best = confidence(row)
                likelihood *= best
                if best < plan.min_confidence or likelihood < plan.min_likelihood:
                    break
            try:
                found = [(sampler.best(row), None)] if chosen else sampler.candidates(row, width)
            except DEAD_ENDS:
                break
            parent, (token, q) = node, found[0]
            node = tree.add(token, parent, credit, q)
            self._path = [*self._path, token]
            for sibling, q_sibling in found[1:]:
                tree.add(sibling, parent, credit, q_sibling)
            sampler.advance(token)

    # DraftContext: what passes of the model use.

    def predicted_tokens(self, unread: int) -> list[int]:
        primer = self._cascade.primer
        if primer is None:
            return []
        left = self.depth - len(self._path) - 1
        return _firm_tokens(primer, self._position(primer, self._path), min(MAX_PREDICTED, left))

    def _position(self, source: LookupSource, path: Sequence[int]) -> Any:
        position = source.position(self.session)
        for token in path:
            position = source.advance(position, token)
        return position


def _firm_tokens(source: LookupSource, position: Any, most: int) -> list[int]:
    expected = islice(source.predict(position), max(0, most))
    return [each.token for each in takewhile(lambda each: each.weight >= FIRM, expected)]
