"""Experts in fewer slots than there are: the same bits as with all of them on the card (C1).

Runs on a card, or in Triton's interpreter where there is none; the thread that answers is the real
one in both. The yardstick is a model of the same file whose experts are all in slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.models.bits import one_by_one, same_bits
from tests.models.on_card import PROMPT, gpu_model, per_layer
from tests.models.smallest_model import EXPERTS, LAYERS, smallest_model

from strata.errors import DeviceError
from strata.session_rules import MAX_WINDOW_ROWS
from strata.tiers.policy_table import POLICIES
from strata.tiers.slots import shared_slots

if TYPE_CHECKING:
    from pathlib import Path

NUM_TOKENS = 4


@pytest.mark.parametrize(
    ("slots", "share"),
    [
        pytest.param(shared_slots(LAYERS, EXPERTS, 0), 0.0, marks=pytest.mark.long),
        pytest.param(shared_slots(LAYERS, EXPERTS, 0), 1.0, marks=pytest.mark.long),
        pytest.param(per_layer(1), 0.0, marks=pytest.mark.long),
        (per_layer(1), 0.5),
        pytest.param(per_layer(2), 0.5, marks=pytest.mark.long),
        pytest.param(shared_slots(LAYERS, EXPERTS, 5), 0.5, marks=pytest.mark.long),
        pytest.param(per_layer(4), 0.5, marks=pytest.mark.long),
    ],
)
def test_decoding_has_the_bits_of_all_resident(single, tokens, tiered, slots, share: float) -> None:
    one = tiered(slots, staged_share=share)
    session = one.model.new_session(16)
    first = one_by_one(session, tokens[:1])
    # On a card the first window is also run before it is captured.
    before = one.arena.counts().sum(axis=0)
    rest = one_by_one(session, tokens[1:NUM_TOKENS])
    assert same_bits(np.concatenate([first, rest]), single[:NUM_TOKENS])
    served = one.arena.counts().sum(axis=0)
    if slots.num_slots == LAYERS * EXPERTS or share == 1.0:
        assert served[0] == 0
    if slots.num_slots == 0 and share == 0.0:
        # Every chosen expert of every token was asked for.
        entries = served[1] - before[1]
        assert entries == (NUM_TOKENS - 1) * LAYERS * smallest_model().spec.top_k


class Routes:
    """Experts of the next window, in the place of the routers' choice, which hardly changes."""

    def __init__(self) -> None:
        rng = np.random.default_rng(11)
        shape, top_k = (NUM_TOKENS + 1, LAYERS, MAX_WINDOW_ROWS), smallest_model().spec.top_k
        self._ids = rng.random((*shape, EXPERTS)).argsort(axis=-1)[..., :top_k]
        self.number = 0

    def rows(self, num_rows: int) -> np.ndarray:
        return self._ids[self.number, :, :num_rows]

    def keep(self, num_rows: int) -> None:
        pass


@pytest.fixture(scope="module")
def single_elsewhere(smallest_path: Path, tokens: np.ndarray) -> list[np.ndarray]:
    """Logits of windows of one row that are routed like that, all experts on the card."""
    model = gpu_model(smallest_path)
    model.force_routing(Routes())
    session, feed = model.new_session(16), model._forced.feed
    found = []
    for feed.number in range(NUM_TOKENS):
        found.append(session.decode(tokens[feed.number : feed.number + 1])[0])
        session.commit(1)
    return found


@pytest.mark.parametrize(
    "slots",
    [per_layer(2), pytest.param(shared_slots(LAYERS, EXPERTS, 5), marks=pytest.mark.long)],
)
def test_what_windows_copy_stays_even_if_nobody_wants_them(
    single_elsewhere, tokens, tiered, slots
) -> None:
    one = tiered(slots, staged_share=1.0, keeps_copied=True)
    one.model.force_routing(Routes())
    cache, session, feed = one.model.experts, one.model.new_session(16), one.model._forced.feed
    filled, num_new = cache.moved_bytes, 0
    for number in (0, NUM_TOKENS, 1, 2, 3):
        feed.number = number
        cache._choose_victims()  # all may go again, those who have just come as well
        before = set(cache.residency.resident_keys.tolist())
        if number == NUM_TOKENS:
            session.decode(tokens[2:4])  # two rows that nobody keeps
        else:
            logits = session.decode(tokens[number : number + 1])[0]
            assert same_bits(logits, single_elsewhere[number])
        residents = set(cache.residency.resident_keys.tolist())
        asked = {
            layer * EXPERTS + expert
            for layer in range(LAYERS)
            for expert in feed.rows(1)[layer, 0].tolist()
        }
        if len(slots.pools) > 1 and number != NUM_TOKENS:
            # There is room for one row's experts of each layer: for these and no others.
            assert residents == asked
        num_new += len(residents - before)
        if number != NUM_TOKENS:
            session.commit(1)
        # Every slot is on the card's list, and holds the bytes it is said to hold, but for those
        # that somebody is to be brought to.
        table, held = cache._table.on_card.cpu().numpy().reshape(-1), cache._table.held
        assert set(np.flatnonzero(table >= 0).tolist()) == set(held.tolist()) - {-1}
        cache.verify(np.flatnonzero(held == cache.residency.key_in).tolist())
    assert num_new > 4
    counts = cache.tier_counts()
    assert counts.total("copied") > 4
    if len(slots.pools) > 1:
        # Nobody else brought anything.
        assert cache.moved_bytes == filled
        assert counts.total("copied") + counts.total("hits") == counts.total("lookups")


@pytest.mark.long
def test_a_prompt_misses_none_of_those_that_a_window_has_replaced(prompt_logits, tiered) -> None:
    one = tiered(per_layer(2), staged_share=1.0, keeps_copied=True, num_streamed=2)
    cache, session = one.model.experts, one.model.new_session(80)
    one.model.force_routing(Routes())  # of the other session's window alone
    known = cache._table.on_host.copy()
    one.model.new_session(16).decode(PROMPT[:1])  # nobody keeps it
    assert not np.array_equal(cache._table.on_card.cpu().numpy(), known)
    assert np.array_equal(cache._table.on_host, known)
    assert same_bits(session.prefill(PROMPT), prompt_logits)


def test_a_dead_server_ends_the_request_and_the_next_is_right(single, tokens, tiered) -> None:
    one = tiered(per_layer(1), limit_seconds=0.5)
    session = one.model.new_session(16)
    first = one_by_one(session, tokens[:2])
    one.arena.stop()
    with pytest.raises(DeviceError, match=r"gave no answer within 0\.5 s"):
        one_by_one(session, tokens[2:NUM_TOKENS])
    assert session.position == 2
    rest = one_by_one(session, tokens[2:NUM_TOKENS])
    assert same_bits(np.concatenate([first, rest]), single[:NUM_TOKENS])


@pytest.mark.long
@pytest.mark.parametrize(
    ("slots", "lock_bytes", "num_streamed"),
    [
        (per_layer(1), None, 1),
        (per_layer(1), 0, 2),
        (shared_slots(LAYERS, EXPERTS, 0), None, 3),
        (per_layer(EXPERTS), None, 1),
    ],
)
def test_a_prompt_has_the_bits_of_all_resident(
    prompt_logits, tiered, slots, lock_bytes: int | None, num_streamed: int
) -> None:
    # Without page-locked memory experts go through the small buffer. With a slot for each layer
    # three of its experts are missing, so parts of the ring are used twice.
    one = tiered(slots, lock_bytes=lock_bytes, num_streamed=num_streamed)
    assert same_bits(one.model.new_session(80).prefill(PROMPT), prompt_logits)


@pytest.mark.long
@pytest.mark.parametrize("policy", POLICIES)
def test_policies_change_no_bit(single, tokens, tiered, policy: str) -> None:
    one = tiered(per_layer(2), policy=policy)
    filled = one.model.experts.moved_bytes
    assert same_bits(one_by_one(one.model.new_session(16), tokens), single)
    assert one.model.experts.moved_bytes > filled


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_wrong_byte_in_a_slot_is_found(tiered, *, is_shared: bool) -> None:
    slots = shared_slots(LAYERS, EXPERTS, 5) if is_shared else per_layer(2)
    one = tiered(slots, has_full_check=True)
    cache = one.model.experts
    # Every slot is filled, and holds what the host's memory says.
    assert (cache.residency.key_in >= 0).all()
    cache.verify(None)
    cache.layers[0].slots.blobs[0, 7] ^= 4
    with pytest.raises(DeviceError, match="expert slot 0 does not hold expert 0 of layer 0"):
        cache.verify((0,))
    cache.layers[0].slots.blobs[0, 7] ^= 4
    cache.verify((0,))
    cache.layers[0].slots.scales[0, 2] *= 2
    with pytest.raises(DeviceError, match="expert slot 0 does not hold expert 0 of layer 0"):
        cache.verify((0,))
