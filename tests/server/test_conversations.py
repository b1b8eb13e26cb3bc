"""Conversations through a live server: continued, interleaved, killed, started again, damaged.

Checked against the texts of the library, which here never continues anything.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

import openai
import pytest
from tests.server.conftest import Served, fetch, wait_until

from strata import Engine
from strata.engine.sampler import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILLER = "the river keeps a stone for every name it has forgotten and the hill counts them again "


@pytest.fixture(scope="module")
def library() -> Iterator[Engine]:
    with Engine.open(threads=1, checkpoints=0, conversation_ram=0) as engine:
        yield engine


def first(name: str, times: int = 40) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"I am {name}. " + FILLER * times}]


def asked(served: Served, messages: list[dict[str, str]]) -> tuple[str, int, int]:
    """Text, tokens of the prompt, tokens reused."""
    with openai.OpenAI(base_url=f"{served.address}/v1", api_key="none", max_retries=0) as client:
        made = client.chat.completions.create(
            model="gpt-demo", messages=messages, temperature=0, max_tokens=12
        )
    usage = made.usage
    return (
        made.choices[0].message.content,
        usage.prompt_tokens,
        usage.prompt_tokens_details.cached_tokens,
    )


def expected(library: Engine, messages: list[dict[str, str]]) -> str:
    # Something else in between, so that not even the live end is continued.
    library.generate_text([5], SamplingParams(max_tokens=1))
    made = library.chat(messages, SamplingParams(temperature=0, max_tokens=12)).complete()
    assert made.timings.reused_tokens == 0
    return made.text


def next_turn(messages: list[dict[str, str]], text: str, question: str) -> list[dict[str, str]]:
    return [
        *messages,
        {"role": "assistant", "content": text},
        {"role": "user", "content": question},
    ]


def serve(folder: Path) -> Served:
    return Served("--threads", 1, "--alias", "gpt-demo", "--conversation-dir", folder)


def told(served: Served) -> dict[str, int]:
    _, body, _ = fetch(served.address, "/v1/status")
    return json.loads(body)["conversations"]


def test_clients_that_take_turns_keep_their_conversations(demo: Served, library: Engine):
    talks = {name: first(name) for name in ("Ada", "Bo", "Cy")}
    for question in ("And then?", "And after that?"):
        for name, messages in talks.items():
            text, _, _ = asked(demo, messages)
            assert text == expected(library, messages)
            talks[name] = next_turn(messages, text, question)
    for messages in talks.values():
        text, num_prompt, num_reused = asked(demo, messages)
        assert text == expected(library, messages)
        assert num_prompt - num_reused < 60  # the answer, the question, the marks around them
    wait_until(lambda: told(demo)["from_parked"] >= 6)


def test_every_api_tells_what_was_reused(demo: Served):
    messages = first("Dan")
    num_least = asked(demo, messages)[1] - 20
    _, _, num_reused = asked(demo, messages)
    assert num_reused > num_least
    bodies = {
        "/v1/messages": {"messages": messages, "max_tokens": 4},
        "/v1/responses": {"input": messages, "max_output_tokens": 4},
        "/v1/completions": {"prompt": FILLER * 20, "max_tokens": 4},
    }
    seen = {}
    for path, body in bodies.items():
        for _ in range(2):
            status, content, _ = fetch(
                demo.address, path, json.dumps({"model": "gpt-demo", **body}).encode()
            )
            assert status == 200
            seen[path] = json.loads(content)["usage"]
    assert seen["/v1/messages"]["cache_read_input_tokens"] > num_least
    assert seen["/v1/responses"]["input_tokens_details"]["cached_tokens"] > num_least
    assert seen["/v1/completions"]["prompt_tokens_details"]["cached_tokens"] > 200


def test_choices_share_the_prompt_that_one_of_them_read(demo: Served):
    asked = {"model": "gpt-demo", "n": 3, "max_tokens": 4, "temperature": 1, "seed": 5}
    prompts = {
        "/v1/chat/completions": {"messages": first("Fay")},
        "/v1/completions": {"prompt": FILLER * 20 + "Fay"},
    }
    for path, prompt in prompts.items():
        status, content, _ = fetch(demo.address, path, json.dumps({**asked, **prompt}).encode())
        assert (status, len(json.loads(content)["choices"])) == (200, 3)
        ended = json.loads(fetch(demo.address, "/v1/monitor?requests=3")[1])["requests"]
        third, second, one = ((item["prompt_tokens"], item["reused_tokens"]) for item in ended)
        assert one[0] - one[1] > 20
        assert second == third
        # Where an answer begins close behind a kept turn, its few tokens are read again.
        assert second[0] - second[1] == (7 if "messages" in prompt else 0)


def test_a_killed_server_goes_on_where_it_was(tmp_path: Path, library: Engine):
    served = serve(tmp_path)
    messages = first("Eve")
    text, num_prompt, num_reused = asked(served, messages)
    assert num_reused == 0
    wait_until(lambda: told(served)["files_saved"] == 1)
    pid = json.loads(fetch(served.address, "/v1/status")[1])["engine_pid"]
    served.process.kill()
    os.kill(pid, 9)
    served.process.wait()
    served.process.stderr.close()
    (path,) = tmp_path.iterdir()

    again = serve(tmp_path)
    second = next_turn(messages, text, "And then?")
    text, _, num_reused = asked(again, second)
    assert num_reused > num_prompt - 20
    assert text == expected(library, second)
    time.sleep(0.6)  # what is told may be half a second old
    assert told(again)["from_disk"] == 1
    assert again.end() == 0

    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    (tmp_path / ("0" * 16 + ".conversation")).write_bytes(b"something else")
    third = serve(tmp_path)
    third_turn = next_turn(second, text, "And after that?")
    text, _, num_reused = asked(third, third_turn)
    assert num_reused == 0
    assert text == expected(library, third_turn)
    third.process.terminate()
    log = "".join(third.lines) + third.process.stderr.read()
    assert third.process.wait(timeout=20) == 0
    third.process.stderr.close()
    assert f"{path} is skipped: it is damaged" in log
    assert "is skipped: it is not the file of a conversation" in log
