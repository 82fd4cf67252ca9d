"""System prompt, sampling parameters, attachments and exports."""

import json
from pathlib import Path

import pytest
from textual import events
from textual.widgets import Checkbox, Input, Label, Static, TextArea

from localspec.tui.screens.dialogs import SettingsScreen
from localspec.tui.session import preferences
from tests.tui.pilots import Chat, chat
from tests.tui.scripted import Script

pytestmark = pytest.mark.nightly


def field(shown: Chat, name: str) -> Input:
    return shown.app.screen.query_one(f"#{name}", Input)


async def test_set_changes_the_answers_to_come() -> None:
    async with chat() as shown:
        await shown.send("before")
        for given in ("temp 0.5", "seed=123456789"):
            name, value = given.replace("temp ", "temperature=").split("=")
            says = f"{name} is {value} for the next answers."
            await shown.command(f"/set {given}", says=says, error=False)
        await shown.command(f"/set n {'9' * 25}", "/set seed=42", "/set max-tokens 1")
        await shown.send("after")
        before, after = shown.script.asked
        assert before.sampling != after.sampling
        assert (after.sampling.temperature, after.sampling.seed, after.max_tokens) == (0.5, 42, 1)
        await shown.command("/set temperature default", "/set seed none", "/set n default")
        await shown.send("again")
        assert shown.script.asked[2].sampling == before.sampling
        assert (shown.script.asked[2].max_tokens, shown.errors()) == (None, [])


async def test_the_fields_are_explained_whole_in_80_columns() -> None:
    async with chat(size=(80, 24)) as shown:
        await shown.command("/set")
        for label in shown.app.screen.query("#sampling Label").results(Label):
            longest = max(len(line) for line in str(label.render()).splitlines())
            assert longest <= label.size.width, label.render()
        await shown.resize(40, 20)
        await shown.until(lambda: "temperature" in shown.text and "0 keeps all" in shown.text)


REFUSED = {
    "/set warmth 3": "There is no setting 'warmth'. Choose from temperature,",
    "/set logit_bias 1": "There is no setting 'logit_bias'.",
    "/set temperature hot": "temperature is 'hot'. Give a number, or 'default'.",
    "/set temperature -1": "temperature",
    "/set top_k 1.5": "top_k is '1.5'. Give a whole number, or 'default'.",
    "/set max_tokens 0": "max_tokens is 0. Give 1 or more, or 'default'.",
    "/copy": "There is no answer to copy yet.",
    "/branch": "There are no branches here.",
    "/branch ²": "/branch takes next, previous,",
    "/branch sideways": "/branch takes next, previous,",
    f"/branch {'9' * 5000}": "/branch takes next, previous,",
    "/delete": "There is nothing to delete yet.",
    "/regenerate": "There is no message to answer yet. Write one.",
    "/edit": "There is no message to edit yet. Write one.",
    "/why": "There is no answer to explain yet.",
    "/tokens maybe": "/tokens takes on, off, or rejected.",
    "/learn maybe": "/learn takes on or off.",
    "/attach": "/attach needs the path of a text file, or of an image.",
    "/attach missing.txt": "There is no file",
    "/export md": "There is nothing to export yet.",
    # Stays in the input, to be mended.
    "/nonsense": "There is no command /nonsense. /help lists them;",
}


async def test_what_cannot_be_meant_is_refused_in_a_sentence() -> None:
    async with chat() as shown:
        for number, (line, sentence) in enumerate(REFUSED.items(), start=1):
            await shown.command(line)
            await shown.until(lambda n=number: len(shown.errors()) == n, line)  # type: ignore[misc]
            assert shown.errors()[-1].startswith(sentence)


@pytest.mark.parametrize(
    ("name", "yes", "no"),
    [
        ("learn", "From now on, each", "Conversations are not learned."),
        ("record", "From now on, answers are recorded", "Answers are not recorded."),
    ],
)
async def test_one_switch_has_conversations_kept(name: str, yes: str, no: str) -> None:
    async with chat() as shown:
        await shown.command(f"/{name}", says=no, error=False)
        await shown.command(f"/{name} on", says=yes, error=False)
    kept = preferences.load()[0]
    assert getattr(kept, name), "the next time as well"
    assert kept.learn != kept.record, "only that"
    async with chat() as shown:
        await shown.command(f"/{name}", says=yes, error=False)
        await shown.command(f"/{name} off", says=no, error=False)
    assert not getattr(preferences.load()[0], name)


async def test_the_settings_screen_checks_all_fields_and_keeps_them_if_asked_to() -> None:
    async with chat() as shown:
        await shown.command("/set top_p 0.1234567")
        await shown.open(SettingsScreen, "ctrl+s")
        assert field(shown, "temperature").has_focus
        assert field(shown, "top_p").value == "0.1234567"
        field(shown, "temperature").value = "scorching"
        await shown.press("enter")
        problem = shown.app.screen.query_one("#problem", Static)
        assert str(problem.content) == "temperature is 'scorching'. Give a number, or 'default'."
        field(shown, "temperature").value = "0.25"
        field(shown, "top_p").value = "7"
        await shown.press("enter")
        assert "top-p" in str(problem.content) or "top_p" in str(problem.content)
        assert field(shown, "top_p").has_focus
        field(shown, "top_p").value = ""
        shown.app.screen.query_one("#system", TextArea).text = "Be brief."
        shown.app.screen.query_one(Checkbox).value = True
        await shown.press("ctrl+s")
        await shown.until(lambda: not isinstance(shown.app.screen, SettingsScreen))
        await shown.send("hello")
        asked = shown.script.asked[0]
        assert asked.sampling.temperature == 0.25
        assert asked.messages[0] == {"role": "system", "content": "Be brief."}
    async with chat() as shown:
        await shown.send("hello")
        assert shown.script.asked[0].sampling.temperature == 0.25


async def test_the_system_prompt_goes_with_the_conversation() -> None:
    script = Script()
    async with chat(script, size=(140, 40)) as shown:
        await shown.command("/system Speak like a pirate.")
        await shown.send("hello")
        await shown.press("ctrl+n")
        await shown.send("plainly")
        conversation = shown.app.chat_session.conversation.id
        assert [m["role"] for m in script.asked[0].messages] == ["system", "user"]
        assert [m["role"] for m in script.asked[1].messages] == ["user"]
    async with chat(size=(140, 40)) as shown:
        other = next(s for s in shown.app.store.history.list() if s.id != conversation)
        shown.app.open_conversation(other.id, None)
        await shown.until(lambda: shown.has("hello"))
        await shown.send("and?")
        assert shown.script.asked[0].messages[0]["content"] == "Speak like a pirate."


async def test_attach_a_file(tmp_path: Path) -> None:
    notes = tmp_path / "notes\n.txt"
    for name in (notes, tmp_path / "notes\n.txt.old"):
        name.write_text("remember the milk\n", encoding="utf-8")
    async with chat() as shown:
        shown.app.prompt.set_text(f"/attach {notes}")
        await shown.press("enter")
        assert "+ notes .txt" in shown.text
        await shown.send("what do I need")
        assert "remember the milk" in shown.script.asked[0].last
        assert shown.script.asked[0].last.endswith("what do I need")
        assert "+ notes .txt, " in shown.text  # with the message now
        assert not shown.app.composer.attached
        await shown.send("and else")
        assert "milk" not in shown.script.asked[1].last


async def test_a_long_pasted_text_is_attached() -> None:
    async with chat() as shown:
        shown.app.post_message(events.Paste("x" * 19_900 + "\n" * 99))
        await shown.until(lambda: len(shown.app.prompt.text) == 19_999)
        await shown.press("ctrl+z")
        # Terminals send a return for each end of a line.
        shown.app.post_message(events.Paste("x" * 19_996 + "\ry\r\nz\r"))
        await shown.until(lambda: "+ pasted text (20,001 characters)" in shown.text)
        await shown.press("enter")
        await shown.until_answered()
        assert shown.script.asked[0].last.count("x" * 19_996 + "\ny\nz\n") == 1
        assert "pasted text (20,001 characters), 3 lines" in shown.text


async def test_export_to_markdown_and_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with chat(Script("Hi **there**.")) as shown:
        await shown.send("Say hello")
        for argument, name in (
            ("md talk.md", "talk.md"),
            ('"a b.md"', "a b.md"),  # as /attach takes names
            ("c d.md", "c d.md"),
            ("json", "say-hello.json"),
        ):
            file = tmp_path / name
            await shown.command(f"/export {argument}", says=f"Written to {file}.", error=False)
            said = ["Say hello", "Hi **there**."]
            assert all(text in file.read_text(encoding="utf-8") for text in said)
        assert [m["content"] for m in json.loads(file.read_text())["messages"]] == said
        await shown.command("/export md missing/", says="There is no folder missing/. Create it")


async def test_copy_an_answer_a_code_block_and_the_conversation() -> None:
    one = "Run this:\n\n```sh\nls\n```\n"
    two = one + "\nor that:\n\n```python\nprint()\n```\n"
    async with chat(Script("no code", one, two)) as shown:
        await shown.send("a")
        await shown.command("/copy code", says="There is no code block in this message.")
        await shown.send("b")
        await shown.command("/copy code", "/copy")
        await shown.send("c")
        shown.app.transcript.focus()
        await shown.press("b")
        await shown.until(lambda: "python: print()" in shown.text)
        await shown.choose("python")
        await shown.press("escape")
        await shown.command("/copy conversation")
        await shown.until(lambda: len(shown.copied) == 4)
        assert [text.strip() for text in shown.copied[:3]] == ["ls", one.strip(), "print()"]
        assert "print()" in shown.copied[3]
        assert "no code" in shown.copied[3]
        await shown.command("/copy everything", says="/copy takes answer, code, or conversation.")
