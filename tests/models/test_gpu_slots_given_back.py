"""Slots that go and come while windows and prompts are computed: the bits stay (C1).

Runs on a card, or in Triton's interpreter where there is none, in which memory is only said to go:
what lies there is ruined, so whoever reads it shows.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.models.bits import one_by_one, same_bits
from tests.models.on_card import PROMPT, per_layer
from tests.models.smallest_model import EXPERTS, LAYERS

from strata import telemetry
from strata.errors import DeviceError, PlanError, RequestError
from strata.gpu.memory_plan import DRIVER_BYTES

if TYPE_CHECKING:
    from tests.models.on_card import Tiered

    from strata.gpu.model import GpuModel


@pytest.fixture
def one(tiered) -> Tiered:
    return tiered(per_layer(EXPERTS), policy="lru")


def ruin(model: GpuModel, monkeypatch) -> list[int]:
    """Bytes given back from now on are overwritten, where they are not really gone."""
    gone: list[int] = []
    memory = model.weights.slots
    real = memory.release

    def release(address: int, num_bytes: int) -> int:
        gone.append(num_bytes)
        if not real(address, num_bytes):
            first = address - memory._memory.data_ptr()
            memory._memory[first : first + num_bytes] = 255
        return num_bytes

    monkeypatch.setattr(memory, "release", release)
    return gone


def test_windows_have_the_same_bits_whatever_is_open(
    one: Tiered, tokens: np.ndarray, single: np.ndarray, monkeypatch
) -> None:
    model, cache = one.model, one.model.experts
    gone = ruin(model, monkeypatch)
    told: list[str] = []
    stop = telemetry.listen(lambda event: told.append(event.message))
    session = model.new_session(16)
    found = [one_by_one(session, tokens[:2])]
    base = sum(model.weights.num_bytes.values()) - cache.limit.num_bytes + DRIVER_BYTES
    others = base + model._session_bytes
    model.limit_bytes(others + cache.limit.num_bytes // 4)
    found.append(one_by_one(session, tokens[2:4]))
    assert cache.limit.num_open == LAYERS * EXPERTS // 4
    assert sum(gone) == cache.limit.num_bytes * 3 // 4
    with pytest.raises(PlanError, match="what is not slots for experts takes"):
        model.limit_bytes(others - 1)
    # The card has not got the memory any more: the window goes on with what there is.
    with monkeypatch.context() as patch:

        def refused(*_: object) -> None:
            raise DeviceError("the card refused memory for slots.")

        patch.setattr(model.weights.slots, "restore", refused)
        model.limit_bytes(None)
        found.append(one_by_one(session, tokens[4:6]))
        model.limit_bytes(None)
        with pytest.raises(DeviceError):
            model.carry_out_limit()
    assert cache.limit.num_open == LAYERS * EXPERTS // 4
    assert told == ["the card refused memory for slots."]
    model.limit_bytes(None)
    model.carry_out_limit()
    found.append(one_by_one(session, tokens[6:8]))
    stop()
    assert same_bits(np.concatenate(found), single[:8])
    assert cache.limit.num_open == LAYERS * EXPERTS
    assert model.places().in_vram == LAYERS * EXPERTS


@pytest.mark.long
@pytest.mark.timeout(900)  # a prompt, in the interpreter
def test_a_prompt_that_comes_while_slots_go_has_the_same_bits(
    one: Tiered, prompt_logits: np.ndarray, monkeypatch
) -> None:
    ruin(one.model, monkeypatch)
    session = one.model.new_session(80)
    # Set by another thread once the first chunk is under way; its last rows are windows.
    limits = iter((3, 8, 2))

    def progress(*_: int) -> None:
        number = next(limits, None)
        if number is not None:
            thread = threading.Thread(target=one.model.experts.limit_slots, args=(number,))
            thread.start()
            thread.join()

    one.model.experts.limit_slots(5)
    assert same_bits(session.prefill(PROMPT, on_progress=progress), prompt_logits)
    assert one.model.experts.limit.num_open in (2, 8)


def test_two_threads_cannot_run_windows_at_once(one: Tiered) -> None:
    model = one.model
    errors: list[BaseException] = []

    def other() -> None:
        try:
            with model.serving_experts():
                pass
        except RequestError as error:
            errors.append(error)

    with model.serving_experts():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(errors) == 1
    assert "runs a window in another thread" in str(errors[0])
    with model.serving_experts():
        pass
    model.check_experts()
