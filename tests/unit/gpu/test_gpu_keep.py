"""Experts a window leaves in slots: the kernels against the rule in plain Python, and the books."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
from strata.gpu.expert_slots import ExpertSlots  # noqa: E402
from strata.gpu.kernels.hand_off import ASKED, IN_SLOT, STAGED, HandOff, post, wait  # noqa: E402
from strata.gpu.kernels.quantize import empty_codes  # noqa: E402
from strata.gpu.slot_keeper import SlotKeeper, ranks_of_layers  # noqa: E402
from strata.gpu.slot_table import SlotTable  # noqa: E402
from strata.tiers.hand_off import MailboxLayout  # noqa: E402
from strata.tiers.slots import EMPTY, Residency, layer_slots, opened, shared_slots  # noqa: E402

LAYERS, EXPERTS, TOP_K, ROWS, STAGES, HIDDEN = 2, 9, 3, 2, 3, 256
BLOB = 64


class Card:
    """A keeper and what of a card ``post`` and ``wait`` touch."""

    def __init__(self, layout, device: str) -> None:
        self.residency = Residency(layout)
        self.table = SlotTable(self.residency, torch.device(device))
        self.keeper = SlotKeeper(self.residency, self.table, STAGES)
        entries = ROWS * TOP_K
        self.mailbox = MailboxLayout(LAYERS, ROWS, TOP_K, HIDDEN)
        is_card = device == "cuda"
        self.box = torch.zeros(self.mailbox.num_bytes, dtype=torch.uint8, pin_memory=is_card)

        def zeros(num: int, dtype=torch.int32):
            return torch.zeros(num, dtype=dtype, device=device)

        self.hand_off = HandOff(
            self.box.data_ptr(), self.mailbox, zeros(1), zeros(2), zeros(1), zeros(entries),
            zeros(entries + 1), zeros(STAGES, torch.int64), zeros(STAGES, torch.int64), 10**8,
            keeping=self.keeper.keeping,
        )  # fmt: skip
        self.factors = torch.ones((EXPERTS, 3), device=device)
        self.reachable = zeros(EXPERTS, torch.int64)
        self.reachable += torch.arange(1, EXPERTS + 1, device=device) * 64
        self.stage_of = zeros(EXPERTS)
        blobs = torch.zeros((layout.num_slots, BLOB), dtype=torch.uint8, device=device)
        self.blobs, self.scales = blobs, torch.ones((layout.num_slots, 3), device=device)
        self.codes = empty_codes(ROWS, HIDDEN, device)
        self.outputs = torch.zeros((entries, HIDDEN), device=device)
        self.bad = zeros(1)

    def settle(self) -> None:
        """Everybody is where they are meant to be."""
        slots = self.table.wanting()
        self.table.enter(slots, self.residency.key_in[slots])
        self.table.send()

    def run(self, layer: int, ids: np.ndarray) -> np.ndarray:
        """A layer's launches; where each entry was computed."""
        device = self.blobs.device
        there = torch.from_numpy(ids.astype(np.int32)).to(device)
        first, n = self.residency.layout.first_slot(layer), len(ids)
        slots = ExpertSlots(None, self.blobs[first:], self.scales[first:],
                            self.table.on_card[layer])  # fmt: skip
        post(
            self.hand_off, layer, there, slots.slot_of, self.reachable, self.stage_of,
            self.factors, self.codes, has_staging=True, slots=slots,
        )  # fmt: skip
        source = self.hand_off.source.cpu().numpy()[: ids.size].copy()
        self.hand_off.answered[0] = self.hand_off.number[0]  # nobody is to wait
        wait(self.hand_off, self.outputs, n * TOP_K, self.bad, layer=layer, has_kept=True)
        return source


def ruled(card: Card, state: dict, layer: int, ids: np.ndarray, share: list[int]):
    """What is staged to which place, by the rule: [(expert, place, number of the name)]."""
    misses = [e for e in dict.fromkeys(ids.reshape(-1).tolist()) if state["table"][layer, e] < 0]
    able = [e for e in misses if int(card.reachable[e]) != 0]
    names = [
        (number, place)
        for number, place in enumerate(state["places"][layer].tolist())
        if place >= 0 and state["holders"][layer, number] - layer * EXPERTS not in ids
    ]
    able.sort(key=lambda e: -state["worth"][layer, e])  # stable: of equals the first asked for
    most = min(share[len(misses)], STAGES)
    return [(e, place, number) for e, (number, place) in zip(able[:most], names, strict=False)]


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_what_a_layer_keeps_is_what_the_rule_says(
    device: str, seed: int, *, is_shared: bool
) -> None:
    rng = np.random.default_rng(seed)
    layout = shared_slots(LAYERS, EXPERTS, 7) if is_shared else layer_slots(LAYERS, EXPERTS, 2 * 4)
    card = Card(layout, device)
    card.residency.fill(rng.permutation(LAYERS * EXPERTS).tolist())
    card.settle()
    card.reachable[int(rng.integers(EXPERTS))] = 0
    share = [0, 1, 1, 2, 3, 3, 3]
    card.hand_off.share.copy_(torch.tensor(share))
    card.keeper.choose(rng.integers(0, 5, (LAYERS, EXPERTS)))
    card.keeper.name()
    keeping = card.keeper.keeping
    state = {
        "table": card.table.on_card.cpu().numpy().copy(),
        "places": keeping.places.cpu().numpy().copy(),
        "holders": keeping.holders.cpu().numpy().copy(),
        "worth": keeping.worth.cpu().numpy().copy(),
    }
    num_kept = 0
    # The second time as when a window is run to be captured, and then again.
    for layer in (0, 1, 0, 1):
        ids = np.stack([rng.choice(EXPERTS, TOP_K, replace=False) for _ in range(ROWS)])
        staged = ruled(card, state, layer, ids, share)
        was_there = state["table"][layer] >= 0
        source = card.run(layer, ids)
        experts = [e for e, _, _ in staged]
        expected = [
            IN_SLOT if was_there[e] else STAGED if e in experts else ASKED for e in ids.reshape(-1)
        ]
        assert source.tolist() == expected
        sources, stage_of = np.zeros(STAGES, np.int64), np.full(EXPERTS, -1)
        first = layout.first_slot(layer)
        for job, (expert, place, number) in enumerate(staged):
            sources[job], stage_of[expert] = int(card.reachable[expert]), place
            target = card.blobs[first + place].data_ptr(), card.scales[first + place].data_ptr()
            assert (int(keeping.blobs[job]), int(keeping.slot_factors[job])) == target
            holder = state["holders"][layer, number]
            if holder >= 0:
                state["table"].reshape(-1)[holder] = -1
            state["table"][layer, expert] = place
            state["places"][layer, number] = -1
            num_kept += 1
        assert card.hand_off.sources.tolist() == sources.tolist()
        assert card.stage_of.tolist() == stage_of.tolist()
        assert np.array_equal(card.table.on_card.cpu().numpy(), state["table"])
        assert np.array_equal(keeping.places.cpu().numpy(), state["places"])
    keys = card.keeper._kept.numpy()
    keys = keys[keys >= 0]
    card.keeper.learn()
    assert card.keeper.num_kept.sum() == num_kept == len(keys) > 0
    # Who has just come is not the next to go: what it is worth is not known yet.
    written = {int(slot) for slot in card.residency.slot_of[keys]}
    card.keeper.name()
    first = card.table.first_slots[:, None]
    named = keeping.places.cpu().numpy() + first
    assert not written & set(named[keeping.places.cpu().numpy() >= 0].tolist())
    before = card.table.on_card.clone()
    card.table.on_card.fill_(-7)
    card.table.send()
    # What the host takes to be true is what the card had made of its table.
    assert torch.equal(card.table.on_card, before)
    assert not len(card.table.wanting())
    agrees(card.residency)


def agrees(residency: Residency) -> None:
    """Both directions of residents say the same."""
    slots = np.flatnonzero(residency.key_in != EMPTY)
    assert np.array_equal(residency.slot_of[residency.key_in[slots]], slots)
    assert np.count_nonzero(residency.slot_of != EMPTY) == len(slots)


@pytest.mark.parametrize("seed", range(40))
def test_books_agree_whatever_a_policy_decided_meanwhile(seed: int) -> None:
    rng = np.random.default_rng(seed)
    card = Card(layer_slots(LAYERS, EXPERTS, 2 * 5), "cpu")
    residency, table, keeper = card.residency, card.table, card.keeper
    residency.fill(rng.permutation(LAYERS * EXPERTS).tolist())
    card.settle()
    kept = keeper._kept.numpy()
    for _ in range(12):
        # Some have set out, some wait for a slot, one slot is to be empty.
        table.give_up(table.wanting()[: int(rng.integers(3))])
        keeper.choose(rng.integers(0, 5, (LAYERS, EXPERTS)))
        table.send()
        keeper.name()
        places, held = keeper._places.copy(), table.held.copy()
        coming = set(table.wanting().tolist())
        for _ in range(3):
            key, slot = int(rng.integers(LAYERS * EXPERTS)), int(rng.integers(10))
            if residency.slot_of[key] == EMPTY and slot // 5 == key // EXPERTS:
                if held[slot] == EMPTY:
                    continue  # a policy is asked once those under way have come
                residency.place(key, slot)
        written = {}
        for layer in range(LAYERS):
            missing = np.flatnonzero(table.on_host[layer] < 0)
            names = np.flatnonzero(places[layer] >= 0)
            num = min(len(missing), len(names), int(rng.integers(STAGES + 1)))
            for number, expert in zip(names, rng.choice(missing, num, replace=False), strict=False):
                kept[layer, number] = layer * EXPERTS + expert
                written[int(places[layer, number]) + 5 * layer] = layer * EXPERTS + int(expert)
        assert not coming & set(written)
        keeper.learn()
        agrees(residency)
        # Bytes are what was written; every other slot is as it was.
        for slot in range(10):
            assert table.held[slot] == written.get(slot, held[slot])
        # Who was written has a slot, there or where it was on its way to.
        for slot, key in written.items():
            assert residency.slot_of[key] == slot or held[residency.slot_of[key]] == EMPTY
            assert residency.key_in[slot] != held[slot] or held[slot] == EMPTY
        # Nobody waits for the slot of one who has come by itself.
        if rng.integers(2):
            card.settle()


def test_no_slot_is_named_twice_nor_where_all_have_one() -> None:
    layout = shared_slots(3, 4, 7)
    ranks = ranks_of_layers(layout, 3)
    assert sorted(ranks[ranks >= 0].tolist()) == list(range(7))
    assert ranks[:, 0].tolist() == [0, 1, 2]  # those worth least are everybody's first
    # Closed slots come first where slots are ordered by pool.
    assert ranks_of_layers(opened(layout, 5), 3).max() == 6
    assert ranks_of_layers(opened(layout, 5), 3)[0, 0] == 2
    assert (ranks_of_layers(shared_slots(3, 4, 12), 3) == EMPTY).all()
    own = ranks_of_layers(layer_slots(2, 4, 4), 3)
    assert own.tolist() == [[0, 1, EMPTY], [2, 3, EMPTY]]


def test_slots_that_closed_since_are_not_named() -> None:
    card = Card(shared_slots(LAYERS, EXPERTS, 7), "cpu")
    card.residency.fill_first(())
    card.settle()
    card.keeper.choose(np.zeros((LAYERS, EXPERTS), np.int64))
    card.keeper.name()
    assert (card.keeper.keeping.places >= 0).sum() == 6
    card.residency.reopen(opened(card.residency.layout, 3))
    card.keeper.name()
    assert (card.keeper.keeping.places < 0).all()
    card.keeper.choose(np.zeros((LAYERS, EXPERTS), np.int64))
    card.keeper.name()
    assert set(card.keeper.keeping.places[card.keeper.keeping.places >= 0].tolist()) == {0, 1, 2}


def test_without_slots_none_is_named() -> None:
    card = Card(shared_slots(LAYERS, EXPERTS, 0), "cpu")
    card.keeper.choose(np.ones((LAYERS, EXPERTS), np.int64))
    card.keeper.name()
    assert (card.keeper.keeping.places < 0).all()
    card.keeper.learn()
    assert not card.keeper.num_kept.any()
