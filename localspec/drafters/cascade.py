"""Staged drafting: the n-gram drafts for the draft model, which drafts for the target.

Spector & Ré 2023, section 3.2. The draft model verifies what the n-gram proposes in one pass: each
token is drawn from its own distribution q, and where it is the expected one, the row behind it is
there already. So the target verifies it with the same q, and the text stays lossless.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from localspec.decoding.interfaces import Plan
from localspec.decoding.sampling import Rows
from localspec.decoding.session import Session
from localspec.decoding.tree import TokenTree
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.draft_sampler import DraftSampler
from localspec.drafters.ngram import NgramIndex


class CascadeSource:
    """A chain of the draft model's own tokens, several to a pass where the n-gram guessed them.

    Args:
        model, index: shared with the other drafters.
        primes: longest run that the n-gram puts before the draft model at once.
        shortest: matches of fewer tokens are not worth reading.
        greedy: draft the model's most probable tokens even where the session samples.
    """

    hidden: tuple[int, ...] = ()

    def __init__(
        self,
        model: DraftModel,
        index: NgramIndex,
        *,
        name: str = "cascade",
        primes: int = 3,
        shortest: int = 2,
        greedy: bool = False,
    ) -> None:
        self.name = name
        self._model = model
        self._index = index
        self._primes = primes
        self._shortest = shortest
        self._greedy = greedy

    @property
    def native_seconds(self) -> float:
        return self._model.cache.native_seconds

    def begin(self, prompt: Sequence[int]) -> None:
        self._index.begin(prompt)
        self._model.begin(prompt)

    def propose(self, session: Session, plan: Plan, tree: TokenTree) -> None:
        model = self._model
        self.committed(session.context, {})
        node = tree.tip()
        path = tree.path_tokens(node)
        sampler = DraftSampler(session, path, greedy=self._greedy)
        context = model.to_read(session.context)
        unread = [*context[len(model.cache.tokens) :], *path]
        left = min(plan.depth, model.room(session.context) - len(path))
        likelihood, thresholds = 1.0, plan.min_confidence or plan.min_likelihood
        while left > 0 and sampler.open:
            primed = self._run(path, min(self._primes, left - 1))
            rows = model.read([*unread, *primed], 1 + len(primed))
            read = len(model.cache.tokens) - len(primed)
            for i, row in enumerate(rows):
                if thresholds:
                    confident, likelihood = sampler.confident(row, plan, likelihood)
                    if not confident:
                        return
                # Where it is what was expected, the row behind it is known: q(x) of the time.
                token, q = sampler.candidates(row, 1)[0]
                node = tree.add(token, node, self.name + model.suffix, q)
                path.append(token)
                sampler.advance(token)
                left -= 1
                if i == len(primed) or token != primed[i] or not sampler.open:
                    # This token is unread; what was guessed from here on was wrong.
                    model.cache.truncate(read + i)
                    break
            held = len(model.cache.tokens)
            unread = [path[-1]]
            if held < len(context) + len(path) - 1:  # a recurrent memory lost more
                unread = [*context, *path][held:]

    def committed(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        self._index.sync(context)
        self._model.sync(context)

    def _run(self, path: Sequence[int], length: int) -> list[int]:
        if length < 1:
            return []
        match = self._index.match(path)
        first = self._index.candidates(match, 1, self._shortest)
        return self._index.run(match, first[0][0], length, self._shortest) if first else []
