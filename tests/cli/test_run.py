"""What `localspec run` answers, and how the options change it."""

import json
import os
import re
from pathlib import Path

import pytest

from localspec import paths
from localspec.cli import request
from tests.cli.conftest import Cli
from tests.support.families import FAMILIES
from tests.support.retokenised import sentencepiece

STORY = "Tell me a story about a fox."
FIGURES = set(
    "prompt_tokens cached_tokens generated_tokens target_passes drafted tested accepted "
    "accepted_per_position tokens_per_pass prompt_seconds decode_seconds draft_seconds "
    "verify_seconds overhead_seconds tokens_per_second by_drafter".split()
)


def test_answer_on_stdout_and_one_line_of_figures_on_stderr(cli: Cli) -> None:
    result = cli("run", "-n", "24", "--temp", "0", STORY)
    assert result.code == 0
    assert len(result.out.split()) > 10
    assert result.out.endswith("\n")
    assert not result.out.endswith("\n\n")
    assert result.err.count("\n") == 1
    said = r"24 tokens · [\d.,]+ tok/s · [\d.]+× plain llama.cpp · draft tale-3m-q8_0 · "
    assert re.match(said + "(too small for drafts to help · )?built-in", result.err)
    assert "lossy" not in result.err


def test_an_answer_without_a_limit_has_one(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert request.LONGEST == 2048
    monkeypatch.setattr(request, "LONGEST", 5)
    cut = cli("run", "--temp", "0", "--jsonl", STORY)
    assert cut.events[-1]["stats"]["generated_tokens"] == 5
    assert "The answer is cut off at 5 tokens. Give -n N for a longer one." in cut.err
    assert "cut off" not in cli("run", "--temp", "0", "-n", "4", STORY).err


def test_an_answer_that_goes_round_in_circles_is_said_so(cli: Cli) -> None:
    grammar = 'root ::= "a fox " root'
    said = cli("run", "--temp", "0", "-n", "100", "--grammar", grammar, STORY)
    assert "over and over at its end. A repeat penalty of 1.1" in said.err


def test_a_model_given_as_the_prompt_is_noticed(cli: Cli) -> None:
    found = cli("run", "-n", "2", "gemma3:1b")
    assert "'gemma3:1b' was taken as the prompt." in found.err
    assert 'localspec run -m gemma-3-1b "Tell me a story".' in found.err
    assert "taken as" not in cli("run", "-n", "2", "Hello").err


def test_quiet_leaves_only_the_answer(cli: Cli) -> None:
    command = ("run", "-n", "8", "--seed", "1", "--drafter", "model", STORY)
    loud, quiet = cli(*command), cli(*command, "-q")
    assert (quiet.code, quiet.out, quiet.err) == (0, loud.out, "")


def test_json_has_the_text_and_every_figure(cli: Cli, target_path: Path, draft_path: Path) -> None:
    result = cli("run", "-n", "12", "--json", STORY)
    assert (result.code, result.err) == (0, "")
    answer = result.json
    assert set(answer) == {"text", "finish_reason", "model", "draft", "files", "stats"}
    assert answer["text"].strip()
    assert answer["files"] == [str(target_path), str(draft_path)]
    assert answer["finish_reason"] == "length"
    assert (answer["model"], answer["draft"]) == (target_path.stem, draft_path.stem)
    assert set(answer["stats"]) >= FIGURES
    assert answer["stats"]["generated_tokens"] == 12


def test_jsonl_tells_what_happens_as_it_happens(cli: Cli) -> None:
    result = cli("run", "-n", "12", "--jsonl", "--seed", "3", "--drafter", "model", STORY)
    start, *chunks, end = result.events
    assert (start["event"], start["seed"], start["lossless"]) == ("start", 3, True)
    assert start["draft"] == paths.embedded(paths.EMBEDDED_DRAFT).stem
    assert {chunk["event"] for chunk in chunks} == {"chunk"}
    assert end["event"] == "end"
    assert "".join(chunk["text"] for chunk in chunks) == end["text"] != ""
    assert sum(len(chunk["token_ids"]) for chunk in chunks) == 12
    sources = [source for chunk in chunks for source in chunk["sources"]]
    assert len(sources) == 12
    assert sources.count("model") == end["stats"]["by_drafter"]["model"]["accepted"]
    assert set(end["stats"]) >= FIGURES
    assert end["stats"]["prompt_tokens"] == start["prompt_tokens"]


def test_draft_with_another_vocabulary_is_used_and_said_to_be_so(
    cli: Cli, tmp_path: Path, draft_path: Path
) -> None:
    draft = str(sentencepiece(tmp_path / "spm.gguf", draft_path))
    said = "different vocabulary: 99% of tokens shared, drafting through text"
    options = ("-n", "24", "--temp", "0", "--drafter", "model", "--cross-vocabulary", "text")
    result = cli("run", "-d", draft, *options, "--stats", STORY)
    assert f"localspec: note: The draft model has a {said}." in result.err
    assert f"\n{'':15}{said}\n" in result.err
    assert "  model:text" in result.err
    stats = cli("run", "-d", draft, *options, "--json", STORY).json["stats"]
    assert stats["vocabulary"] == said
    assert stats["by_drafter"]["model:text"]["accepted"] > 0
    plain = cli("run", "-n", "24", "--temp", "0", "--drafter", "none", STORY)
    assert plain.out == result.out
    assert "vocabulary" not in plain.err


def test_stats_are_a_table_instead_of_the_line(cli: Cli) -> None:
    result = cli("run", "-n", "24", "--seed", "7", "--stats", "--drafter", "model", STORY)
    names = [line[:15].strip() for line in result.err.splitlines()]
    for name in ("prompt", "generated", "target passes", "accepted", "position 1", "seconds"):
        assert name in names
    assert "rule           match, lossless" in result.err
    assert "seed           7" in result.err
    assert " · " not in result.err


def test_a_lossy_rule_says_so_wherever_it_is_reported(cli: Cli) -> None:
    lossy = ("run", "-n", "8", "--rule", "typical", "--rule-threshold", "0.2", STORY)
    note = "localspec: note: Rule 'typical' is lossy"
    assert note in cli(*lossy).err
    assert "lossy (rule typical)" in cli(*lossy).err
    assert note in cli(*lossy, "--json").err
    assert "typical, lossy" in cli(*lossy, "--stats").err
    assert cli(*lossy, "--json").json["stats"]["lossless"] is False
    assert cli(*lossy, "--jsonl").events[0]["lossless"] is False


@pytest.mark.parametrize(
    "options",
    [
        *("--drafter ngram", "--drafter cascade", "--drafter model --depth 2", "--rule token"),
        *("--drafter model+ngram", "--drafter ngram+model --depth 5", "--rule block"),
        *("--drafter model --width 2 --greedy-drafts", "--penalty-last-n -1"),
        *("--min-confidence 0.5 --min-likelihood 0.1", "--top-k 5 --top-p 0.5 --min-p 0.1"),
        "--repeat-penalty 1.1 --frequency-penalty 0.1 --presence-penalty 0.1 --temperature 0",
        *("--flash-attention on --kv-type q8_0 -c 256 -t 1", "--no-mmap --gpu-layers 0"),
        "-ngl 0 -ngld 0 -md none",  # as for llama.cpp
    ],
)
def test_options_reach_the_engine_and_work(cli: Cli, options: str) -> None:
    result = cli("run", "-n", "6", "--json", *options.split(), STORY)
    assert (result.code, result.json["stats"]["generated_tokens"]) == (0, 6)


def test_a_draft_model_in_vain_is_not_loaded_or_noticed(cli: Cli, draft_path: Path) -> None:
    command = ("run", "-n", "2", "--drafter", "ngram")
    assert cli(*command, "--json", STORY).json["draft"] is None
    named = cli(*command, "-d", str(draft_path), STORY)
    assert "localspec: note: The draft model is not used" in named.err


def test_logit_bias_bans_tokens(cli: Cli) -> None:
    options = ("run", "-n", "1", "--temp", "0", "--jsonl", "--drafter", "none")
    first = cli(*options, STORY).events[1]["token_ids"][0]
    assert cli(*options, "--logit-bias", f"{first}=-inf", STORY).events[1]["token_ids"] != [first]
    assert cli(*options, "--logit-bias", "77=1000", STORY).events[1]["token_ids"] == [77]


def test_stop_strings_end_the_answer(cli: Cli) -> None:
    options = ("run", "-n", "48", "--temp", "0", "--json")
    whole = cli(*options, STORY).json["text"]
    word = whole.split()[6]
    stopped = cli(*options, "--stop", "never said", "--stop", word, STORY).json
    assert (stopped["finish_reason"], stopped["text"]) == ("stop", whole[: whole.index(word)])
    lines = cli(*options, "--regex", r"a\nb", "--stop", r"\n", STORY).json
    assert lines["text"] == "a"


@pytest.mark.parametrize(
    ("option", "text", "answers"),
    [
        ("--grammar", 'root ::= "yes" | "no"', "yes|no"),
        ("--grammar", 'start: "yes" | "no"', "yes|no"),
        ("--json-schema", '{"enum": [1]}', "1"),
        ("--regex", "^(yes|no)$", "yes|no"),
        ("--regex", r"a/\d{2}\.", r"a/\d{2}\."),
    ],
)
def test_the_answer_fits(cli: Cli, tmp_path: Path, option: str, text: str, answers: str) -> None:
    file = tmp_path / "answer"
    file.write_text(text)
    for value in (text,) if option == "--regex" else (text, f"@{file}", str(file)):
        assert re.fullmatch(answers, cli("run", "-q", option, value, STORY).out.strip())


def test_a_model_without_template_gets_the_prompt_as_it_is(cli: Cli, plain_model: Path) -> None:
    options = ("run", "-n", "2", "-m", str(plain_model))
    result = cli(*options, STORY)
    assert result.code == 0
    assert "localspec: note: plain.gguf has no chat template" in result.err
    assert "localspec: note: -d auto: only the n-gram drafter is used" in result.err
    raw = cli(*options, "--raw", "--draft", "none", STORY)
    assert "note:" not in raw.err
    assert cli(*options, "-q", STORY).err == ""


def test_verbose_shows_the_native_log_and_more_of_it_when_repeated(cli: Cli) -> None:
    options = ("run", "-n", "1", STORY)
    silent, info, debug = (cli(*options, *v).err for v in ((), ("-v",), ("-vv",)))
    assert "localspec.llama" not in silent
    assert "INFO localspec.llama: " in info
    assert "DEBUG " not in info
    assert "DEBUG localspec.llama: " in debug


def test_reasoning_is_told_apart_from_the_answer(
    cli: Cli, tmp_path: Path, draft_path: Path
) -> None:
    said = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>A"
    model = str(FAMILIES["gpt-oss"].model(tmp_path / "gpt-oss.gguf", draft_path))
    forced = ("--grammar", f"root ::= {json.dumps(said)}")
    asked = ("run", "-m", model, "-d", "none", "-n", "99", "--temp", "0", *forced, "Well?")
    shown = cli(*asked)
    assert shown.out == "A\n"
    assert shown.err.startswith("Hm.\n\n")
    assert "Hm." not in cli(*asked, "-q").err
    found = cli(*asked, "--json").json
    assert (found["text"], found["reasoning"]) == ("A", "Hm.")
    *_, end = events = cli(*asked, "--jsonl").events
    for name, text in (("text", "A"), ("reasoning", "Hm.")):
        assert end[name] == text
        assert "".join(one.get(name, "") for one in events if one["event"] == "chunk") == text


def test_reasoning_that_the_prompt_begins(cli: Cli, tmp_path: Path, draft_path: Path) -> None:
    model = str(FAMILIES["qwen3.5"].model(tmp_path / "qwen3.5.gguf", draft_path))
    asked = ("run", "-m", model, "-d", "none", "-n", "16", "--temp", "0", "--json", STORY)
    found = cli(*asked).json
    assert found["text"] == ""
    assert len(found["reasoning"]) > 20
    again = cli(*asked, "--stop", found["reasoning"][5:9]).json
    assert again["reasoning"] == found["reasoning"]  # a stop string is for the answer


def test_a_model_whose_name_is_not_utf8(cli: Cli, tmp_path: Path, draft_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9.gguf")
    path.symlink_to(draft_path)
    result = cli("run", "-m", str(path), "-n", "2", "--json", STORY)
    assert (result.code, result.json["files"]) == (0, [str(path)])
