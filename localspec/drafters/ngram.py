"""The n-gram drafter: what followed the last time the text stood at this point."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from localspec.decoding.session import Session
from localspec.decoding.tree import TokenTree
from localspec.drafters.suffix_automaton import Match, SuffixAutomaton
from localspec.planning.planner import Plan
from localspec.planning.prediction import Guess


class NgramIndex:
    """A suffix automaton that is kept equal to a session's committed tokens."""

    def __init__(self) -> None:
        self._automaton = SuffixAutomaton()

    def sync(self, context: Sequence[int]) -> None:
        """Append what is new in `context`; start anew where it is another text."""
        known = self._automaton.tokens
        n = len(known)
        if n and (n > len(context) or context[n - 1] != known[-1]):
            self._automaton = SuffixAutomaton()
            n = 0
        if n < len(context):
            self._automaton.extend(context[n:])

    def begin(self, context: Sequence[int]) -> None:
        """A new generation: keep the automaton only if `context` really goes on from its text."""
        known = self._automaton.tokens
        if list(context[: len(known)]) != known:
            self._automaton = SuffixAutomaton()
        self.sync(context)

    def match(self, beyond: Sequence[int] = ()) -> Match:
        """The longest repeated ending of the text followed by the tokens `beyond`."""
        match = self._automaton.match()
        for token in beyond:
            match = self._automaton.follow(match, token)
        return match

    def follow(self, match: Match, token: int) -> Match:
        """The match after one more imagined token."""
        return self._automaton.follow(match, token)

    def best(self, match: Match, shortest: int) -> tuple[int, int, int, int] | None:
        """See SuffixAutomaton.best."""
        return self._automaton.best(match, shortest)

    def guesses(self, match: Match, shortest: int) -> Iterator[Guess]:
        """What most likely follows a match: a chain, worked out as far as it is asked for."""
        automaton = self._automaton
        while True:
            best = automaton.best(match, shortest)
            if best is None:
                return
            yield Guess(*best)
            match = automaton.follow(match, best[0])

    def expected(self, session: Session) -> Iterator[Guess]:
        """The same behind the end of the text."""
        self.sync(session.context)
        return self.guesses(self._automaton.match(), 1)

    def candidates(self, match: Match, most: int, shortest: int) -> list[tuple[int, int]]:
        """See SuffixAutomaton.continuations."""
        return self._automaton.continuations(match, most, shortest)

    def run(self, match: Match, token: int, length: int, shortest: int) -> list[int]:
        """`token` and what most likely follows it, at most `length` tokens."""
        tokens: list[int] = []
        while len(tokens) < length:
            tokens.append(token)
            match = self._automaton.follow(match, token)
            following = self._automaton.continuations(match, 1, shortest)
            if not following:
                break
            token = following[0][0]
        return tokens


class NgramDrafter:
    """Copies the continuation of the longest earlier occurrence, several of them for a tree.

    Its tokens are chosen, not drawn: q is 1 on each, and a token is accepted with probability
    p(token). It runs no model, so it costs microseconds.

    Args:
        index: shared with every other drafter that looks things up in the text.
        shortest: matches of fewer tokens are not worth proposing.
    """

    native_seconds = 0.0

    def __init__(self, index: NgramIndex, *, name: str = "ngram", shortest: int = 2) -> None:
        self.name = name
        self._index = index
        self._shortest = shortest

    def begin(self, prompt: Sequence[int]) -> None:
        self._index.begin(prompt)

    def propose(self, session: Session, plan: Plan, tree: TokenTree) -> None:
        self._index.sync(session.context)
        tip = tree.tip()
        match = self._index.match(tree.path_tokens(tip))
        for token, _ in self._index.candidates(match, plan.width, self._shortest):
            node = tip
            for follower in self._index.run(match, token, plan.depth, self._shortest):
                existing = tree.child_with(node, follower)
                node = tree.add(follower, node, self.name) if existing is None else existing

    def sync(self, context: Sequence[int]) -> None:
        self._index.sync(context)
