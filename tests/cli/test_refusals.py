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
    (folder / "empty").mkdir()


@pytest.mark.parametrize(
    ("command", "cause"),
    [
        ("run -n 0 hi", "max-tokens is 0"),
        ("run --temp -1 hi", "temperature is -1"),
        ("run smollm2 hi", "Unexpected argument: hi. Name a model with -m, and put a prompt, or a"),
        ("chat -c 4096", "Name a model with -m, and a context length with --ctx"),
        ("-m demo run hi", "Type the command first, as in 'localspec run -m REF'"),
        ("delete demo", "Did you mean 'rm'?"),
        ("version", "Did you mean '--version'?"),
        ("run -p hi", "No such option: -p. Write the prompt in quotes, without an option."),
        ("run --prompt hi", "No such option: --prompt. Write the prompt in quotes"),
        ("run -m my file.gguf hi", "put a prompt, or a path with spaces, in quotes"),
        ("rum", "Did you mean 'run' or 'rm'? See"),
        ("pull smollm2 hi", "Unexpected argument: hi. See 'localspec pull --help'"),
        ("run --seed -2 hi", "seed is -2"),
        ("run --rule typical --rule-threshold 2 hi", "lies in (0, 1]"),
        ("run --logit-bias fox=1 hi", "logit-bias is 'fox=1'"),
        ("run --logit-bias 5=inf hi", "logit-bias is '5=inf'"),
        ("run --logit-bias 99999=1 hi", "logit-bias names a token id outside"),
        ("run --stop '' hi", "--stop is empty"),
        ("run --stop \udcff hi", "--stop is not UTF-8: byte 0"),
        ("run --system a\udcff hi", "--system is not UTF-8: byte 1"),
        ("run --system a --raw hi", "--raw leaves no place for --system"),
        ("run --grammar 'root ::= (' hi", "The grammar is not valid GBNF"),
        ("run --grammar missing.gbnf hi", "--grammar names no file: missing.gbnf"),
        ("run --grammar 'start: missing' hi", "The grammar is not valid Lark"),
        ("""run --json-schema '{"type": "nonsense"}' hi""", "Invalid type: nonsense"),
        ("run --json-schema {} --regex a hi", "exclude each other"),
        ("run --regex '(' hi", "The regular expression is not valid: unclosed group"),
        ("run --regex '' hi", "The regular expression is empty"),
        ("run --json --jsonl hi", "--json and --jsonl exclude each other"),
        ("run -q --stats hi", "--quiet excludes --stats"),
        ("run -d none --drafter model hi", "needs a draft model"),
        ("run --lora none.gguf:much hi", "'much' is not a scale"),
        ("run --lora-draft none.gguf hi", "Name that with -d"),
        ("run --image fox.png hi", "Name it with --mmproj FILE"),
        ("run --image none.png --mmproj x hi", "The image none.png cannot be read: No such"),
        ("run --image a.txt --mmproj x hi", "Give one as PNG, JPEG, GIF or BMP"),
        ("run --image fox.png --mmproj x --session s hi", "holds only text"),
        ("serve -m a -m b --lora a.gguf", "An adapter goes with one model"),
        ("race --raw hi --then Again.", "Leave out --then"),
        ("race hi --then ''", "--then is empty"),
        ("bench --arms plain,fancy", "There are no arms 'fancy'. Choose from plain, auto"),
        ("bench --scale 1b -m model.gguf", "--scale excludes --model"),
        ("bench --scale Z", "no scaled pair 'Z'. Choose from 1b, A, B, C, R0, RK, RN, R-long"),
        ("bench --scale A --lora a.gguf", "Leave them out"),
        ("bench --llama-server missing", "--llama-server names no file: missing"),
        ("bench --server-configs plain", "Name it with --llama-server"),
        ("bench --llama-server a.txt --server-configs warp", "warp"),
        ("show demo --json --template", "exclude each other"),
        ("show", "Missing argument"),
        ("learn", "Give one of: PATH"),
        ("learn missing", "no file or folder missing. Check the path"),
        ("learn empty", "no text in it"),
        ("learn --forget x", "learn --list"),
        ("learn --history", "no history yet"),
        ("distill --list --forget x", "Give --list or --forget, not both."),
        ("distill --as oracle", "There is no kind of draft 'oracle'. Choose one of"),
        ("distill --epochs 0", "--epochs is 0. Give 1 or more."),
        ("distill --quant Q4_K", "A draft cannot be written as 'Q4_K'."),
        ("distill --from demo --shape 32x1x32", "Give one of them."),
        ("distill --as medusa --shape 32x1x32", "has its target's shape."),
        ("distill --from demo --vocabulary 4000", "Leave out --from and --rounds."),
        ("distill --record-only", "There is nothing to record."),
        ("distill nowhere.txt --record-only", "nowhere.txt cannot be read"),
        ("distill --history --record-only", "There is no history yet."),
        ("eval mmlu", "--file"),
        ("eval drop", "There is no suite 'drop'. Choose one of"),
        ("eval drop --file a.txt", "humaneval, mmlu"),
        ("verify --quick --thorough", "--quick excludes --thorough"),
        ("verify -c 256", "The context of 256 tokens"),
        ("verify --check none.json", "cannot be read"),
        ("verify --check a.txt", "not a certificate"),
        ("run --top-k -1 hi", "top-k is -1"),
        ("run --min-p 2 hi", "min-p is 2"),
        ("run --repeat-penalty 0 hi", "repeat-penalty is 0"),
        ("run --penalty-last-n -2 hi", "penalty-last-n is -2"),
        ("run --logit-bias 5 hi", "logit-bias is '5'"),
        ("run --logit-bias 5=nan hi", "logit-bias is '5=nan'"),
        ("run --grammar @missing.gbnf hi", "--grammar names no file: missing.gbnf"),
        ("run -q -v hi", "--quiet excludes --stats and --verbose"),
        ("race -", "The prompt is empty."),
        ("race --scale A -m x.gguf hi", "--scale excludes --model"),
        ("race --scale Z hi", "There is no scaled pair 'Z'."),
        ("race -n 0 hi", "max-tokens is 0."),
        ("race --temp -1 hi", "temperature is -1"),
        ("bench --turns 0", "turns is 0"),
        ("bench --peers --lora a.gguf", "Leave them out"),
        ("learn --list x", "Give one of"),
        ("distill --tokens -1", "--tokens is -1. Give 1 or more."),
        ("distill --rounds 1 --vocabulary 4000", "Leave out --from and --rounds."),
        ("distill --vocabulary 0", "--vocabulary is 0. Give 1 or more."),
        ("run --json-schema @missing.json hi", "--json-schema names no file: missing.json"),
        ("race --scale A --lora a.gguf hi", "--scale excludes --lora"),
        ("run --session new/ hi", "There is no folder new/"),
        ("distill -o new/ prompts.txt", "There is no folder new/"),
        ("race -q -v hi", "--quiet excludes --verbose."),
        ("bench --per-suite 0", "0"),
        ("bench --seed -1", "seed is -1"),
        ("bench --ik-python missing", "--ik-python names no file: missing"),
        ("distill --text nowhere --record-only", "There is no file or folder nowhere."),
        ("run --temp nan hi", "temperature is nan"),
        ("run --top-p 0 hi", "top-p is 0"),
        ("run --min-confidence 1 hi", "min-confidence is 1"),
        ("run --flash-attention maybe hi", "flash-attention is 'maybe'"),
        ("run --image fox.png --mmproj x --raw hi", "Leave out one of them"),
        ("bench --arms ,", "--arms is empty"),
        ("bench --suite poetry", "poetry"),
        ("bench --prompts missing.jsonl", "missing.jsonl"),
        ("run --kernels mine hi", "kernels is 'mine'"),
        ("run --grammar . hi", "--grammar cannot be read"),
        ("race ''", "The prompt is empty."),
        ("show demo --ctx 3", "A context of 3 tokens"),
        ("show demo --kv-type q1", "no KV cache type 'q1'"),
    ],
)
def test_invalid_commands(cli: Cli, command: str, cause: str) -> None:
    cli(*shlex.split(command)).refused(cause)


@pytest.mark.parametrize(
    ("command", "code", "cause"),
    [
        ("run -m none.gguf hi", 3, "There is no file none.gguf"),
        ("run -hf qwen3-8b hi", 3, "Get it with 'localspec pull qwen3-8b --draft auto'."),
        (f"run -c 32 '{'word ' * 100}'", 6, "32"),
        ("run --lora none.gguf hi", 3, "There is no file none.gguf"),
        ("show text.gguf", 4, "is not a GGUF file"),
        ("learn a.txt -m nowhere.gguf", 3, "nowhere.gguf"),
        ("race -m none.gguf hi", 3, "There is no file none.gguf."),
        ("show missing.gguf", 3, "There is no file missing.gguf"),
        ("race -m text.gguf hi", 4, "is not a GGUF file."),
        ("verify -m none.gguf", 3, "There is no file none.gguf"),
    ],
)
def test_missing_and_invalid_models(cli: Cli, command: str, code: int, cause: str) -> None:
    cli(*shlex.split(command)).refused(cause, code=code)
