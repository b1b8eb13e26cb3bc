"""A model on the CPU: packed weights, worker threads, and the sessions that share them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strata.cpu.expert_places import ExpertPlaces
from strata.cpu.session import CpuSession
from strata.cpu.weights import load_weights
from strata.cpu.window_times import WindowTimes
from strata.formats.naming import Role, tensor_name
from strata.formats.ngram_table import NgramTable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from strata._native import Context
    from strata.cpu.expert_tier import ExpertTier
    from strata.cpu.weights import HcWeights, ModelWeights
    from strata.formats.tensor_index import TensorIndex
    from strata.model_spec import ModelSpec
    from strata.tiers.forced_routing import RoutingFeed


CHUNK_TOKENS = 512
"""Prompt tokens of one step where nothing else is wished."""


class CpuModel:
    """The model protocol of ``engine.session``.

    Args:
        ctx: threads and instruction set.
        index: an open model whose layout has been checked; may be closed afterwards.
        spec: its geometry.
        kv_format: "f16" or "f32".
        chunk_tokens: prompt tokens of one step.
        direct_io: read n-gram rows past the page cache; None: see ``NgramTable``.
        has_draft: load the draft layer; the file must have one. Its sessions then have a drafter.
        tier: has the routed experts, of which not all are in memory; closed with the model. None
            keeps them all in memory.
        on_progress: called with (bytes read, bytes to read).

    Raises:
        CheckpointError: a tensor cannot be used; names it.
    """

    def __init__(
        self,
        ctx: Context,
        index: TensorIndex,
        spec: ModelSpec,
        *,
        kv_format: str = "f16",
        chunk_tokens: int = CHUNK_TOKENS,
        direct_io: bool | None = None,
        has_draft: bool = False,
        tier: ExpertTier | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.ctx = ctx
        self.expert_tier = tier
        self.window_times = None if tier is None else WindowTimes(tier)
        self.kv_format = kv_format
        self.chunk_tokens = chunk_tokens
        self._spec = spec
        self.weights: ModelWeights = load_weights(
            ctx, index, spec, on_progress, has_draft=has_draft, tier=tier
        )
        self.ngram_table: NgramTable | None = None
        if spec.ngram is not None:
            entry = index[tensor_name(Role.NGRAM_TABLE)]
            self.ngram_table = NgramTable(entry, is_direct=direct_io)
        self.reads_after = _reads_after(self.weights)
        self.routing: RoutingFeed | None = None

    @property
    def spec(self) -> ModelSpec:
        """Geometry of the model."""
        return self._spec

    @property
    def numerics(self) -> str:
        """What the bits of a session's state depend on besides the weights.

        Neither the instruction set nor the number of threads is part of it (docs/numerics.md).
        """
        draft = "" if self.weights.draft is None else ", drafts"
        return f"cpu, {self.kv_format} cells{draft}"

    def expert_places(self) -> ExpertPlaces | None:
        """Where experts were found; None where all of them are in memory."""
        tier, times = self.expert_tier, self.window_times
        if tier is None or times is None:
            return None
        return ExpertPlaces(tier, self._spec, tier.blob_bytes, times)

    def new_session(self, capacity: int) -> CpuSession:
        """An empty conversation that can hold ``capacity`` tokens."""
        return CpuSession(self, capacity)

    def force_routing(self, feed: RoutingFeed) -> None:
        """Takes the feed's experts in the place of the router's from now on; for measuring."""
        self.routing = feed
        if self.expert_tier is not None:
            self.expert_tier.stop_look_ahead()

    def memory_report(self) -> Mapping[str, int]:
        """Bytes by what they serve: packed weights, n-gram rows kept. Sessions come on top."""
        report = dict(self.weights.num_bytes)
        if self.ngram_table is not None:
            report["n-gram rows"] = self.ngram_table.cache_bytes
        return report

    def close(self) -> None:
        """Ends the reading threads; weights go with the last reference to them."""
        if self.expert_tier is not None:
            self.expert_tier.close()
        if self.ngram_table is not None:
            self.ngram_table.close()


def _reads_after(weights: ModelWeights) -> tuple[HcWeights | None, ...]:
    """What reads the streams after each layer's last write; None where the memory changes them."""
    following = [None if layer.ple else layer.hc_attn for layer in weights.layers[1:]]
    return (*following, weights.final)
