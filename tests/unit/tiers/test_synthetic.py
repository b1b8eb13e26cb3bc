"""Made-up routing against what was published for real text on this model."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from strata.errors import SettingsError
from strata.tiers.replay import replay
from strata.tiers.routing_trace import WindowKind, check_ids
from strata.tiers.slots import layer_slots
from strata.tiers.synthetic import SyntheticText, synthetic_trace

# Slots of 512 for each layer -> LRU hit rate in % over the first 300 tokens, the cache begun empty.
COLD = {93: 43.5, 186: 62.0, 279: 72.0, 372: 79.0}
# At 186 slots and around token 512.
WARM = 82.0
WARM_TOKENS = (462, 562)
TOLERANCE = 1.5
CHECKSUM = 0xDA266CF0


@pytest.fixture(scope="module", params=[0, 1, 2])
def trace(request):
    """A part of the layers: they are alike, and three seeds say more than one."""
    return synthetic_trace(SyntheticText(num_layers=16, num_decoded=562), request.param)


@pytest.mark.parametrize("slots", list(COLD))
def test_cold_curve(trace, slots):
    outcome = replay(trace, layer_slots(trace.num_layers, 512, slots * trace.num_layers), "lru")
    assert 100 * outcome.hit_rate(outcome.part(0, 300)) == pytest.approx(COLD[slots], abs=TOLERANCE)


def test_warm_rate(trace):
    outcome = replay(trace, layer_slots(trace.num_layers, 512, 186 * trace.num_layers), "lru")
    assert 100 * outcome.hit_rate(outcome.part(*WARM_TOKENS)) == pytest.approx(WARM, abs=TOLERANCE)


def test_a_seed_gives_the_same_ids_everywhere():
    """Against a checksum taken once: only integers and IEEE operations make the ids."""
    text = SyntheticText(num_layers=3, num_decoded=40, num_prompt=20)
    trace = synthetic_trace(text, 7)
    ids = np.concatenate([window.ids for window in trace.windows], axis=1)
    assert zlib.crc32(ids.astype("<u2").tobytes()) == CHECKSUM
    other = synthetic_trace(text, 8)
    assert not np.array_equal(ids, np.concatenate([w.ids for w in other.windows], axis=1))


def test_windows_are_cut_as_asked():
    text = SyntheticText(2, 16, 3, num_decoded=7, num_prompt=600, num_texts=2, window_rows=3)
    trace = synthetic_trace(text)
    told = [(w.kind, w.position, w.num_rows, w.num_kept) for w in trace.windows]
    prompt, decode = WindowKind.PROMPT, WindowKind.DECODE
    one = [(prompt, 0, 512, 512), (prompt, 512, 88, 88), (decode, 600, 3, 3), (decode, 603, 3, 3)]
    assert told == 2 * [*one, (decode, 606, 1, 1)]
    assert all(check_ids(w.ids, 16) is None for w in trace.windows)
    # The same rows, however they are cut.
    single = SyntheticText(2, 16, 3, num_decoded=607, num_texts=2)
    rows = [np.concatenate([w.ids for w in synthetic_trace(t).windows], axis=1)
            for t in (text, single)]  # fmt: skip
    np.testing.assert_array_equal(rows[0], rows[1])


@pytest.mark.parametrize(
    "sizes", [{"top_k": 17}, {"num_layers": 0}, {"window_rows": 9}, {"num_experts": 1 << 17}]
)
def test_refusals(sizes):
    with pytest.raises(SettingsError, match="made-up routing cannot have") as caught:
        SyntheticText(**{"num_experts": 16, "top_k": 3} | sizes)
    assert "Try:" in str(caught.value)
