"""The table a card looks experts up in, followed change by change, against one made anew."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
from strata.gpu.slot_table import SlotTable  # noqa: E402
from strata.tiers.slots import EMPTY, Residency, layer_slots, shared_slots  # noqa: E402

LAYERS, EXPERTS, SLOTS = 3, 5, 6


@given(
    is_shared=st.booleans(),
    changes=st.lists(
        st.tuples(st.sampled_from(["enter", "give_up", "send"]),
                  st.lists(st.integers(0, SLOTS - 1), min_size=1, max_size=3, unique=True),
                  st.integers(0, LAYERS * EXPERTS - 1)),
        max_size=30,
    ),
)  # fmt: skip
def test_who_lies_in_slots_is_found_and_nobody_else(*, is_shared: bool, changes) -> None:
    layout = (shared_slots if is_shared else layer_slots)(LAYERS, EXPERTS, SLOTS)
    table = SlotTable(Residency(layout), torch.device("cpu"))
    held = np.full(SLOTS, EMPTY, np.int64)
    for what, slots, first_key in changes:
        if what == "give_up":
            table.give_up(np.array(slots))
            held[slots] = EMPTY
        elif what == "enter":
            # An expert lies in one slot; where layers have slots of their own, in one of these.
            pairs = []
            for number, slot in enumerate(slots):
                key = (first_key + number) % (LAYERS * EXPERTS)
                pool = layout.pool_of_layer[key // EXPERTS]
                if slot in layout.pools[pool] and key not in held:
                    pairs.append((slot, key))
            table.enter([slot for slot, _ in pairs], [key for _, key in pairs])
            for slot, key in pairs:
                held[slot] = key
        else:
            table.send()
        expected = np.full((LAYERS, EXPERTS), -1)
        for slot in np.flatnonzero(held != EMPTY):
            layer, expert = divmod(int(held[slot]), EXPERTS)
            expected[layer, expert] = slot - layout.first_slot(layer)
        assert table.num_held() == (expected >= 0).sum(axis=1).tolist()
        assert np.array_equal(table.held, held)
        if what == "send":
            assert np.array_equal(table.on_card.numpy(), expected)
            assert np.array_equal(table.on_host, expected)


@given(
    st.lists(
        st.tuples(st.sampled_from(["enter", "give_up", "mean"]), st.integers(0, SLOTS - 1),
                  st.integers(0, EXPERTS - 1)),
        max_size=40,
    )
)  # fmt: skip
@example([("enter", 0, 3), ("enter", 1, 3), ("give_up", 1, 0), ("mean", 0, 3)])
def test_who_is_meant_to_be_in_a_slot_is_found_or_comes(changes) -> None:
    # An expert may lie in two slots: a window keeps one whose copy is on the way somewhere else.
    residency = Residency(shared_slots(LAYERS, EXPERTS, SLOTS))
    table = SlotTable(residency, torch.device("cpu"))
    for what, slot, key in changes:
        if what == "enter":
            table.enter([slot], [key])
        elif what == "give_up":
            table.give_up(np.array([slot]))
        else:
            if residency.slot_of[key] != EMPTY:
                residency.clear(int(residency.slot_of[key]))
            residency.place(key, slot)
        table.send()
        for found in np.flatnonzero(table.on_host.reshape(-1) >= 0).tolist():
            assert table.held[table.on_host.reshape(-1)[found]] == found
        wanting = set(table.wanting().tolist())
        for meant, one in enumerate(residency.key_in.tolist()):
            assert one == EMPTY or meant in wanting or table.on_host.reshape(-1)[one] >= 0
