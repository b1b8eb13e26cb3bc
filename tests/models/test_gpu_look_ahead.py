"""Reads ahead beside a card: the same bits, counts that agree, nothing while costs are measured.

Runs on a card, or in Triton's interpreter where there is none; thread, files and reads are the real
ones in both. Routers of made-up weights are guessed by chance, so how many guesses are right is
``test_demo_look_ahead``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from tests.models.bits import one_by_one, same_bits
from tests.models.on_card import PROMPT, gpu_model, per_layer
from tests.models.smallest_model import EXPERTS, LAYERS, smallest_model

from strata import _native
from strata.cpu.expert_files import in_place
from strata.cpu.expert_host import TieredExperts
from strata.cpu.expert_layers import layer_shapes
from strata.cpu.expert_tier import ExpertTier
from strata.cpu.look_ahead import LookAhead
from strata.formats.tensor_index import open_model
from strata.gpu.expert_cache import CacheOptions
from strata.tiers.hand_off import SERVED

if TYPE_CHECKING:
    from pathlib import Path

NUM_TOKENS, NUM_AHEAD = 5, 2
REQUESTS = SERVED.index("requests")


def test_a_card_s_windows_are_the_same_with_reads_ahead(smallest_path: Path) -> None:
    spec = smallest_model().spec
    with open_model(smallest_path) as index:
        shapes = layer_shapes(index, spec)
        ctx = _native.Context(2, "scalar")
        none = [np.zeros(0, np.int64)] * LAYERS
        ahead = LookAhead(NUM_AHEAD, spec.top_k)
        # A cache of one place: nearly all that is asked for is read.
        tier = ExpertTier(ctx, shapes, in_place(index, shapes), none, 1, ahead)
        host = TieredExperts(ctx, spec, shapes, tier)
    assert host.measured().each > 0
    assert tier.ahead_counts().begun == 0
    options = CacheOptions(num_stages=3)
    model = gpu_model(smallest_path, host=host, slots=per_layer(1), cache_options=options)
    expected = one_by_one(gpu_model(smallest_path).new_session(32), PROMPT[:NUM_TOKENS])
    before, requests = tier.ahead_counts().begun, host.counts()[0, REQUESTS]
    found = one_by_one(model.new_session(32), PROMPT[:NUM_TOKENS])
    assert same_bits(found, expected)
    counts = tier.ahead_counts()
    # Only the first layer's rows are guessed by, two experts of the second at most. On a card
    # windows also run to be captured.
    requests = host.counts()[0, REQUESTS] - requests
    assert 0 < counts.begun - before <= requests * min(NUM_AHEAD, EXPERTS)
    assert counts.used + counts.dropped <= counts.begun
    told = model.tier_counts()
    assert (told.total("ahead"), told.total("ahead_used")) == (counts.begun, counts.used)
    assert told.of("ahead")[0] == 0
    model.close()
