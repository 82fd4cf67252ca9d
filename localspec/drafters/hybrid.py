"""The drafter that carries out the measured planner's plans: n-gram and draft model in one tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

from localspec.decoding.session import Session
from localspec.decoding.tree import ROOT, TokenTree
from localspec.drafters.draft_logits import Look, Reading
from localspec.drafters.draft_model import DraftModel, Speaker
from localspec.drafters.ngram import NgramIndex
from localspec.drafters.parallel import Ahead
from localspec.drafters.suffix_automaton import Match
from localspec.planning.acceptance_estimator import logit
from localspec.planning.adaptive import NAME
from localspec.planning.draft_tree import Outlook
from localspec.planning.pair_profile import Knowledge
from localspec.planning.planner import Plan
from localspec.planning.prediction import Guess

AHEAD = 7
"""Most tokens that the draft model reads ahead."""
PROBED = 8
"""Tokens that it is tried on while it is not asked."""
SHORTEST = 1
"""A single repeated token predicts little, and says so; it may still fill a free slot."""


class Blend:
    """Asks the draft model for as long as the outlook says so, and adds what the n-gram knows.

    Greedy text gets a tree: the model's chain, its second and third choices, what the n-gram
    expects instead or afterwards; the most probable of these are verified (as EAGLE-2, Li et al.
    2024, section 4). Sampled text gets a chain, drawn from the draft model, that ends before a
    token is drawn which is not expected to pay, and goes on with the n-gram's.

    Args:
        model, index: shared with the other drafters; None for no draft model.
        knowledge: what passes of the draft model cost.
        greedy: choose the draft model's most probable token even where the answer is sampled.
        ahead: reads on while the target verifies, where the two can run side by side.
    """

    def __init__(
        self,
        model: DraftModel | None,
        index: NgramIndex,
        knowledge: Knowledge,
        *,
        greedy: bool = False,
        ahead: Ahead | None = None,
    ) -> None:
        self.name = NAME
        self._model = model
        self._ahead = ahead
        self._index = index
        self._knowledge = knowledge
        self._greedy = greedy

    @property
    def native_seconds(self) -> float:
        if self._model is None:
            return 0.0
        hidden = 0.0 if self._ahead is None else self._ahead.native_seconds
        return self._model.cache.native_seconds - hidden

    def begin(self, prompt: Sequence[int]) -> None:
        self._index.begin(prompt)
        if self._model is not None:
            self._model.begin(prompt)

    def propose(self, session: Session, plan: Plan, tree: TokenTree) -> None:
        outlook = plan.outlook
        assert outlook is not None, "only the measured planner asks this drafter"
        if outlook.probes:
            self._probe(session, outlook)
        if outlook.asks_model:
            self._ask(session, plan, outlook)
        else:
            kind = "ngram" if session.sampler.greedy else "ngram, sampled"
            outlook.extend_with_guesses(ROOT, outlook.guesses, kind, outlook.streak)
            if outlook.leaves > 1 and outlook.candidates:
                self._alternatives(outlook)
        outlook.settle(session.context[-1])
        outlook.plant(tree)

    @contextmanager
    def verifying(self, session: Session, plan: Plan, tree: TokenTree) -> Iterator[None]:
        """While the target verifies the tree, read on as if its main branch were accepted."""
        assert self._ahead is not None, "the plan overlaps what cannot run side by side"
        self._ahead.start([*session.context, *tree.path_tokens(tree.tip())])
        try:
            yield
        finally:
            self._ahead.stop()

    def sync(self, context: Sequence[int]) -> None:
        self._index.sync(context)
        if self._model is not None:
            known = self._ahead is not None and self._ahead.holds(context)
            self._model.sync(context, whole=known)

    def _probe(self, session: Session, outlook: Outlook) -> None:
        """See how well the draft model would have done lately.

        One pass over the last few tokens, right behind what it read when it was asked last: with
        a gap in its text, which costs it little of its judgement, and the time to fill it is
        saved.
        """
        model = self._model
        assert model is not None
        context, held = session.context, len(model.cache.tokens)
        n = min(PROBED, len(context) - held - 1, model.room(context[:held]))
        if n < 1:
            return
        kind = self._kind(session)
        speaker = Speaker(session, (), greedy=True)
        model.cache.checkpoint()
        rows = model.read(context[-n - 1 : -1], n)
        for row, token in zip(rows, context[-n:], strict=True):
            look = Look(row, speaker, 1)
            features = (1.0, logit(look.probs[0]), look.entropy, 0.0)
            if session.sampler.greedy:
                self._knowledge.chances[kind].learn(features, look.tokens[0] == token)
            outlook.prospects.append(outlook.prospect(outlook.chance(kind, features)))
        model.cache.truncate(held)

    def _ask(self, session: Session, plan: Plan, outlook: Outlook) -> None:
        model = self._model
        assert model is not None
        sampled = not session.sampler.greedy
        drawn = outlook.drawn
        kind, source = self._kind(session), "model" + model.suffix
        speaker = Speaker(session, (), greedy=not drawn)
        text = [*session.context]  # the committed tokens and the path
        match = self._index.match()
        reading = (self._ahead and self._ahead.reading(text)) or Reading()
        streak = outlook.streak
        for depth in range(min(plan.depth, model.room(session.context))):
            if not speaker.open:
                break
            if not reading.follows(text):
                if depth and not outlook.worth_a_pass():
                    break
                reading = self._read(text, match, plan.depth - depth, outlook)
            row = reading.row()
            guess = self._index.best(match, SHORTEST)
            look = Look(row, speaker, 1 if drawn or outlook.leaves == 1 else 3)
            best = look.tokens[0]
            features = (1.0, logit(look.probs[0]), look.entropy, _agreement(guess, best))
            chance = outlook.chance(kind, features)
            if drawn:
                if not outlook.worth_drawing(chance):
                    break
                token, q = speaker.candidates(row, 1)[0]
                outlook.tip = outlook.add(
                    token,
                    outlook.tip,
                    source,
                    kind,
                    features,
                    chance=chance,
                    proposal=q,
                    ends=session.ends(token),
                )
            else:
                parent, token = outlook.tip, best
                outlook.tip = outlook.add(
                    token,
                    parent,
                    source,
                    kind,
                    features,
                    chance=chance,
                    ends=session.ends(token),
                )
                if outlook.leaves > 1:
                    self._siblings(outlook, parent, look, guess, 1.0 - chance, source)
            if guess is not None and depth < 2:
                self._knowledge.chances["agrees"].learn(
                    Guess(*guess).features(outlook.streak), guess[0] == token
                )
            streak = streak + 1 if guess is not None and guess[0] == token else 0
            speaker.advance(token)
            match = self._index.follow(match, token)
            text.append(token)
        model.cache.truncate(min(len(model.cache.tokens), len(text) - 1))
        room = plan.depth - (len(text) - len(session.context))
        if room > 0 and speaker.open:
            outlook.extend_with_guesses(
                outlook.tip,
                list(islice(self._index.guesses(match, SHORTEST), room)),
                "ngram, sampled" if sampled else "ngram",
                streak,
            )

    def _read(self, text: list[int], match: Match, most: int, outlook: Outlook) -> Reading:
        """Read what the draft model lacks of the text, and what the n-gram expects behind it.

        A row behind each expected token comes with the same pass: where the draft model says what
        the n-gram did (staged drafting: Spector & Ré 2023, section 3.2), it needs no other.
        """
        model = self._model
        assert model is not None
        model.cache.truncate(min(len(model.cache.tokens), len(text) - 1))
        unread = text[len(model.cache.tokens) :]
        held, n = len(model.cache.tokens), len(unread)
        draft = self._knowledge.draft
        most = min(most - 1, AHEAD, model.room(text))
        ahead = self._expected(match, most, n, held, outlook)
        if not ahead and 1 < n <= 4 and n * draft.seconds(1, held) < draft.seconds(n, held):
            # Some kernels take longer over two tokens than twice over one.
            for token in unread[:-1]:
                model.read((token,))
            unread = unread[-1:]
        rows = model.read([*unread, *ahead], 1 + len(ahead))
        if not ahead:
            model.cache.checkpoint()
        outlook.sizes.append(n + len(ahead))
        return Reading(rows, [*text, *ahead], len(text))

    def _expected(
        self, match: Match, most: int, unread: int, held: int, outlook: Outlook
    ) -> list[int]:
        """Expected tokens whose rows are worth reading along: those that save more passes."""
        draft, chance = self._knowledge.draft, self._knowledge.chances["agrees"]
        alone, one = draft.seconds(unread, held), draft.seconds(1, held)
        saved = best = 0.0
        reach, count = 1.0, 0
        guesses = list(islice(self._index.guesses(match, SHORTEST), most))
        for n, guess in enumerate(guesses, 1):
            reach *= chance.predict(guess.features(outlook.streak))
            saved += reach * one
            worth = saved - (draft.seconds(unread + n, held) - alone)
            if worth > best:
                best, count = worth, n
        return [guess.token for guess in guesses[:count]]

    def _kind(self, session: Session) -> str:
        """Under which chances the draft model's tokens are filed."""
        if session.sampler.greedy:
            return "model"
        return "model, chosen" if self._greedy else "model, sampled"

    @staticmethod
    def _siblings(
        outlook: Outlook,
        parent: int,
        look: Look,
        guess: tuple[int, int, int, int] | None,
        left: float,
        source: str,
    ) -> None:
        """The second and third choices, and the n-gram's if it is another one."""
        others = list(zip(look.tokens[1:], look.probs[1:], strict=True))
        if guess is not None and guess[0] not in look.tokens:
            others.append((guess[0], look.prob(guess[0])))
        expected = -1 if guess is None else guess[0]
        if len(others) > 1:
            others.sort(key=lambda other: (other[0] == expected, other[1]), reverse=True)
        remaining = max(1e-3, 1.0 - look.probs[0])
        for token, prob in others:
            features = (1.0, logit(prob / remaining), float(token == expected))
            chance = outlook.chance("second", features)
            number = outlook.add(
                token,
                parent,
                "ngram" if token not in look.tokens else source,
                "second",
                features,
                left=left,
                chance=chance,
            )
            if token == expected and parent == ROOT:
                outlook.extend_with_guesses(number, outlook.guesses[1:], "ngram", 1)
            left *= 1.0 - chance
            remaining = max(1e-3, remaining - prob)

    def _alternatives(self, outlook: Outlook) -> None:
        """What else followed here before, for slots that cost nothing."""
        first = outlook.candidates[0]
        left = 1.0 - first.chance
        total = max(2, outlook.guesses[0].total)
        for token, count in self._index.candidates(self._index.match(), 4, SHORTEST):
            if token != first.token:
                chance = min(0.5, count / (total + 1))
                outlook.add(token, ROOT, "ngram", "", (), left=left, chance=chance)
                left *= 1.0 - chance


def _agreement(guess: tuple[int, int, int, int] | None, token: int) -> float:
    """How strongly the n-gram speaks for the token, or against it."""
    if guess is None:
        return 0.0
    strength = min(float(guess[1].bit_length()), 4.0)
    return strength if guess[0] == token else -strength
