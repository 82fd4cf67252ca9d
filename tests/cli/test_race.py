"""`localspec race` as it is typed: results, recordings, interrupts, what cannot be meant."""

import json
import re
import signal
from pathlib import Path

import pytest

import localspec
from localspec import Engine, ModelOptions
from localspec.loading import second_engine
from localspec.loading.second_engine import load_second_engine
from localspec.prompting.prompt import Tokens
from tests.cli.conftest import Cli
from tests.cli.process import LOCALSPEC, finished, line, running
from tests.cli.test_interrupts import ENDLESS
from tests.support.asking import GREEDY, assistant, user
from tests.tui.terminals import Terminal

pytestmark = pytest.mark.nightly

SHORT = ("race", "-n", "16", "-c", "512")
STORY = "Tell me a story about a fox."


def test_without_a_terminal_there_is_plain_text() -> None:
    result = finished(*SHORT)  # standard input is empty: the default prompt
    assert result.succeeded().startswith("plain and localspec:\n\n")
    assert not {"\x1b", "\r"} & {*result.out, *result.err}
    assert re.search(r"\n[\d.]+× as fast, .*same text, 16 tokens.*$", result.out)


@pytest.mark.parametrize(("given", "tokens"), [((), 64), (("-n", "8"), 8)])
def test_a_quick_race_is_short(cli: Cli, given: tuple[str, ...], tokens: int) -> None:
    lanes = cli("race", "--quick", *given, "-c", "512", "--json", STORY).json["lanes"]
    assert {lane["stats"]["generated_tokens"] for lane in lanes.values()} == {tokens}


def test_both_lanes_say_what_run_says(cli: Cli) -> None:
    found = cli(*SHORT, "--json", "--drafter", "model", STORY).json
    alone = cli("run", "-n", "16", "--temp", "0", "--drafter", "none", "--json", STORY).json
    plain, ours = (found["lanes"][name] for name in ("plain", "localspec"))
    assert plain["text"] == ours["text"] == alone["text"]
    assert (found["greedy"], found["equal"], found["prompt"]) == (True, True, STORY)
    assert ours["stats"]["drafted"] > plain["stats"]["drafted"] == 0
    assert plain["seconds"] > 0 < ours["seconds"]


def test_warming_up_is_no_answer(cli: Cli, home: Path) -> None:
    """Its few tokens once had draft models left out of the answers that are raced."""
    cli(*SHORT, STORY)
    (kept,) = (json.loads(path.read_text()) for path in home.rglob("measurements/*.json"))
    assert kept["profile"]["said"] == pytest.approx(16.0 * kept["profile"]["answers"])


def test_further_questions_go_on_with_the_conversation(cli: Cli, engine: Engine) -> None:
    again = "Tell it again."
    found = cli(*SHORT, "--json", STORY, "--then", again).json
    first, second = found["questions"]
    assert [each["prompt"] for each in (first, second)] == [STORY, again]
    said = first["lanes"]["plain"]["text"]
    messages = [user(STORY), assistant(said), user(again)]
    alone = engine.chat(messages, max_tokens=16, sampling=GREEDY)
    assert second["lanes"]["plain"]["text"] == second["lanes"]["localspec"]["text"] == alone.text
    assert found["speed_up_of_all"] > 0
    assert "questions" not in cli(*SHORT, "--json", STORY).json


def test_ctrl_c_keeps_what_there_is(long_model: Path) -> None:
    arguments = ("race", "-m", str(long_model), "-c", "65536", *ENDLESS, "--json", "hi")
    with running(*arguments) as process:
        # What is known before the first token is told once both lanes are warm.
        assert "note: long.gguf has no chat template" in line(process.stderr)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in err
    found = json.loads(out)
    assert found["interrupted"]
    assert found["equal"]


@pytest.mark.parametrize("how", ["interrupted", "killed", "stopped"])
def test_the_screen_comes_back(long_model: Path, tmp_path: Path, how: str) -> None:
    command = (*LOCALSPEC, "race", "-m", str(long_model), "-c", "65536", *ENDLESS, "hi")
    terminal = Terminal(command, home=tmp_path, columns=80, lines=24)
    terminal.until(lambda: terminal.alternate and " ahead" in terminal.text)
    assert not terminal.cursor_shown
    if how == "killed":
        terminal.child.kill(signal.SIGKILL)
        terminal.until(lambda: "localspec was killed" in terminal.words)
    else:
        if how == "stopped":  # without a shell, as here, the system does not stop it
            terminal.child.kill(signal.SIGTSTP)
            terminal.until(lambda: terminal.raw.count(b"\x1b[?1049h") == 2)
            assert terminal.raw.count(b"\x1b[?1049l") == 1
        terminal.type("\x03")
        assert terminal.ended() == 130
        assert terminal.restored
        assert re.search(r"interrupted · [\d.]+× the tokens per second · plain ", terminal.words)
    assert not terminal.alternate
    assert terminal.cursor_shown


def test_no_memory_for_a_second_cache(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_engine, "available_memory", lambda: (1 << 20, 1 << 34))
    with pytest.raises(localspec.NativeError, match=r"takes .* MB, and 1.0 MB of memory are free"):
        load_second_engine(engine, ModelOptions(context=1024))


def test_beside_kernels_plain_decoding_is_llama_cpps(kernels: None, engine: Engine) -> None:
    with load_second_engine(engine, ModelOptions(context=1024)) as beside:
        assert beside.model is not engine.model
        assert not beside.model.kernels.in_use
        assert beside.notices == ()


def test_a_race_beside_kernels_proves_what_was_said(kernels: None, cli: Cli) -> None:
    """A parting from llama.cpp at a near tie, and each token localspec's own."""
    found = cli(*SHORT, "-n", "60", "--json", "--raw", "Lily was", "--drafter", "model").json
    assert (found["plain"], found["proof"]) == ("llama.cpp", {"bit_for_bit": True, "wrong": None})
    for more in ("--temp=0.8", "--repeat-penalty=1.1", "--logit-bias=1=2", "--regex=[a-z ]+"):
        assert cli(*SHORT, "--json", more, STORY).json["proof"] is None


def test_a_wrong_token_is_found(kernels: None, engine: Engine) -> None:
    prompt = engine.tokenize("Once upon a time")
    stream = engine.stream(Tokens(prompt), max_tokens=48, sampling=GREEDY)
    said = [token for chunk in stream for token in chunk.token_ids]
    engine.clear()
    assert engine.first_wrong(prompt, said) is None
    assert engine.first_wrong(prompt, [*said[:40], said[40] + 1, *said[41:]]) == 40
    assert engine.first_wrong(prompt, [said[0] + 1, *said[1:]]) == 0
    assert engine.logits([*prompt, said[0]]).argmax() == said[1], "wrong ones leave no trace"
