"""The web page in a real browser, against a real server whose model's answers are known.

Skipped where the system has no Chromium; ``apt-get install chromium`` brings one.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.server import scribe
from tests.server.conftest import SOURCE, Served, fetch, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, Page

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = [
    pytest.mark.page,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium; try: apt-get install chromium"),
]
KEY = "a long random text"
ELSEWHERE = "strata.test"
DASH = "\u2013"
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
TOOLS = json.dumps(
    {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {}}}}
)


class ScribeServed(Served):
    PROGRAM = ("tests.server.scribe",)

    def __init__(self, *args: object) -> None:
        super().__init__(*args, PYTHONPATH=f"{SOURCE}:{ROOT}")


@pytest.fixture(scope="module")
def server() -> Iterator[ScribeServed]:
    served = ScribeServed()
    yield served
    assert served.end() == 0


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with playwright.sync_playwright() as driver:
        # Everything runs as root in a container, where its own sandbox cannot. The name stands
        # for a machine in the next room: an origin that the browser does not trust.
        args = ["--no-sandbox", f"--host-resolver-rules=MAP {ELSEWHERE} 127.0.0.1"]
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=args)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser, server: ScribeServed) -> Iterator[Callable[..., Page]]:
    """Opens the page as a new visitor; fails if a script of it failed, or asked somebody else."""
    faults: list[str] = []
    contexts = []

    def open_it(
        address: str = server.address,
        path: str = "/",
        before: Callable[[Page], None] = lambda _: None,
        **options: object,
    ) -> Page:
        options.setdefault("viewport", {"width": 1280, "height": 800})
        context = browser.new_context(**options)
        contexts.append(context)
        context.set_default_timeout(15_000)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(f"error: {error}"))
        page.on("console", lambda line: _note(line, faults))
        page.on("request", lambda request: _note_stranger(request.url, address, faults))
        before(page)
        page.goto(address + path)
        page.locator("#thread > *").first.wait_for(state="attached")
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert faults == []


def _note(line, faults: list[str]) -> None:
    # A refusal is a status like any other; the browser puts it on the console all the same.
    if line.type in ("error", "warning") and "Failed to load resource" not in line.text:
        faults.append(f"console: {line.text}")


def _note_stranger(url: str, address: str, faults: list[str]) -> None:
    if not url.startswith((address, "data:", "blob:")):
        faults.append(f"asked {url}")


def say(page: Page, text: str) -> None:
    """Sends a message and waits until its answer is whole."""
    count = page.locator(".answer").count()
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")
    answer = page.locator(".answer").nth(count)
    answer.locator(".stats").wait_for()
    assert answer.locator(".notice").all_inner_texts() == []


def last(page: Page):
    return page.locator(".answer").last


def overflow(page: Page) -> int:
    return page.evaluate("document.documentElement.scrollWidth - window.innerWidth")


def test_markdown_code_and_copy(open_page):
    page = open_page()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    say(page, "markdown")
    answer = last(page)
    assert answer.locator("h3", has_text="Layers of rock").count() == 1
    assert answer.locator("strong").inner_text() == "strata"
    assert answer.locator("ol > li").count() == 3
    assert answer.locator("ol ul li").all_inner_texts() == ["slowly", "for millions of years"]
    assert answer.locator("tbody tr").count() == 3
    assert answer.locator("td").nth(2).evaluate("cell => getComputedStyle(cell).textAlign") == "end"
    assert answer.locator("blockquote").count() == 1
    assert answer.locator("input[type=checkbox]").first.is_checked()
    link = answer.locator("a")
    assert link.get_attribute("href") == "https://example.org/survey"
    assert link.get_attribute("rel") == "noopener noreferrer nofollow"
    code = answer.locator(".code")
    code.locator(".hl-keyword").first.wait_for()
    text = re.search(r"```python\n(.*?)```", scribe.MARKDOWN, re.DOTALL)[1].rstrip("\n")
    assert code.locator("code").inner_text() == text
    code.get_by_label("Copy the code").click()
    assert page.evaluate("navigator.clipboard.readText()") == text
    answer.get_by_label("Copy the answer").click()
    assert page.evaluate("navigator.clipboard.readText()") == scribe.MARKDOWN
    assert "tok/s" in answer.locator(".stats").inner_text()


def test_hostile_answer_stays_text(open_page):
    """Script tags, handlers, javascript: links, beacons, forms: nothing runs, nothing is asked."""
    page = open_page()
    say(page, "hostile")
    answer = last(page)
    page.wait_for_timeout(300)
    assert page.evaluate("window.hacked") is None
    body = answer.locator(".prose")
    tags = body.evaluate(
        "node => [...new Set([...node.querySelectorAll('*')].map(e => e.tagName))]"
    )
    allowed = {"P", "SPAN", "A", "DIV", "PRE", "CODE", "TABLE", "THEAD", "TBODY", "TR", "TH", "TD"}
    assert set(tags) - {"BUTTON", "svg", "path"} <= allowed
    attributes = body.evaluate(
        "node => [...node.querySelectorAll('*')].flatMap(e => [...e.attributes].map(a => a.name))"
    )
    assert not [name for name in attributes if name.startswith("on") or name in ("src", "style")]
    addresses = body.evaluate("node => [...node.querySelectorAll('a')].map(a => a.href)")
    # The picture is named and may be followed by hand; no other address may.
    assert addresses == ["http://127.0.0.1:9/beacon.png"]
    shown = body.inner_text()
    for literal in ("<script>window.hacked = 1</script>", "<form action=", "<iframe srcdoc="):
        assert literal in shown
    for link in body.locator(".no-link").all():
        link.click()
    assert page.evaluate("window.hacked") is None
    assert page.url.rstrip("/#chat") == page.evaluate("location.origin")


def test_the_browser_itself_would_refuse_markup_and_strangers(open_page):
    """The policy holds where the page's own care would not: checked by trying."""
    page = open_page()
    tried = """async () => {
        const told = [];
        addEventListener("securitypolicyviolation", e => told.push(e.effectiveDirective));
        try { document.body.innerHTML += "<b>x</b>"; told.push("html!"); } catch { }
        try { setTimeout("window.hacked = 2", 0); } catch { }
        try { await fetch("http://127.0.0.1:9/"); told.push("fetch!"); } catch { }
        const script = document.createElement("script");
        try { script.textContent = "window.hacked = 1"; document.body.append(script); } catch { }
        await new Promise(done => setTimeout(done, 200));
        return told;
    }"""
    context = page.context
    quiet = context.new_page()  # its violations are wanted, so nobody notes them
    quiet.goto(page.url)
    told = quiet.evaluate(tried)
    assert not [item for item in told if item.endswith("!")]
    assert {"require-trusted-types-for", "connect-src"} <= set(told)
    assert quiet.evaluate("window.hacked") is None
    framed = fetch(page.url.split("#")[0].rstrip("/"), "/")[2]
    assert framed["x-frame-options"] == "DENY"


def test_deep_nesting_does_not_break_the_page(open_page):
    page = open_page()
    say(page, "nested")
    assert "deep" in last(page).inner_text()
    say(page, "and now?")
    assert "You said: and now?" in last(page).inner_text()


# Renders a text as if it streamed in, and tells what is shown and the longest pause in ms.
STREAM = """async ([text, steps]) => {
    const { renderMarkdown } = await import("/page/markdown.js");
    const box = document.createElement("div");
    document.body.append(box);
    let longest = 0;
    for (let step = 1; step <= steps; step += 1) {
        const begun = performance.now();
        renderMarkdown(box, text.slice(0, Math.ceil((text.length * step) / steps)), step === steps);
        longest = Math.max(longest, performance.now() - begun);
    }
    return [box.textContent, longest, [...box.children].map(e => e.outerHTML).join("")];
}"""


@pytest.mark.parametrize(
    "text",
    ["> " * 4000 + "deep", "- " * 3000 + "x", "_a__b" * 5000, "[" * 20000, "**a " * 8000],
    ids=["quotes", "lists", "underscores", "brackets", "stars"],
)
def test_texts_that_are_hard_to_parse_do_not_hold_the_page_up(open_page, text: str):
    page = open_page()
    shown, longest_ms, _ = page.evaluate(STREAM, [text, 40])
    letters = re.sub(r"[^a-zA-Z]", "", text)
    assert re.sub(r"[^a-zA-Z]", "", shown) == letters
    assert longest_ms < 5000  # once, on a machine that does other things; then it is plain


def test_a_streamed_text_ends_as_the_whole_would(open_page):
    page = open_page()
    page.evaluate(STREAM, [scribe.MARKDOWN, 1])
    page.locator(".hl-keyword").first.wait_for()  # the language of its code is there from now on
    blocks = "a\n\n| x |\n| - |\n| 1 |\n\nb\n===\n\n- c\r\n\r\n  d\n\n1. e\n\n   f"
    for text in (scribe.MARKDOWN, scribe.HOSTILE, blocks):
        streamed = page.evaluate(STREAM, [text, len(text)])[2]
        assert streamed == page.evaluate(STREAM, [text, 1])[2]


def test_settings_that_are_open_learn_what_the_model_can_do(open_page):
    held = []
    page = open_page(
        before=lambda page: page.route("**/v1/about", lambda route: held.append(route))
    )
    page.click("#open-settings")
    page.fill("#system", "Be brief.")
    assert page.locator(".choices label").count() == 0
    for route in held:
        route.continue_()
    page.locator(".choices label", has_text="On").click()
    assert page.input_value("#system") == "Be brief."


def test_thinking_is_folded(open_page):
    page = open_page()
    page.click("#open-settings")
    page.locator(".choices label", has_text="On").click()
    page.keyboard.press("Escape")
    say(page, "think about 2 + 3")
    thought = last(page).locator("details.thought")
    assert re.fullmatch(r"Thought for (a moment|[\d.]+ s)", thought.locator("summary").inner_text())
    assert not thought.locator(".thought-text").is_visible()
    thought.locator("summary").click()
    assert (
        thought.locator(".thought-text").inner_text() == "First 2 and 3 make 5. <b>So</b> it is 5."
    )
    assert last(page).locator(".prose").inner_text() == "It is 5."
    say(page, "again")
    assert page.locator("details.thought").first.get_attribute("open") is not None


def test_stop_keeps_what_was_written_and_ends_the_work(open_page, server: ScribeServed):
    page = open_page()
    page.fill("#prompt", "slow")
    page.press("#prompt", "Enter")
    page.locator(".answer .prose p").wait_for()
    assert page.get_by_role("button", name="Stop").count() == 1
    page.keyboard.press("Escape")
    page.locator(".ending", has_text="Stopped").wait_for()
    assert last(page).locator(".prose").inner_text().startswith("word word")

    def is_idle() -> bool:
        return json.loads(fetch(server.address, "/v1/monitor")[1])["live"]["state"] == "idle"

    wait_until(is_idle, 5)
    say(page, "hello again")
    assert "You said: hello again" in last(page).inner_text()


def test_versions_of_an_answer_can_be_compared(open_page):
    page = open_page()
    page.click("#open-settings")
    page.fill("#field-max_tokens", "4")
    page.keyboard.press("Escape")
    say(page, "one two three four five")
    short = last(page).locator(".prose").inner_text()
    page.click("#open-settings")
    page.get_by_role("button", name="Use the defaults").click()
    page.keyboard.press("Escape")
    page.get_by_label("Answer again").click()
    page.get_by_text("2 of 2").wait_for()
    assert last(page).locator(".prose").inner_text() == "You said: one two three four five"
    page.get_by_label("Earlier version").click()
    page.get_by_text("1 of 2").wait_for()
    assert last(page).locator(".prose").inner_text() == short != ""
    assert page.get_by_label("Earlier version").is_disabled()
    page.reload()
    page.locator(".conversation").click()
    page.get_by_text("1 of 2").wait_for()
    with page.expect_request("**/v1/chat/completions") as asked:
        say(page, "go on")
    assert asked.value.post_data_json["messages"][1]["content"] == short
    assert page.get_by_text("1 of 2").count() == 0  # what was built upon is settled


def test_a_message_before_the_model_is_known_waits_for_its_name(open_page):
    page = open_page()
    page.route("**/v1/about", lambda route: (time.sleep(0.5), route.continue_()))
    page.reload()
    say(page, "quick")
    assert "You said: quick" in last(page).inner_text()


def test_answer_again_and_edit(open_page):
    page = open_page()
    say(page, "first")
    say(page, "second")
    assert page.get_by_label("Answer again").count() == 1
    with page.expect_request("**/v1/chat/completions") as asked:
        page.get_by_label("Answer again").click()
    contents = [message["content"] for message in asked.value.post_data_json["messages"]]
    assert contents == ["first", "You said: first", "second"]
    last(page).locator(".stats").wait_for()
    assert page.locator(".message").count() == 4
    page.locator(".user").first.hover()
    page.get_by_label("Edit the message").first.click()
    page.get_by_label("Edit your message").fill("changed")
    page.get_by_role("button", name="Send again").click()
    page.locator(".answer", has_text="You said: changed").locator(".stats").wait_for()
    assert page.locator(".message").count() == 2


def test_settings_are_sent_and_the_others_are_the_servers(open_page):
    page = open_page()
    page.click("#open-settings")
    page.fill("#system", "Be brief.")
    page.fill("#field-temperature", "0.35")
    page.fill("#field-seed", "7")
    page.fill("#field-stop", "END\nDONE")
    page.get_by_label("Close the settings").click()
    with page.expect_request("**/v1/chat/completions") as asked:
        say(page, "hello")
    body = asked.value.post_data_json
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (body["temperature"], body["seed"], body["stop"]) == (0.35, 7, ["END", "DONE"])
    assert not {"top_p", "top_k", "min_p", "max_tokens", "tools"} & set(body)
    page.reload()
    page.click("#open-settings")
    assert page.input_value("#field-temperature") == "0.35"
    page.get_by_role("button", name="Use the defaults").click()
    assert page.input_value("#field-temperature") == ""
    page.keyboard.press("Escape")
    with page.expect_request("**/v1/chat/completions") as asked:
        say(page, "hello")
    assert "temperature" not in asked.value.post_data_json


def test_a_tool_call_is_shown_and_its_result_goes_back(open_page):
    page = open_page()
    page.click("#open-settings")
    page.fill("#field-tools", "no json")
    assert page.get_by_text("no JSON list of functions").is_visible()
    page.fill("#field-tools", TOOLS)
    assert not page.get_by_text("no JSON list of functions").is_visible()
    page.keyboard.press("Escape")
    say(page, "weather")
    call = last(page).locator(".call")
    assert call.locator(".call-head code").inner_text() == "get_weather"
    shown = json.loads(call.locator("pre code").inner_text())
    assert shown == {"city": "Oslo <script>window.hacked=20</script>"}
    assert page.evaluate("window.hacked") is None
    page.get_by_label("Result of get_weather").fill('{"degrees": 4}')
    with page.expect_request("**/v1/chat/completions") as asked:
        page.get_by_role("button", name="Send the result").click()
    sent = asked.value.post_data_json["messages"]
    assert sent[-1]["role"] == "tool"
    assert sent[-1]["tool_call_id"] == sent[-2]["tool_calls"][0]["id"]
    page.locator(".answer", has_text='The tool said: {"degrees": 4}').wait_for()


def test_a_picture_is_declined_kindly(open_page, tmp_path: Path):
    (tmp_path / "dot.png").write_bytes(PIXEL)
    (tmp_path / "fake.png").write_bytes(b"no picture")
    page = open_page()
    page.set_input_files("#file", tmp_path / "dot.png")
    page.locator(".thumb img").wait_for()
    page.fill("#prompt", "what is this?")
    page.press("#prompt", "Enter")
    page.get_by_text("This model reads text, not pictures.").wait_for()
    page.get_by_role("button", name="Send without the picture").click()
    page.locator(".answer", has_text="You said: what is this?").wait_for()
    assert page.locator(".pictures img").count() == 0


def test_conversations_outlive_the_page(open_page):
    page = open_page()
    say(page, "remember me")
    page.click("#new-chat")
    assert page.get_by_text("What shall we work on?").is_visible()
    say(page, "another")
    page.reload()
    titles = page.locator(".conversation")
    titles.nth(1).wait_for()
    assert titles.all_inner_texts() == ["another", "remember me"]
    titles.nth(1).click()
    assert "You said: remember me" in last(page).inner_text()
    assert page.locator("#chat-title").inner_text() == "remember me"
    page.locator(".conversations li").nth(1).hover()
    page.get_by_label("Delete remember me").click()
    page.get_by_text("What shall we work on?").wait_for()
    assert titles.all_inner_texts() == ["another"]
    page.goto(page.url.split("#")[0] + "#about")
    page.get_by_role("button", name="Delete all conversations").click()
    page.get_by_role("button", name="Click again to delete all").click()
    page.get_by_text("Conversations you begin appear here.").wait_for()
    page.reload()
    page.get_by_text("Conversations you begin appear here.").wait_for()


def test_a_page_that_is_closed_keeps_what_was_written(open_page):
    page = open_page()
    page.fill("#prompt", "slow")
    page.press("#prompt", "Enter")
    page.locator(".answer .prose p").wait_for()
    page.wait_for_timeout(3000)
    page.reload()
    page.locator(".conversation").click()
    assert last(page).locator(".prose").inner_text().count("word") > 20
    assert last(page).locator(".ending").inner_text() == "Stopped"


def test_an_answer_is_followed_unless_one_reads_above(open_page):
    page = open_page()
    say(page, "long")
    place = (
        "() => { const s = document.querySelector('#scroller');"
        " return s.scrollHeight - s.scrollTop - s.clientHeight; }"
    )
    assert page.evaluate(place) < 5
    page.evaluate("document.querySelector('#scroller').scrollTop = 0")
    page.get_by_label("Go to the newest message").click()
    assert page.evaluate(place) < 5


def test_keyboard_alone(open_page):
    page = open_page()
    assert page.evaluate("document.activeElement.id") == "prompt"
    page.keyboard.type("line one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("line two")
    page.keyboard.press("Enter")
    last(page).locator(".stats").wait_for()
    assert page.locator(".bubble").inner_text() == "line one\nline two"
    page.keyboard.press("Control+Shift+O")
    assert page.get_by_text("What shall we work on?").is_visible()
    page.keyboard.press("Control+,")
    assert page.locator("#settings").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#settings").is_visible()
    page.locator("body").press("Tab")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("?")
    assert page.locator("#shortcuts").is_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "prompt"
    # The first stop of the keyboard leads past the list.
    page.reload()
    page.goto(page.url.split("#")[0] + "#monitor")
    focusable = "document.querySelector('a, button, input, textarea').className"
    assert page.evaluate(focusable) == "skip"
    page.focus(".skip")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    assert page.locator("#view-monitor").is_visible()


def test_every_control_has_a_name(open_page):
    page = open_page()
    say(page, "markdown")
    nameless = """() => [...document.querySelectorAll("button, a, input, textarea, summary")]
        .filter(e => e.type !== "file" && !e.closest("[hidden]"))
        .filter(e => !(e.getAttribute("aria-label") || e.textContent.trim() || e.labels?.length))
        .map(e => e.outerHTML.slice(0, 80))"""
    for path in ("#chat", "#monitor", "#about"):
        page.goto(page.url.split("#")[0] + path)
        page.wait_for_timeout(400)
        assert page.evaluate(nameless) == []
    page.goto(page.url.split("#")[0] + "#chat")
    page.click("#open-settings")
    assert page.evaluate(nameless) == []


def test_monitor_shows_what_was_asked(open_page):
    page = open_page()
    say(page, "hello monitor")
    stats = last(page).locator(".stats").inner_text()
    tokens = re.search(r"([\d,]+) tokens", stats)[1]
    page.click("text=Monitor")
    row = page.locator("table.figures tbody tr").first
    row.wait_for()
    cells = row.locator("td").all_inner_texts()
    assert cells[1] == "Done"
    assert cells[4] == tokens
    assert cells[6] == DASH  # nothing counts hits here, and it says so
    assert page.locator(".tier-share").all_inner_texts() == [DASH, DASH, DASH]
    tiles = page.locator(".tile", has_text="Temperature")
    assert DASH in tiles.inner_text() or "°C" in tiles.inner_text()
    assert "GiB" in page.locator(".tile").filter(has_text=re.compile("^RAM")).inner_text()
    page.locator(".legend li", has_text="routed experts").wait_for()
    page.wait_for_timeout(2500)
    assert page.locator(".tile", has_text="Processor").locator(".spark-line").count() >= 1
    page.click("text=Show all that are kept")
    page.get_by_role("button", name="Show the last ones").wait_for()


def test_monitor_shows_a_request_under_way(open_page):
    page = open_page()
    page.fill("#prompt", "slow")
    page.press("#prompt", "Enter")
    page.locator(".answer .prose p").wait_for()
    page.click("text=Monitor")
    page.locator(".status.is-writing").first.wait_for()
    page.locator(".badge.is-writing").wait_for()
    page.click("nav >> text=Chat")
    page.get_by_role("button", name="Stop").click()
    page.locator(".ending").wait_for()


def test_figures_of_cards_are_shown(open_page):
    """What two cards with tiers would tell, put in the way of the server's own answer."""
    page = open_page()
    card = {
        "index": 0, "name": "Card A", "load": 0.5, "mem_used": 8 << 30, "mem_total": 16 << 30,
        "temperature_c": 61, "power_w": 200.0, "power_limit_w": 300.0,
        "received_bytes_per_s": 2.5e9, "sent_bytes_per_s": 1e6,
        "link_generation": 5, "link_width": 16,
    }  # fmt: skip
    both = {**card, "count": 2, "name": "Card A + Card B", "mem_used": 20 << 30,
            "mem_total": 32 << 30, "temperature_c": 88, "power_w": 410.0}  # fmt: skip

    def change(route) -> None:
        told = route.fetch().json()
        told |= {"gpus": [card, {**card, "index": 1, "name": "Card B"}], "gpu": both}
        told["tiers"] = {"vram": 900, "ram": 80, "disk": 20}
        route.fulfill(json=told)

    page.route("**/v1/monitor*", change)
    page.click("text=Monitor")
    page.get_by_text("Card A + Card B").wait_for()
    assert page.locator(".tier-share").all_inner_texts() == ["90.0 %", "8.0 %", "2.0 %"]
    assert "88 °C" in page.locator(".tile.heat-high").inner_text()
    assert "20.0 GiB of 32.0 GiB" in page.locator(".tile", has_text="VRAM").inner_text()
    assert "2.5 GB/s" in page.locator(".tile", has_text="Link").inner_text()
    rows = page.get_by_role("region", name="Each card").locator("tbody tr")
    assert rows.count() == 2


def test_about_gives_what_clients_need(open_page, server: ScribeServed):
    page = open_page(path="/#about")
    page.get_by_text(f"{server.address}/v1").first.wait_for()
    for name in page.get_by_role("tab").all():
        name.click()
        assert server.address.removeprefix("http://") in page.locator("#recipe code").inner_text()
    page.get_by_role("tab").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("tab").nth(1).get_attribute("aria-selected") == "true"
    assert "32 in a layer, 4 for a token" in page.locator("#about").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 390, 820, 1600])
def test_fits_every_width_in_light_and_dark(open_page, scheme: str, width: int):
    page = open_page(color_scheme=scheme, viewport={"width": width, "height": 780})
    say(page, "markdown")
    assert overflow(page) == 0
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    lightness = sum(map(int, re.findall(r"\d+", background)[:3])) / 3
    assert lightness > 200 if scheme == "light" else lightness < 60
    if width <= 820:
        assert not page.locator("#sidebar").is_visible()
        page.locator("#view-chat [data-menu]").click()
        page.locator("nav >> text=Monitor").click()
    else:
        page.click("nav >> text=Monitor")
    page.locator("table.figures").wait_for()
    assert overflow(page) == 0
    page.goto(page.url.split("#")[0] + "#about")
    page.locator("#recipe code").wait_for()
    assert overflow(page) == 0


def test_colours_can_be_chosen_and_are_kept(open_page):
    page = open_page(color_scheme="light")
    light = painted(page, "--paper")
    page.get_by_label("Light or dark").click()
    dark = painted(page, "--paper")
    assert _luminance(dark) < 0.1 < 0.8 < _luminance(light)
    page.reload()
    page.locator("#theme svg").wait_for()
    assert painted(page, "--paper") == dark
    page.emulate_media(color_scheme="dark")
    page.get_by_label("Light or dark").click()
    assert painted(page, "--paper") == light


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(open_page, scheme: str):
    """WCAG AA: 4.5 to 1, of the colours that text is written in on the ground it lies on."""
    page = open_page(color_scheme=scheme)
    pairs = [("--ink", "--paper"), ("--muted", "--paper"), ("--muted", "--surface"),
             ("--muted", "--sunken"), ("--accent", "--paper"), ("--on-accent", "--accent"),
             ("--ink", "--accent-soft"), ("--bad", "--paper"), ("--ink", "--bad-soft"),
             ("--warn", "--paper")]  # fmt: skip
    for front, back in pairs:
        lights = sorted(_luminance(painted(page, name)) for name in (front, back))
        ratio = (lights[1] + 0.05) / (lights[0] + 0.05)
        assert ratio >= 4.5, (front, back, ratio)


def painted(page, name: str) -> str:
    """The colour that one of the page's names is painted with now, as rgb(r, g, b)."""
    return page.evaluate(
        """name => {
            const one = document.createElement("span");
            one.style.color = `var(${name})`;
            document.body.append(one);
            const colour = getComputedStyle(one).color;
            one.remove();
            return colour;
        }""",
        name,
    )


def _luminance(colour: str) -> float:
    channels = [int(part) / 255 for part in re.findall(r"\d+", colour)]
    assert len(channels) == 3, colour
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_a_server_with_a_key_is_asked_with_it(open_page):
    served = ScribeServed("--api-key", KEY)
    try:
        page = open_page(served.address)
        page.locator("#key").wait_for()
        page.fill("#key-field", "wrong")
        page.get_by_role("button", name="Use the key").click()
        page.get_by_text("The key was not right").wait_for()
        page.fill("#key-field", KEY)
        page.get_by_role("button", name="Use the key").click()
        say(page, "with a key")
        assert "You said: with a key" in last(page).inner_text()
        assert page.evaluate("localStorage.getItem('strata.key')") is None
        assert page.evaluate("sessionStorage.getItem('strata.key')") == KEY
        page.click("nav >> text=Monitor")
        page.locator("table.figures").wait_for()
        page.click("nav >> text=About")
        page.locator("#recipe code").wait_for()
        assert KEY not in page.content()  # recipes say where it goes, never what it is
    finally:
        served.end()


def test_a_server_that_ends_is_told_and_nothing_is_lost(open_page):
    served = ScribeServed()
    page = open_page(served.address)
    say(page, "before")
    served.end()
    page.fill("#prompt", "after")
    page.press("#prompt", "Enter")
    page.get_by_text("The server does not answer").first.wait_for()
    assert page.get_by_role("button", name="Try again").count() == 1
    assert page.locator(".bubble").all_inner_texts() == ["before", "after"]


def test_a_server_that_is_killed_in_an_answer_is_told_in_plain_words(open_page):
    served = ScribeServed()
    page = open_page(served.address)
    page.fill("#prompt", "slow")
    page.press("#prompt", "Enter")
    page.locator(".answer .prose p").wait_for()
    served.process.kill()
    served.end()
    page.get_by_text("The answer broke off: the connection was lost.").wait_for()
    assert last(page).locator(".prose").inner_text().startswith("word")


def test_a_model_out_of_memory_is_told_and_loaded_again(open_page):
    served = ScribeServed()
    try:
        page = open_page(served.address, "/#about")
        page.get_by_role("button", name="Give the model's memory back").click()
        page.click("nav >> text=Chat")
        page.get_by_role("button", name="Load it").click()
        page.locator("#engine-dot.is-ready").wait_for()
        say(page, "back again")
        assert "You said: back again" in last(page).inner_text()
    finally:
        served.end()


def test_an_engine_that_dies_is_told_and_the_answer_can_be_had_again(open_page):
    served = ScribeServed()
    try:
        page = open_page(served.address)
        page.fill("#prompt", "slow")
        page.press("#prompt", "Enter")
        page.locator(".answer .prose p").wait_for()
        os.kill(json.loads(fetch(served.address, "/v1/status")[1])["engine_pid"], signal.SIGKILL)
        page.get_by_text("The engine's process ended during this answer").wait_for()
        assert last(page).locator(".prose").inner_text().startswith("word")
        page.locator("#engine-dot.is-ready").wait_for()
        say(page, "and again")
        assert "You said: and again" in last(page).inner_text()
    finally:
        served.end()


def test_over_plain_http_from_another_machine(open_page):
    """Without a secure origin the clipboard and some names of the browser are missing."""
    served = ScribeServed("--allow-host", ELSEWHERE)
    try:
        page = open_page(served.address.replace("127.0.0.1", ELSEWHERE))
        assert not page.evaluate("isSecureContext")
        say(page, "markdown")
        last(page).get_by_label("Copy the answer").click()
        last(page).locator(".icon-button.done").wait_for()
        page.focus("#prompt")
        page.keyboard.press("Control+V")
        assert page.input_value("#prompt") == scribe.MARKDOWN
        page.reload()
        page.locator(".conversation").wait_for()
    finally:
        served.end()
