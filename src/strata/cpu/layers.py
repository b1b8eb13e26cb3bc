"""The parts of a layer as calls of the kernels: a block reads the streams, mixes, writes back.

Nothing here allocates or loops over rows; each function is a handful of native calls.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from strata import _native
from strata.cpu.expert_tier import not_read
from strata.session_rules import not_finite

if TYPE_CHECKING:
    from collections.abc import Iterator

    from strata._native import Context, RopeRows
    from strata.cpu.buffers import Floats, Ints
    from strata.cpu.scratch import RowViews, Scratch
    from strata.cpu.state import GdnState, PleState, QsaState
    from strata.cpu.weights import GdnWeights, HcWeights, MoeWeights, PleWeights, QsaWeights
    from strata.model_spec import ModelSpec


@contextmanager
def damage_named(where: str) -> Iterator[None]:
    """Tells of a product's input that is no number as damaged weights, ``where`` it was met."""
    try:
        yield
    except ValueError as error:
        # The products refuse such inputs; any other refusal is a bug of ours.
        if "NaN or infinite" not in str(error):
            raise
        raise not_finite(f"{error} {where}") from error


def normed(ctx: Context, hc: HcWeights, spec: ModelSpec, rows: RowViews) -> None:
    """``rows.xn`` from the streams, for the read of ``hc``."""
    _native.hc_norm(ctx, rows.residual, hc.norm, spec.rms_eps, rows.xn)


def read_streams(ctx: Context, hc: HcWeights, spec: ModelSpec, rows: RowViews) -> None:
    """``rows.x`` and ``rows.inject`` from ``rows.xn``."""
    outs = [rows.low, rows.inject]
    _native.product(ctx, hc.down_inject, rows.xn, outs[: len(hc.down_inject)])
    _native.silu_of_quotient(ctx, rows.low, spec.num_streams)
    _native.product(ctx, hc.up, rows.low, [rows.gate])
    _native.hc_mix(ctx, rows.xn, rows.gate, spec.num_streams, rows.x)


def write_streams(
    ctx: Context, following: HcWeights | None, spec: ModelSpec, rows: RowViews
) -> None:
    """``rows.out`` into the streams, and ``rows.xn`` for the read that follows, if one does."""
    norm, xn = (None, None) if following is None else (following.norm, rows.xn)
    _native.hc_write(ctx, rows.residual, rows.out, rows.inject, norm, spec.rms_eps, xn)


def gdn(
    ctx: Context,
    weights: GdnWeights,
    state: GdnState,
    scratch: Scratch,
    rows: RowViews,
    *,
    is_window: bool,
) -> None:
    """``rows.out`` from ``rows.x``. A window leaves the state; otherwise the rows go into it."""
    num_rows = rows.num_rows
    if is_window:
        conv, computed = state.conv.window(num_rows), state.computed
        history = len(conv) - num_rows
    else:
        history = len(state.conv.newest())
        conv, computed = scratch.gdn_conv[: history + num_rows], scratch.gdn_rows
        conv[:history] = state.conv.newest()
    outs = [conv[history:], rows.gdn_z, rows.gdn_alpha, rows.gdn_beta]
    _native.product(ctx, weights.projections, rows.x, outs)
    weights.layer.run(
        ctx, num_rows, conv, rows.gdn_alpha, rows.gdn_beta, rows.gdn_z, computed.native,
        state.pending.native, state.num_pending, state.memory, is_window, rows.gdn_mixed,
    )  # fmt: skip
    state.num_pending = 0
    if not is_window:
        state.conv.replace(conv[num_rows:])
    _native.product(ctx, weights.out, rows.gdn_mixed, [rows.out])


def qsa(
    ctx: Context,
    weights: QsaWeights,
    state: QsaState,
    scratch: Scratch,
    rows: RowViews,
    rope: RopeRows,
    position: int,
) -> None:
    """``rows.out`` from ``rows.x``; the rows become the cells from ``position`` on."""
    outs = [rows.q_gate, rows.k, rows.v, rows.index_q, rows.index_k]
    _native.product(ctx, weights.projections, rows.x, outs)
    weights.layer.run(
        ctx, rows.num_rows, position, rows.q_gate, rows.k, rows.v, rows.index_q, rows.index_k,
        rope, state.native, scratch.qsa, rows.qsa_mixed,
    )  # fmt: skip
    _native.product(ctx, weights.out, rows.qsa_mixed, [rows.out])


def ple(
    ctx: Context,
    weights: PleWeights,
    state: PleState,
    scratch: Scratch,
    rows: RowViews,
    embedding: Floats,
    spec: ModelSpec,
    *,
    is_window: bool,
) -> None:
    """Adds the n-gram memory to the streams. embedding: [T, heads * row_size]."""
    assert spec.ngram is not None  # noqa: S101 - the layer has its weights
    num_rows = rows.num_rows
    if is_window:
        conv = state.conv.window(num_rows)
    else:
        history = spec.ngram.conv_history
        conv = scratch.ple_conv[: history + num_rows]
        conv[:history] = state.conv.newest()
    _native.product(ctx, weights.projections, embedding, [rows.ple_key, rows.ple_value])
    _native.ple(
        ctx, rows.residual, rows.ple_key, rows.ple_value, weights.key_norm, weights.query_norm,
        weights.conv_norm, weights.conv, spec.ngram.ngram_size, spec.rms_eps, rows.ple_gated, conv,
    )  # fmt: skip
    if not is_window:
        state.conv.replace(conv[num_rows:])


def moe(
    ctx: Context,
    weights: MoeWeights,
    spec: ModelSpec,
    rows: RowViews,
    layer: int,
    forced: Ints | None = None,
) -> None:
    """``rows.out`` from ``rows.x``: routed experts and the shared one.

    With ``forced`` [T, K] those experts are taken, with the weights of the router's own.

    Raises:
        StrataError: a router logit is not a finite number.
        CheckpointError: experts lie in a file that cannot be read.
    """
    outs = [rows.router_logits, rows.shared_logits]
    _native.product(ctx, weights.routers, rows.x, outs)
    bad_row = _native.route(
        ctx, rows.router_logits, spec.expert_weights_scale, rows.expert_ids, rows.topk_weights,
        rows.shared_logits,
    )  # fmt: skip
    if bad_row >= 0:
        raise not_finite(
            f"the router of layer {layer} gave NaN or infinity for row {bad_row} of this step"
        )
    if forced is not None:
        rows.expert_ids[:] = forced
    try:
        _native.experts(
            ctx, weights.experts, rows.x, rows.expert_ids, rows.topk_weights, weights.shared,
            rows.shared_weight, rows.out,
        )  # fmt: skip
    except _native.ExpertsNotRead as error:
        raise not_read(error) from error
