"""`localspec run --session FILE` and `--prompt-cache SIZE`."""

from pathlib import Path

import pytest

from localspec import Engine
from localspec.chat.conversation import Attachment, Conversation, Message
from localspec.sessions.session_file import SessionFile
from localspec.tui.session.session_conversation import conversation_of, kept
from tests.cli.conftest import Cli
from tests.support.patches import files_of_at_most

FIXED = ("-n", "24", "--temp", "0", "--drafter", "none", "-t", "1")
LONG = "Tell me a story about a fox, a bear and a bird. " * 30


def test_a_conversation_goes_on(cli: Cli, tmp_path: Path) -> None:
    path = str(tmp_path / "fox.session")
    first = cli("run", *FIXED, "--json", "--session", path, LONG).json
    again = cli("run", *FIXED, "--json", "--session", path, "And then?").json
    assert first["stats"]["cached_tokens"] == 0
    assert again["stats"]["cached_tokens"] > 300
    said = SessionFile(Path(path)).facts["conversation"]
    assert [one["content"] for one in said] == [LONG, first["text"], "And then?", again["text"]]


def test_it_is_the_conversation_and_not_only_its_end(cli: Cli, tmp_path: Path) -> None:
    """Answered as if all of it had been asked in one go."""
    path = str(tmp_path / "fox.session")
    for prompt in ("Once upon a", " time", " there"):
        said = cli("run", *FIXED, "-n", "3", "--raw", "-q", "--session", path, prompt)
        assert said.code == 0
    text = SessionFile(Path(path)).facts["conversation"]
    assert text.startswith("Once upon a")
    last = said.out.rstrip("\n")
    assert text.endswith(last)
    alone = cli("run", *FIXED, "-n", "3", "--raw", "-q", text.removesuffix(last))
    assert alone.out == said.out


def test_a_conversation_of_the_chat_goes_on_with_its_files(
    cli: Cli, engine: Engine, tmp_path: Path
) -> None:
    path = tmp_path / "fox.session"
    notes = Attachment("notes.txt", "The fox is red.")
    asked = Message("1", None, "user", "Describe it.", 0.0, "complete", attachments=[notes])
    told = Message("2", "1", "assistant", "It is red.", 0.0, "complete")
    chat = Conversation("c", "Fox", messages={"1": asked, "2": told}, system="Be brief.")
    engine.save_session(path, kept(chat))
    cli("run", *FIXED, "--session", str(path), "And then?")
    said = SessionFile(path).facts["conversation"]
    assert [one["role"] for one in said] == ["system", "user", "assistant", "user", "assistant"]
    assert "notes.txt" in said[1]["content"]
    assert "The fox is red." in said[1]["content"]


def test_calls_of_tools_are_kept(cli: Cli, engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "fox.session"
    call = {"type": "function", "function": {"name": "look", "arguments": {"at": "fox"}}}
    before = [
        {"role": "user", "content": "Look at the fox."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "It is red."},
        {"role": "assistant", "content": "Red."},
    ]
    engine.save_session(path, before)
    cli("run", *FIXED, "--session", str(path), "And then?")
    assert SessionFile(path).facts["conversation"][:4] == before


@pytest.mark.parametrize("how", ["truncated", "changed"])
def test_a_damaged_one_is_a_sentence(cli: Cli, tmp_path: Path, how: str) -> None:
    path = tmp_path / "fox.session"
    cli("run", *FIXED, "--session", str(path), LONG)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data if how == "changed" else data[: len(data) // 2])
    again = cli("run", *FIXED, "--session", str(path), "And then?")
    assert len(again.succeeded()) > 10
    assert f"note: The session in {path} is prefilled again: a part of fox.session is" in again.err


def test_another_model_is_a_sentence(cli: Cli, tmp_path: Path, draft_path: Path) -> None:
    path = str(tmp_path / "fox.session")
    cli("run", *FIXED, "--session", path, LONG)
    other = cli("run", *FIXED, "-m", str(draft_path), "-d", "none", "--session", path, "Then?")
    assert other.code == 0
    assert "is prefilled again: it was saved with tale-13m-q8_0.gguf." in other.err
    assert len(SessionFile(Path(path)).facts["conversation"]) == 4


def test_a_full_disk_is_a_sentence_after_the_answer(cli: Cli, tmp_path: Path) -> None:
    session = ("--session", str(tmp_path / "fox.session"))
    with files_of_at_most(100_000):
        for quiet, told in (((), "note: The session"), (("-q",), "localspec: The session")):
            result = cli("run", *FIXED, *session, *quiet, LONG)
            assert (result.code, len(result.out) > 10) == (1, True)
            assert f"{told} cannot be saved in" in result.err


PARTS = [{"type": "text", "text": "Hello"}, {"type": "image", "image": b""}, {"text": "you"}]


@pytest.mark.parametrize("role", ["user", "system"])
def test_parts_of_messages_are_read_as_text(role: str) -> None:
    found = conversation_of([{"role": role, "content": PARTS}, {"role": "user", "content": "Hi"}])
    assert found is not None
    assert found.for_model()[0]["content"].startswith("Hello\nyou")


@pytest.mark.parametrize(
    "found", [None, "text", 5, ["x"], [{"content": "x"}], {"messages": 5}, [{"role": "user"}], {}]
)
def test_other_values_are_no_conversation(found: object) -> None:
    assert conversation_of(found) is None
