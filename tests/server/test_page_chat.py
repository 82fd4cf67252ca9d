"""The page as a browser shows it: a chat by keyboard, and what it does with hostile text.

Needs playwright (PyPI) and a Chromium: `LOCALSPEC_CHROMIUM`, or one on the path.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import KEY
from tests.server.process import PATIENCE, Running, module_server, wait_until

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")
FOUND = os.environ.get("LOCALSPEC_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(FOUND is None, reason="no Chromium; name one: LOCALSPEC_CHROMIUM"),
]
STORY = "Tell me a story about a fox."
CHAT = "**/v1/chat/completions"
HOSTILE = '<img src=x onerror="window.hit=1"><script>window.hit=2</script>'
BY_PIECES = """
    const real = window.fetch;
    const body = start => new Response(new ReadableStream({ start }));
    window.fetch = (path, options) => path.endsWith("completions") ? Promise.resolve(body(made => {
        window.piece = text => made.enqueue(new TextEncoder().encode(text));
        window.end = () => made.close();
    })) : real(path, options);
"""
Page = Any
Open = Callable[..., Page]
expect: Any = playwright.expect
expect.set_options(timeout=1000 * PATIENCE)  # its five seconds are few on a busy machine

server = module_server(
    *("-c", "1024", "-t", "1", "--drafter", "ngram", "--temp", "0", "--context-shift"), key=KEY
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        opened = started.chromium.launch(executable_path=FOUND, args=flags)
        yield opened
        opened.close()


@pytest.fixture
def open_page(browser: Any, server: Running) -> Iterator[Open]:
    """Opens the page with empty storage; asserts at the end that it had no errors."""
    contexts, wrong = [], []

    def open_new(*, script: str = "", key: str = KEY, width: int = 1280, **more: Any) -> Page:
        size = {"width": width, "height": 800}
        context = browser.new_context(viewport=size, reduced_motion="reduce", **more)
        context.set_default_timeout(1000 * PATIENCE)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.extend([said.text] * (said.type == "error")))
        context.add_init_script(f"sessionStorage.setItem('localspec.key', '{key}')" if key else "0")
        page.add_init_script(script or "0")
        page.goto(server.address)
        if key == KEY:
            expect(page.locator("#status")).to_have_text(re.compile("ready|answering"))
        return page

    yield open_new
    for context in contexts:
        context.close()
    # Failed requests, and what tests try against the policy, are expected.
    expected = "Failed to load resource|'TrustedHTML'"
    assert [text for text in wrong if not re.search(expected, text)] == []


@pytest.fixture
def page(open_page: Open) -> Page:
    return open_page()


def submit(page: Page, text: str) -> None:
    page.locator("#ask").fill(text)
    page.keyboard.press("Enter")


def ask(page: Page, text: str = STORY, *, tokens: int = 24) -> None:
    """Ask by keyboard for an answer of so many tokens."""
    page.keyboard.press("Alt+s")
    page.get_by_label("Max. tokens").fill(str(tokens))
    page.keyboard.press("Enter")
    submit(page, text)


def start_endless_answer(page: Page) -> None:
    """Ask for an answer that ends only when it is stopped; wait for its first tokens."""

    def ignore_eos(route: Any) -> None:
        route.continue_(post_data={**route.request.post_data_json, "ignore_eos": True})

    page.route(CHAT, ignore_eos)
    ask(page, tokens=1_000_000)
    expect(page.locator("article.assistant .foot")).to_contain_text("tok/s")


def event(delta: dict[str, str], finish: str | None = None, **more: Any) -> str:
    told = {"choices": [{"delta": delta, "finish_reason": finish}], **more}
    return f"data: {json.dumps(told)}\n\n"


def mock_answer(page: Page, content: str, *, status: int = 200, **headers: str) -> None:
    """Answer the page's requests with this text, or with this error."""
    size = max(5, len(content) // 40)
    pieces = [content[at : at + size] for at in range(0, len(content), size)]
    stream = "".join(event({"content": piece}) for piece in pieces) + event({}, "stop")
    body = f"{stream}data: [DONE]\n\n" if status == 200 else content
    page.route(CHAT, lambda route: route.fulfill(status=status, body=body, headers=headers))


def wait_for(page: Page, expression: str) -> None:
    """Wait for a JavaScript condition; the page's policy forbids playwright's own wait."""
    wait_until(lambda: bool(page.evaluate(expression)), expression)


def send(page: Page, content: str, kind: str = "content") -> None:
    """Write a piece of an answer, in a page with the script BY_PIECES."""
    page.evaluate("data => piece(data)", event({kind: content}))


def show_answer(page: Page, content: str) -> Any:
    """Ask, answer with this text, and return the element that shows it."""
    mock_answer(page, content)
    submit(page, "Go on.")
    answer = page.locator("article.assistant").last
    expect(answer.get_by_role("button", name="Regenerate")).to_be_visible()
    return answer.locator(".text")


def test_chat_by_keyboard(page: Page) -> None:
    expect(page.locator("#ask")).to_be_focused()
    ask(page)
    answer = page.locator("article.assistant")
    expect(answer.locator(".foot")).to_contain_text(re.compile(r"^24 tokens · [\d.,]+ tok/s"))
    text = answer.locator(".text").inner_text()
    page.keyboard.press("Alt+c")
    tokens = answer.locator(".tokens")
    assert " ".join(tokens.inner_text().split()) == " ".join(text.split())
    expect(answer.locator(".legend")).to_contain_text(re.compile(r"itself \(plain\): \d+ tokens"))
    page.keyboard.press("ArrowUp")  # edit the question
    expect(page.get_by_label("Edit the question")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("F2")
    page.keyboard.type("Foxes\n")
    expect(page.get_by_role("button", name="Foxes", exact=True)).to_be_focused()
    page.reload()
    expect(page.locator("article.assistant .text")).to_have_text(re.compile(re.escape(text[:20])))
    page.keyboard.press("Control+k")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Delete")
    expect(page.locator("article")).to_have_count(0)
    page.get_by_role("button", name="Undo").press("Enter")
    expect(page.locator("article")).to_have_count(2)


def test_answer_line_opens_details(page: Page) -> None:
    figures = {
        "times_plain": 2.5, "beside": "plain llama.cpp", "tokens_per_second": 400,
        "tokens_per_pass": 3.1, "passes": 24,
        "drafters": [{"name": "draft model", "accepted": 52, "tested": 80}],
        "undrafted": 2, "reason": "the budget is spent", "prompt_tokens": 9, "cached_tokens": 4,
    }  # fmt: skip
    line = "76 tokens · 400 tok/s · 2.5× plain llama.cpp · draft smollm2"
    told = event({"content": "Yes."}, "stop", speculation={"summary": line, "figures": figures})
    page.route(CHAT, lambda route: route.fulfill(body=f"{told}data: [DONE]\n\n"))
    submit(page, "Go on.")
    summary = page.locator("article.assistant .line summary")
    expect(summary).to_have_text(line)
    plain = page.get_by_text("Plain llama.cpp, measured on this machine, takes 6.3 ms per token")
    expect(plain).not_to_be_visible()
    summary.press("Enter")
    expect(plain).to_be_visible()
    for words in ("3.1 tokens per pass", "52 of 80 tokens (65%)", "the budget is spent"):
        expect(page.locator("article.assistant .line")).to_contain_text(words)
    for tile, shown in (("rate", "400"), ("beside", "speed-up"), ("pass", "3.10")):
        expect(page.locator(f"#{tile}")).to_have_text(shown)


def test_escape_cancels_the_answer_in_the_server(page: Page, server: Running) -> None:
    before = server.states(1)[0]["totals"]["answers"].get("cancelled", 0)
    start_endless_answer(page)
    page.keyboard.press("Escape")
    answer = page.locator("article.assistant")
    expect(answer.locator(".foot")).to_contain_text("Stopped.")
    expect(answer.locator(".foot")).to_contain_text(re.compile(r"^[\d,]+ tokens · [\d.,]+ tok/s"))
    server.wait_until_idle()
    assert server.states(1)[0]["totals"]["answers"]["cancelled"] == before + 1
    kept = answer.locator(".text").inner_text()
    page.get_by_role("button", name="Continue").click()
    expect(answer.locator(".text")).not_to_have_text(kept)
    page.keyboard.press("Escape")
    server.wait_until_idle()


def test_answer_continues_in_the_background(page: Page) -> None:
    ask(page, tokens=120)
    page.keyboard.press("Alt+n")
    expect(page.locator("article")).to_have_count(0)
    expect(page.locator("#list")).not_to_contain_text("(answering)")
    page.locator("#list .open").click()
    expect(page.locator(".foot").last).to_contain_text(re.compile(r"^120 tokens"))


def test_reload_keeps_the_text_of_an_answer(page: Page, server: Running) -> None:
    start_endless_answer(page)
    page.reload()
    foot = page.locator("article.assistant .foot")
    expect(foot).to_contain_text("The answer was cut off when the page was closed.")
    expect(foot.get_by_role("button", name="Continue")).to_be_visible()
    server.wait_until_idle()


def test_regenerate_edit_and_delete_can_be_undone(page: Page) -> None:
    show_answer(page, "First.")
    show_answer(page, "Second.")
    mock_answer(page, "Third.")
    page.keyboard.press("Alt+r")
    expect(page.locator("article.assistant .text")).to_have_text(["First.", "Third."])
    expect(page.get_by_role("button", name="Undo")).to_be_visible()
    show_answer(page, "Third.")  # undoing would drop this
    expect(page.get_by_role("button", name="Undo")).to_be_hidden()
    page.locator("article.user").last.get_by_role("button", name="Delete").click()
    page.locator("article.user").first.get_by_role("button", name="Edit").click()
    page.keyboard.press("Control+a")
    page.keyboard.type("Else?\n")
    for shown in (["Else?", "Third."], ["Go on.", "Third."]):
        expect(page.locator("article .text")).to_have_text(shown)
        page.get_by_role("button", name="Undo").click()
        expect(page.locator("article .text")).to_have_text(["Go on.", "First.", "Go on.", "Third."])
        if "Else?" in shown:
            page.locator("article.user").first.get_by_role("button", name="Delete").click()
    for _ in range(2):
        page.locator("article.user").last.get_by_role("button", name="Delete").click()
    expect(page.locator("#list .open")).to_have_count(0)
    assert "First" not in page.evaluate("JSON.stringify(localStorage)")


@pytest.mark.parametrize(
    "text",
    [
        HOSTILE,
        f"**{HOSTILE}**\n\n- {HOSTILE}\n\n| a |b|\n|---|---|\n| {HOSTILE} | x |",
        "[x](javascript:window.hit=3) [y](data:text/html,z) ![p](https://evil.example/p.png)",
        "<https://e.example/\"onmouseover=\"window.hit=4> <a href='javascript:0'>z</a>",
        f"```<img onerror=1>\n{HOSTILE}\n```\n# {HOSTILE}\n> {HOSTILE}",
    ],
)
def test_hostile_text_is_text(page: Page, text: str) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    answer = show_answer(page, text)
    assert answer.locator("img, script, iframe, object, [onerror], [onmouseover]").count() == 0
    for link in answer.locator("a").all():
        assert re.match(r"https?://", link.get_attribute("href"))
    assert page.evaluate("window.hit") is None
    assert not [url for url in asked if "evil" in url]


def test_hostile_names_of_conversations(open_page: Open) -> None:
    stored = {"id": "a", "name": f"{HOSTILE}\u202egpj", "messages": [{"role": "user"}, 3, None]}
    more = {"id": "b", "name": 7, "messages": [], "settings": "x"}
    long = {"id": "c", "name": "x" * 79 + "😀 cut", "messages": []}
    script = "".join(
        f"localStorage.setItem('localspec.chat.' + {n}, {json.dumps(json.dumps(one))});"
        for n, one in enumerate([stored, more, long, {"id": "../", "messages": []}, 5])
    )
    page = open_page(script=script + "localStorage.setItem('localspec.chat.9', '{broken');")
    names = page.locator("#list .open").all_inner_texts()
    assert sorted(names) == sorted([f"{HOSTILE} gpj"[:80], "Untitled", "x" * 79 + "😀"])
    assert page.locator("#list img, #list script").count() == 0
    assert page.evaluate("window.hit") is None


def test_long_hostile_markup_does_not_hang_the_page(page: Page) -> None:
    for mark in ("[", "*a ", "`````" + "``` ", "> ", "| "):
        show_answer(page, mark * 9_000)
    assert page.locator("article.assistant").count() == 5


def test_markdown(open_page: Open) -> None:
    text = (
        "# Title\n\nSome *soft* and **hard** `code` of\na [page](https://e.example/a_(b)).\n\n"
        "1. one\n   - inner\n   - other\n2. two\n\n   ```python\n   print(1)\n   ```\n\n"
        "| a | b |\n|:--|--:|\n| 1 | snake_case_name |\n\n> quoted\n\n```sh\nls **x**"
    )
    answer = show_answer(open_page(), text)
    for place, shown in {
        "h3": ["Title"],
        "em": ["soft"],
        "strong": ["hard"],
        "ol ul > li": ["inner", "other"],
        "pre": ["print(1)", "ls **x**"],
        "td": ["1", "snake_case_name"],
        "blockquote": ["quoted"],
    }.items():
        assert answer.locator(place).all_inner_texts() == shown
    assert answer.locator("a").get_attribute("href") == "https://e.example/a_(b)"
    assert answer.locator("> ol > li").count() == 2


def test_formulas_breaks_entities_and_text_direction(open_page: Open) -> None:
    formulas = [r"\(a_b + c_d\)", "$x_{i}^{*} + y^{*}$", "$$a*b*c$$", "\\[\na\n+ b\n- c\n\\]"]
    answer = show_answer(
        open_page(),
        f"It is {formulas[0]}, {formulas[1]} or {formulas[2]}.\n"
        f"{formulas[3]}\nCosts $5 and *6* $.\n\nمرحبا!\n\n- بند\n\n"
        "| one<br>two | a &lt; b |\n|---|---|\n\nconstructor\n\n  ```\n  x\n    y\n  ```",
    )
    assert answer.locator(".math").all_inner_texts() == formulas
    assert answer.locator("em").inner_text() == "6"
    assert answer.locator("th").all_inner_texts() == ["one\ntwo", "a < b"]
    assert answer.locator("p").last.inner_text() == "constructor"
    assert answer.locator("pre").inner_text() == "x\n  y"
    found = answer.locator("p, li, code").evaluate_all(
        "found => found.map(one => getComputedStyle(one).direction)"
    )
    assert found == ["ltr", "ltr", "rtl", "rtl", "ltr", "ltr"]


def test_scroll_position_and_selection_survive_streaming(open_page: Open) -> None:
    page = open_page(script=BY_PIECES)
    ask(page)
    wait_for(page, "!!window.piece")
    send(page, "Let me see.", "reasoning_content")
    expect(page.locator(".busy")).to_have_text("Thinking")
    send(page, "```py\n" + "line\n" * 100)
    top, room = "log.scrollTop", "log.scrollHeight - log.clientHeight - log.scrollTop"
    wait_for(page, f"{top} > 0 && {room} < 2")
    page.evaluate("log.scrollBy(0, -20)")  # less than a turn of a wheel
    wait_for(page, "!at('down').hidden")
    page.evaluate("getSelection().setBaseAndExtent(...[0, 9].flatMap("
                  "place => [document.querySelector('pre code').firstChild, place]))")  # fmt: skip
    before = page.evaluate(top)
    send(page, "more\n" * 10)
    expect(page.locator("pre")).to_contain_text("more")
    page.evaluate("end()")
    expect(page.get_by_role("button", name="Try again").or_(page.locator("#send"))).to_be_visible()
    assert page.evaluate(top) == before
    assert page.evaluate("getSelection().toString()") == "line\nline"
    page.get_by_role("button", name="Go to the end").click()
    wait_for(page, f"{room} < 2 && at('down').hidden")


@pytest.mark.parametrize("touch", [False, True])
def test_enter_sends_unless_composing_or_on_touch(open_page: Open, touch: bool) -> None:
    page = open_page(width=390, has_touch=touch, is_mobile=touch)
    mock_answer(page, "Yes.")
    page.locator("#ask").fill("にほん")
    enter = """keyCode => at("ask").dispatchEvent(new KeyboardEvent("keydown",
        { key: "Enter", keyCode, isComposing: !keyCode, bubbles: true, cancelable: true }))"""
    for code in (0, 229):  # one that ends a composition does not; Safari sends this code
        page.evaluate(enter, code)
    if touch:
        page.keyboard.press("Enter")
        expect(page.locator("#ask")).to_have_value("にほん\n")
    expect(page.locator("article")).to_have_count(0)
    page.keyboard.press("Control+Enter" if touch else "Enter")
    expect(page.locator("article.assistant .text")).to_have_text("Yes.")


def test_hidden_tab_closes_its_event_stream(open_page: Open) -> None:
    page = open_page(
        script="Object.defineProperty(document, 'hidden', { get: () => window.away });"
    )
    turn = "away => { window.away = away; document.dispatchEvent(new Event('visibilitychange')); }"
    with page.expect_event("requestfailed", lambda request: request.url.endswith("/events")):
        page.evaluate(turn, True)
    with page.expect_request("**/events"):
        page.evaluate(turn, False)
    expect(page.locator("#status")).to_have_text("ready")


def test_windows_side_by_side_leave_connections_for_answers(page: Page, server: Running) -> None:
    for _ in range(6):  # all of a browser's connections
        page = page.context.new_page()
        page.goto(server.address)
        expect(page.locator("#status")).to_have_text("ready")
    ask(page)
    expect(page.locator("article.assistant .foot")).to_contain_text("tok/s")


def test_other_tabs_cannot_change_an_answer_in_progress(open_page: Open, server: Running) -> None:
    page = open_page(script=BY_PIECES)
    ask(page)
    wait_for(page, "!!window.piece")
    other = page.context.new_page()
    other.goto(server.address)
    other.locator("#list .open").press("Enter")
    answer = other.locator("article.assistant")
    expect(answer).to_contain_text("Another tab is writing this answer.")
    expect(answer.get_by_role("button", name="Regenerate")).to_have_count(0)
    submit(other, "And then?")
    expect(other.locator("#toast")).to_contain_text("Another tab is writing an answer here.")
    expect(other.locator("#ask")).to_have_value("And then?")
    page.close(run_before_unload=False)


def test_other_tabs_leave_edits_and_focus(page: Page, server: Running) -> None:
    show_answer(page, "One.")
    other = page.context.new_page()
    other.goto(server.address)
    other.locator("#list .open").click()
    page.get_by_role("button", name="Edit").click()
    show_answer(other, "Two.")
    page.keyboard.press("Escape")
    expect(page.locator("article.assistant .text")).to_have_text(["One.", "Two."])
    for key in ("Control+k", "ArrowDown", "F2"):
        page.keyboard.press(key)
    show_answer(other, "Three.")
    wait_for(page, "current.messages.length === 6")
    page.keyboard.type("Foxes\n")
    expect(page.get_by_role("button", name="Foxes", exact=True)).to_be_focused()
    page.get_by_role("button", name="Regenerate").press("Enter")
    expect(page.locator("#log")).to_be_focused()


def test_finished_sentences_are_announced(page: Page) -> None:
    show_answer(page, "One sentence. **Another** one")
    announced = [text.strip() for text in page.locator("#say p").all_inner_texts()]
    assert announced == ["One sentence.", "Another one", "End of the answer."]


@pytest.mark.parametrize(
    ("broken", "words", "after"),
    [
        ("const set = Storage.prototype.setItem;"
         "Storage.prototype.setItem = function (key, value) {"
         " if (!window.room && /chat[.]/.test(key)) throw new DOMException('', 'Quota…Error');"
         " set.call(this, key, value); }", "storage is full", "Stored in this"),
        ("Object.defineProperty(window, 'localStorage', { get() { throw new Error('no') } })",
         "does not let the page store anything", "does not let the page"),
    ],
)  # fmt: skip
def test_storage_failures_are_reported(
    open_page: Open, broken: str, words: str, after: str
) -> None:
    page = open_page(script=broken)
    show_answer(page, "It goes on.")
    expect(page.locator("#toast")).to_contain_text(words)
    for shown in (words, after):
        page.locator("#theme").click()  # stores only this
        expect(page.locator("#kept")).to_contain_text(shown)
        page.evaluate("window.room = true")


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (429, {"code": "queue_full"}, "The server is busy. Its queue is full (--max-queue)."),
        (400, {"type": "exceed_context_size_error", "n_prompt_tokens": 9000, "n_ctx": 1024},
         "9,000 tokens, and the context holds 1,024. Start a new conversation"),
        (503, {"message": "The server is stopping."}, "Start localspec serve again"),
        (500, {"message": "Broken."}, "Broken. Try again"),
    ],
)  # fmt: skip
def test_server_errors_are_explained(
    page: Page, status: int, error: dict[str, Any], words: str
) -> None:
    mock_answer(page, json.dumps({"error": error}), status=status)
    submit(page, "Hello")
    expect(page.locator(".problem")).to_contain_text(words)
    assert words in page.locator("#alarm").inner_text()
    page.unroute(CHAT)
    mock_answer(page, "Now.")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("article.assistant .text")).to_have_text("Now.")
    expect(page.locator(".problem")).to_have_count(0)


def test_lost_connection_is_reported_and_restored(page: Page) -> None:
    running = page.locator("#totals tr", has_text="running answers").locator("td").last
    expect(running).to_have_text("0 of 1")
    page.route("**/events", lambda route: route.abort())
    page.evaluate("link.abort()")
    expect(running).to_have_text("–")
    page.route(CHAT, lambda route: route.abort())
    page.locator("#ask").fill("Hello")
    page.reload()
    expect(page.locator("#status")).to_have_text("no connection, trying again")
    expect(page.locator("#ask")).to_have_value("Hello")
    page.keyboard.press("Enter")
    expect(page.locator(".problem")).to_contain_text("The server does not answer. Check that")
    page.unroute("**/events")
    expect(page.locator("#status")).to_have_text("ready")


def test_wrong_key_opens_the_key_dialog(open_page: Open) -> None:
    page = open_page(key="wrong")
    expect(page.locator("#key-text")).to_contain_text("That key is wrong")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Enter the key").click()
    page.get_by_label("Key", exact=True).fill(f"{KEY}\u200b")
    page.keyboard.press("Enter")
    assert not page.locator("#key").evaluate("field => field.checkValidity()"), "no header has that"
    page.get_by_label("Key", exact=True).fill(KEY)
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_have_text("ready")
    assert KEY not in page.evaluate("JSON.stringify(localStorage)")


def test_export_import_and_files(open_page: Open, tmp_path: Path) -> None:
    page = open_page()
    show_answer(page, "Kept: **this**.")
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Export", exact=True).click()
    text = Path(waiting.value.path()).read_text()
    assert all(said in text for said in ("# Go on.", "Kept: **this**."))
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Export all").click()
    file = tmp_path / "all.json"
    waiting.value.save_as(file)
    show_answer(page, "Newer.")
    page.locator("#file").set_input_files(file)
    expect(page.locator("#toast")).to_contain_text("Not imported: 1, newer here.")
    expect(page.locator("article.assistant .text")).to_have_text(["Kept: this.", "Newer."])
    other = open_page()
    other.locator("#file").set_input_files(file)
    other.locator("#list .open").click()
    expect(other.locator("article.assistant .text")).to_have_text("Kept: this.")
    other.locator("#file").set_input_files({"name": "x.json", "mimeType": "", "buffer": b"{"})
    expect(other.locator("#toast")).to_contain_text("no conversations in that file")
    drop = """bytes => { const dataTransfer = new DataTransfer();
        dataTransfer.items.add(new File([new Uint8Array(bytes)], "a.py"));
        document.body.dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true })); }"""
    other.evaluate(drop, list(b"x = 1\n"))
    expect(other.locator("#ask")).to_have_value("a.py:\n\n```\nx = 1\n```\n")
    other.evaluate(drop, [137, 80, 0, 255])
    expect(other.locator("#toast")).to_contain_text("a.py was not added. Only text files")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_fits_a_narrow_screen(open_page: Open, scheme: str) -> None:
    page = open_page(width=360, color_scheme=scheme)
    table, width = (
        f"| a | b |\n|--|--|\n| {'z' * 99} | c |",
        "document.scrollingElement.scrollWidth",
    )
    show_answer(page, f"```\n{'x' * 300}\n```\n\n{'y' * 300}\n\n{table}")
    assert page.evaluate(width) == 360
    assert page.evaluate("log.scrollWidth - log.clientWidth") == 0
    for name in ("Chats", "Figures"):
        button = page.get_by_role("button", name=name, exact=True)
        button.click()
        assert page.evaluate(width) == 360
        page.keyboard.press("Escape")
        expect(button).to_be_focused()
    page.get_by_role("button", name="Help and shortcuts").click()
    expect(page.get_by_role("heading", name="Help")).to_be_in_viewport()
    page.keyboard.press("Escape")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")
    page.set_viewport_size({"width": 320, "height": 256})  # 1280 at 400%
    assert page.evaluate("log.clientHeight") > 128
    assert page.evaluate(width) == 320
    page.emulate_media(media="print", color_scheme=scheme)
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(27, 30, 35)"
    hidden = """found => found.map(one =>
        one.scrollHeight + one.scrollWidth - one.clientHeight - one.clientWidth)"""
    assert page.locator("#log, pre").evaluate_all(hidden) == [0, 0], "paper has all of it"


def test_controls_have_accessible_names(page: Page) -> None:
    show_answer(page, "Here.\n\n```\ncode\n```")
    unnamed = """[...document.querySelectorAll('button, input, textarea, select')].filter(one =>
        !one.hidden && !(one.ariaLabel || one.textContent.trim() || one.labels?.length))"""
    assert page.evaluate(f"{unnamed}.map(one => one.outerHTML)") == []
    assert page.locator("#say").get_attribute("aria-live") == "polite"
    tried = "try { document.body.innerHTML = '<b>x</b>'; 'made' } catch (error) { error.name }"
    assert page.evaluate(tried) == "TypeError", "the policy forbids to make elements of text"


def test_escape_cancels_a_queued_request(open_page: Open, server: Running) -> None:
    page, other = open_page(), open_page()
    start_endless_answer(page)
    ask(other)
    expect(other.locator(".busy")).to_be_visible()
    other.keyboard.press("Escape")
    wait_until(lambda: server.states(1)[0]["waiting"] == 0, "nobody waits")
    page.keyboard.press("Escape")
    server.wait_until_idle()
