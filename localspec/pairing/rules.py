"""Check whether two files make a usable pair, from their metadata."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from localspec.cgroups import available_memory
from localspec.gguf.architectures import RECURRENT
from localspec.gguf.description import why_not
from localspec.gguf.dimensions import default_context
from localspec.gguf.file import GGUFFile, TensorInfo
from localspec.gguf.vocabularies import VocabularyFacts, compare
from localspec.pairing.memory import ANY_USE, PairUse, memory_of_pair
from localspec.text import gigabytes, parameter_count, printable

OK, WARN, FAIL, UNKNOWN = "ok", "warn", "fail", "unknown"

LARGE = 1 / 3
"""A draft with more than this share of the target's weights per token rarely pays."""
_FEWER_BYTES = 0.75
"""A draft with at least as many weights may have at most this share of the target's bytes."""

_RELATED = "Prefer a draft of the same model family."
_ANOTHER = "Choose a draft of the same model family, or pass --draft none."


@dataclass(frozen=True, slots=True)
class Check:
    """The outcome of one rule. `verdict`: OK, WARN (works, but slowly), FAIL (does not work), or
    UNKNOWN; `evidence`: a sentence without a full stop; `next_step`: a sentence, or None."""

    rule: str
    verdict: str
    evidence: str
    next_step: str | None = None


def judge(target: GGUFFile, draft: GGUFFile, use: PairUse = ANY_USE) -> tuple[Check, ...]:
    """The outcomes of all rules for files that can generate text."""
    return tuple(_checks(target, draft, use))


def failure(checks: Iterable[Check]) -> str | None:
    """The evidence of the first rule that failed; None if a pair is usable."""
    return next((check.evidence for check in checks if check.verdict == FAIL), None)


def unusable(draft: GGUFFile) -> Check | None:
    """The check of a draft that cannot generate text; None if it can."""
    if (problem := why_not(draft)) is None:
        return None
    cause, _, step = problem.partition(". ")
    evidence = f"The draft cannot be used: {cause[:1].lower()}{cause[1:].rstrip('.')}"
    return Check("draft", FAIL, evidence, step or "Choose a GGUF of a chat or completion model.")


def _checks(target: GGUFFile, draft: GGUFFile, use: PairUse) -> Iterator[Check]:
    mine, other = VocabularyFacts(target), VocabularyFacts(draft)
    yield _tokenizer(mine, other)
    yield _ids(mine, other, use.options.cross_vocabulary != "off")
    yield _special_ids(mine, other)
    yield _context(target, draft, use)
    yield _size(target, draft)
    if target.architecture in RECURRENT:
        evidence = (
            f"The target is recurrent ({target.architecture}): its memory cannot be cut back, so "
            "it is decoded plainly unless a drafter is named"
        )
        yield Check("rollback", WARN, evidence, "Try --drafter model anyway, and compare.")
    yield _family(target, draft)
    yield _template(target, draft)
    yield _memory(target, draft, use)


def _tokenizer(mine: VocabularyFacts, other: VocabularyFacts) -> Check:
    """If the ids agree, a different tokenizer only lowers acceptance."""
    ours, theirs = (f"{each.model} / {each.pre}" for each in (mine, other))
    if ours == theirs:
        return Check("tokenizer", OK, f"Both have {ours}")
    evidence = f"The target has {ours}, the draft {theirs}, which may split text differently"
    return Check("tokenizer", WARN, evidence, _RELATED)


def _ids(mine: VocabularyFacts, other: VocabularyFacts, translate: bool) -> Check:
    rule, first = "token ids", compare(mine, other, reads_all=translate)
    if mine.tokens is None or other.tokens is None:
        which = "target" if mine.tokens is None else "draft"
        return Check(rule, FAIL, f"The {which} lists no tokens", _ANOTHER)
    if first is None:
        count = f"{mine.size} tokens"
        if mine.size != other.size:
            both = f"the target has {mine.size}, the draft {other.size}"
            count = f"the first {min(mine.size, other.size)} tokens ({both})"
        return Check(rule, OK, f"Both have the same ids for {count}")
    where = f"token {first.token} is {first.target} in the target and {first.draft} in the draft"
    if not translate:
        return Check(rule, FAIL, f"The vocabularies differ: {where}", _ANOTHER)
    evidence = f"The vocabularies differ, so the draft works through text: {where}"
    return Check(rule, WARN, evidence, _RELATED)


def _special_ids(mine: VocabularyFacts, other: VocabularyFacts) -> Check:
    rule = "BOS, EOS, EOT"
    pairs = [
        ("BOS", mine.beginning(), other.beginning()),
        ("EOS", mine.end(), other.end()),
        ("EOT", mine.turn_end(), other.turn_end()),
    ]
    for name, a, b in pairs:
        if a != b:
            what = f"{name} is {_token(mine, a)} in the target and {_token(other, b)} in the draft"
            return Check(rule, WARN, what, "Expect drafts to be wrong where turns begin and end.")
    shown = ", ".join(f"{name} {_token(mine, a)}" for name, a, _ in pairs)
    return Check(rule, OK, f"The same: {shown}")


def _token(vocabulary: VocabularyFacts, token: int | None) -> str:
    return "none" if token is None else f"{token} ({vocabulary.text(token)})"


def _context(target: GGUFFile, draft: GGUFFile, use: PairUse) -> Check:
    rule = "context"
    mine, other = target.own_integer("context_length"), draft.own_integer("context_length")
    if mine is None or other is None:
        which = "target" if mine is None else "draft"
        return Check(rule, UNKNOWN, f"The {which} does not give its trained context length")
    wanted = min(use.options.context_for(mine), mine)
    trained = f"The target was trained with a context of {mine}, the draft with {other}"
    if other >= wanted:
        return Check(rule, OK, trained + (f"; {wanted} are used" if wanted < mine else ""))
    step = f"Use --ctx {other}, or choose a draft with a longer context."
    return Check(rule, WARN, f"{trained}: beyond that, its drafts get worse", step)


def _size(target: GGUFFile, draft: GGUFFile) -> Check:
    rule, usual = "smaller", "a tenth of the target's size is usual."
    mine, other = active_parameters(target), active_parameters(draft)
    shown = f"{parameter_count(other)} weights per token against {parameter_count(mine)}"
    # The same model in a smaller quantization has as many weights, but is cheaper.
    if other >= mine and draft.weight_bytes > _FEWER_BYTES * target.weight_bytes:
        evidence = f"The draft is not smaller than the target: {shown}"
        return Check(rule, FAIL, evidence, f"Choose a smaller draft; {usual}")
    share = other / max(1, mine)
    if share > LARGE:
        evidence = f"The draft is large for this target: {shown} ({share:.0%})"
        return Check(rule, WARN, evidence, f"Try a smaller one; {usual}")
    return Check(rule, OK, f"{shown} ({share:.1%})")


def active_share(file: GGUFFile) -> Iterator[tuple[TensorInfo, float]]:
    """Yield the tensors that a token uses, and the share of each that is read."""
    experts = file.own_integer("expert_count") or 0
    used = file.own_integer("expert_used_count") or 0
    share = used / experts if 0 < used < experts else 1.0
    tied = file.tied
    for tensor in file.tensors:
        # Untied embeddings are only looked up.
        if tensor.name != "token_embd.weight" or tied:
            yield tensor, share if "_exps." in tensor.name else 1.0


def active_parameters(file: GGUFFile) -> int:
    return int(sum(tensor.elements * share for tensor, share in active_share(file)))


def _family(target: GGUFFile, draft: GGUFFile) -> Check:
    rule = "family"
    names = [model_name(target), model_name(draft)]
    shown = printable(f"{names[0]} ({target.architecture}) and {names[1]} ({draft.architecture})")
    same = target.architecture == draft.architecture
    if related(*names, default=same):
        return Check(rule, OK, shown)
    how = "The same architecture, but unrelated names" if same else "Different families"
    return Check(rule, WARN, f"{how}: {shown}", _RELATED)


def _memory(target: GGUFFile, draft: GGUFFile, use: PairUse) -> Check:
    rule = "memory"
    mine, other = memory_of_pair(target, draft, use)
    tokens = default_context(target, use.options)
    free, whole = available_memory()
    evidence = (
        f"{gigabytes(mine.total)} and {gigabytes(other.total)} with {use.options.kv_type_k} "
        f"caches for {tokens} tokens; "
        f"{gigabytes(free)} of {gigabytes(whole)} are available"
        f"{', besides what fits on a device' if use.device_free else ''}"
    )
    step = "Shorten the context with --ctx, quantize the cache with --kv-type, or choose less."
    need = (mine + other).least
    if need > whole:
        return Check(rule, FAIL, f"They do not fit: {evidence}", step)
    if need > free:
        return Check(rule, WARN, f"They do not fit now: {evidence}", step)
    return Check(rule, OK, evidence)


def _template(target: GGUFFile, draft: GGUFFile) -> Check:
    rule, step = "chat template", "Expect fewer accepted drafts in chats"
    mine, other = (file.metadata.get("tokenizer.chat_template") for file in (target, draft))
    if mine == other:
        return Check(rule, OK, "The same" if mine else "Neither has one")
    if not mine or not other:
        return Check(rule, WARN, f"Only the {'target' if mine else 'draft'} has one", f"{step}.")
    evidence = "They differ: the draft was trained on another chat format than the target's"
    return Check(rule, WARN, evidence, f"{step}; a draft of the same family has the same format.")


_GENERIC = frozenset(
    """
    and base beta bit chat coder code distill distilled draft embedding experimental expert
    fast finetune gguf hf instruct instruction it large lite long main math medium merge mini model
    models nano new nightly preview pro pt quant reasoning release small super test the think
    thinking tiny tuned turbo uncensored unsloth version vision
    """.split()
)
"""Words in names that do not identify the family."""


def model_name(file: GGUFFile) -> str:
    """The name in a model's metadata, or its file's stem."""
    return file.text("general.name") or file.text("general.basename") or file.path.stem


def related(mine: str, other: str, *, default: bool) -> bool:
    """Whether a word of one name contains, or equals, a word of the other; `default` if either name
    has no such words."""
    words, others = _words(mine), _words(other)
    if not (words and others):
        return default
    return any(
        a == b or (min(len(a), len(b)) > 3 and (a in b or b in a)) for a in words for b in others
    )


def _words(text: str) -> set[str]:
    """ "Qwen2.5-7B-Instruct" → qwen."""
    words = re.findall(r"[a-z]{3,}", text.lower())
    return {word for word in words if word not in _GENERIC}
