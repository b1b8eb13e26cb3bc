"""Hits and experts over the link where windows keep what they copy, and where they do not; no card.

    python benchmarks/kept_copies.py [--layers 16] [--slots 67] [--tokens 300] [--policy ema]
        [--division 0,0,0,1,1,2,2,3,3,4,4] [--admissions 1]

Made-up routing of the published kind, through the books that a card's cache keeps; the kernels'
choice is made in Python. ``--division``: copied of 0, 1, ... misses of a layer. Averages of the
second half.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from strata.gpu.slot_keeper import SlotKeeper
from strata.gpu.slot_table import SlotTable
from strata.gpu.slot_trades import MOVES_BESIDE, SlotTrades
from strata.tiers.policy_table import PolicyOptions
from strata.tiers.share import NUM_STAGES
from strata.tiers.slots import Residency, layer_slots
from strata.tiers.synthetic import SyntheticText, synthetic_trace

EXPERTS, TOP_K = 256, 10


class Cache:
    """A cache that holds no bytes."""

    def __init__(self, args: argparse.Namespace, *, keeps: bool) -> None:
        self.residency = Residency(layer_slots(args.layers, EXPERTS, args.layers * args.slots))
        self.table = SlotTable(self.residency, torch.device("cpu"))
        options = PolicyOptions(max_admissions=args.admissions)
        self.trades = SlotTrades(self.residency, self.table, args.policy, options)
        self.keeper = SlotKeeper(self.residency, self.table, NUM_STAGES) if keeps else None
        self.division = [int(text) for text in args.division.split(",")]
        self.residency.fill_first(())
        slots = self.table.wanting()
        self.table.enter(slots, self.residency.key_in[slots])
        self._coming = np.empty((2, 0), np.int64)  # slots and keys that arrive next
        self._settled: tuple | None = None

    def window(self, ids: np.ndarray) -> tuple[int, int, int]:
        """Hits, copies and moves of one that asks for ids [L, K]."""
        self.table.enter(*self._coming)
        slots = self.table.wanting()[:MOVES_BESIDE]
        self._coming = np.stack([slots, self.residency.key_in[slots]])
        self.table.give_up(slots)
        self.table.send()
        if self.keeper is not None:
            self.keeper.name()
        if self._settled is not None:
            self.trades.of_window(*self._settled)
            if self.keeper is not None:
                self.keeper.choose(self.trades.heat)
        hits = copied = 0
        for layer, own in enumerate(ids):
            misses = own[self.table.on_host[layer, own] < 0]
            hits += TOP_K - len(misses)
            num = min(len(misses), self.division[len(misses)])
            copied += num if self.keeper is None else self._keep(layer, own, misses, num)
        if self.keeper is not None:
            self.keeper.learn()
        num_left = None if self.keeper is None else self.keeper.num_kept
        self._settled = ids[:, None, :], 1, [False] * len(ids), num_left
        return hits, copied, len(slots)

    def _keep(self, layer: int, own: np.ndarray, misses: np.ndarray, num: int) -> int:
        """What ``kernels.keep`` does."""
        keeper = self.keeper
        best = misses[np.argsort(-keeper._worth[layer, misses], kind="stable")][:num]
        is_asked = np.isin(keeper._holders[layer], own + layer * EXPERTS)
        names = np.flatnonzero((keeper._places[layer] >= 0) & ~is_asked)[:num]
        best = best[: len(names)]
        keeper._kept.numpy()[layer, names[: len(best)]] = best + layer * EXPERTS
        return len(best)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--slots", type=int, default=67, help="of each layer")
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--policy", default="ema")
    parser.add_argument("--division", default="0,0,0,1,1,2,2,3,3,4,4")
    parser.add_argument("--admissions", type=int, default=1)
    args = parser.parse_args()
    text = SyntheticText(args.layers, EXPERTS, TOP_K, args.tokens)
    windows = synthetic_trace(text, seed=1).windows
    for keeps in (False, True):
        cache = Cache(args, keeps=keeps)
        told = np.array([cache.window(one.ids[:, 0].astype(np.int64)) for one in windows])
        hits, copied, moved = told[len(told) // 2 :].mean(axis=0)
        asked = args.layers * TOP_K - hits - copied
        print(
            f"{'kept' if keeps else 'not kept':8}: {hits:6.1f} of {args.layers * TOP_K} in slots, "
            f"{copied:5.1f} copied, {moved:5.1f} moved, {copied + moved:5.1f} over the link, "
            f"{asked:5.1f} asked for",
            flush=True,
        )


if __name__ == "__main__":
    main()
