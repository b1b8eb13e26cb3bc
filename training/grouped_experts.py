"""Products of many tokens with the experts chosen for each, without loops or waits on a GPU.

Rows are sorted by expert into a buffer of fixed size (each expert's part padded to a multiple of
eight rows, which the grouped product asks for); every row's place is known, so that gradients are
gathered too and never added atomically.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_ALIGN = 8


def places(ids: Tensor, num_experts: int) -> tuple[Tensor, Tensor]:
    """Where each (token, rank) goes in the buffer, and where each expert's part ends.

    Args:
        ids: [N, K] int64, the experts of every token.
        num_experts: E.

    Returns:
        place [N, K] int64 in 0 .. N K + 8 E, all different; ends [E] int32.
    """
    flat = ids.reshape(-1)
    order = flat.argsort(stable=True)
    counts = torch.zeros(num_experts, dtype=torch.int64, device=ids.device)
    counts.scatter_add_(0, flat, torch.ones_like(flat))
    padded = (counts + _ALIGN - 1) // _ALIGN * _ALIGN
    ends = padded.cumsum(0)
    shift = (ends - padded) - (counts.cumsum(0) - counts)
    sorted_place = torch.arange(len(flat), device=ids.device) + shift[flat[order]]
    place = torch.empty_like(flat)
    place[order] = sorted_place
    return place.view(ids.shape), ends.to(torch.int32)


class Scatter(torch.autograd.Function):
    """Rows [N, D] copied to their places in a zeroed buffer [R, D]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, place: Tensor, num_rows: int) -> Tensor:
        """Copies row n to place[n, k] for every k."""
        ctx.save_for_backward(place)
        buffer = x.new_zeros(num_rows, x.shape[1])
        for rank in range(place.shape[1]):
            buffer[place[:, rank]] = x
        return buffer

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """Sums the gradients of a row's copies."""
        (place,) = ctx.saved_tensors
        return grads[0][place].sum(1), None, None


class Gather(torch.autograd.Function):
    """Rows [N, K, D] read from their places in a buffer [R, D]."""

    @staticmethod
    def forward(ctx: Any, buffer: Tensor, place: Tensor) -> Tensor:
        """Reads place[n, k] for every n and k."""
        ctx.save_for_backward(place)
        ctx.num_rows = buffer.shape[0]
        return buffer[place]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Writes each gradient to its row; places are all different."""
        (place,) = ctx.saved_tensors
        grad = grads[0].new_zeros(ctx.num_rows, grads[0].shape[-1])
        grad[place.reshape(-1)] = grads[0].reshape(-1, grads[0].shape[-1])
        return grad, None


def grouped_product(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """rows [R, I] times weights[e] [E, O, I] of the expert whose part each row lies in: [R, O].

    Rows behind the last part are not defined.
    """
    if rows.is_cuda:
        return torch._grouped_mm(rows, weights.transpose(1, 2), offs=ends)
    out, start = [], 0
    for expert, end in enumerate(ends.tolist()):
        out.append(rows[start:end] @ weights[expert].T)
        start = end
    out.append(rows.new_zeros(len(rows) - start, weights.shape[1]))
    return torch.cat(out)


def mixture(x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Sum over a token's experts of weight times down(silu(gate x) * (up x)): [N, D].

    Args:
        x: [N, D].
        ids: [N, K] int64.
        weights: [N, K].
        gate_up: [E, 2 F, D], gate rows first.
        down: [E, D, F].
    """
    num_experts = gate_up.shape[0]
    place, ends = places(ids, num_experts)
    buffer = Scatter.apply(x, place, ids.numel() + num_experts * _ALIGN)
    gate, up = grouped_product(buffer, gate_up, ends).chunk(2, -1)
    out = grouped_product(torch.nn.functional.silu(gate) * up, down, ends)
    return (Gather.apply(out, place) * weights.unsqueeze(-1).to(out.dtype)).sum(1)
