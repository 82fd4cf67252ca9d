"""Records and interfaces of a step: `localspec.decoding.loop.Drafter` → `Plan` → `Draft` →
`PassRequest` → `PassResult` → acceptance rule → `Step`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol

from localspec.decoding.logprobs import TokenLogprob
from localspec.decoding.sampling import Rows
from localspec.decoding.tree import TokenTree

TARGET = "target"
"""Source of the tokens that the target itself picked."""


# Records of one step.


class Plan(NamedTuple):
    """One step's decision.

    Attributes:
        drafter: None decodes plainly.
        depth: longest path, in tokens.
        width: maximum candidates per position; 1 gives a chain.
        reason: for users; never empty if nothing is drafted.
        min_confidence, min_likelihood: a draft model stops if its best token, or the whole path, is
            less probable; 0 turns either off.
    """

    drafter: str | None
    depth: int = 0
    width: int = 1
    reason: str = ""
    min_confidence: float = 0.0
    min_likelihood: float = 0.0


PROMPT = Plan(None, reason="the first token comes with the prompt's own pass")
LAST = Plan(None, reason="the answer ends with the next token")


class Draft(NamedTuple):
    """A tree, or the reason why it is empty ("": see the plan). `expected_seconds`: for the whole
    step, drafting included; None if unknown."""

    tree: TokenTree
    reason: str = ""
    expected_seconds: float | None = None


class PassRequest(NamedTuple):
    """A pass of the target that an answer waits for.

    Attributes:
        context: the committed tokens; a view that grows with the answer, so read it immediately.
        tree: the tokens to verify after them.
        hidden: layers whose hidden states are requested: i for the input of layer i, the number
            of layers for the state after the last norm, NEXTN for the input of MTP layers.
    """

    context: Sequence[int]
    tree: TokenTree
    hidden: tuple[int, ...] = ()


NEXTN = 1 << 30
"""Layer number of the state that MTP (next-n) layers read."""

NO_ROWS: Mapping[int, Rows] = MappingProxyType({})


class PassResult(NamedTuple):
    """The result of a `PassRequest`.

    Attributes:
        rows: logits, float32 [1 + nodes, vocabulary]: after the committed tokens, then after each
            node. Valid until the next pass.
        seconds: native work; for a shared pass, this answer's share.
        hidden: by layer, float32 [1 + nodes, width of the model], in the same order.
        before: by layer, float32 [k, width], for the k tokens read before those, at most
            HIDDEN_BEFORE; lacks the state after the last norm.
    """

    rows: Rows
    seconds: float
    hidden: Mapping[int, Rows] = NO_ROWS
    before: Mapping[int, Rows] = NO_ROWS


HIDDEN_BEFORE = 2048
"""Rows kept of a prompt: 100 MB for three layers of a model of width 4,096."""


class Step(NamedTuple):
    """The result of one step.

    Attributes:
        sources: for each of `tokens`, the name of the source that proposed it, or TARGET.
        path: accepted nodes of the tree, padding included (see `TokenTree.pad`).
        tests: nodes whose acceptance was decided, likewise.
        context_length: committed tokens before the step.
        target_seconds, draft_seconds: the part of `seconds` spent in native passes of each model.
        logprobs: the target's, for each token, if the session requests them.
    """

    tokens: list[int]
    sources: list[str]
    plan: Plan
    draft: Draft
    path: list[int]
    tests: list[int]
    context_length: int
    seconds: float
    target_seconds: float
    draft_seconds: float
    logprobs: tuple[TokenLogprob, ...] = ()

    @property
    def tree(self) -> TokenTree:
        return self.draft.tree

    @property
    def reads_prompt(self) -> bool:
        """Whether its token comes with the prompt's own pass."""
        return self.plan is PROMPT

    @property
    def why_not_drafted(self) -> str | None:
        """The reason, for users; None if something was drafted."""
        return None if self.drafted else self.draft.reason or self.plan.reason

    @property
    def drafted(self) -> int:
        return self.tree.proposed

    @property
    def tested(self) -> int:
        return len(self.tested_nodes)

    @property
    def accepted(self) -> int:
        return len(self.accepted_nodes)

    @property
    def tested_nodes(self) -> list[int]:
        proposed = self.draft.tree.proposed
        return [node for node in self.tests if node < proposed]

    @property
    def accepted_nodes(self) -> list[int]:
        proposed = self.draft.tree.proposed
        return [node for node in self.path if node < proposed]


# Interfaces.


@dataclass(frozen=True, slots=True)
class Limits:
    """Tokens that a target's cache holds; tokens and branches of a tree that it can verify."""

    capacity: int
    max_draft: int
    max_leaves: int


class Target(Protocol):
    """The model whose text is generated, with its KV cache."""

    def forward(self, request: PassRequest) -> PassResult: ...

    def commit(self, tree: TokenTree, path: Sequence[int]) -> None:
        """Keep one path of the latest verified tree, and drop the rest."""
        ...

    def rollback(self, context: Sequence[int]) -> None:
        """Drop all tokens after the common prefix with `context`."""
        ...
