"""The page's files and the routes it lives on, without a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.server.conftest import Served, fetch, wait_until

from strata.server import page_files

PAGE = Path(page_files.__file__).parent / "page"
OWN = sorted(path for path in PAGE.rglob("*.js") if "vendor" not in path.parts)
STYLES = sorted(PAGE.rglob("*.css"))
CHAT = "/v1/chat/completions"
ROOT = Path(__file__).resolve().parents[2]


def ask(demo: Served, text: str, **fields: object) -> dict:
    body = {"model": demo.name, "messages": [{"role": "user", "content": text}], **fields}
    status, answer, _ = fetch(demo.address, CHAT, json.dumps(body).encode())
    assert status == 200, answer
    return json.loads(answer)


def test_every_file_the_page_names_is_there():
    files = page_files.load()
    named = set(re.findall(r'(?:src|href)="/page/([^"]+)"', files["index.html"].body.decode()))
    for path in OWN:
        named |= set(re.findall(r'(?:from |src: )"/page/([^"]+)"', path.read_text()))
    assert len(named) > 15
    assert named <= set(files)
    languages = re.search(
        r"SHIPPED = new Set\(\[(.*?)\]\)", (PAGE / "highlight.js").read_text(), re.S
    )
    for language in re.findall(r'"([^"]+)"', languages[1]):
        assert f"vendor/highlight/languages/{language}.min.js" in files


def test_nothing_but_pages_scripts_styles_and_pictures_is_served():
    files = page_files.load()
    assert {Path(name).suffix for name in files} == {".html", ".css", ".js", ".svg"}
    assert sum(len(file.body) for file in files.values()) < 400_000


def test_the_page_asks_nobody_else_and_writes_no_html():
    """Works offline, and leaves no way for a model's text to become markup."""
    banned = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|srcdoc")
    for path in [*OWN, *STYLES, PAGE / "index.html", PAGE / "icon.svg"]:
        text = path.read_text()
        assert not banned.search(text), path
        assert not re.search(r"(?:src|href|url|import|from|fetch)\W{1,3}(?:https?:)?//", text), path
        assert not re.search(r"\son[a-z]+=\"", text), path
    assert "style=" not in (PAGE / "index.html").read_text()


def test_scripts_are_small():
    sizes = {path.name: len(path.read_text().splitlines()) for path in OWN}
    assert [name for name, lines in sizes.items() if lines > 400] == []


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_scripts_are_javascript(path: Path):
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    done = subprocess.run(
        ["node", "--input-type=module", "--check"], input=path.read_bytes(), capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()


def test_vendored_files_are_of_the_versions_that_are_named():
    readme = (PAGE / "vendor" / "README.md").read_text()
    marked = re.search(r"marked (\d+\.\d+\.\d+) ", readme)[1]
    highlight = re.search(r"highlight\.js (\d+\.\d+\.\d+) ", readme)[1]
    assert f"marked v{marked}" in (PAGE / "vendor" / "marked.esm.js").read_text()[:400]
    assert f"v{highlight}" in (PAGE / "vendor" / "highlight" / "core.min.js").read_text()[:200]
    about = (PAGE / "about.js").read_text()
    assert f"marked {marked} (MIT)" in about
    assert f"highlight.js {highlight} (BSD 3-Clause)" in about
    for name in ("LICENSE.marked", "LICENSE.highlight"):
        assert "Redistribution" in (text := (PAGE / "vendor" / name).read_text()) or "MIT" in text


def test_the_page_is_served_under_a_strict_policy(demo: Served):
    status, body, headers = fetch(demo.address, "/")
    assert status == 200
    assert b"<title>Strata</title>" in body
    assert headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(
        part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_a_file_that_is_the_same_is_not_sent_again(demo: Served):
    status, body, headers = fetch(demo.address, "/page/app.js")
    assert (status, headers["content-type"]) == (200, "text/javascript; charset=utf-8")
    again = fetch(demo.address, "/page/app.js", if_none_match=headers["etag"])
    assert again[:2] == (304, b"")
    assert fetch(demo.address, "/page/app.js", if_none_match='"other"')[1] == body


def test_the_page_is_for_known_hosts_only(demo: Served):
    """A rebound name would make it another site's page."""
    for path in ("/", "/page/app.js"):
        assert fetch(demo.address, path, host="evil.example")[0] == 403
        assert fetch(demo.address, path, host="localhost:1")[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "/page/",
        "/page/nothing.js",
        "/page/vendor/README.md",
        "/page/vendor/LICENSE.marked",
        "/page/../app.py",
        "/page/..%2fapp.py",
        "/page/%2e%2e/app.py",
        "/page//etc/passwd",
        "/page/style",
    ],
)
def test_no_other_file_is_reached(demo: Served, path: str):
    assert fetch(demo.address, path)[0] == 404


def test_key_page_open_figures_closed():
    served = Served("--threads", 1, "--api-key", "open sesame")
    try:
        assert fetch(served.address, "/")[0] == 200
        assert fetch(served.address, "/page/app.js")[0] == 200
        closed = ("/v1/monitor", "/v1/about", "/v1/status", "/metrics", "/page", "/pages/x")
        for path in closed:
            assert fetch(served.address, path)[0] == 401, path
        for path in ("/v1/monitor", "/v1/about", "/metrics"):
            answer = fetch(served.address, path, authorization="Bearer open sesame")
            assert answer[0] == 200
            assert b"open sesame" not in answer[1]
    finally:
        served.end()


def test_monitor_tells_of_a_request(demo: Served):
    answer = ask(demo, "What is 4 + 5?", temperature=0)
    status, body, _ = fetch(demo.address, "/v1/monitor?requests=1")
    assert status == 200
    told = json.loads(body)
    (request,) = told["requests"]
    assert request["outcome"] == "done"
    assert request["prompt_tokens"] == answer["usage"]["prompt_tokens"]
    assert request["output_tokens"] == answer["usage"]["completion_tokens"]
    assert request["reused_tokens"] == answer["timings"]["cache_n"]
    assert request["tokens_per_s"] > 0
    assert request["hit_rate"] is None  # all experts are in one place
    assert told["tiers"] == {"vram": None, "ram": None, "disk": None}
    assert told["live"]["state"] == "idle"
    assert told["engine"]["state"] == "ready"
    assert told["host"]["ram_total"] == told["machine"]["ram_total"]
    assert {len(column) for column in told["history"].values()} == {60}
    many = json.loads(fetch(demo.address, "/v1/monitor?requests=all")[1])["requests"]
    assert many[0] == request or many[0]["id"] > request["id"]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}),
        ("/v1/completions", {"prompt": "Once", "max_tokens": 3}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}),
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 3}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_every_api_is_counted_alike(demo: Served, path: str, fields: dict, *, stream: bool):
    def newest() -> dict:
        return json.loads(fetch(demo.address, "/v1/monitor?requests=1")[1])["requests"][0]

    before = newest()["id"] if json.loads(fetch(demo.address, "/v1/monitor")[1])["requests"] else 0
    body = json.dumps({"model": demo.name, "stream": stream, **fields}).encode()
    assert fetch(demo.address, path, body)[0] == 200
    request = newest()
    assert request["id"] == before + 1
    assert request["output_tokens"] <= 3
    assert request["outcome"] == ("length" if request["output_tokens"] == 3 else "done")


@pytest.mark.parametrize("wanted", ["", "x", "-1", "1.5", "9" * 30, "%00"])
def test_monitor_refuses_other_queries(demo: Served, wanted: str):
    status, body, _ = fetch(demo.address, f"/v1/monitor?requests={wanted}")
    assert status == 400
    assert b"requests" in body


def test_about_tells_the_model(demo: Served):
    told = json.loads(fetch(demo.address, "/v1/about")[1])
    assert told["model"]["id"] == demo.name
    assert told["model"]["aliases"] == ["gpt-demo"]
    assert told["model"]["layers"] == 8
    assert told["context_len"] == 8192
    assert told["sampling"]["top_k"] == 20


def test_metrics_are_prometheus_text(demo: Served):
    def scrape() -> dict[tuple, float]:
        status, body, headers = fetch(demo.address, "/metrics")
        assert status == 200
        assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        families = list(text_string_to_metric_families(body.decode()))
        assert all(family.name.startswith("strata_") for family in families)
        assert all(family.documentation for family in families)
        return {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }

    before = scrape()
    answer = ask(demo, "What is 4 + 6?", temperature=0)
    after = scrape()
    grown = {key: after[key] - before.get(key, 0) for key in after}
    assert grown["strata_requests_total", ("outcome", "done")] == 1
    assert grown["strata_prompt_tokens_total",] == answer["usage"]["prompt_tokens"]
    assert grown["strata_output_tokens_total",] == answer["usage"]["completion_tokens"]
    assert grown["strata_request_duration_seconds_count",] == 1
    documented = (ROOT / "docs" / "monitoring.md").read_text()
    bare = {re.sub("_(bucket|count|sum)$", "", key[0]) for key in after}
    assert [name for name in sorted(bare) if f"`{name}`" not in documented] == []
    assert after["strata_engine_ready",] == 1
    assert after["strata_ram_total_bytes",] > 1 << 30
    counters = [key for key in after if key[0].endswith(("_total", "_count", "_bucket"))]
    assert len(counters) > 40
    assert all(grown[key] >= 0 for key in counters)


def test_a_stream_that_is_left_is_stopped(demo: Served):
    body = {
        "model": demo.name,
        "messages": [{"role": "user", "content": "Count."}],
        "stream": True,
        "ignore_eos": True,
        "temperature": 1.9,
    }
    request = urllib.request.Request(
        demo.address + CHAT, json.dumps(body).encode(), {"content-type": "application/json"}
    )

    def told() -> dict:
        return json.loads(fetch(demo.address, "/v1/monitor?requests=1")[1])

    with urllib.request.urlopen(request, timeout=30) as response:
        response.read(600)
        live = told()["live"]
        assert live["state"] == "writing"
        assert live["requests"][0]["output_tokens"] > 0
    wait_until(lambda: told()["live"]["state"] == "idle")
    assert told()["requests"][0]["outcome"] == "stopped"
