"""Requests in turns, with a scripted engine in a real process. Checked against each alone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.server.engines import VOCAB_SIZE, open_scripted, scripted
from tests.server.test_engine_process import expected, run, submit, tokens_of

from strata.server import protocol
from strata.server.rota import Rota

if TYPE_CHECKING:
    from strata.engine.engine import Engine
    from strata.server.engine_process import EngineProcess


def open_slow(*, on_progress: object) -> Engine:
    """Steps that are long beside what a message takes, on a busy machine too."""
    return scripted(0.1)


def test_a_short_request_begins_within_two_chunks_of_a_long_prompt():
    long = [5] * 390

    async def scenario(process: EngineProcess) -> None:
        await process.wait_loaded()
        seen: list[str] = []
        under_way = asyncio.Event()

        async def reads() -> None:
            async with process.answer(submit(long, max_tokens=3)) as messages:
                async for message in messages:
                    if isinstance(message, protocol.Progress):
                        seen.append("chunk")
                        under_way.set()

        reading = asyncio.create_task(reads())
        await under_way.wait()
        num_before = len(seen)
        ids: list[int] = []
        async with process.answer(submit([6, 7, 8], max_tokens=12)) as messages:
            async for message in messages:
                if isinstance(message, protocol.Tokens):
                    if not ids:
                        num_between = len(seen) - num_before
                    ids += message.token_ids
        assert not reading.done()
        assert num_between <= 2
        assert ids == expected([6, 7, 8], max_tokens=12)
        await reading
        assert len(seen) == 49

    run(open_slow, scenario)


def test_many_at_once_are_answered_as_each_alone():
    prompts = [[token, *([9] * (7 * token % 60))] for token in range(20, 40)]

    async def scenario(process: EngineProcess) -> None:
        await process.wait_loaded()
        answers = await asyncio.gather(
            *(tokens_of(process, prompt, max_tokens=10) for prompt in prompts)
        )
        for prompt, answer in zip(prompts, answers, strict=True):
            assert answer == expected(prompt, max_tokens=10)
        status = await process.status()
        assert status is not None
        assert (status.num_answered, status.num_waiting) == (20, 0)

    assert VOCAB_SIZE > 40
    run(open_scripted, scenario)


def test_a_cancelled_one_leaves_the_others():
    async def scenario(process: EngineProcess) -> None:
        await process.wait_loaded()
        other = asyncio.create_task(tokens_of(process, [6] * 100, max_tokens=30))
        async with process.answer(submit([5] * 200, max_tokens=100)) as messages:
            async for message in messages:
                if isinstance(message, protocol.Tokens):
                    break
        assert await other == expected([6] * 100, max_tokens=30)

    run(open_scripted, scenario)


def test_new_ones_come_first_and_all_have_turns():
    rota: Rota[str] = Rota(2)
    for item in "abc":
        rota.add("one", item)
    assert [rota.next() for _ in range(4)] == ["a", "b", "a", "b"]  # two may be begun
    assert rota.has_others
    assert not rota.has_new
    rota.remove("a")
    assert rota.has_new
    assert [rota.next() for _ in range(3)] == ["c", "b", "c"]
    rota.remove("b")
    assert not rota.has_others
    rota.remove("c")
    assert len(rota) == 0


def test_turns_are_divided_by_callers():
    rota: Rota[str] = Rota(3)
    for item in ("a1", "a2", "a3", "a4"):
        rota.add("a", item)
    assert [rota.next() for _ in range(4)] == ["a1", "a2", "a3", "a1"]
    rota.add("b", "b1")  # of a caller that has none under way
    rota.add("b", "b2")
    assert rota.has_new
    turns = [rota.next() for _ in range(7)]
    assert turns == ["b1", "a2", "b1", "a3", "b1", "a1", "b1"]
    for item in ("a1", "a2"):
        rota.remove(item)
    assert rota.next() == "a4"  # as many are under way of either: the one that came first
