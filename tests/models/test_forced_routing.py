"""A trace's experts in the place of the router's, on the processor and in a card's windows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.models.model_files import cpu_model
from tests.models.on_card import gpu_model
from tests.models.smallest_model import smallest_model
from tests.models.tiny_models import VOCAB_SIZE

from strata.errors import SettingsError
from strata.tiers.forced_routing import RoutingFeed
from strata.tiers.routing_trace import RoutingTrace, RoutingWindow, WindowKind

if TYPE_CHECKING:
    from pathlib import Path


def trace_of(num_rows: int, num_experts: int | None = None) -> RoutingTrace:
    spec = smallest_model().spec
    rng = np.random.default_rng(8)
    num = num_experts or spec.num_experts
    rows = [
        rng.permuted(np.tile(np.arange(num), (spec.num_layers, 1)), axis=1)[:, None, : spec.top_k]
        for _ in range(num_rows)
    ]
    windows = [
        # The second row of each was not kept: the feed leaves it out.
        RoutingWindow(WindowKind.DECODE, n, 1, np.concatenate([row, row], 1).astype(np.uint16))
        for n, row in enumerate(rows)
    ]
    prompt = RoutingWindow(WindowKind.PROMPT, 0, 1, rows[0].astype(np.uint16))
    return RoutingTrace("", spec.num_layers, num, spec.top_k, (prompt, *windows))


def told(trace: RoutingTrace) -> np.ndarray:
    """[L, N, K] rows that were kept."""
    kept = [w.ids[:, : w.num_kept] for w in trace.windows if w.kind is WindowKind.DECODE]
    return np.concatenate(kept, axis=1).astype(np.int32)


def test_rows_follow_each_other_as_they_are_kept() -> None:
    trace = trace_of(5)
    feed, rows = RoutingFeed(trace, smallest_model().spec), told(trace)
    assert np.array_equal(feed.rows(3), rows[:, :3])
    feed.keep(2)
    assert np.array_equal(feed.rows(4), rows[:, [2, 3, 4, 0]])
    assert np.array_equal(feed.layer_rows(1, 4), feed.rows(4)[1])
    feed.keep(4)
    assert np.array_equal(feed.rows(1), rows[:, 1:2])


def test_another_geometry_is_refused() -> None:
    with pytest.raises(SettingsError, match="of 9 experts"):
        RoutingFeed(trace_of(2, num_experts=9), smallest_model().spec)


def test_a_trace_of_prompts_alone_is_refused() -> None:
    trace = trace_of(1)
    prompts = RoutingTrace("", trace.num_layers, trace.num_experts, trace.top_k, trace.windows[:1])
    with pytest.raises(SettingsError, match="has 0 decoded tokens"):
        RoutingFeed(prompts, smallest_model().spec)


def test_the_processor_takes_the_trace_s_experts(smallest_path: Path) -> None:
    trace = trace_of(6)
    model = cpu_model(smallest_path, smallest_model(), threads=1, kv_format="f16")
    model.force_routing(RoutingFeed(trace, model.spec))
    session = model.new_session(16)
    seen: list[np.ndarray] = []
    session.on_routing = lambda _layer, ids: seen.append(ids.copy())
    at = 0
    for rows, kept in ((1, 1), (3, 2), (2, 2)):
        seen.clear()
        logits = session.decode(np.full(rows, 7, np.int32))
        assert np.isfinite(logits).all()
        session.commit(kept)
        assert np.array_equal(np.stack(seen), told(trace)[:, at : at + rows])
        at += kept


def test_a_card_s_windows_take_the_trace_s_experts(smallest_path: Path) -> None:
    trace = trace_of(4)
    model = gpu_model(smallest_path)
    model.force_routing(RoutingFeed(trace, model.spec))
    session = model.new_session(16)
    rng = np.random.default_rng(1)
    for at, (rows, kept) in enumerate(((2, 1), (1, 1))):
        session.decode(rng.integers(0, VOCAB_SIZE, rows).astype(np.int32))
        # What the last layer's experts were chosen by.
        ids = session._buffers.tensors["expert_ids"][:rows].cpu().numpy()
        assert np.array_equal(ids, told(trace)[-1, at : at + rows])
        session.commit(kept)
    # Another feed, from its start, for sessions that are made now.
    model.force_routing(RoutingFeed(trace, model.spec))
    session = model.new_session(16)
    session.decode(np.array([7], np.int32))
    ids = session._buffers.tensors["expert_ids"][:1].cpu().numpy()
    assert np.array_equal(ids, told(trace)[-1, :1])
