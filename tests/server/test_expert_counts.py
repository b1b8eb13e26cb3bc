"""Counts of experts on their way from an engine to the log of requests."""

from __future__ import annotations

import numpy as np

from strata.engine.request import Timings
from strata.server import child, protocol
from strata.server.monitor import hit_rate_of, tiers_of
from strata.tiers.counters import COUNTED, TierCounts


def test_counts_of_an_answer_cross_the_pipe():
    table = np.zeros((2, len(COUNTED)), np.int64)
    for layer in range(2):
        for name, count in {"lookups": 100, "hits": 70, "computed": 20, "copied": 10}.items():
            table[layer, COUNTED.index(name)] = count
    table[1, COUNTED.index("from_file")] = 6
    timings = Timings(
        prompt_tokens=1,
        reused_tokens=0,
        generated_tokens=2,
        prompt_s=0.1,
        decode_s=0.1,
        ttft_s=0.1,
        experts=TierCounts(50, table, np.ones(2, np.int64)),
    )
    ended = protocol.Ended(1, "stop", child._costs(timings))
    (frame,) = protocol.Frames().feed(protocol.encode(ended))
    experts = protocol.decode_up(frame).costs.experts
    assert (experts["lookups"], experts["hits"]) == (200, 140)
    assert hit_rate_of(experts) == 0.7
    assert tiers_of(experts) == {"vram": 140, "ram": 54, "disk": 6}
    assert experts["computed"] + experts["copied"] + experts["hits"] == experts["lookups"]


def test_an_engine_that_counts_nothing_sends_nothing():
    timings = Timings(1, 0, 2, 0.1, 0.1, 0.1)
    assert child._costs(timings).experts == {}
