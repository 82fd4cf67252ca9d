"""Whether two files make a pair, rule by rule, judged by their metadata alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import LocalspecError
from localspec.gguf.architectures import RECURRENT
from localspec.gguf.description import why_not
from localspec.gguf.extras import NO_EXTRAS, Extras
from localspec.gguf.file import GGUFFile
from localspec.gguf.reader import read_gguf
from localspec.gguf.vocabularies import TokenDifference, VocabularyFacts, compare, shared_text
from localspec.pairing.family import model_name, related
from localspec.pairing.memory import default_context
from localspec.pairing.pair_memory import available, memory_of_pair
from localspec.text import gibibytes, printable

THROUGH_TEXT = True
"""Whether a draft of another vocabulary works through text; if not, it cannot draft at all."""
# To be what `localspec.loading` does; a test compares the two.

OK, WARN, FAIL, UNKNOWN = "ok", "warn", "fail", "unknown"

LARGE = 1 / 3
"""A draft with more than this share of the target's weights per token rarely pays."""

_FEWER_BYTES = 0.75
"""A draft with as many weights has to have this share of the target's bytes at most."""

_RELATED = "Prefer a draft of the same model family."
_ANOTHER = "Choose a draft of the same model family, or pass --draft none."


@dataclass(frozen=True, slots=True)
class Check:
    """One rule.

    Attributes:
        verdict: "ok"; "warn", it works, but not well; "fail", it does not; "unknown".
        evidence: what was found, a sentence without a full stop.
        next_step: what to do about it, a sentence; None if all is well.
    """

    rule: str
    verdict: str
    evidence: str
    next_step: str | None = None


@dataclass(frozen=True, slots=True)
class PairVerdict:
    """All rules.

    Attributes:
        usable: no rule failed.
        why_not: the evidence of the first rule that failed, one sentence.
    """

    checks: tuple[Check, ...]

    @property
    def usable(self) -> bool:
        return self.why_not is None

    @property
    def why_not(self) -> str | None:
        return next((check.evidence for check in self.checks if check.verdict == FAIL), None)

    @property
    def warnings(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.verdict == WARN)


def judge(
    target: Path, draft: Path, *, context: int | None = None, kv_type: str = "f16"
) -> PairVerdict:
    """Judge a pair from its files' metadata; loads no weights.

    Args:
        context: tokens that it is to work with; None asks for as many as the target was trained
            on.
        kv_type: element type of its caches, for the memory that they take.
    """
    what = "target"
    try:
        mine = read_gguf(target)
        what = "draft"
        other = read_gguf(draft)
    except LocalspecError as error:
        return PairVerdict((_no_model(what, printable(str(error), 400)),))
    return judge_files(mine, other, context=context, kv_type=kv_type)


def judge_files(
    target: GGUFFile,
    draft: GGUFFile,
    *,
    context: int | None = None,
    kv_type: str = "f16",
    through_text: bool | None = None,
    device_free: int = 0,
    remote: bool = False,
    extras: Extras = NO_EXTRAS,
) -> PairVerdict:
    """The same for files that have been read.

    Args:
        device_free: bytes of memory that devices have left of their own, and may be used.
        through_text: whether another vocabulary may do; None takes THROUGH_TEXT.
        remote: whether the target's layers are on other machines.
        extras: adapters and a projector that are opened with them.
    """
    through_text = THROUGH_TEXT if through_text is None else through_text and THROUGH_TEXT
    for what, file in (("target", target), ("draft", draft)):
        problem = why_not(file)
        if problem is not None:
            return PairVerdict((_no_model(what, problem),))
    return PairVerdict(
        (
            *_checks(target, draft, context, through_text),
            _memory(target, draft, context, kv_type, device_free, remote=remote, extras=extras),
        )
    )


def _no_model(what: str, problem: str) -> Check:
    cause, _, step = problem.partition(". ")
    evidence = f"The {what} cannot be used: {cause[:1].lower()}{cause[1:].rstrip('.')}"
    return Check(what, FAIL, evidence, step or "Choose a GGUF of a chat or completion model.")


def _checks(
    target: GGUFFile, draft: GGUFFile, context: int | None, through_text: bool
) -> Iterator[Check]:
    mine, other = VocabularyFacts(target), VocabularyFacts(draft)
    yield from _vocabulary(mine, other, through_text)
    yield _turns(mine, other)
    yield _context(target, draft, context)
    yield _smaller(target, draft)
    if target.architecture in RECURRENT:
        yield Check(
            "rollback",
            WARN,
            f"The target is recurrent ({target.architecture}): its memory cannot be cut back, so "
            "it is decoded plainly unless a drafter is named",
            "Try --drafter model anyway, and compare.",
        )
    yield _family(target, draft)
    yield _template(target, draft)


def _vocabulary(
    mine: VocabularyFacts, other: VocabularyFacts, through_text: bool
) -> Iterator[Check]:
    found = compare(mine, other, reads_all=through_text)
    same = found.different is None
    if mine.model == other.model:
        yield Check("tokenizer model", OK, f"Both have {mine.model}")
    else:
        evidence = f"The target has {mine.model}, the draft {other.model}"
        yield Check("tokenizer model", WARN, evidence, _RELATED)
    # With the same ids the draft reads the target's tokens, however it would cut up text.
    if mine.pre == other.pre:
        yield Check("pre-tokenizer", OK, f"Both have {mine.pre}")
    else:
        yield Check(
            "pre-tokenizer",
            WARN,
            f"The target has {mine.pre}, the draft {other.pre}: it learned to read text that is "
            "cut up differently",
            _RELATED,
        )
    yield _ids(mine, other, found.different, through_text)
    if found.controls is not None and same:
        first = found.controls
        yield Check(
            "special tokens",
            WARN,
            f"{found.n_controls} control tokens have other names, the first is {first.token}: "
            f"{first.target} in the target, {first.draft} in the draft",
            "Watch the acceptance in chats; it may fall where turns end.",
        )
    elif same:
        yield Check("special tokens", OK, "All control tokens that both have are the same")
    else:
        yield Check("special tokens", UNKNOWN, "Not compared, as the ids differ")


def _ids(
    mine: VocabularyFacts,
    other: VocabularyFacts,
    different: TokenDifference | None,
    through_text: bool,
) -> Check:
    if mine.tokens is None or other.tokens is None:
        which = "target" if mine.tokens is None else "draft"
        return Check("token ids", FAIL, f"The {which} lists no tokens", _ANOTHER)
    if different is None:
        sizes = (
            f"{mine.size} tokens"
            if mine.size == other.size
            else (
                f"the first {min(mine.size, other.size)} tokens (the target has {mine.size}, "
                f"the draft {other.size})"
            )
        )
        return Check("token ids", OK, f"Both give the same ids to {sizes}")
    first = (
        f"token {different.token} is {different.target} in the target and {different.draft} "
        "in the draft"
    )
    if not through_text:
        return Check("token ids", FAIL, f"The vocabularies differ: {first}", _ANOTHER)
    share = shared_text(mine, other)
    return Check(
        "token ids",
        WARN,
        f"The vocabularies differ, so the draft works through text: {first}; {share:.0%} of the "
        "target's tokens are in both",
        _RELATED,
    )


def _turns(mine: VocabularyFacts, other: VocabularyFacts) -> Check:
    """BOS, EOS, EOT."""
    rule = "BOS, EOS, EOT"
    pairs = [
        ("BOS", mine.beginning(), other.beginning()),
        ("EOS", mine.end(), other.end()),
        ("EOT", mine.turn_end(), other.turn_end()),
    ]
    for name, a, b in pairs:
        if a != b:
            return Check(
                rule,
                WARN,
                f"{name} is {_token(mine, a)} in the target and {_token(other, b)} in the draft",
                "Expect drafts to be wrong where turns begin and end.",
            )
    if mine.adds_beginning() != other.adds_beginning():
        says = {None: "leaves it open", True: "wants one", False: "wants none"}
        return Check(
            rule,
            WARN,
            f"Whether a prompt begins with BOS: the target {says[mine.adds_beginning()]}, "
            f"the draft {says[other.adds_beginning()]}",
            "Expect drafts to be wrong where answers begin.",
        )
    shown = ", ".join(f"{name} {_token(mine, a)}" for name, a, _ in pairs)
    return Check(rule, OK, f"The same: {shown}")


def _token(vocabulary: VocabularyFacts, token: int | None) -> str:
    return "none" if token is None else f"{token} ({vocabulary.text(token)})"


def _context(target: GGUFFile, draft: GGUFFile, context: int | None) -> Check:
    rule = "context"
    mine, other = target.own_integer("context_length"), draft.own_integer("context_length")
    if mine is None or other is None:
        which = "target" if mine is None else "draft"
        return Check(rule, UNKNOWN, f"The {which} does not name its training length")
    wanted = min(context, mine) if context else mine
    trained = f"The target was trained on {mine} tokens, the draft on {other}"
    if other >= wanted:
        return Check(rule, OK, trained + (f"; {wanted} are wanted" if context else ""))
    return Check(
        rule,
        WARN,
        f"{trained}: after those its drafts get worse",
        f"Stay below with --ctx {other}, or choose a draft with a longer context.",
    )


def _smaller(target: GGUFFile, draft: GGUFFile) -> Check:
    rule = "smaller"
    mine, other = active_parameters(target), active_parameters(draft)
    shown = f"{_count(other)} weights per token against {_count(mine)}"
    if not mine or not other:
        return Check(rule, UNKNOWN, "The files do not list their weights")
    # The same model in another quantization has as many weights, and is cheaper all the same.
    if other >= mine and draft.weight_bytes > _FEWER_BYTES * target.weight_bytes:
        return Check(
            rule,
            FAIL,
            f"The draft is not smaller than the target: {shown}",
            "Choose a smaller draft; a tenth of the target's size is usual.",
        )
    share = other / mine
    if share > LARGE:
        return Check(
            rule,
            WARN,
            f"The draft is large for this target: {shown} ({share:.0%})",
            "Try a smaller one; a tenth of the target's size is usual.",
        )
    return Check(rule, OK, f"{shown} ({share:.1%})")


def active_parameters(file: GGUFFile) -> int:
    """Weights that a token passes through: of a mixture of experts, those of the chosen ones."""
    experts = file.own_integer("expert_count") or 0
    used = file.own_integer("expert_used_count") or 0
    share = used / experts if 0 < used < experts else 1.0
    total = 0.0
    tied = not any(tensor.name == "output.weight" for tensor in file.tensors)
    for tensor in file.tensors:
        if "_exps." in tensor.name:
            total += tensor.elements * share
        elif tensor.name != "token_embd.weight" or tied:  # a lookup unless it is the output too
            total += tensor.elements
    return int(total)


def _count(number: int) -> str:
    for unit, name in ((10**9, "B"), (10**6, "M")):
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return str(number)


def _family(target: GGUFFile, draft: GGUFFile) -> Check:
    rule = "family"
    names = [model_name(target), model_name(draft)]
    shown = printable(f"{names[0]} ({target.architecture}) and {names[1]} ({draft.architecture})")
    same = target.architecture == draft.architecture
    if related(*names, unless_told=same):
        return Check(rule, OK, shown)
    if same:
        evidence = f"Of one architecture, but with names that share nothing: {shown}"
        return Check(rule, WARN, evidence, _RELATED)
    return Check(rule, WARN, f"Two families: {shown}", _RELATED)


def _memory(
    target: GGUFFile,
    draft: GGUFFile,
    context: int | None,
    kv_type: str,
    device_free: int,
    *,
    remote: bool,
    extras: Extras,
) -> Check:
    """In main memory, beside what devices hold."""
    rule = "memory"
    mine, other = memory_of_pair(
        target, draft, context, kv_type, device_free, remote=remote, extras=extras
    )
    tokens = default_context(target, context or 0)
    free, whole = available()
    evidence = (
        f"{gibibytes(mine.total)} and {gibibytes(other.total)} with {kv_type} caches for "
        f"{tokens} tokens; "
        f"{gibibytes(free)} of {gibibytes(whole)} are available"
        f"{', what fits on a device aside' if device_free else ''}"
    )
    step = "Shorten the context with --ctx, quantize the cache with --kv-type, or choose less."
    need = mine + other
    if need.least > whole:
        return Check(rule, FAIL, f"They do not fit: {evidence}", step)
    if need.least > free:
        return Check(rule, WARN, f"They do not fit now: {evidence}", step)
    return Check(rule, OK, evidence)


def _template(target: GGUFFile, draft: GGUFFile) -> Check:
    rule = "chat template"
    mine, other = (file.metadata.get("tokenizer.chat_template") for file in (target, draft))
    if mine == other:
        return Check(rule, OK, "The same" if mine else "Neither has one")
    if not mine or not other:
        evidence = f"Only the {'target' if mine else 'draft'} has one"
        return Check(rule, WARN, evidence, "Expect fewer accepted drafts in chats.")
    return Check(
        rule,
        WARN,
        "They differ: the draft learned another form of chat, and reads the target's",
        "Expect fewer accepted drafts in chats; a draft of the same family has the same form.",
    )
