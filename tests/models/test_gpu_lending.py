"""Memory of slots lent to a prompt: bits, residents and refilling, faults in between included.

Runs on a card, or in Triton's interpreter. The slots of a model this small cannot hold a prompt's
buffers, so sessions borrow here through ``OwnRoom``, which takes slots away as ever and gives other
memory for them; that buffers lie in the slots' bytes is checked by ``benchmarks/gpu``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from tests.models.bits import one_by_one, same_bits
from tests.models.on_card import DEVICE, PROMPT
from tests.models.smallest_model import EXPERTS, LAYERS

from strata.gpu.arena import Arena
from strata.gpu.lending import Lender, LentArena
from strata.gpu.loan_plan import Loan, LoanRules
from strata.gpu.shapes import Shape
from strata.gpu.slot_check import rows_in_slot, rows_on_host
from strata.tiers.slots import shared_slots

if TYPE_CHECKING:
    from tests.models.on_card import Tiered

    from strata.gpu.prompt_layout import PromptShapes

NUM_SLOTS, NUM_LENT = 6, 4
SLOTS = shared_slots(LAYERS, EXPERTS, NUM_SLOTS)


def held(one: Tiered) -> np.ndarray:
    """[L, E] whether the card finds an expert in a slot."""
    return one.model.experts.layers[0].ahead._table.on_card.cpu().numpy() >= 0


def settle() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def all_are_back(one: Tiered) -> bool:
    """Whether all slots hold whom they are meant to hold, byte for byte, once moves are done."""
    cache = one.model.experts
    for _ in range(NUM_SLOTS):
        cache.begin()
        cache.work()
        cache.end()
        settle()
    cache.begin()
    cache.end()
    cache.verify(None)
    found: bool = held(one).sum() == NUM_SLOTS
    return found and not len(cache.layers[0].ahead._table.wanting())


def test_what_is_lent_is_missing_and_comes_back(tiered) -> None:
    one = tiered(SLOTS)
    cache = one.model.experts
    before = cache.residency.key_in.copy()
    assert held(one).sum() == NUM_SLOTS
    memory = cache.lend(NUM_LENT)
    blobs = cache.layers[0].slots.blobs
    assert memory.data_ptr() == blobs[NUM_SLOTS - NUM_LENT].data_ptr()
    assert memory.numel() == NUM_LENT * blobs.shape[1]
    memory.fill_(0xA5)
    lent = before[NUM_SLOTS - NUM_LENT :]
    is_missing = ~held(one).reshape(-1)
    assert is_missing[lent].all()
    assert is_missing.sum() == LAYERS * EXPERTS - (NUM_SLOTS - NUM_LENT)
    # Windows of others: nobody is moved to where something else lies, and no slot is closed.
    cache.limit_slots(3)
    cache.is_lending = True
    cache.begin()
    cache.work()
    cache.end()
    assert (memory == 0xA5).all()
    assert cache.limit.num_open == NUM_SLOTS
    assert (cache.residency.key_in == before).all()
    cache.limit_slots(NUM_SLOTS)
    cache.is_lending = False
    cache.take_back()
    assert all_are_back(one)
    assert (cache.residency.key_in == before).all()


def test_a_refill_that_breaks_off_is_begun_again(tiered, monkeypatch: pytest.MonkeyPatch) -> None:
    one = tiered(SLOTS)
    cache = one.model.experts
    cache.lend(NUM_LENT).fill_(0xA5)
    with monkeypatch.context() as patched:

        def interrupted(*_args: object) -> None:
            raise KeyboardInterrupt

        patched.setattr(cache._traffic.mover, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cache.take_back()
    assert held(one).sum() == NUM_SLOTS - NUM_LENT
    assert all_are_back(one)


@pytest.mark.parametrize("lock_bytes", [None, 0])
def test_experts_copied_ahead_are_those_of_the_host(tiered, lock_bytes: int | None) -> None:
    # Places for one: each part of the ring is used twice, some steps have no missing expert.
    one = tiered(shared_slots(LAYERS, EXPERTS, 2), num_streamed=1, lock_bytes=lock_bytes)
    cache = one.model.experts
    ahead = cache.layers[0].ahead
    for limits in ([EXPERTS] * LAYERS, [1, 2]):
        ahead.begin(64, limits)
        assert ahead.is_open
        for number, layer in enumerate(cache.layers):
            seen = []
            for first, count, staged in ahead.steps(number):
                seen += range(first, first + count)
                assert count <= limits[number]
                for expert in range(first, first + count):
                    place = int(staged.slot_of[expert])
                    assert (place >= 0) == (not held(one)[number, expert])
                    if place >= 0:
                        blob = np.zeros(layer.home.blob_bytes, np.uint8)
                        one.arena.read(number, [expert], [blob.ctypes.data])
                        rows = rows_on_host(staged.layout, blob, one.arena.permutation)
                        assert (rows_in_slot(staged.layout, staged.blobs[place]) == rows).all()
                        factors = staged.scales[place].cpu().numpy()
                        assert (factors == layer.home.scales[expert]).all()
            assert seen == list(range(EXPERTS))
    ahead.begin(8, [EXPERTS] * LAYERS)
    assert not ahead.is_open  # so few rows want few experts


def test_windows_are_right_while_slots_are_lent(single, tokens, tiered) -> None:
    one = tiered(SLOTS)
    session, cache = one.model.new_session(16), one.model.experts
    found = [one_by_one(session, tokens[:1])]
    cache.lend(NUM_LENT).fill_(0xA5)
    found.append(one_by_one(session, tokens[1:3]))
    cache.take_back()
    found.append(one_by_one(session, tokens[3:4]))
    assert same_bits(np.concatenate(found), single[:4])
    assert all_are_back(one)


class OwnRoom(Lender):
    """Lends slots, and gives other memory for them."""

    num_loans = 0

    def offer(self, capacity: int, num_rows: int) -> Loan | None:
        if self._cache.is_lending:
            return None
        self._cache.is_lending = True
        return Loan(64, NUM_LENT)

    def lend(self, shapes: PromptShapes, loan: Loan) -> Arena:
        self.num_loans += 1
        self._cache.lend(loan.num_slots).fill_(0xA5)
        self._stream.lay(torch.zeros(self._stream.num_bytes, dtype=torch.uint8, device=DEVICE))
        return Arena(shapes.num_bytes, DEVICE, "a test")


@pytest.fixture
def lending(tiered) -> Tiered:
    one = tiered(SLOTS, loans=LoanRules())
    model = one.model
    model.lender = OwnRoom(model.experts, model.spec, model.layout, LoanRules())
    return one


def test_buffers_that_fail_leave_the_slots_as_they_were(
    lending: Tiered, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = lending.model.new_session(80)

    def refused(*_args: object, **_rest: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr("strata.gpu.prompt_reader.PromptBuffers", refused)
        with pytest.raises(MemoryError):
            session.prefill(PROMPT)
    assert session.position == 0
    assert lending.model.lender.num_loans == 1
    assert all_are_back(lending)


def test_one_prompt_borrows_at_a_time_and_slots_stay_open_for_it(lending: Tiered) -> None:
    cache = lending.model.experts
    # An expert of this model is so small that a real loan would need more slots than there are.
    real = Lender(cache, lending.model.spec, lending.model.layout, LoanRules(slots_left=0))
    assert real.offer(80, 66) is None
    assert not cache.is_lending
    first, second = (lending.model.new_session(80)._reader for _ in range(2))
    assert first.begin(66) == 64
    assert second.begin(66) == 256
    cache.limit_slots(3)
    cache.carry_out_limit()
    assert cache.limit.num_open == NUM_SLOTS
    second.end()
    cache.carry_out_limit()
    assert cache.limit.num_open == NUM_SLOTS
    first.end()
    cache.carry_out_limit()
    assert cache.limit.num_open == 3
    assert lending.model.lender.num_loans == 0


@pytest.mark.long
def test_a_prompt_in_lent_memory_and_an_interrupt(lending: Tiered, prompt_logits) -> None:
    model = lending.model
    session, other = model.new_session(80), model.new_session(80)
    seen = []

    def stop(_read: int, _all: int) -> None:
        # The chunk has been read, and what it borrowed has not gone back.
        seen.append(held(lending).sum())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        other.prefill(PROMPT, on_progress=stop)
    assert other.position == 64
    assert seen == [NUM_SLOTS - NUM_LENT]
    assert same_bits(session.prefill(PROMPT), prompt_logits)
    assert model.lender.num_loans == 2
    assert all_are_back(lending)


def test_lent_memory_is_zeroed_and_handed_out_in_place() -> None:
    memory = torch.full((1024,), 7, dtype=torch.uint8)
    arena = LentArena(memory)
    first, second = arena.take(Shape((3,))), arena.take(Shape((100,), "uint8"))
    assert first.data_ptr() == memory.data_ptr()
    assert second.data_ptr() == memory.data_ptr() + 256
    assert not memory.any()
    assert (arena.num_bytes, arena.used_bytes) == (1024, 512)
