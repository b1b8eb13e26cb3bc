"""What the card's table says of a slot is what lies there, whatever breaks off and whenever.

Windows are not computed: what they would route to is written where a window leaves it. Bytes of
slots are taken back to rows as the file has them, and compared with the host's.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from tests.models.on_card import per_layer
from tests.models.smallest_model import EXPERTS, LAYERS

from strata.errors import DeviceError, SettingsError
from strata.gpu import expert_cache, expert_mover, slot_trades
from strata.gpu.slot_check import rows_in_slot, rows_on_host
from strata.tiers.policy_table import POLICIES
from strata.tiers.slots import shared_slots

if TYPE_CHECKING:
    from collections.abc import Callable

    from strata.gpu.expert_cache import ExpertCache


@pytest.fixture
def make(tiered) -> Callable[..., ExpertCache]:
    return lambda slots=None, **options: tiered(slots or per_layer(2), **options).model.experts


def windows(cache: ExpertCache, num: int, seed: int = 0) -> None:
    """So many windows of one row; each layer wants two experts, by chance."""
    rng = np.random.default_rng(seed)
    for _ in range(num):
        cache.begin()
        assert_told_truly(cache)
        cache.work()
        cache.end()
        for layer in range(LAYERS):
            cache._routed[layer, :2] = rng.permutation(EXPERTS)[:2]
        cache.settle(1, 1)


def assert_told_truly(cache: ExpertCache) -> None:
    """Every expert in the card's table lies where the table says."""
    host = cache._host
    for tier in cache.layers:
        layout, home = tier.slots.layout, tier.home
        for expert, place in enumerate(tier.slots.slot_of.tolist()):
            if place < 0:
                continue
            address = home.address + expert * home.blob_bytes
            blob = np.ctypeslib.as_array((ctypes.c_uint8 * home.blob_bytes).from_address(address))
            expected = rows_on_host(layout, blob, host.permutation)
            found = rows_in_slot(layout, tier.slots.blobs[place])
            assert np.array_equal(found[: len(expected)], expected), (expert, place)


def num_found(cache: ExpertCache) -> int:
    return sum(int((tier.slots.slot_of >= 0).sum()) for tier in cache.layers)


@pytest.mark.parametrize("policy", POLICIES)
def test_policies_move_experts_and_the_table_is_true(make, policy: str) -> None:
    cache = make(policy=policy)
    filled = cache.moved_bytes
    windows(cache, 24)
    assert cache.moved_bytes > filled


@pytest.mark.parametrize("error", [DeviceError, KeyboardInterrupt])
@pytest.mark.parametrize("is_shared", [False, True])
def test_a_move_that_broke_off_is_begun_again(
    make, monkeypatch, error: type[BaseException], *, is_shared: bool
) -> None:
    cache = make(shared_slots(LAYERS, EXPERTS, 5) if is_shared else None, policy="lru")
    windows(cache, 3)
    with monkeypatch.context() as patch:

        def broken(*_: object) -> None:
            raise error

        patch.setattr(expert_mover, "repack", broken)
        with pytest.raises(error):
            windows(cache, 12, seed=1)
    windows(cache, 3, seed=2)
    cache.begin()
    cache.begin()
    assert_told_truly(cache)
    # No slot is lost for good.
    assert num_found(cache) == len(cache.residency.key_in)


def test_an_interrupt_once_residents_have_changed_costs_no_truth(make, monkeypatch) -> None:
    cache = make(per_layer(3), policy="lru")
    real = slot_trades.carry_out

    def interrupted(residency, admissions) -> None:
        admissions = list(admissions)
        real(residency, admissions)
        if admissions:
            raise KeyboardInterrupt

    for seed in range(6):
        windows(cache, 3, seed)
        with monkeypatch.context() as patch:
            patch.setattr(slot_trades, "carry_out", interrupted)
            with pytest.raises(KeyboardInterrupt):
                windows(cache, 12, seed + 10)
        windows(cache, 3, seed + 20)
    cache.begin()
    cache.begin()
    assert_told_truly(cache)
    assert num_found(cache) == len(cache.residency.key_in)


def test_a_fault_that_nobody_was_told_of_is_gone_before_the_next_window(make) -> None:
    cache = make()
    # As a window leaves it that an interrupt has kept from being checked.
    cache._hand_off.fault.fill_(1)
    cache._request[3] = 1
    cache._host.stop()
    windows(cache, 2)
    cache.check()
    assert int(cache._hand_off.fault) == 0
    assert cache._host._server.is_running


def test_more_moves_than_staging_slots_without_locked_memory(make) -> None:
    cache = make(per_layer(3), lock_bytes=0)
    assert_told_truly(cache)
    assert num_found(cache) == 3 * LAYERS


@pytest.mark.parametrize("wrong", [{"staged_share": 1.5}, {"policy": "lrv"}])
def test_options_are_refused_before_anything_is_packed(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingsError):
        expert_cache.CacheOptions(**wrong)


@pytest.mark.parametrize("is_shared", [False, True])
def test_fewer_slots_and_more_again_between_windows(make, *, is_shared: bool) -> None:
    cache = make(shared_slots(LAYERS, EXPERTS, 8) if is_shared else per_layer(4), policy="lru")
    assert all(cache._is_whole)
    assert not any(tier.is_needed for tier in cache.layers)
    for seed, num_open in enumerate((3, 2, 8, 5, 8)):
        cache.limit_slots(num_open)
        windows(cache, 6, seed)
        assert cache.limit.num_open == (num_open if is_shared else num_open // 2 * 2)
        assert all(tier.is_needed for tier in cache.layers) == (num_open < 8)
        # What a slot that is closed holds is of no use to anybody.
        closed = sorted(set(range(8)) - set(np.concatenate(cache.residency.layout.pools).tolist()))
        for slot in closed:
            layer = 0 if is_shared else slot // 4
            cache.layers[layer].slots.blobs[slot - cache.residency.layout.first_slot(layer)] = 255
    assert num_found(cache) == 8
    assert_told_truly(cache)


def test_a_card_that_refuses_memory_is_told_of_and_the_next_model_is_right(
    make, monkeypatch
) -> None:
    def refused(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with monkeypatch.context() as patch:
        patch.setattr(expert_cache, "layer_tiers", refused)
        with pytest.raises(DeviceError, match="the card refused memory for the way of experts"):
            make()
    cache = make()
    assert_told_truly(cache)
    assert num_found(cache) == len(cache.residency.key_in)
