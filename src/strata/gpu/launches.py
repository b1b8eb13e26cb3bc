"""Launches that the layers of the trunk and the draft layer have in common, over 1 to 8 rows.

Inputs and outputs are buffers of a window, by their names; nothing is allocated.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from strata.gpu.float_matrix import FloatMatrix
from strata.gpu.kernels import experts
from strata.gpu.kernels.bundle_product import bundle_product
from strata.gpu.kernels.expert_window import down_outputs, gate_up_codes, is_fusible
from strata.gpu.kernels.float_product import can_split, float_product
from strata.gpu.kernels.hyper_connections import ExpertOutputs, silu_of_quotient
from strata.gpu.kernels.product import product
from strata.gpu.kernels.quantize import quantize
from strata.gpu.kernels.router import route
from strata.gpu.kernels.stream_read import read_activated, read_streams
from strata.gpu.weight_layout import MAX_MATRICES

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.buffers import WindowBuffers
    from strata.gpu.expert_slots import ExpertSlots
    from strata.gpu.kernels.experts import ExpertRows
    from strata.gpu.kernels.quantize import Codes
    from strata.gpu.weights import HcWeights, Matrices, MoeWeights
    from strata.model_spec import ModelSpec


class Launches:
    """Products, reads of streams and mixtures of experts between a window's buffers.

    Args:
        spec: geometry.
        buffers: of a window.
    """

    def __init__(self, spec: ModelSpec, buffers: WindowBuffers) -> None:
        self._spec = spec
        self._buffers = buffers

    def _read(
        self,
        hc: HcWeights,
        n: int,
        bad: Tensor,
        *,
        has_codes: bool,
        is_split: bool = False,
        following: Matrices | None = None,
    ) -> Tensor | None:
        """``x`` from ``xn``, with codes if wanted; gives the injection's products, if any.

        With ``is_split``, ``xn`` lies in all the ``_forms`` its products take; ``x`` is split for
        those that are ``following``.
        """
        xn, low, x = self._rows("xn", n), self._rows("low", n), self._rows("x", n)
        both = self._rows("low_inject", n)
        split = self._split_for(hc.down_inject, "xn", n) if is_split else None
        columns = hc.down_inject.columns
        up, down = hc.up.launches[0][0], hc.down_inject.launches[0][0]
        ends = (
            self._codes(x, n) if has_codes else None, bad,
            None if following is None else self._split_for(following, "x", n),
        )  # fmt: skip
        if not isinstance(up, FloatMatrix):
            self._products(hc.down_inject, xn, n, both, split)
            read_streams(both[:, slice(*columns[0])], up, xn, self._codes(low, n), x, *ends)
        else:
            streams = self._spec.num_streams
            if len(hc.down_inject.launches) == 1 and isinstance(down, FloatMatrix):
                given, is_given_split = (xn, False) if split is None else (split, True)
                float_product(down, given, both, is_split=is_given_split, low=low, divisor=streams)
            else:
                self._products(hc.down_inject, xn, n, both, split)
                silu_of_quotient(
                    both[:, slice(*columns[0])], streams, low, is_split=can_split(up.inner)
                )
            read_activated(low, up, xn, x, *ends)
        return both[:, slice(*columns[1])] if len(columns) > 1 else None

    def _tail_codes(self, out: Matrices, mixed: Tensor, n: int, head_width: int) -> Codes | None:
        """Codes that a mixer makes itself: a head must be whole blocks of them."""
        return self._codes_for(out, mixed, n) if head_width % 32 == 0 else None

    def _close(self, out: Matrices, mixed: Tensor, n: int, head_width: int, bad: Tensor) -> None:
        """The mixer's last product, into ``out``."""
        if out.has_codes and head_width % 32:
            quantize(mixed, self._codes(mixed, n), bad)
        self._products(out, mixed, n, self._rows("out", n))

    def _moe(
        self, weights: MoeWeights, n: int, bad: Tensor, split: Tensor | None = None
    ) -> ExpertOutputs:
        """Outputs of the chosen experts and of the shared one, not yet added up.

        ``split`` is ``x`` again for routers of plain types, where it was made.
        """
        spec, buffers = self._spec, self._buffers
        x, routed = self._rows("x", n), self._rows("routed", n)
        self._products(weights.routers, x, n, routed, split)
        logits, shared_logits = (routed[:, slice(*columns)] for columns in weights.routers.columns)
        ids, topk_weights = self._rows("expert_ids", n), self._rows("topk_weights", n)
        shared_weight = self._rows("shared_weight", n).view(n)
        route(
            logits, shared_logits, spec.expert_weights_scale, ids, topk_weights, shared_weight, bad
        )
        if weights.forced is not None:
            ids.copy_(weights.forced[:n])
        codes = self._codes(x, n)
        rows, shared_rows = buffers.experts, buffers.shared
        tier = weights.way
        with nullcontext() if tier is None else tier.beside(ids, codes):
            if is_fusible(weights.experts) and is_fusible(weights.shared):
                both = (weights.experts, weights.shared)
                gate_up_codes(*both, codes, ids, rows, shared_rows, bad)
                down_outputs(*both, ids, rows, shared_rows)
            else:
                self._experts(weights.experts, codes, ids, rows, bad)
                self._experts(weights.shared, codes, self._rows("shared_ids", n), shared_rows, bad)
        if tier is not None:
            tier.finish(ids, codes, rows, bad)
        outputs = buffers.experts.y[: n * spec.top_k].view(n, spec.top_k, spec.hidden_size)
        return ExpertOutputs(outputs, topk_weights, buffers.shared.y[:n], shared_weight)

    @staticmethod
    def _experts(
        slots: ExpertSlots, codes: Codes, ids: Tensor, rows: ExpertRows, bad: Tensor
    ) -> None:
        experts.gate_up(slots, codes, ids, rows)
        experts.gate(slots, ids, rows, bad)
        experts.down(slots, ids, rows)

    def _products(
        self, matrices: Matrices, x: Tensor, n: int, out: Tensor, split: Tensor | None = None
    ) -> None:
        """All products of ``x``, whose codes have been made if the matrices read any.

        ``split`` is ``x`` again as plain matrices take it fastest, or None.
        """
        if 2 <= len(matrices.launches) <= MAX_MATRICES:
            is_split = split is not None
            given = x if split is None else split
            codes = self._codes_for(matrices, x, n)
            bundle_product(matrices.launches, codes, given, out, is_split=is_split)
            return
        for matrix, column in matrices.launches:
            columns = out[:, column : column + matrix.num_rows]
            if not isinstance(matrix, FloatMatrix):
                product(matrix, self._codes(x, n), columns)
            elif split is not None:
                float_product(matrix, split, columns, is_split=True)
            else:
                float_product(matrix, x, columns)

    def _forms(
        self, matrices: Matrices, n: int, bad: Tensor
    ) -> tuple[Codes | None, Tensor, Tensor | None]:
        """Arguments of the launch that makes ``xn`` for these: codes, flag, split rows."""
        codes = self._codes_for(matrices, self._rows("xn", n), n)
        return codes, bad, self._split_for(matrices, "xn", n)

    def _split_for(self, matrices: Matrices, name: str, n: int) -> Tensor | None:
        return self._rows(f"{name}_split", n) if matrices.has_floats else None

    def _codes_for(self, matrices: Matrices, x: Tensor, n: int) -> Codes | None:
        return self._codes(x, n) if matrices.has_codes else None

    def _codes(self, x: Tensor, n: int) -> Codes:
        return self._buffers.codes_of(x.shape[-1], n)

    def _rows(self, name: str, n: int) -> Tensor:
        return self._buffers.tensors[name][:n]

    def _streams(self, n: int) -> Tensor:
        spec = self._spec
        return self._rows("streams", n).view(n, spec.num_streams, spec.hidden_size)

    def _mixed(self, n: int, width: int) -> Tensor:
        return self._buffers.tensors["mixed"].view(-1)[: n * width].view(n, width)
