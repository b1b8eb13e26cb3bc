"""Hyper-connections: how a block reads from, and writes to, the residual streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from strata.reference.norms import Array, rms_norm, sigmoid, silu

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class HyperConnection:
    """Weights of one read: c streams of width D, rank r.

    Attributes:
        norm: [c * D] gamma.
        down: [r, c * D].
        up: [c * D, r].
        inject: [c, c * D]; None for the read before the output head, which nothing follows.
    """

    norm: Array
    down: Array
    up: Array
    inject: Array | None

    @classmethod
    def from_weights(cls, weights: Mapping[str, Array], prefix: str) -> HyperConnection:
        """The set called ``prefix``: ``blk.0.hc_attn``, ``output_hc``."""
        return cls(
            weights[f"{prefix}_norm.weight"],
            weights[f"{prefix}_down.weight"],
            weights[f"{prefix}_up.weight"],
            weights.get(f"{prefix}_inject.weight"),
        )

    def read(self, streams: Array, eps: float) -> tuple[Array, Array | None]:
        """Block input and injection of every stream.

        xn = rms_norm per stream; gate = sigmoid(up . silu(down . xn / c));
        input = mean over streams of xn * gate; injection = 2 * sigmoid(inject . xn / c).

        Args:
            streams: [T, c, D].
            eps: of the norm.

        Returns:
            input [T, D]; injection [T, c], or None without inject weights.
        """
        num_tokens, num_streams, width = streams.shape
        normed = rms_norm(streams, self.norm.reshape(num_streams, width), eps)
        flat = normed.reshape(num_tokens, -1)
        low = silu(flat @ self.down.T / num_streams)
        gate = sigmoid(low @ self.up.T).reshape(streams.shape)
        mixed = (normed * gate).mean(axis=1)
        if self.inject is None:
            return mixed, None
        return mixed, 2 * sigmoid(flat @ self.inject.T / num_streams)


def write(streams: Array, block_output: Array, injection: Array) -> Array:
    """streams + injection * output: [T, c, D] from [T, D] and [T, c]; a new array."""
    return np.asarray(streams + injection[:, :, None] * block_output[:, None, :])
