"""Slots and their first filling, against the rules written as loops over pairs.

The two defects that a per-layer fill once had are kept as tests: a cursor that began at slot 0, and
one full layer that ended the fill of the others.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.errors import DeviceError, PlanError
from strata.tiers.slots import (
    EMPTY,
    Residency,
    aligned,
    layer_slots,
    shared_slots,
)
from strata.tiers.verify_slots import verify_slots


def filled(layout, ranking):
    residency = Residency(layout)
    residency.fill(ranking)
    agrees(residency)
    return residency


def agrees(residency):
    """Both directions of the table say the same."""
    for slot, key in enumerate(residency.key_in.tolist()):
        if key != EMPTY:
            assert residency.slot_of[key] == slot
    assert (residency.slot_of != EMPTY).sum() == (residency.key_in != EMPTY).sum()


def test_shared_slots_are_filled_in_rank_order():
    ranking = [7, 2, 5, 0, 11]
    residency = filled(shared_slots(3, 4, 4, 1000), ranking)
    assert residency.key_in.tolist() == [7, 2, 5, 0]
    assert residency.layout.offsets.tolist() == [0, 1024, 2048, 3072, 4096]


@pytest.mark.parametrize("blob_bytes", [300, [300, 512, 10]])
def test_every_layer_begins_at_its_own_first_slot(blob_bytes):
    """Defect 1: the cursor of a layer began at slot 0, which is another layer's."""
    layout = layer_slots(3, 8, 11, blob_bytes)
    assert [pool.tolist() for pool in layout.pools] == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9, 10]]
    residency = filled(layout, [16, 8, 0])
    assert residency.key_in.tolist() == [0, -1, -1, 8, -1, -1, 16, -1, -1, -1, -1]
    sizes = [300] * 3 if isinstance(blob_bytes, int) else blob_bytes
    expected = np.cumsum([0] + [aligned(size) for size, n in zip(sizes, (3, 3, 5), strict=True)
                                for _ in range(n)])  # fmt: skip
    assert layout.offsets.tolist() == expected.tolist()


@pytest.mark.parametrize("blob_bytes", [300, [300, 512, 10]])
def test_a_full_layer_does_not_end_the_fill_of_the_others(blob_bytes):
    """Defect 2: 27 of 48 layers got nothing, 46 % of the slots were filled."""
    ranking = [*range(8), *range(8, 24)]  # all of layer 0 first
    residency = filled(layer_slots(3, 8, 11, blob_bytes), ranking)
    assert residency.key_in.tolist() == [0, 1, 2, 8, 9, 10, 16, 17, 18, 19, 20]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), layers=st.integers(1, 5), experts=st.integers(1, 6))
def test_a_ranking_of_every_pair_fills_every_slot(data, layers, experts):
    """Acceptance A2, and the fill against a loop over each layer's own ranked pairs."""
    num_slots = data.draw(st.integers(layers, layers * experts + 3))
    ranking = data.draw(st.permutations(range(layers * experts)))
    layout = layer_slots(layers, experts, num_slots)
    residency = filled(layout, ranking)
    assert (residency.key_in != EMPTY).all()
    quota = min(num_slots, layers * experts) // layers
    for layer in range(layers):
        own = [key for key in ranking if key // experts == layer]
        first = layer * quota
        end = first + quota if layer < layers - 1 else layout.num_slots
        assert residency.key_in[first:end].tolist() == own[: end - first]


def test_without_the_flag_nothing_changes():
    """Acceptance A4: per-layer code has no part in a shared cache."""
    ranking = np.random.default_rng(0).permutation(40)
    assert filled(shared_slots(4, 10, 13), ranking).key_in.tolist() == ranking[:13].tolist()


def test_sized_slots_hold_their_own_layer_only():
    layout = layer_slots(2, 4, 2, [100, 600])
    residency = filled(layout, [4, 0])
    with pytest.raises(ValueError, match="slot 1 cannot hold an expert of layer 0"):
        residency.place(1, 1)
    residency.place(1, 0)
    agrees(residency)
    assert residency.key_in.tolist() == [1, 4]


def test_fewer_slots_than_layers_are_refused():
    with pytest.raises(PlanError, match="a slot for each layer: 48, not 47") as caught:
        layer_slots(48, 512, 47)
    assert "Try:" in str(caught.value)


def test_a_key_is_in_one_slot_only():
    residency = filled(shared_slots(1, 4, 2), [3])
    with pytest.raises(ValueError, match="key 3 is in slot 0 already"):
        residency.place(3, 1)
    residency.fill([3, 2])
    assert residency.key_in.tolist() == [3, 2]


def test_slots_are_verified_byte_for_byte():
    """Acceptance A1: what caught defect 1 in practice."""
    host = np.random.default_rng(0).integers(0, 256, (2, 4, 300), dtype=np.uint8)
    residency = filled(layer_slots(2, 4, 4, 300), [1, 0, 6, 7])
    card = np.zeros((4, 512), np.uint8)
    for slot, key in enumerate(residency.key_in.tolist()):
        card[slot, :300] = host[key // 4, key % 4]

    def check(slots=None):
        return verify_slots(residency, lambda s: card[s], lambda l, e: host[l, e], slots)

    assert check() == 1
    assert check(range(4)) == 4
    card[2, 299] ^= 1
    assert check() == 1
    with pytest.raises(DeviceError) as caught:
        check(range(4))
    assert "slot 2 does not hold expert 2 of layer 1: byte 299" in str(caught.value)
    assert "slot of 512 bytes" in str(caught.value)
    residency.clear(0)
    assert check() == 0
