"""A chat of two turns through the server: what the second turn costs, and what a restart costs.

    python benchmarks/conversations.py [--model FILE] [--tokens 6000] [--threads N]

Starts servers with a folder for conversations, asks a long question and one after it, kills the
server with SIGKILL, and asks again. Prints a line of JSON for each request: tokens of the prompt,
tokens reused, seconds to the first token, and whether the text is that of a server which reuses
nothing. Fails when it is not.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

WORDS = "the river keeps a stone for every name it has forgotten and the hill counts them again "


class Server:
    """``strata serve`` in a process of its own."""

    def __init__(self, arguments: list[str]) -> None:
        command = [sys.executable, "-m", "strata.cli.app", "serve", "--port", "0", *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.address = self._wait_for(r"listening on (\S+);")
        self._wait_for(r"ready: (\S+)")

    def _wait_for(self, pattern: str) -> str:
        assert self.process.stderr is not None  # noqa: S101 - a pipe was asked for
        lines: list[str] = []
        for line in self.process.stderr:
            lines.append(line)
            if found := re.search(pattern, line):
                return found[1]
        raise SystemExit("the server ended:\n" + "".join(lines))

    def get(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(self.address + path) as response:
            return json.loads(response.read())

    def chat(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        """Text, usage and seconds to the first token of a greedy answer."""
        body = {
            "model": "any", "messages": messages, "temperature": 0, "max_tokens": 24,
            "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        request = urllib.request.Request(
            self.address + "/v1/chat/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        begin_s, first_s, text, usage = time.perf_counter(), None, "", {}
        with urllib.request.urlopen(request) as response:
            for line in response:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                usage = event.get("usage") or usage
                for choice in event["choices"]:
                    if piece := choice["delta"].get("content"):
                        first_s = first_s or time.perf_counter() - begin_s
                        text += piece
        return {
            "prompt": usage["prompt_tokens"],
            "reused": usage["prompt_tokens_details"]["cached_tokens"],
            "first_token_s": round(first_s or 0.0, 4),
            "text": text,
        }

    def end(self, *, is_kill: bool = False) -> None:
        """SIGTERM, or SIGKILL of the server and of its engine."""
        if is_kill:
            os.kill(self.get("/v1/status")["engine_pid"], 9)
            self.process.kill()
        else:
            self.process.terminate()
        self.process.communicate()


def settled(server: Server) -> dict[str, Any]:
    """What the engine tells once everything is written."""
    for _ in range(100):
        told = server.get("/v1/status")["conversations"]
        if told["files_saved"] or told["files_failed"]:
            return told
        time.sleep(0.1)
    raise SystemExit("nothing was saved")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--tokens", type=int, default=6000)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    common = ["--alias", "*", "--context", str(options.tokens + 600)]
    common += [] if options.model is None else ["--model", options.model]
    common += [] if options.threads is None else ["--threads", str(options.threads)]

    probe = Server([*common, "--checkpoints", "0", "--conversation-ram", "0"])
    one = probe.chat([{"role": "user", "content": WORDS * 20}])["prompt"]
    times = max(1, round(options.tokens / (one / 20)))
    first = [{"role": "user", "content": WORDS * times}]
    cold = [probe.chat(first)]
    second = [
        *first,
        {"role": "assistant", "content": cold[0]["text"]},
        {"role": "user", "content": "And which name was the first?"},
    ]
    probe.chat([{"role": "user", "content": "Something else."}])
    cold.append(probe.chat(second))
    probe.end()

    with tempfile.TemporaryDirectory() as folder:
        kept = [*common, "--conversation-dir", folder]
        server = Server(kept)
        warm = [server.chat(first)]
        settled(server)
        begun = {path.name: path.stat().st_size for path in Path(folder).iterdir()}
        server.end(is_kill=True)
        again = Server(kept)
        after_kill = again.chat(second)
        again.end()
        live = Server([*common])
        warm.append(live.chat(first))
        follow = live.chat(second)
        told = live.get("/v1/status")["conversations"]
        live.end()

    is_same = True
    rows = [
        ("cold, turn 1", cold[0], cold[0]), ("cold, turn 2", cold[1], cold[1]),
        ("saving, turn 1", warm[0], cold[0]), ("after kill -9, turn 2", after_kill, cold[1]),
        ("live, turn 2", follow, cold[1]),
    ]  # fmt: skip
    for name, got, wanted in rows:
        same = got["text"] == wanted["text"]
        is_same &= same
        share = got["first_token_s"] / wanted["first_token_s"]
        facts = {key: got[key] for key in ("prompt", "reused", "first_token_s")}
        print(json.dumps({"request": name, **facts, "of_cold": round(share, 4), "same": same}))
    print(json.dumps({"file_bytes": begun, "live": told}))
    if not is_same:
        raise SystemExit("a text differs")


if __name__ == "__main__":
    main()
