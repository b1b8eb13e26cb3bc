"""When cycles are collected: not while somebody is answered, unless they wait too long."""

import asyncio
import gc
import weakref

from strata.server import garbage


class Cycle:
    def __init__(self):
        self.me = self


def left_after(seconds, *, is_idle, monkeypatch, longest_wait_s):
    monkeypatch.setattr(garbage, "_LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(garbage, "_LONGEST_WAIT_S", longest_wait_s)

    async def run():
        task = asyncio.ensure_future(garbage.collect_between_answers(lambda: is_idle))
        await asyncio.sleep(0.005)
        assert not gc.isenabled()
        cycles = [Cycle() for _ in range(2000)]
        one = weakref.ref(cycles[0])
        del cycles
        await asyncio.sleep(seconds)
        left = one() is not None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return left

    left = asyncio.run(run())
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    return left


def test_garbage_goes_while_nobody_is_answered(monkeypatch):
    assert not left_after(0.3, is_idle=True, monkeypatch=monkeypatch, longest_wait_s=60)


def test_garbage_waits_while_somebody_is_answered(monkeypatch):
    assert left_after(0.3, is_idle=False, monkeypatch=monkeypatch, longest_wait_s=60)


def test_garbage_does_not_wait_for_ever(monkeypatch):
    assert not left_after(0.5, is_idle=False, monkeypatch=monkeypatch, longest_wait_s=0.05)
