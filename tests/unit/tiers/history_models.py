"""The policies once more, written from their definitions over the whole history of a run.

Nothing is kept up to date here: every worth is worked out anew from the list of all windows, with
Python integers. Slow, and unlike the code it is compared with.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Asked:
    """One layer of one window."""

    layer: int
    rows: list[list[int]]
    is_prompt: bool
    window: int
    num_kept: int | None = None  # None until the window has been settled


@dataclass
class HistoryModel:
    """A cache with one policy; ``pools`` gives each layer's slots."""

    kind: str
    pools: list[list[int]]
    num_experts: int
    cap: int | None = None
    history: list[Asked] = field(default_factory=list)
    slots: dict[int, tuple[int, int]] = field(default_factory=dict)  # slot -> (layer, expert)
    window: int = 0
    swaps: int = 0
    foreseen: list[list[int]] = field(default_factory=list)  # by judged window, by mix

    def resident(self):
        return set(self.slots.values())

    def asked_in(self, layer):
        return [entry for entry in self.history if entry.layer == layer]

    def rows_of(self, layer):
        return [row for entry in self.asked_in(layer) for row in entry.rows]

    # Worths

    def worth(self, pair, running):
        return getattr(self, "worth_" + self.kind.replace("-filter", ""))(*pair, running)

    def worth_lru(self, layer, expert, running):
        rows = self.rows_of(layer)
        return max((n + 1 for n, row in enumerate(rows) if expert in row), default=0)

    def worth_lfu(self, layer, expert, running):
        total = 0
        for entry in self.asked_in(layer):
            kept = len(entry.rows) if entry.is_prompt else entry.num_kept or 0
            total += sum(expert in row for row in entry.rows[:kept])
        return total

    def worth_stale(self, layer, expert, running):
        passes = [any(expert in row for row in e.rows) for e in self.asked_in(layer)]
        since = passes[::-1].index(True) if True in passes else len(passes)
        num_layers = len(self.pools)
        order = [(running + 1 + n) % num_layers for n in range(num_layers)]
        return -since * num_layers - order.index(layer)

    def worth_swaps(self, layer, expert, running):
        """Faded uses in 65,536ths; a fade falls after every fourth window."""
        value = 0
        for window in range(self.window + 1):
            for entry in self.asked_in(layer):
                if entry.window == window:
                    kept = len(entry.rows) if entry.is_prompt else entry.num_kept or 0
                    value += 65536 * sum(expert in row for row in entry.rows[:kept])
            if window < self.swaps * 4 and window % 4 == 3:
                value = value * 45875 // 65536
        return value

    def rate(self, layer, expert, shift, end):
        """Faded uses in windows before ``end``; each row of a prompt counts as one."""
        value = 0
        for entry in self.asked_in(layer):
            if entry.window < end:
                size = 1 if entry.is_prompt else 8
                for first in range(0, len(entry.rows), size):
                    value -= value // 2**shift
                    value += 2**19 * sum(expert in row for row in entry.rows[first : first + size])
        return value // 2**shift

    def mixed(self, layer, expert, mix, end):
        shifts = (3, 4, 5, 8)
        weights = ((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (1, 0, 0, 4), (0, 0, 0, 1))
        return sum(
            weight * self.rate(layer, expert, shift, end)
            for weight, shift in zip(weights[mix], shifts, strict=True)
            if weight
        )

    def best_mix(self):
        scores = [0] * 5
        for window in self.foreseen:
            scores = [s - s // 16 + 65536 * n for s, n in zip(scores, window, strict=True)]
        return scores.index(max(scores))

    def worth_ema(self, layer, expert, running):
        return self.mixed(layer, expert, self.best_mix(), self.window + 1)

    def recent_uses(self, pair):
        """The filter's counts: windows that asked, halved after every 64 settled windows."""
        count = 0
        for window in range(self.window + 1):
            for entry in self.history:
                if entry.window == window and entry.layer == pair[0]:
                    count += any(pair[1] in row for row in entry.rows)
            if window % 64 == 63 and window < self.window:
                count //= 2
        return count

    # Decisions

    def ask(self, layer, rows, is_prompt):
        resident = self.resident()
        order = []
        for row in rows:
            order += [(layer, expert) for expert in row if (layer, expert) not in order]
        self.history.append(Asked(layer, rows, is_prompt, self.window))
        misses = [pair for pair in order if pair not in resident]
        if self.kind == "ema":
            return []
        if is_prompt:
            return self.trade(layer, misses)
        if self.kind == "swaps":
            return []
        victims = self.by_price(layer, order)
        done = []
        for pair, slot in zip(misses[: self.cap], victims, strict=False):
            old = self.slots.get(slot)
            has_filter = old is not None and self.kind.endswith("-filter")
            if not has_filter or self.recent_uses(pair) > self.recent_uses(old):
                done.append((pair, slot))
        return self.carry_out(done)

    def settle(self, num_kept):
        for entry in self.history:
            if entry.window == self.window:
                entry.num_kept = num_kept
        done = []
        if self.kind == "ema":
            done = self.trade_all([e for e in self.history if e.window == self.window])
        if self.kind == "swaps" and self.window % 4 == 3:
            done = self.carry_out(self.wanted_swaps())
            self.swaps += 1
        self.window += 1
        return done

    def by_price(self, layer, held):
        free = [s for s in self.pools[layer] if s not in self.slots]
        taken = [s for s in self.pools[layer] if s in self.slots and self.slots[s] not in held]
        return free + sorted(taken, key=lambda s: (self.worth(self.slots[s], layer), self.slots[s]))

    def trade(self, layer, misses):
        best = sorted(misses, key=lambda pair: (-self.worth(pair, layer), pair))
        done = []
        for pair, slot in zip(best, self.by_price(layer, []), strict=False):
            old = self.slots.get(slot)
            if old is None or self.worth(pair, layer) > self.worth(old, layer):
                done.append((pair, slot))
        return self.carry_out(done)

    def trade_all(self, asked):
        """The averages' trades of a window: of all layers those that gain most."""
        is_prompt = asked[0].is_prompt
        if not is_prompt:
            self.foreseen.append([sum(self.kept(e, mix) for e in asked) for mix in range(5)])
        misses = {(e.layer, ex) for e in asked for row in e.rows for ex in row} - self.resident()
        gains = []
        for pool in {tuple(self.pools[e.layer]) for e in asked}:
            layers = [la for la, slots in enumerate(self.pools) if tuple(slots) == pool]
            own = [pair for pair in misses if pair[0] in layers]
            own.sort(key=lambda pair: (-self.worth(pair, 0), pair))
            for pair, slot in zip(own, self.by_price(layers[0], []), strict=False):
                old = self.slots.get(slot)
                gain = self.worth(pair, 0) - (-1 if old is None else self.worth(old, 0))
                gains.append((gain, pair, slot))
        gains = sorted((g for g in gains if g[0] > 0), key=lambda g: (-g[0], g[1]))
        most = None if is_prompt or self.cap is None else self.cap * len(asked)
        return self.carry_out([(pair, slot) for _, pair, slot in gains[:most]])

    def kept(self, entry, mix):
        """How many of an entry's experts the mix puts before all but a share of the slots."""
        pool = self.pools[entry.layer]
        room = len(pool) // sum(other == pool for other in self.pools)
        values = [self.mixed(entry.layer, ex, mix, self.window) for ex in range(self.num_experts)]
        wanted = {expert for row in entry.rows for expert in row}
        return sum(
            values[ex] > 0 and sum(value > values[ex] for value in values) < room for ex in wanted
        )

    def wanted_swaps(self):
        every = [(la, ex) for la in range(len(self.pools)) for ex in range(self.num_experts)]
        uses = {pair: self.worth_swaps(*pair, 0) for pair in every}
        resident = self.resident()
        candidates = sorted(
            (p for p in every if p not in resident and uses[p] >= 2 * 65536),
            key=lambda p: (-uses[p], p),
        )
        found = []
        for slots in {tuple(pool) for pool in self.pools}:
            free = [slot for slot in slots if slot not in self.slots]
            own = [p for p in candidates if tuple(self.pools[p[0]]) == slots]
            for pair, slot in zip(own, free, strict=False):
                found.append((uses[pair], pair, slot))
        placed = {pair for _, pair, _ in found}
        for layer in range(len(self.pools)):
            own = [p for p in candidates if p[0] == layer and p not in placed]
            victims = sorted(
                (slot for slot, pair in self.slots.items() if pair[0] == layer),
                key=lambda slot: (uses[self.slots[slot]], self.slots[slot]),
            )
            for pair, slot in zip(own, victims, strict=False):
                gain = uses[pair] - uses[self.slots[slot]]
                if gain >= 3 * 65536 // 2:
                    found.append((gain, pair, slot))
        found.sort(key=lambda swap: (-swap[0], swap[1]))
        return [(pair, slot) for _, pair, slot in found[: 96 if self.cap is None else self.cap]]

    def carry_out(self, done):
        self.slots.update({slot: pair for pair, slot in done})
        return [(*pair, slot) for pair, slot in done]
