"""Belady's rule against a search of everything a cache could have done."""

from __future__ import annotations

from functools import cache
from itertools import chain, combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.tiers.policy_table import POLICIES
from strata.tiers.replay import OPTIMUM, replay
from strata.tiers.routing_trace import RoutingTrace, RoutingWindow, WindowKind
from strata.tiers.slots import layer_slots, shared_slots

EXPERTS = 4


@st.composite
def traces(draw):
    num_layers = draw(st.integers(1, 2))
    top_k = draw(st.integers(1, 2))
    row = st.permutations(range(EXPERTS)).map(lambda p: p[:top_k])
    windows = []
    for number in range(draw(st.integers(1, 7))):
        num_rows = draw(st.integers(1, 2))
        rows = st.lists(row, min_size=num_rows, max_size=num_rows)
        ids = np.array([draw(rows) for _ in range(num_layers)], np.uint16)
        is_prompt = draw(st.integers(0, 4)) == 0
        kind = WindowKind.PROMPT if is_prompt else WindowKind.DECODE
        windows.append(RoutingWindow(kind, number, num_rows, ids))
    return RoutingTrace("", num_layers, EXPERTS, top_k, tuple(windows))


def most_hits(trace, rooms, pool_of_layer, start):
    """The most hits of decode windows over every choice of what to keep after every step.

    After a step the cache may hold any of what it held and what was asked, up to its room.
    """
    steps = [
        (layer, frozenset((layer, int(e)) for e in window.ids[layer].reshape(-1)),
         window.kind is WindowKind.DECODE)
        for window in trace.windows for layer in range(trace.num_layers)
    ]  # fmt: skip

    @cache
    def best(number, held):
        if number == len(steps):
            return 0
        layer, asked, counts = steps[number]
        hits = len(asked & held) if counts else 0
        pool = pool_of_layer[layer]
        mine = frozenset(p for p in held if pool_of_layer[p[0]] == pool)
        able = sorted(mine | asked)
        most = min(len(able), rooms[pool])
        choices = chain.from_iterable(combinations(able, n) for n in range(most, most - 1, -1))
        return hits + max(best(number + 1, (held - mine) | frozenset(c)) for c in choices)

    return best(0, start)


@settings(max_examples=80, deadline=None)
@given(trace=traces(), data=st.data(), is_shared=st.booleans(), is_filled=st.booleans())
def test_no_choice_of_residents_hits_more(trace, data, is_shared, is_filled):
    num_layers = trace.num_layers
    num_slots = data.draw(st.integers(num_layers, num_layers * 3))
    make = shared_slots if is_shared else layer_slots
    layout = make(num_layers, EXPERTS, num_slots)
    ranking = list(range(num_layers * EXPERTS)) if is_filled else []
    outcome = replay(trace, layout, OPTIMUM, ranking=ranking)
    hits = int(outcome.hits[~outcome.is_prompt].sum())
    start = set()
    rooms = {p: len(slots) for p, slots in enumerate(layout.pools)}
    for key in ranking:
        pair = divmod(key, EXPERTS)
        pool = layout.pool_of_layer[pair[0]]
        if sum(layout.pool_of_layer[p[0]] == pool for p in start) < rooms[pool]:
            start.add(pair)
    assert hits == most_hits(trace, rooms, layout.pool_of_layer, frozenset(start))
    for name in POLICIES:
        if name == "swaps":
            continue  # may fetch before it is asked, which the optimum may not
        other = replay(trace, layout, name, ranking=ranking)
        assert int(other.hits[~other.is_prompt].sum()) <= hits
