"""The draft model: a small language model that guesses what the target will say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from localspec.decoding.acceptance import Rows
from localspec.decoding.distribution import Distribution
from localspec.decoding.sampling import Constraint, Row, confidence, top_few
from localspec.decoding.session import Session
from localspec.decoding.tree import TokenTree
from localspec.planning.planner import Plan


class Cache(Protocol):
    """A model's KV cache, as a drafter needs it; `localspec.llama.context.Context` is one.

    Attributes:
        tokens: what the cache holds.
        capacity: tokens it can hold.
        max_draft: most tokens of a pass whose rows are wanted, the first one aside.
        native_seconds: seconds spent in native passes so far.
    """

    tokens: list[int]

    @property
    def capacity(self) -> int: ...

    @property
    def max_draft(self) -> int: ...

    @property
    def native_seconds(self) -> float: ...

    def extend(self, tokens: Sequence[int], outputs: int = 1) -> Rows:
        """Append tokens; logits after the last `outputs` of them, valid until the next pass."""
        ...

    def truncate(self, length: int) -> None:
        """Drop the tokens from `length` on; more than that where the memory is recurrent."""
        ...

    def checkpoint(self) -> None:
        """Make `truncate` to the present length, or beyond it, possible for any memory."""
        ...


class DraftModel:
    """A cache that is kept in step with a session, shared by the drafters that use the model.

    What the model drafted stays in its cache; what the target accepted of that is never decoded
    again. Only tokens that the model has not seen are.
    """

    suffix = ""
    """Put behind the name of a drafter where its tokens come from this model in a special way."""

    def __init__(self, cache: Cache, vocabulary: int) -> None:
        """`vocabulary`: tokens of the *target*; rows are cut to ids that both models have."""
        self.cache = cache
        self._vocabulary = vocabulary
        self._agreed = 0

    def draws(self, *, greedy: bool) -> bool:
        """Asked before an answer: whether its tokens may be drawn from the rows, or are chosen.

        `greedy`: whether the answer is, so that nothing is drawn anyway.
        """
        return True

    def begin(self, prompt: Sequence[int]) -> None:
        """Bring the cache up to a new prompt, all but its last token."""
        self._agreed = 0
        self.sync(prompt)
        missing = prompt[len(self.cache.tokens) : -1]
        if missing and len(prompt) <= self.cache.capacity:
            self.cache.extend(missing, 0)
            self._agreed = len(self.cache.tokens)

    def sync(self, context: Sequence[int], *, whole: bool = False) -> None:
        """Drop what does not agree with the committed tokens.

        The last of them is dropped as well, unless the row behind it is known (`whole`): it is
        wanted again, and a token that the target drew itself may be one that was drafted at its
        place and decoded already.
        """
        held = self.cache.tokens
        most = min(len(held), len(context) - (0 if whole else 1))
        agreed = min(self._agreed, most)
        while agreed < most and held[agreed] == context[agreed]:
            agreed += 1
        self.cache.truncate(agreed)
        self._agreed = len(self.cache.tokens)

    def imagine(self, text: Sequence[int]) -> None:
        """As `sync`, for a text whose end is not committed: the next `sync` looks at it again."""
        agreed = self._agreed
        self.sync(text)
        self._agreed = min(agreed, len(self.cache.tokens))

    def unread(self, session: Session) -> int:
        """Committed tokens that the cache lacks."""
        return len(session.context) - len(self.cache.tokens)

    def room(self, context: Sequence[int]) -> int:
        """Tokens that fit behind `context`."""
        return self.cache.capacity - len(context)

    def read(self, tokens: Sequence[int], outputs: int = 1) -> Rows:
        """Logits after the last `outputs` of the tokens, which join the cache."""
        rows = self.cache.extend(tokens, outputs)
        lacking = self._vocabulary - rows.shape[1]
        if lacking > 0:
            return np.pad(rows, ((0, 0), (0, lacking)), constant_values=-np.inf)
        return rows[:, : self._vocabulary] if lacking else rows


class Speaker:
    """Draws draft tokens from rows of the draft model as the session would from the target's.

    It walks along one path: grammar and penalties see the committed tokens and the path so far.
    """

    def __init__(self, session: Session, path: Sequence[int], *, greedy: bool) -> None:
        """`greedy`: choose the most probable token even where the session samples."""
        self._sampler = session.sampler
        self._dice = session.dice
        self.greedy = greedy or session.sampler.greedy
        self.recent = list(session.context) if session.sampler.adjusts else []
        self.open = True
        """False once a grammar does not allow the path: nothing can follow it."""
        self._ends = session.ends
        self._constraint: Constraint | None = None
        if session.constraint is not None:
            self._constraint = session.constraint.fork()
        for token in path:
            self.advance(token)

    def advance(self, token: int) -> None:
        """Move along the path by one token."""
        if self._ends(token):
            self.open = False
        if self._sampler.adjusts:
            self.recent.append(token)
        if self._constraint is not None and self.open:
            try:
                self._constraint.advance(token)
            except ValueError:
                self.open = False

    def best(self, row: Row) -> int:
        """The most probable token."""
        return self._sampler.best(row, self.recent, self._constraint)

    def top(self, row: Row, most: int) -> list[int]:
        """The most probable tokens (fewer if fewer are possible), best first."""
        if most == 1:
            return [self.best(row)]
        if self._constraint is None and not self._sampler.adjusts:
            return top_few(row, most)
        return self._sampler.top(row, self.recent, most, self._constraint)

    def distribution(self, row: Row) -> Distribution:
        """q at this place."""
        return self._sampler.distribution(row, self.recent, self._constraint)

    def candidates(self, row: Row, width: int) -> list[tuple[int, Distribution | None]]:
        """Up to `width` different tokens with the q each was drawn from, first one first.

        None instead of q where tokens are chosen (greedy).
        """
        if self.greedy:
            if width == 1:
                return [(self.best(row), None)]
            top = self._sampler.top(row, self.recent, width, self._constraint)
            return [(token, None) for token in top]
        q = self.distribution(row)
        drawn: list[tuple[int, Distribution | None]] = [(self._dice.draw(q), q)]
        while len(drawn) < width:
            rest = q.without(drawn[-1][0])
            if rest is None:
                break
            q = rest
            drawn.append((self._dice.draw(q), q))
        return drawn

    def confident(self, row: Row, plan: Plan, likelihood: float) -> tuple[bool, float]:
        """Whether to draft on from `row`, and the chain's likelihood if its best token follows.

        Decided before the token is drawn, from what the tokens so far and the row say: dropping
        a token after it was drawn would bias the output.
        """
        best = confidence(row)
        likelihood *= best
        return best >= plan.min_confidence and likelihood >= plan.min_likelihood, likelihood


class ModelDrafter:
    """A chain from the draft model, token by token, with further candidates beside each.

    With `plan.width` above 1 every place gets that many candidates, drawn without replacement;
    the first one is followed, the others cost no pass of the draft model.

    Args:
        model: the cache, shared.
        greedy: draft the most probable token even where the session samples. Sampled drafts are
            accepted with probability Σ min(p, q), greedy ones with p of their token.
    """

    def __init__(self, model: DraftModel, *, name: str = "model", greedy: bool = False) -> None:
        self.name = name
        self._model = model
        self._greedy = greedy

    @property
    def native_seconds(self) -> float:
        return self._model.cache.native_seconds

    def begin(self, prompt: Sequence[int]) -> None:
        self._model.begin(prompt)

    def propose(self, session: Session, plan: Plan, tree: TokenTree) -> None:
        model = self._model
        node = tree.tip()
        path = tree.path_tokens(node)
        speaker = Speaker(session, path, greedy=self._greedy)
        unread = [*session.context[len(model.cache.tokens) :], *path]
        likelihood, thresholds = 1.0, plan.min_confidence or plan.min_likelihood
        for _ in range(min(plan.depth, model.room(session.context) - len(path))):
            if not speaker.open:
                break
            row = model.read(unread)[0]
            model.cache.checkpoint()
            if thresholds:
                confident, likelihood = speaker.confident(row, plan, likelihood)
                if not confident:
                    break
            drawn = speaker.candidates(row, plan.width)
            token, q = drawn[0]
            source = self.name + model.suffix
            followed = tree.add(token, node, source, q)
            for sibling, q_sibling in drawn[1:]:
                tree.add(sibling, node, source, q_sibling)
            node, unread = followed, [token]
            speaker.advance(token)

    def sync(self, context: Sequence[int]) -> None:
        self._model.sync(context)
