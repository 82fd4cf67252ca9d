"""`localspec list` and `localspec show`."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from localspec import ModelOptions
from localspec.pairing.auto import store_speed_up
from tests.cli.conftest import Cli
from tests.pairing.pairs import TOKENS, model
from tests.support import heads
from tests.support.ggufs import sized_llama, tiny_bert, tiny_llama

EVIL = "\x1b[31mred\x1b]0;title\x07\x9b2J\u202e"

pytestmark = pytest.mark.usefixtures("here")


def test_list_has_the_embedded_pair_and_local_files(cli: Cli, here: Path) -> None:
    tiny_llama(here / "small-Q8_0.gguf")
    result = cli("list")
    assert (result.code, result.err) == (0, "")
    header, _, *rows = result.out.splitlines()
    assert header.split()[:3] == ["NAME", "ARCHITECTURE", "PARAMETERS"]
    names = ["demo (tale-13m)", "demo draft (tale-3m)", "small-Q8_0.gguf"]
    assert [row.split("  ")[0] for row in rows] == names
    assert rows[0].split()[-1] == "demo"
    assert rows[2].split()[-1] == str(here / "small-Q8_0.gguf")
    assert "12.9 M" in rows[0]


def test_models_fit_80_columns_with_their_licences(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    result = cli("models")
    header, _, *rows = result.out.splitlines()
    assert header.split() == ["NAME", "PARAMETERS", "LICENCE", "DRAFT"]
    assert all(len(row) <= 80 for row in rows)
    assert "'localspec pull NAME --draft auto'" in result.sentence()


def test_show_has_no_drafts_for_what_generates_no_text(cli: Cli, here: Path) -> None:
    shown = cli("show", str(heads.eagle(here / "head.gguf")))
    assert "trained head (eagle3)" in shown.out
    for words in ("draft for it", "DOES NOT FIT", "WHY"):
        assert words not in shown.out


def test_list_filters_by_words(cli: Cli, here: Path) -> None:
    tiny_llama(here / "Small-One.gguf")
    *_, row = rows = cli("list", "small", "LLAMA").out.splitlines()
    assert len(rows) == 3
    assert re.search(r"\d{3} K ", row), "a rounded size"
    nothing = cli("list", "nowhere", "--json")
    assert nothing.json == {"models": []}
    assert "No model here matches nowhere" in cli("list", "nowhere").err


def test_list_all_includes_unusable_files(cli: Cli, here: Path) -> None:
    tiny_bert(here / "b.gguf")
    (here / "c.gguf").write_bytes(b"not a model")
    brief = cli("list")
    assert "b.gguf" not in brief.out
    assert "2 files are left out" in brief.err
    told = cli("list", "--all")
    assert told.err == ""
    assert "embedding model" in told.out
    assert "is not a GGUF file" in told.out


def test_show_embedded_model(cli: Cli) -> None:
    result = cli("show", "demo")
    assert (result.code, result.err) == (0, "")
    for words in (
        "model           demo",
        "architecture    llama",
        "parameters      12.9 M",
        "quantization    Q8_0",
        "context         2,048 tokens in training",
        "vocabulary      8,192 tokens, gpt2 / gpt-2",
        "chat template   153 characters",
        "licence         not stated",
        "with 2,048 tokens of f16 cache",
        "demo draft (tale-3m)",
    ):
        assert words in result.out
    assert set(re.findall(r"\d ([kKMGT]?i?B)\b", result.out)) == {"MB"}


def test_show_as_json(cli: Cli, here: Path) -> None:
    tiny_llama(here / "swapped.gguf", swap_tokens=(500, 700))
    sized_llama(here / "large.gguf", layers=2)
    told = cli("show", "demo", "--json", "--ctx", "4096", "--kv-type", "q8_0").json
    assert (told["trained_context"], told["vocabulary"]["tokens"]) == (2048, 8192)
    memory = told["memory"]
    assert (memory["context"], memory["kv_type"]) == (4096, "q8_0")
    assert memory["total"] == memory["weights"] + memory["kv"] + memory["compute"]
    assert memory["kv"] == 4096 * 6 * 2 * 192 // 32 * 34
    drafts = {Path(draft["path"]).name: draft for draft in told["drafts"]}
    tale = drafts["tale-3m-q8_0.gguf"]
    assert tale["usable"]
    assert tale["expected_cost"] == pytest.approx(0.25, abs=0.05)
    assert tale["expected_speed_up"] >= 1
    assert drafts["swapped.gguf"]["usable"], "through text"
    assert "larger than the target" in drafts["large.gguf"]["why_not"]
    assert "tale-13m-q8_0.gguf" not in drafts


def test_long_values_wrap_in_a_pipe(cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model(here / "a.gguf", width=512)
    model(here / "b.gguf", name="Bear", context=64, template=None, tokenizer="t5")
    (draft,) = cli("show", "a.gguf", "--json").json["drafts"]
    assert len(" ".join(draft["warnings"])) > 200
    for columns, width in (("100", 100), (None, 80), ("1000", 1000)):
        monkeypatch.delenv("COLUMNS", raising=False)
        if columns:
            monkeypatch.setenv("COLUMNS", columns)
        lines = cli("show", "a.gguf").out.replace("─", "").splitlines()
        (whole,) = [line for line in lines if str(here / "b.gguf") in line]  # whatever its length
        assert max(len(line) for line in lines if line != whole) <= width
        said = "\n".join(lines) if width == 1000 else " ".join(lines)
        words = draft["warnings"] if width == 1000 else " ".join(draft["warnings"]).split()
        assert all(word in said for word in words)
        below = re.search(r"\nmemory {10}\S.*\n {16}\S", "\n".join(lines))
        assert below or width == 1000, "below the beginning of the value"


def test_embedded_draft_needs_the_same_vocabulary(cli: Cli, here: Path) -> None:
    model(here / "target.gguf", width=4096)
    model(here / "draft.gguf", width=64)
    told = cli("show", "target.gguf", "--json").json
    assert told["parameters"] > 2e7, "the built-in models are smaller"
    assert [draft["name"] for draft in told["drafts"]] == ["draft.gguf"]
    assert "demo" not in cli("show", "target.gguf").out
    store_speed_up(here / "target.gguf", here / "draft.gguf", 0.5, ModelOptions())
    assert re.search(r"measured 0\.50× .*measured no gain", cli("show", "target.gguf").out, re.S)


def test_control_characters_do_not_reach_the_terminal(cli: Cli, here: Path) -> None:
    odd: Any = dict.fromkeys(("name", "pre", "tokenizer", "template"), EVIL)
    tokens = (*TOKENS[:5], EVIL, *TOKENS[6:])
    path = model(here / "evil\x1b[2Jname.gguf", **odd, tokens=tokens, width=256)
    model(here / f"draft{EVIL}.gguf", tokens=(*TOKENS[:5], "\x1b[1m", *TOKENS[6:]))
    (here / "broken\x1b[2J.gguf").write_bytes(b"GGUF\x1b")
    for arguments in (("list", "--all"), ("show", str(path)), ("list", "--all", "--json")):
        assert cli(*arguments).succeeded().replace("\n", "").isprintable(), arguments
    told = cli("show", str(path), "--json")
    assert told.out.strip().isprintable()
    assert told.json["path"] == str(path)
    assert json.loads(told.out)["chat_template"] == EVIL
