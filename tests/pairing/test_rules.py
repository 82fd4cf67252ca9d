"""A pair is judged rule by rule, and each rule can fail by itself."""

import itertools
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from localspec.errors import DraftMismatch
from localspec.gguf.reader import read_gguf
from localspec.gguf.vocabularies import VocabularyFacts, compare, require_shared
from localspec.llama.model import Model
from localspec.llama.options import ModelOptions
from localspec.pairing import rules
from localspec.pairing.memory import PairUse, memory_of_pair
from localspec.pairing.rules import Check, active_parameters, failure, judge, unusable
from tests.gguf.raw import keyed, text, write_model
from tests.pairing.pairs import CONTROLS, TOKENS, model
from tests.support.ggufs import tiny_bert, tiny_llama, tiny_mamba

RULES = (
    *("tokenizer", "token ids", "BOS, EOS, EOT"),
    *("context", "smaller", "family", "chat template", "memory"),
)


Checks = tuple[Check, ...]
Pair = Callable[..., Checks]


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    """Judges a pair that agrees in everything but what is said about the draft; token ids have to
    agree, unless `through_text`."""

    def judged(*, target: dict[str, Any] | None = None, **draft: Any) -> Checks:
        mine = model(tmp_path / "target.gguf", width=256, **(target or {}))
        context = draft.pop("judged_with", 0)
        crosses = "auto" if draft.pop("through_text", False) else "off"
        use = PairUse(options=ModelOptions(context=context, cross_vocabulary=crosses))
        other = model(tmp_path / "draft.gguf", **draft)
        return judge(read_gguf(mine), read_gguf(other), use)

    return judged


def failed_rules(report: Checks) -> list[str]:
    return [check.rule for check in report if check.verdict != "ok"]


def check_of(report: Checks, rule: str) -> Check:
    (found,) = [check for check in report if check.rule == rule]
    return found


SWAPPED = (*TOKENS[:5], TOKENS[7], TOKENS[6], TOKENS[5], *TOKENS[8:])
OTHER_TURN = (*TOKENS[:2], "<|im_start|>", *TOKENS[3:])


def test_good_pair_passes_every_rule(pair: Pair) -> None:
    report = pair()
    assert tuple(check.rule for check in report) == RULES
    assert {check.verdict for check in report} == {"ok"}
    assert all(check.next_step is None for check in report)
    assert failure(report) is None
    assert failed_rules(pair(context=1024, judged_with=1024)) == []
    assert failed_rules(pair(target={"context": 1 << 17}, context=8192)) == [], "as are used"
    assert failed_rules(pair(tokens=OTHER_TURN)) == [], "control tokens may have other names"


@pytest.mark.parametrize(
    ("draft", "rule", "verdict", "evidence"),
    [
        ({"tokenizer": "t5"}, "tokenizer", "warn", "has gpt2 / gpt-2, the draft t5 / gpt-2"),
        ({"pre": "qwen2"}, "tokenizer", "warn", "the draft gpt2 / qwen2"),
        ({"pre": None}, "tokenizer", "warn", "the draft gpt2 / default"),
        ({"tokens": SWAPPED}, "token ids", "fail", "token 5 is 'c' in the target and 'e'"),
        (
            {"tokens": (*TOKENS[:7], *TOKENS[8:]), "through_text": True},
            "token ids",
            "warn",
            "works through text: token 7 is 'e' in the target and 'f' in the draft",
        ),
        ({"special": {"bos": 2, "eos": 1}}, "BOS, EOS, EOT", "warn", "BOS is 0 ('<s>')"),
        ({"special": {"bos": 0, "eos": 13}}, "BOS, EOS, EOT", "warn", "EOS is 1 ('</s>')"),
        ({"special": {"bos": 0, "eos": 1, "eot": 2}}, "BOS, EOS, EOT", "warn", "EOT is none in "),
        ({"context": 1024}, "context", "warn", "a context of 2048, the draft with 1024"),
        ({"context": 1024, "judged_with": 1025}, "context", "warn", "the draft with 1024"),
        ({"context": None}, "context", "unknown", "draft does not give"),
        ({"width": 256}, "smaller", "fail", "is not smaller"),
        ({"width": 256, "layers": 3}, "smaller", "warn", "is large for this target"),
        ({"name": "Crow"}, "family", "warn", "unrelated names: Fox (llama) and Crow"),
        ({"name": "Crow", "architecture": "qwen3"}, "family", "warn", "Different families: Fox"),
        ({"template": "{{ other }}"}, "chat template", "warn", "They differ"),
        ({"template": None}, "chat template", "warn", "Only the target has one"),
    ],
)
def test_each_rule_can_fail(
    pair: Pair, draft: dict[str, Any], rule: str, verdict: str, evidence: str
) -> None:
    report = pair(**draft)
    assert failed_rules(report) == [rule]
    check = check_of(report, rule)
    assert check.verdict == verdict
    assert evidence in check.evidence
    assert (check.next_step is not None) == (verdict != "unknown")
    assert failure(report) == (check.evidence if verdict == "fail" else None)


def test_memory_rule(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def set_memory(available: int, total: int) -> None:
        monkeypatch.setattr(rules, "available_memory", lambda: (available, total))

    assert check_of(pair(), "memory").verdict == "ok"
    assert "f16 caches for 2048 tokens" in check_of(pair(), "memory").evidence
    set_memory(1 << 20, 1 << 40)
    assert check_of(pair(), "memory").verdict == "warn"
    set_memory(1 << 20, 1 << 20)
    report = pair()
    assert check_of(report, "memory").verdict == "fail"
    assert "They do not fit" in (failure(report) or "")
    set_memory(*(psutil.virtual_memory().total,) * 2)
    report = pair(target={"context": 1 << 30}, judged_with=1 << 30)
    assert check_of(report, "memory").verdict == "fail"


def test_device_memory_is_not_main_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = read_gguf(model(tmp_path / "target.gguf", width=512, layers=8))
    draft = read_gguf(model(tmp_path / "draft.gguf", width=128))
    alone, none = memory_of_pair(target, draft, PairUse())
    room = alone.total // 2
    monkeypatch.setattr(rules, "available_memory", lambda: (room, room))

    def verdict(device_free: int) -> str:
        report = judge(target, draft, PairUse(device_free=device_free))
        return check_of(report, "memory").verdict

    assert none.total < room
    assert verdict(0) == "fail"
    assert verdict(2 * alone.total) == "ok"
    assert verdict(alone.total // 10) == "fail", "most of it stays in main memory"


@pytest.mark.parametrize("which", ["target", "draft"])
def test_extra_tokens_at_the_end_are_padding(pair: Pair, which: str) -> None:
    more: dict[str, Any] = {"tokens": (*TOKENS, "[PAD1]", "[PAD2]")}
    report = pair(target=more) if which == "target" else pair(**more)
    assert failed_rules(report) == []
    assert "the first 14 tokens" in check_of(report, "token ids").evidence


def test_target_only_tokens_through_text(pair: Pair) -> None:
    more = (*TOKENS, "<unused1>", "new")
    report = pair(target={"tokens": more, "controls": (*CONTROLS, 14)}, through_text=True)
    told = "token 15 is 'new' in the target and none in the draft"
    assert told in check_of(report, "token ids").evidence
    fewer = {"tokens": more[:-1], "controls": (*CONTROLS, 14)}
    assert failed_rules(pair(target=fewer, through_text=True)) == []
    assert failed_rules(pair(tokens=more, through_text=True)) == []


def test_mixture_counts_active_experts(tmp_path: Path) -> None:
    dense = read_gguf(model(tmp_path / "a.gguf"))
    mixture = read_gguf(model(tmp_path / "b.gguf", experts=(8, 2)))
    assert mixture.n_parameters - dense.n_parameters == 4 * 64 * 64 * 8
    assert active_parameters(mixture) - active_parameters(dense) == 4 * 64 * 64 * 2


@pytest.mark.parametrize(
    ("name", "other", "verdict"),
    [
        ("Qwen2.5 7B Instruct", "Qwen2.5 0.5B Instruct", "ok"),
        ("DeepSeek R1 Distill Qwen 7B", "Qwen2.5 0.5B", "ok"),
        ("Meta Llama 3.1 8B", "TinyLlama 1.1B Chat", "ok"),
        ("Mistral 7B Instruct", "TinyLlama 1.1B Instruct", "warn"),
        ("7B", "1B", "ok"),
    ],
)
def test_families_by_name(pair: Pair, name: str, other: str, verdict: str) -> None:
    assert check_of(pair(target={"name": name}, name=other), "family").verdict == verdict


def test_unusable_draft(tmp_path: Path, draft_path: Path) -> None:
    check = unusable(read_gguf(tiny_bert(tmp_path / "bert.gguf")))
    assert check is not None
    assert (check.rule, check.verdict, bool(check.next_step)) == ("draft", "fail", True)
    assert "it is an embedding model" in check.evidence
    assert unusable(read_gguf(draft_path)) is None


def test_recurrent_target_warns(tmp_path: Path) -> None:
    mamba = read_gguf(tiny_mamba(tmp_path / "mamba.gguf"))
    assert check_of(judge(mamba, mamba), "rollback").verdict == "warn"


def test_hostile_metadata(tmp_path: Path) -> None:
    """Each key in turn has a value of another type."""
    good = read_gguf(model(tmp_path / "good.gguf"))
    names = list(good.metadata)
    path = tmp_path / "bad.gguf"
    for name in {*names} - {"general.architecture"}:
        path.write_bytes(good.path.read_bytes().replace(text(name), text("x" * len(name))))
        judge(read_gguf(path), good)
        judge(good, read_gguf(path))
    write_model(tmp_path / "texts.gguf", more=keyed(dict.fromkeys(names[1:], "\x1b[1m")))
    assert failure(judge(read_gguf(tmp_path / "texts.gguf"), good))


def test_metadata_and_llama_cpp_agree_on_shared_vocabularies(tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"vocab_size": 8200},
        *({"swap_tokens": pair} for pair in ((500, 700), (1, 2), (3, 4000), (8190, 8191))),
    ]
    files = [tiny_llama(tmp_path / f"{n}.gguf", **changed) for n, changed in enumerate(changes)]
    facts = [VocabularyFacts(read_gguf(path)) for path in files]
    with ExitStack() as stack:
        options = ModelOptions(threads=1, gpu_layers=0)
        opened = [stack.enter_context(Model(path, options)).vocabulary for path in files]
        marks = [{s.id for s in one.special_tokens.values() if s.control} for one in opened]
        for a, b in itertools.product(range(len(files)), repeat=2):
            mine, other = opened[a], opened[b]
            unlike = [
                token
                for token in range(min(mine.size, other.size))
                if mine.text(token) != other.text(token) and token not in marks[a] & marks[b]
            ]
            unlike += range(other.size, mine.size)  # none of them is padding by its type
            found = compare(facts[a], facts[b], reads_all=True)
            assert (found and found.token) == next(iter(unlike), None)
            if found is None:
                require_shared(files[a], files[b])
                continue
            with pytest.raises(DraftMismatch, match=f"token {found.token} "):
                require_shared(files[a], files[b])
        for one, fact in zip(opened, facts, strict=True):
            assert (fact.beginning(), fact.end()) == (one.bos, one.eos)
