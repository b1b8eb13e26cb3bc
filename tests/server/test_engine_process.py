"""The supervised child, with a scripted engine in a real process.

Checked against the same engine in this process: what crosses the pipe must change nothing.
"""

from __future__ import annotations

import asyncio
import errno
import multiprocessing
import os
import signal
from multiprocessing.context import SpawnProcess
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.server.engines import (
    DEADLY,
    DiesOnce,
    NeedsFile,
    dies_loading,
    loses_its_card,
    open_scripted,
    refuses,
    scripted,
)

from strata import telemetry
from strata.engine.sampling_params import SamplingParams
from strata.server import protocol
from strata.server.engine_process import EngineProcess
from strata.server.engine_state import Limits, State
from strata.server.faults import Fault
from strata.server.requests_log import Outcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

PROMPT = [5, 6, 7]


def submit(prompt: list[int], **options: object) -> Callable[[int], protocol.Submit]:
    data = np.asarray(prompt, "<i4").tobytes()
    return lambda request_id: protocol.Submit(request_id, data, {"temperature": 0, **options})


async def tokens_of(process: EngineProcess, prompt: list[int], **options: object) -> list[int]:
    ids: list[int] = []
    async with process.answer(submit(prompt, **options)) as messages:
        async for message in messages:
            if isinstance(message, protocol.Tokens):
                ids += message.token_ids
    return ids


def expected(prompt: list[int], **options: object) -> list[int]:
    with scripted(0.0) as engine:
        sampling = SamplingParams.from_options({"temperature": 0, **options})
        return list(engine.generate_text(prompt, sampling).token_ids)


def run(open_engine: object, scenario: Callable[[EngineProcess], Awaitable[None]], **limits):
    async def main() -> None:
        process = EngineProcess(open_engine, Limits(**limits))
        process.start()
        try:
            await scenario(process)
        finally:
            await process.close()
        assert process.state is State.CLOSED

    asyncio.run(asyncio.wait_for(main(), 60))


def test_requests_are_answered_as_in_this_process():
    async def scenario(process: EngineProcess) -> None:
        await process.wait_loaded()
        assert process.loaded == (2, 2)
        one = tokens_of(process, PROMPT, max_tokens=20)
        other = tokens_of(process, [9, 9], max_tokens=9)
        assert await asyncio.gather(one, other) == [
            expected(PROMPT, max_tokens=20),
            expected([9, 9], max_tokens=9),
        ]
        status = await process.status()
        assert status is not None
        assert (status.num_answered, status.current_id) == (2, None)

    run(open_scripted, scenario)


def test_stop_texts_logprobs_and_costs_cross_the_pipe():
    async def scenario(process: EngineProcess) -> None:
        third = f"<{expected(PROMPT, max_tokens=5)[2]}>"
        async with process.answer(submit(PROMPT, stop=[third], logprobs=2)) as messages:
            items = [item async for item in messages if not isinstance(item, protocol.Progress)]
        ended = items[-1]
        assert isinstance(ended, protocol.Ended)
        assert (ended.reason, ended.stop_text) == ("stop", third)
        assert (ended.costs.prompt_tokens, ended.costs.generated_tokens) == (3, 3)
        first = items[0].logprobs[0]
        assert first.top[0] == (first.token_id, first.logprob)
        assert len(first.top) == 2

    run(open_scripted, scenario)


def test_a_bad_request_is_refused_and_the_next_served():
    async def scenario(process: EngineProcess) -> None:
        for prompt, options, status in [
            ([], {}, 400),
            ([1000], {}, 400),
            (PROMPT, {"max_tokens": 500}, 400),
            (PROMPT, {"logit_bias": {"x": 1}}, 400),
        ]:
            with pytest.raises(Fault) as caught:
                await tokens_of(process, prompt, **options)
            assert caught.value.status == status
        assert await tokens_of(process, PROMPT, max_tokens=3) == expected(PROMPT, max_tokens=3)

    run(open_scripted, scenario)


def test_leaving_cancels_the_answer():
    async def scenario(process: EngineProcess) -> None:
        await process.wait_loaded()
        async with process.answer(submit(PROMPT, ignore_eos=True, max_tokens=390)) as messages:
            async for message in messages:
                if isinstance(message, protocol.Tokens):
                    break
        # The whole answer takes 0.8 s; the next one would wait for it.
        answer = tokens_of(process, PROMPT, max_tokens=1)
        assert await asyncio.wait_for(answer, 0.4) == expected(PROMPT, max_tokens=1)

    run(open_scripted, scenario)


def test_a_death_before_the_first_token_goes_unnoticed(tmp_path: Path):
    async def scenario(process: EngineProcess) -> None:
        prompt = [DEADLY, 1]
        assert await tokens_of(process, prompt, max_tokens=8) == expected(prompt, max_tokens=8)
        assert process.num_restarts == 1

    run(DiesOnce(tmp_path / "died"), scenario)


def test_a_death_in_the_answer_is_told_and_the_next_request_is_right():
    async def scenario(process: EngineProcess) -> None:
        with pytest.raises(Fault, match="ended during this answer: killed by SIGKILL") as caught:
            await tokens_of(process, [DEADLY, 1], max_tokens=20)
        assert (caught.value.status, caught.value.code) == (503, "engine_died")
        assert await tokens_of(process, PROMPT, max_tokens=4) == expected(PROMPT, max_tokens=4)

    run(DiesOnce(None, after_tokens=3), scenario)


def test_a_device_that_fails_is_told_by_its_error_and_started_again():
    async def scenario(process: EngineProcess) -> None:
        with pytest.raises(Fault, match="during this answer: the driver refused a copy"):
            await tokens_of(process, PROMPT, max_tokens=20)
        assert await tokens_of(process, PROMPT, max_tokens=3) == expected(PROMPT, max_tokens=3)
        assert process.num_restarts == 1

    run(loses_its_card, scenario)


def test_a_request_that_always_kills_is_given_up():
    async def scenario(process: EngineProcess) -> None:
        with pytest.raises(Fault, match="on this request, twice"):
            await tokens_of(process, [DEADLY, 1], max_tokens=20)
        assert process.num_restarts == 2
        assert await tokens_of(process, PROMPT, max_tokens=4) == expected(PROMPT, max_tokens=4)

    run(DiesOnce(None), scenario)


def test_every_death_and_every_return_is_told():
    heard: list[str] = []
    stop = telemetry.listen(lambda event: heard.append(event.message))

    async def scenario(process: EngineProcess) -> None:
        for num in range(1, 3):
            await process.wait_loaded()
            os.kill(process.pid, signal.SIGKILL)
            while process.num_restarts < num:
                await asyncio.sleep(0.01)
        await process.wait_loaded()

    run(open_scripted, scenario)
    stop()
    died = "the engine's process ended: killed by SIGKILL. It is started again."
    assert heard == [died, "the engine is ready again."] * 2


def test_a_model_that_has_gone_is_named_while_it_is_tried_again(tmp_path: Path):
    model = tmp_path / "model"
    model.touch()

    async def scenario(process: EngineProcess) -> None:
        await process.wait_loaded()
        model.unlink()
        os.kill(process.pid, signal.SIGKILL)
        while process.num_restarts < 2:
            await asyncio.sleep(0.01)
        with pytest.raises(Fault, match=f"loaded again: there is no file {model}. It is tried"):
            await tokens_of(process, PROMPT, max_tokens=2)
        model.touch()
        await process.wait_loaded()
        assert await tokens_of(process, PROMPT, max_tokens=3) == expected(PROMPT, max_tokens=3)

    run(NeedsFile(model), scenario, ready_wait_s=0.1)


def test_a_system_that_refuses_a_process_is_asked_again(monkeypatch: pytest.MonkeyPatch):
    heard: list[str] = []
    stop = telemetry.listen(lambda event: heard.append(event.message))

    async def scenario(process: EngineProcess) -> None:
        await process.wait_loaded()
        with monkeypatch.context() as patch:
            patch.setattr(SpawnProcess, "start", refuse_process)
            os.kill(process.pid, signal.SIGKILL)
            while process.num_restarts < 2:
                await asyncio.sleep(0.01)
        assert "it could not be started (Cannot allocate memory)" in heard[-1]
        await process.wait_loaded()
        assert await tokens_of(process, PROMPT, max_tokens=3) == expected(PROMPT, max_tokens=3)

    try:
        run(open_scripted, scenario)
    finally:
        stop()


def test_a_system_that_refuses_the_first_process_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(SpawnProcess, "start", refuse_process)

    async def scenario(process: EngineProcess) -> None:
        with pytest.raises(Fault, match="could not be started \\(Cannot allocate memory\\)"):
            await process.wait_loaded()

    run(open_scripted, scenario)


def refuse_process(_: object) -> None:
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


def test_an_idle_death_is_repaired_by_itself():
    async def scenario(process: EngineProcess) -> None:
        await process.wait_loaded()
        first = process.pid
        os.kill(first, signal.SIGKILL)
        while process.num_restarts == 0:
            await asyncio.sleep(0.01)
        await process.wait_loaded()
        assert process.pid not in (None, first)

    run(open_scripted, scenario)


def test_more_than_the_bound_is_refused_with_429():
    async def scenario(process: EngineProcess) -> None:
        long = submit(PROMPT, ignore_eos=True, max_tokens=390)
        async with process.answer(long), process.answer(long):
            with pytest.raises(Fault) as caught:
                await tokens_of(process, PROMPT)
        assert caught.value.status == 429
        assert caught.value.headers == {"retry-after": "5"}
        assert process.log.totals.outcomes[Outcome.REFUSED] == 1
        assert await tokens_of(process, PROMPT, max_tokens=1) == expected(PROMPT, max_tokens=1)

    run(open_scripted, scenario, max_open=2)


def test_what_ends_the_server_leaves_the_child_to_it():
    """Ctrl-C goes to both, and so does the end of a service: the server ends the child itself."""

    async def scenario(process: EngineProcess) -> None:
        def signal_child() -> None:
            for child in multiprocessing.active_children():
                os.kill(child.pid, signal.SIGINT)
                os.kill(child.pid, signal.SIGTERM)

        signal_child()  # its imports have not begun
        await process.wait_loaded()
        signal_child()
        assert await tokens_of(process, PROMPT, max_tokens=3) == expected(PROMPT, max_tokens=3)
        assert process.num_restarts == 0

    run(open_scripted, scenario)


def test_a_process_killed_while_it_loads_says_how():
    async def scenario(process: EngineProcess) -> None:
        with pytest.raises(Fault, match="ended while it loaded the model: killed by SIGKILL"):
            await process.wait_loaded()

    run(dies_loading, scenario)


def test_a_model_that_cannot_be_loaded_says_why():
    async def scenario(process: EngineProcess) -> None:
        with pytest.raises(Fault, match="the plan needs 9 GiB") as caught:
            await process.wait_loaded()
        assert caught.value.status == 503
        assert process.state is State.FAILED

    run(refuses, scenario)
