"""Triton kernels of the two steps of the chunked delta rule that tensor programs do badly.

The walk from chunk to chunk, and the inverse of each chunk's triangular system; everything else is
batched products (``training.gated_delta``). Flash-linear-attention's backward pass refuses the
Triton releases 3.4 to 3.7 on Hopper cards, so the walk is our own.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# Triton decides on decoration whether it interprets; mypy knows no jit.


@triton.jit
def _walk_kernel(  # type: ignore[no-untyped-def]
    values, keys, leaving, kept, states, corrections,
    N: tl.constexpr, C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    rows, k, v = tl.arange(0, C)[:, None], tl.arange(0, DK), tl.arange(0, DV)
    state = tl.zeros([DK, DV], tl.float32)
    for n in range(N):
        at = program * N + n
        by_key = at * C * DK + rows * DK + k[None, :]
        by_value = at * C * DV + rows * DV + v[None, :]
        tl.store(states + at * DK * DV + k[:, None] * DV + v[None, :], state)
        correction = tl.load(values + by_value) - tl.dot(tl.load(keys + by_key), state)
        tl.store(corrections + by_value, correction)
        state = state * tl.load(kept + at)
        state += tl.dot(tl.trans(tl.load(leaving + by_key)), correction)


@triton.jit
def _walk_back_kernel(  # type: ignore[no-untyped-def]
    keys, leaving, kept, state_grads, correction_grads, next_grads,
    N: tl.constexpr, C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    rows, k, v = tl.arange(0, C)[:, None], tl.arange(0, DK), tl.arange(0, DV)
    grad = tl.zeros([DK, DV], tl.float32)
    for step in range(N):
        at = program * N + N - 1 - step
        by_key = at * C * DK + rows * DK + k[None, :]
        by_value = at * C * DV + rows * DV + v[None, :]
        by_state = at * DK * DV + k[:, None] * DV + v[None, :]
        tl.store(next_grads + by_state, grad)
        correction = tl.load(correction_grads + by_value)
        correction += tl.dot(tl.load(leaving + by_key), grad)
        tl.store(correction_grads + by_value, correction)
        grad = grad * tl.load(kept + at) + tl.load(state_grads + by_state)
        grad -= tl.dot(tl.trans(tl.load(keys + by_key)), correction)


class Walk(torch.autograd.Function):
    """State before every chunk and every token's correction, from an empty memory.

    correction_n = values_n - keys_n state_n
    state_{n+1} = kept_n state_n + leaving_n^T correction_n
    """

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, keys: Tensor, leaving: Tensor, kept: Tensor
    ) -> tuple[Tensor, Tensor]:
        """States [P, N, Dk, Dv] and corrections [P, N, C, Dv], float32.

        Args:
            values: [P, N, C, Dv] float32.
            keys: [P, N, C, Dk].
            leaving: [P, N, C, Dk].
            kept: [P, N].
        """
        values, keys, leaving, kept = (a.contiguous() for a in (values, keys, leaving, kept))
        programs, chunks, size, dim = keys.shape
        width = values.shape[-1]
        states = values.new_empty(programs, chunks, dim, width)
        corrections = torch.empty_like(values)
        _walk_kernel[(programs,)](
            values,
            keys,
            leaving,
            kept,
            states,
            corrections,
            N=chunks,
            C=size,
            DK=dim,
            DV=width,
        )
        ctx.save_for_backward(keys, leaving, kept, states, corrections)
        return states, corrections

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gradients of the four inputs."""
        keys, leaving, kept, states, corrections = ctx.saved_tensors
        state_grads, correction_grads = grads[0].contiguous(), grads[1].clone().contiguous()
        programs, chunks, size, dim = keys.shape
        next_grads = torch.empty_like(states)
        _walk_back_kernel[(programs,)](
            keys, leaving, kept, state_grads, correction_grads, next_grads,
            N=chunks, C=size, DK=dim, DV=states.shape[-1],
        )  # fmt: skip
        key_grads = -(correction_grads @ states.transpose(-1, -2))
        leaving_grads = corrections @ next_grads.transpose(-1, -2)
        return correction_grads, key_grads, leaving_grads, (states * next_grads).sum((-1, -2))


@triton.jit
def _inverse_kernel(lower, inverse, C: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * C * C
    rows, columns = tl.arange(0, C)[:, None], tl.arange(0, C)
    # Row r of the result needs the rows above it only.
    result = tl.zeros([C, C], tl.float32)
    for r in range(1, C):
        row = -tl.load(lower + at + r * C + columns, mask=columns < r, other=0.0)
        coefficients = -tl.load(lower + at + r * C + rows, mask=rows < r, other=0.0)
        row += tl.sum(coefficients * result, 0)
        result = tl.where(rows == r, row[None, :], result)
    result += tl.where(rows == columns[None, :], 1.0, 0.0)
    tl.store(inverse + at + rows * C + columns[None, :], result)


class UnitLowerInverse(torch.autograd.Function):
    """Inverse of 1 + strictly lower matrices [..., C, C] float32."""

    @staticmethod
    def forward(ctx: Any, lower: Tensor) -> Tensor:
        """Only the part below the diagonal is read."""
        lower = lower.contiguous()
        size = lower.shape[-1]
        inverse = torch.empty_like(lower)
        _inverse_kernel[(lower.numel() // size**2,)](lower, inverse, C=size)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        """-A^T grad A^T, below the diagonal."""
        (inverse,) = ctx.saved_tensors
        turned = inverse.transpose(-1, -2)
        return -(turned @ grads[0] @ turned).tril(-1)
