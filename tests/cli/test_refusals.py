"""Options that cannot be meant are refused in one sentence, before anything is opened."""

import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.support.homes import move_to


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the files that the commands below name."""
    folder = move_to(tmp_path, monkeypatch)
    (folder / "text.gguf").write_bytes(b"hello, this is only text")
    (folder / "a.txt").write_bytes(b"text")
    (folder / "deep").write_bytes(b"[" * 9_999)
    (folder / "empty").mkdir()


@pytest.mark.parametrize(
    ("command", "cause"),
    [
        ("run -n 0 hi", "max-tokens is 0"),
        ("run --temp -1 hi", "temperature is -1"),
        ("run --temp hot hi", "'hot' is not a number. See"),
        ("run --ctx 3.5 hi", "'3.5' is not a whole number. See"),
        ("run --bogus", "No such option: --bogus. See 'localspec run --help'."),
        ("chat --model", "See 'localspec chat --help'."),
        ("serve -m", "See 'localspec serve --help'."),
        ("rm", "See 'localspec rm --help'."),
        ("run smollm2 hi", "Unexpected argument: hi. Name a model with -m, and put a prompt, or a"),
        ("chat -c 4096", "Name a model with -m, and a context length with --ctx"),
        ("-m demo run hi", "Type the command first, as in 'localspec run -m REF'"),
        ("delete demo", "Did you mean 'rm'?"),
        ("history delete 1", "Did you mean 'rm'?"),
        ("history find fox", "Did you mean 'search'?"),
        ("ui", "Did you mean 'chat' or 'serve'?"),
        ("open x", "Did you mean 'chat' or 'show'?"),
        ("my.gguf hi", "Did you mean 'chat -m my.gguf'?"),
        ("'Why is it?'", "Did you mean 'run'?"),
        ("version", "Did you mean '--version'?"),
        ("run --n-predict 9 hi", "No such option: --n-predict. Did you mean '--max-tokens'?"),
        ("run --ctx-size=9 hi", "Did you mean '--ctx'?"),
        ("run --top_p 1 hi", "Did you mean '--top-p'? See 'localspec run --help-all'."),
        ("run --sede 1 hi", "Did you mean '--seed'? See 'localspec run --help'."),
        ("serve -np 4", "No such option: -np. Did you mean '--parallel'?"),
        ("chat -temp 0.7", "No such option: -temp. Did you mean '--temp'?"),
        ("serve -p 8080", "Did you mean '--port'?"),
        ("run --port 8080 hi", "No such option: --port. Did you mean 'serve --port'?"),
        ("run --n-parallel 4 hi", "Did you mean 'serve --parallel'?"),
        ("run --stop -fa --regex ( hi", "The regular expression is not valid"),
        ("run --regex ( -- -fa", "The regular expression is not valid"),
        ("run --raw=1 hi", "Option '--raw' does not take a value. See"),
        ("run -p hi", "No such option: -p. Write the prompt in quotes, without an option."),
        ("run --prompt hi", "No such option: --prompt. Write the prompt in quotes"),
        ("run -m my file.gguf hi", "put a prompt, or a path with spaces, in quotes"),
        ("rum", "Did you mean 'run' or 'rm'? See"),
        ("serve smollm2", "Unexpected argument: smollm2. Name a model with -m, and a context"),
        ("pull smollm2 hi", "Unexpected argument: hi. See 'localspec pull --help'"),
        ("run --rule typical --rule-threshold 2 hi", "must be in (0, 1]"),
        ("run --logit-bias fox=1 hi", "logit-bias is 'fox=1'"),
        ("run --logit-bias 99999=1 hi", "tokenize of localspec serve"),
        ("run --stop '' hi", "--stop is empty"),
        ("run --stop \udcff hi", "--stop is not UTF-8: byte 0"),
        ("run --system a\udcff hi", "--system is not UTF-8: byte 1"),
        ("run --system a --raw hi", "--raw excludes --system"),
        ("run --grammar 'root ::= (' hi", "The grammar is not valid GBNF"),
        ("run --grammar missing.gbnf hi", "--grammar: there is no file missing.gbnf"),
        ("run --grammar 'start: missing' hi", "The grammar is not valid Lark"),
        ("run --json-schema {} --regex a hi", "cannot be combined"),
        ("run --regex '' hi", "The regular expression is empty"),
        ("run --json --jsonl hi", "--json and --jsonl cannot be combined"),
        ("run -q --stats hi", "--quiet excludes --stats"),
        ("run -q -v hi", "--quiet excludes --stats and --verbose"),
        ("run -d none --drafter model hi", "needs a draft model"),
        ("run --lora-draft none.gguf hi", "Name that with -d"),
        ("run --image fox.png hi", "Name it with --mmproj FILE"),
        ("run --image none.png --mmproj x hi", "none.png cannot be read: No such"),
        ("run --image a.txt --mmproj x hi", "Give one as PNG, JPEG, GIF or BMP"),
        ("run --image fox.png --mmproj x --session s hi", "holds only text"),
        ("serve -m a -m b --lora a.gguf", "An adapter needs a single model"),
        ("race --raw hi --then Again.", "Leave out --then"),
        ("race hi --then ''", "--then is empty"),
        ("bench --arms plain,fancy", "There are no arms 'fancy'. Choose from plain, auto"),
        ("bench --scale 1b -m model.gguf", "--scale excludes --model"),
        ("bench --scale Z", "no scaled pair 'Z'. Choose from 1b, A, B, C, R0, RK, RN, R-long"),
        ("bench --scale A --lora a.gguf", "Leave them out"),
        ("bench --llama-server missing", "--llama-server: there is no file missing"),
        ("bench --server-configs plain", "Name it with --llama-server"),
        ("bench --llama-server a.txt --server-configs warp", "warp"),
        ("show demo --json --template", "cannot be combined"),
        ("show", "Missing argument"),
        ("learn", "Give one of: PATH"),
        ("learn missing", "no file or folder missing. Check the path"),
        ("learn empty", "no text in it"),
        ("learn --forget x", "learn --list"),
        ("learn --history", "no history yet"),
        ("distill --list --forget x", "Give --list or --forget, not both."),
        ("distill --as oracle", "There is no kind of draft 'oracle'. Choose one of"),
        ("distill --epochs 0", "--epochs is 0. Give 1 or more."),
        ("distill --seed -1", "--seed is -1. Give 0 or more."),
        ("distill --rate nan", "--rate is nan. Give more than 0, and at most 1."),
        ("distill -o a.txt a.txt", "a.txt exists, and is not a draft that was trained for"),
        ("distill -o empty a.txt", "empty exists"),
        ("distill --quant Q4_K", "This draft cannot be written as 'Q4_K'."),
        ("distill --as medusa --quant q8_0", "as 'Q8_0'. Choose one of F16."),
        ("distill --from demo --shape 32x1x32", "Give one of them."),
        ("distill --as medusa --shape 32x1x32", "has its target's shape."),
        ("distill --from demo --vocabulary 4000", "Leave out --from and --rounds."),
        ("distill a.txt --record-only --shape 7x7", "'7x7' is not a shape."),
        ("distill a.txt --record-only --device abacus", "There is no device 'abacus'."),
        ("distill --record-only", "There is nothing to record."),
        ("distill nowhere.txt --record-only", "nowhere.txt cannot be read"),
        ("distill --history --record-only", "There is no history yet."),
        ("eval mmlu", "--file"),
        ("eval mmlu --file no.jsonl", "no.jsonl cannot be read: No such file or directory. Check"),
        ("eval drop", "There is no suite 'drop'. Choose one of"),
        ("verify --quick --thorough", "--quick excludes --thorough"),
        ("verify -c 256", "The context of 256 tokens"),
        ("verify --check none.json", "cannot be read"),
        ("verify --check a.txt", "not a certificate"),
        ("verify --check deep", "not a certificate"),
        ("eval gsm8k --file deep", "not a question of gsm8k"),
        ("race -", "The prompt is empty."),
        ("race --scale A -m x.gguf hi", "--scale excludes --model"),
        ("bench --turns 0", "turns is 0"),
        ("bench --peers --lora a.gguf", "Leave them out"),
        ("learn --list x", "Give one of"),
        ("distill --rounds 1 --vocabulary 4000", "Leave out --from and --rounds."),
        ("run --json-schema @missing.json hi", "--json-schema: there is no file missing.json"),
        ("race --scale A --lora a.gguf hi", "--scale excludes --lora"),
        ("run --session new/ hi", "There is no folder new/"),
        ("race -q -v hi", "--quiet excludes --verbose."),
        ("distill --text nowhere --record-only", "There is no file or folder nowhere."),
        ("run --min-confidence 1 hi", "min-confidence is 1"),
        ("run --image fox.png --mmproj x --raw hi", "Leave out one of them"),
        ("bench --arms ,", "--arms is empty"),
        ("bench --suite poetry", "poetry"),
        ("run --grammar . hi", "cannot be read: it is a folder"),
    ],
)
def test_invalid_commands(cli: Cli, command: str, cause: str) -> None:
    cli(*shlex.split(command)).refused(cause)


@pytest.mark.parametrize(
    ("command", "code", "cause"),
    [
        ("run -m none.gguf hi", 3, "There is no file none.gguf"),
        ("rm nothing", 3, "or look at 'localspec list' and 'localspec models'."),
        ("run -hf qwen3-8b hi", 3, "Get it with 'localspec pull qwen3-8b --draft auto'."),
        (f"run -c 32 '{'word ' * 100}'", 6, "32"),
        ("run --lora none.gguf hi", 3, "There is no file none.gguf"),
        ("show text.gguf", 4, "is not a GGUF file"),
        ("learn a.txt -m nowhere.gguf", 3, "nowhere.gguf"),
    ],
)
def test_missing_and_invalid_models(cli: Cli, command: str, code: int, cause: str) -> None:
    cli(*shlex.split(command)).refused(cause, code=code)
