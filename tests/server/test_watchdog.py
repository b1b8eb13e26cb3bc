"""An engine's process that hangs: noticed, ended, started again.

Processes are stopped and blocked for real; how long a step may take is tried with told figures.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from typing import TYPE_CHECKING

import openai
import pytest
from tests.server.conftest import Served, fetch, wait_until
from tests.server.engines import DEADLY, DiesOnce, scripted
from tests.server.test_engine_process import PROMPT, expected, run, submit, tokens_of

from strata.server import protocol
from strata.server.faults import Fault
from strata.server.watchdog import Watchdog

if TYPE_CHECKING:
    from pathlib import Path

    from strata.engine.engine import Engine
    from strata.engine.session import OnProgress
    from strata.server.engine_process import EngineProcess

# A process needs about a second to start, and longer on a busy machine.
LIMIT_S = 4.0
SHORT = {"model": "strata-demo", "prompt": "One, two, ", "max_tokens": 4, "temperature": 0}


class Blocks(DiesOnce):
    """Waits for ever where ``DiesOnce`` would die, as for a device that never answers."""

    def die(self) -> None:
        if self.flag is not None:
            if self.flag.exists():
                return
            self.flag.touch()
        time.sleep(3600)


class StepsOf:
    """A scripted engine with steps of so many seconds."""

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s

    def __call__(self, *, on_progress: OnProgress) -> Engine:
        return scripted(self.step_s)


def test_a_stopped_process_is_started_again_and_its_answer_says_why():
    async def scenario(process: EngineProcess) -> None:
        stopped_s: list[float] = []

        async def answer() -> None:
            async with process.answer(submit(PROMPT, ignore_eos=True, max_tokens=390)) as messages:
                async for message in messages:
                    if isinstance(message, protocol.Tokens) and not stopped_s:
                        stopped_s.append(time.monotonic())
                        os.kill(process.pid, signal.SIGSTOP)

        with pytest.raises(Fault) as caught:
            await answer()
        assert LIMIT_S <= time.monotonic() - stopped_s[0] < 2 * LIMIT_S
        assert (caught.value.status, caught.value.code) == (503, "engine_died")
        assert "ended during this answer: it had not answered for 4 s." in caught.value.text
        assert process.last_death == "it had not answered for 4 s"
        assert await tokens_of(process, PROMPT, max_tokens=4) == expected(PROMPT, max_tokens=4)
        assert (process.num_restarts, process.last_death) == (1, "")

    run(StepsOf(0.01), scenario, watchdog_s=LIMIT_S)


def test_an_idle_process_that_was_stopped_is_replaced_before_anyone_asks():
    async def scenario(process: EngineProcess) -> None:
        await process.wait_loaded()
        os.kill(process.pid, signal.SIGSTOP)
        while process.silent_s is None:
            await asyncio.sleep(0.05)
        while process.num_restarts == 0:
            await asyncio.sleep(0.05)
        assert await tokens_of(process, PROMPT, max_tokens=4) == expected(PROMPT, max_tokens=4)

    run(StepsOf(0.0), scenario, watchdog_s=LIMIT_S)


def test_a_working_thread_that_waits_for_ever_is_noticed_though_the_other_answers(tmp_path: Path):
    async def scenario(process: EngineProcess) -> None:
        prompt = [DEADLY, 1]
        assert await tokens_of(process, prompt, max_tokens=8) == expected(prompt, max_tokens=8)
        assert process.num_restarts == 1

    run(Blocks(tmp_path / "flag"), scenario, watchdog_s=LIMIT_S)


def test_long_steps_and_long_idleness_are_no_hang():
    async def scenario(process: EngineProcess) -> None:
        await process.wait_loaded()
        await asyncio.sleep(1.25 * LIMIT_S)  # with nothing to do
        ids = await tokens_of(process, PROMPT, max_tokens=1)
        assert ids == expected(PROMPT, max_tokens=1)
        assert process.num_restarts == 0

    run(StepsOf(0.75 * LIMIT_S), scenario, watchdog_s=LIMIT_S)


class Child:
    """What a child would tell, question by question."""

    def __init__(self, limit_s: float = 60.0) -> None:
        self.dog = Watchdog(limit_s)
        self.beats, self.cpu_s, self.blocks = 0, 0.0, 0

    def ask(
        self, count: int, *, beats: int = 0, cpu_s: float = 0.0, blocks: int = 0, **rest: bool
    ) -> str | None:
        """The cause after so many questions, each answered with so much more done."""
        for _ in range(count):
            cause = self.dog.look(is_loading=rest.get("is_loading", False))
            if cause is not None:
                return cause
            self.beats, self.cpu_s, self.blocks = (
                self.beats + beats,
                self.cpu_s + cpu_s,
                self.blocks + blocks,
            )
            is_busy = rest.get("is_busy", True)
            if rest.get("answers", True):
                told = protocol.Alive(is_busy, self.beats, self.cpu_s, self.blocks)
                self.dog.hear(told)
        return None


def test_how_long_each_kind_of_silence_is_borne():
    # Ten seconds a question: six of them are the limit.
    assert Child().ask(1000, beats=1) is None
    assert Child().ask(1000, is_busy=False) is None
    assert Child().ask(7, answers=False) == "it had not answered for 60 s"
    assert Child().ask(6, answers=False) is None
    nothing = "it had done nothing for 60 s, in the middle of its work"
    assert Child().ask(8) == nothing
    assert Child().ask(8, cpu_s=0.01) == nothing  # what answering takes
    circles = "it had not got on for 600 s"
    assert Child().ask(59, cpu_s=10.0) is None  # a chunk of ten minutes
    assert Child().ask(65, cpu_s=10.0) == circles
    assert Child().ask(65, blocks=1) == circles
    assert Child().ask(5000, cpu_s=10.0, is_loading=True) is None
    assert Child().ask(59, is_loading=True) is None  # a disk that is being flushed
    assert "done nothing for 600 s" in Child().ask(65, is_loading=True)


def test_what_it_did_while_it_was_silent_counts():
    child = Child()
    assert child.ask(5, beats=1) is None
    assert child.ask(5, cpu_s=1.0, answers=False) is None  # one long hold of Python's lock
    assert child.dog.silent_s == 50.0
    assert child.ask(5, cpu_s=1.0) is None
    assert child.dog.silent_s is None
    assert child.ask(3) is None  # a new stillness counts anew
    assert child.ask(4) is not None


def test_health_and_the_waiting_request_say_what_is_wrong_meanwhile():
    served = Served("--threads", 1, "--watchdog-s", 6)
    told: list[tuple[int, dict]] = []

    def health() -> dict:
        status, body, _ = fetch(served.address, "/health")
        told.append((status, json.loads(body)))
        return told[-1][1]

    try:
        with openai.OpenAI(base_url=f"{served.address}/v1", api_key="none") as client:
            stream = client.completions.create(
                **{**SHORT, "max_tokens": 4000},
                stream=True,
                extra_body={"ignore_eos": True},
            )
            next(iter(stream))
            health()
            pid = json.loads(fetch(served.address, "/v1/status")[1])["engine_pid"]
            os.kill(pid, signal.SIGSTOP)
            wait_until(lambda: health()["status"] == "not_answering", 20)
            with pytest.raises(openai.APIError, match="answer: it had not answered for 6 s"):
                list(stream)
        wait_until(lambda: health()["status"] == "ok", 20)
        assert told[0] == (200, {"status": "ok"})
        assert all(status == (200 if body == {"status": "ok"} else 503) for status, body in told)
        why = "the engine's process ended: it had not answered for 6 s."
        assert {"loading"} == {body["status"] for _, body in told if body.get("why") == why}
        status, body, _ = fetch(served.address, "/v1/completions", json.dumps(SHORT).encode())
        assert (status, bool(json.loads(body)["choices"][0]["text"])) == (200, True)
    finally:
        served.end()
