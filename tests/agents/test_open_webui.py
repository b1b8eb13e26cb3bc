"""Open WebUI in a browser, with a server behind it whose model repeats what it was told."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest
from tests.agents.conftest import ROOT, client
from tests.server.conftest import SOURCE, Served, fetch, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")


class ScribeServed(Served):
    PROGRAM = ("tests.server.scribe",)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    served = ScribeServed(PYTHONPATH=os.pathsep.join((SOURCE, str(ROOT))))
    yield served
    assert served.end() == 0


@pytest.fixture
def web_ui(served: Served, tmp_path: Path) -> Iterator[str]:
    """Its address; it knows of nothing but the server, and looks for nothing elsewhere."""
    program = client("open-webui")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {
        "DATA_DIR": str(tmp_path),
        "WEBUI_AUTH": "False",
        "WEBUI_SECRET_KEY": "for this test",
        "OFFLINE_MODE": "true",
        "HF_HUB_OFFLINE": "1",
        "ENABLE_OLLAMA_API": "False",
        "RAG_EMBEDDING_ENGINE": "openai",
        "OPENAI_API_BASE_URL": f"{served.address}/v1",
        "OPENAI_API_KEY": "none",
    }
    inherited = os.environ  # noqa: TID251 - a process needs its PATH
    process = subprocess.Popen(
        [program, "serve", "--host", "127.0.0.1", "--port", str(port)],
        cwd=tmp_path,
        env={"PATH": inherited["PATH"], "HOME": str(tmp_path), **settings},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert process.poll() is None
        try:
            return fetch(address, "/health")[0] == 200
        except OSError:
            return False

    try:
        wait_until(answers, 180)
        yield address
    finally:
        process.terminate()
        process.wait(30)


def test_a_question_and_another_are_answered_in_its_page(served: Served, web_ui: str):
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 800})
        page.set_default_timeout(60_000)
        page.goto(web_ui)
        field = page.locator("#chat-input")
        field.wait_for()
        news = page.get_by_text("Okay, Let's Go!")
        news.click()  # what is new in this version
        for question in ("What is chalk?", "And marl?"):
            field.click()
            page.keyboard.type(question)
            page.keyboard.press("Enter")
            page.get_by_text(f"You said: {question}", exact=True).first.wait_for()
        browser.close()
    told = json.loads(fetch(served.address, "/v1/monitor?requests=all")[1])["requests"]
    assert {item["outcome"] for item in told} <= {"done", "length", "stopped"}
