"""A server's start, rules and end; and the routes that make no answer."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import urllib.request

import pytest
from tests.cli.conftest import finish, spawn
from tests.server.conftest import Served, fetch, wait_until

from strata import Engine

BODY = json.dumps(
    {
        "model": "strata-demo",
        "messages": [{"role": "user", "content": "What is 2 + 3?"}],
        "temperature": 0,
    }
).encode()
CHAT = "/v1/chat/completions"


def post(demo: Served, path: str, **fields: object) -> dict:
    status, body, _ = fetch(demo.address, path, json.dumps(fields).encode())
    assert status == 200, body
    return json.loads(body)


def test_plain_routes(demo: Served):
    assert json.loads(fetch(demo.address, "/health")[1]) == {"status": "ok"}
    listed = json.loads(fetch(demo.address, "/v1/models")[1])["data"]
    assert [model["id"] for model in listed] == ["strata-demo", "gpt-demo"]
    assert json.loads(fetch(demo.address, "/v1/models/gpt-demo")[1])["context_length"] == 8192
    assert fetch(demo.address, "/v1/models/other")[0] == 404
    status = json.loads(fetch(demo.address, "/v1/status")[1])
    assert (status["state"], status["engine_restarts"]) == ("ready", 0)
    assert status["memory_bytes"]


def test_what_programs_for_other_servers_look_at(demo: Served):
    def get(path: str) -> dict:
        status, body, _ = fetch(demo.address, path)
        assert status == 200
        return json.loads(body)

    assert get("/models") == get("/v1/models")
    assert get("/v1/health") == get("/api/health") == {"status": "ok"}
    assert get("/status")["state"] == "ready"
    props = get("/props")
    assert props["default_generation_settings"]["n_ctx"] == 8192
    assert props["model_alias"] == props["model_path"] == "strata-demo"
    assert "<|im_start|>" in props["chat_template"]
    slots = get("/slots")
    assert len(slots) == props["total_slots"]
    assert not any(slot["is_processing"] for slot in slots)
    fields = json.loads(BODY)
    assert post(demo, "/chat/completions", **fields)["choices"][0]["message"]["content"]
    assert post(demo, "/completions", model="strata-demo", prompt="One")["choices"][0]["text"]


def test_a_slot_is_taken_while_a_request_is_answered(demo: Served):
    asked = {"prompt": "One", "max_tokens": 3000, "ignore_eos": True, "stream": True}
    host = demo.address.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=30)
    connection.request(
        "POST",
        "/v1/completions",
        json.dumps({"model": "strata-demo", **asked}),
        {"content-type": "application/json"},
    )
    connection.getresponse().readline()
    first = json.loads(fetch(demo.address, "/slots")[1])[0]
    connection.close()
    assert first["is_processing"]
    assert first["n_prompt_tokens"] == 1
    assert first["next_token"]["n_decoded"] > 0


def test_tokens_and_back(demo: Served):
    text = "Zwölf Boxkämpfer 🥊 <|im_end|>"
    messages = [{"role": "user", "content": text}]
    with Engine.open(threads=1) as engine:
        assert post(demo, "/tokenize", content=text)["tokens"] == engine.tokenize(text)
        assert post(demo, "/tokenize", messages=messages)["tokens"] == engine.tokenize(messages)
    tokens = post(demo, "/tokenize", content=text, with_pieces=True)["tokens"]
    ids = [token["id"] for token in tokens]
    assert post(demo, "/detokenize", tokens=ids) == {"content": text}
    assert fetch(demo.address, "/detokenize", b'{"tokens": [99999]}')[0] == 400
    assert fetch(demo.address, "/tokenize", b"{}")[0] == 400


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        ("/v1/nothing", None, {}, 404),
        (CHAT, None, {}, 405),
        (CHAT, b"{", {}, 400),
        (CHAT, b"[]", {}, 400),
        (CHAT, b'{"messages": [{"role": "user", "content": "x"}]}', {}, 400),
        ("/v1/responses/compact", b"{}", {}, 400),
        (CHAT, b"\xff", {}, 400),
        (CHAT, b"[" * 100_000, {}, 400),
        (CHAT, BODY, {"content_type": "text/plain"}, 415),
        (CHAT, BODY, {"content_encoding": "gzip"}, 415),
        (CHAT, BODY, {"host": "evil.example"}, 403),
        (CHAT, BODY, {"origin": "https://evil.example"}, 403),
        (CHAT, BODY, {"origin": "null"}, 403),
        (CHAT, b" " * (33 << 20), {}, 413),
    ],
)
def test_bad_requests_get_their_status(demo: Served, path, body, headers, status):
    found, text, _ = fetch(demo.address, path, body, **headers)
    assert found == status
    assert json.loads(text)["error"]["message"]


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "[::1]:80", "192.168.1.5:8000"])
def test_addresses_and_localhost_are_good_hosts(demo: Served, host: str):
    assert fetch(demo.address, "/v1/models", host=host)[0] == 200


def test_a_body_of_unknown_length_is_bounded_too(demo: Served):
    connection = http.client.HTTPConnection(demo.address.removeprefix("http://"), timeout=30)
    pieces = (b" " * (1 << 20) for _ in range(40))
    headers = {"content-type": "application/json"}
    try:
        connection.request("POST", CHAT, pieces, headers, encode_chunked=True)
        assert connection.getresponse().status == 413
    except (BrokenPipeError, ConnectionResetError):
        pass  # refused before all of it was sent
    finally:
        connection.close()
    assert fetch(demo.address, "/health")[0] == 200


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/messages", "/v1/responses"])
def test_leaving_a_stream_ends_the_answer(demo: Served, path: str):
    """A prompt that makes the demo write until it is stopped: text after text, no end token."""
    text = "Count from 1 to 5000, one number a line."
    fields: dict[str, object] = {"model": "strata-demo", "stream": True, "temperature": 1.9}
    fields |= {
        CHAT: {"messages": [{"role": "user", "content": text}], "ignore_eos": True},
        "/v1/completions": {"prompt": text, "max_tokens": 7000, "ignore_eos": True},
        "/v1/messages": {"messages": [{"role": "user", "content": text}], "max_tokens": 7000},
        "/v1/responses": {"input": text},
    }[path]

    def num_open() -> int:
        return json.loads(fetch(demo.address, "/v1/status")[1])["open_requests"]

    request = urllib.request.Request(
        demo.address + path, json.dumps(fields).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.read(20)
    # A whole answer of that length takes seconds.
    wait_until(lambda: num_open() == 0, 2.0)


def test_a_killed_engine_comes_back(demo: Served):
    first = fetch(demo.address, CHAT, BODY)
    status = json.loads(fetch(demo.address, "/v1/status")[1])
    os.kill(status["engine_pid"], signal.SIGKILL)
    again = fetch(demo.address, CHAT, BODY)
    assert again[0] == 200
    contents = [json.loads(item[1])["choices"][0]["message"]["content"] for item in (first, again)]
    assert contents[0] == contents[1]
    status = json.loads(fetch(demo.address, "/v1/status")[1])
    assert status["engine_restarts"] >= 1


def test_key_and_origins():
    served = Served(
        "--threads",
        1,
        "--host",
        "0.0.0.0",
        "--cors-origin",
        "https://page.example",
        "--allow-host",
        "box.lan",
        "--name",
        "mine",
        STRATA_API_KEY="s3cret",
    )
    address = served.address.replace("0.0.0.0", "127.0.0.1")
    try:
        assert served.name == "mine"
        assert fetch(address, "/health")[0] == 200
        assert fetch(address, "/v1/models")[0] == 401
        assert fetch(address, "/v1/models", authorization="Bearer s3cre")[0] == 401
        assert fetch(address, "/v1/models", authorization="Bearer s3cret")[0] == 200
        assert fetch(address, "/v1/models", x_api_key="s3cret", host="box.lan")[0] == 200
        status, _, headers = fetch(
            address, "/v1/models", x_api_key="s3cret", origin="https://page.example"
        )
        assert (status, headers["access-control-allow-origin"]) == (200, "https://page.example")
        connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=30)
        connection.request("OPTIONS", CHAT, headers={"origin": "https://page.example"})
        answer = connection.getresponse()
        assert answer.status == 200
        assert "authorization" in answer.headers["access-control-allow-headers"]
        connection.close()
    finally:
        assert served.end() == 0
    assert not any("s3cret" in line for line in served.lines)


def test_a_taken_port_is_said_before_loading():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        code, _, err = finish(spawn("serve", "--port", port, "-m", "/no/such/model.gguf"))
    assert code == 2
    assert f"port {port} of 127.0.0.1 is taken" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("--host", "0.0.0.0"), 2, "--api-key"),
        (("--host", "no.such.host.invalid"), 2, "--api-key"),
        (("--host", "no.such.host.invalid", "--api-key", "k"), 2, "there is no host"),
        (("--api-key", "", "--port", 0), 2, "key is empty"),
        (("-m", "/no/such/model.gguf", "--port", 0), 1, "/no/such/model.gguf"),
        (("/no/such/model.gguf", "--port", 0), 1, "/no/such/model.gguf"),
        (("a.gguf", "-m", "b.gguf"), 2, "two models are named: a.gguf and --model b.gguf"),
        (("--context", 4_000_000, "--device", "cuda", "--port", 0), 1, ""),
    ],
)
def test_what_cannot_be_served_ends_with_a_message(args, code, message):
    found, _, err = finish(spawn("serve", *args))
    assert found == code, err
    assert message in err
    assert "Traceback" not in err


def test_ctrl_c_ends_server_and_engine():
    served = Served("--threads", 1)
    status = json.loads(fetch(served.address, "/v1/status")[1])
    served.process.send_signal(signal.SIGINT)
    served.process.stderr.read()
    assert served.process.wait(timeout=20) == 0
    served.process.stderr.close()

    def is_gone() -> bool:
        try:
            os.kill(status["engine_pid"], 0)
        except ProcessLookupError:
            return True
        return False

    wait_until(is_gone)


def test_an_end_in_the_middle_of_answers_is_told_and_not_logged_as_a_fault():
    served = Served("--threads", 1)
    host = served.address.removeprefix("http://")
    long = {**json.loads(BODY), "max_tokens": 8000, "ignore_eos": True, "temperature": 1}
    kinds = {"content-type": "application/json"}
    streamed, whole = http.client.HTTPConnection(host), http.client.HTTPConnection(host)
    try:
        streamed.request("POST", CHAT, json.dumps({**long, "stream": True}), kinds)
        answer = streamed.getresponse()
        assert b"assistant" in answer.readline()
        whole.request("POST", CHAT, json.dumps(long), kinds)
        with socket.create_connection(host.split(":")) as slow:
            # A body of which a part never comes.
            head = f"POST {CHAT} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
            slow.sendall(f"{head}content-length: 100\r\n\r\n{{".encode())
            wait_until(lambda: _num_open(served) == 2)
            served.process.terminate()
            last = answer.read().decode().strip().splitlines()[-1]
            assert json.loads(last.removeprefix("data: "))["error"] == {
                "message": "the server is shutting down.", "type": "server_error",
                "param": None, "code": None,
            }  # fmt: skip
            assert whole.getresponse().status == 503
            log = served.process.stderr.read()
        assert served.process.wait(timeout=20) == 0
        assert "Traceback" not in log
    finally:
        streamed.close()
        whole.close()
        served.process.kill()
        served.process.stderr.close()


def _num_open(served: Served) -> int:
    return json.loads(fetch(served.address, "/v1/status")[1])["open_requests"]


def test_unloaded_and_loaded_again():
    served = Served("--threads", 1)

    def state() -> str:
        return json.loads(fetch(served.address, "/health")[1])["status"]

    try:
        before = json.loads(fetch(served.address, CHAT, BODY)[1])["choices"]
        engine_pid = json.loads(fetch(served.address, "/v1/status")[1])["engine_pid"]
        assert fetch(served.address, "/v1/unload", b'{"model": "other"}')[0] == 404
        for _ in range(2):
            status, body, _ = fetch(served.address, "/v1/unload", b"")
            assert (status, json.loads(body)) == (200, {"state": "unloaded"})
        with pytest.raises(ProcessLookupError):
            os.kill(engine_pid, 0)
        assert state() == "unloaded"
        status, body, _ = fetch(served.address, CHAT, BODY)
        assert (status, json.loads(body)["error"]["code"]) == (503, "unloaded")
        assert fetch(served.address, "/v1/load", b'{"model": "strata-demo"}')[0] == 202
        wait_until(lambda: state() == "ok")
        assert json.loads(fetch(served.address, CHAT, BODY)[1])["choices"] == before
        assert fetch(served.address, "/load", b"")[0] == 202
    finally:
        assert served.end() == 0


def test_a_busy_model_is_not_unloaded(demo: Served):
    fields = {"model": "strata-demo", "prompt": "Count.", "max_tokens": 7000, "ignore_eos": True}
    body = json.dumps({**fields, "stream": True}).encode()
    request = urllib.request.Request(
        demo.address + "/v1/completions", body, {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        assert response.read(20)
        status, text, _ = fetch(demo.address, "/v1/unload", b"")
    assert (status, json.loads(text)["error"]["code"]) == (409, "busy")
