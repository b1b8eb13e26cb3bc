"""The gated delta rule over whole sequences, differentiable; the maths of ``strata.reference``.

Owns the chunked form: batched products around a walk from chunk to chunk and the inverse of each
chunk's triangular system, which are Triton kernels on a GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor

try:
    from training.gated_delta_kernels import UnitLowerInverse, Walk
except ImportError:  # no Triton: the processor
    UnitLowerInverse = Walk = None  # type: ignore[assignment,misc]

CHUNK = 64


def _inverse(lower: Tensor) -> Tensor:
    """Inverse of 1 + strictly lower matrices [..., C, C]."""
    if lower.is_cuda:
        inverse: Tensor = UnitLowerInverse.apply(lower)
        return inverse
    one = torch.eye(lower.shape[-1], device=lower.device, dtype=lower.dtype)
    return torch.linalg.solve_triangular(lower + one, one, upper=False, unitriangular=True)


def _walk(values: Tensor, keys: Tensor, leaving: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """States before each chunk [P, N, Dk, Dv] and corrections [P, N, C, Dv]; see ``Walk``."""
    if values.is_cuda:
        result: tuple[Tensor, Tensor] = Walk.apply(values, keys, leaving, kept)
        return result
    state = values.new_zeros(values.shape[0], keys.shape[-1], values.shape[-1])
    states, corrections = [], []
    for n in range(values.shape[1]):
        states.append(state)
        corrections.append(values[:, n] - keys[:, n] @ state)
        state = kept[:, n, None, None] * state + leaving[:, n].transpose(1, 2) @ corrections[-1]
    return torch.stack(states, 1), torch.stack(corrections, 1)


def gated_delta(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
    """Outputs [B, T, H, Dv] from an empty memory, float32; T a multiple of 64.

    Args:
        q: [B, T, H, Dk], L2-normalised; key heads already repeated for the value heads.
        k: [B, T, H, Dk], L2-normalised.
        v: [B, T, H, Dv].
        log_decay: [B, T, H], at most 0; a large negative one forgets everything before.
        beta: [B, T, H], in 0..1.

    Source: the UT transform of Yang et al. 2024 (arXiv 2412.06464); see
    ``strata.reference.gated_delta.chunked``.
    """
    batch, length, heads, dim = q.shape
    with torch.autocast(q.device.type, enabled=False):

        def chunks(a: Tensor) -> Tensor:
            """[B H, T / C, C, ...] float32."""
            a = a.float().view(batch, length // CHUNK, CHUNK, heads, -1).permute(0, 3, 1, 2, 4)
            return a.flatten(0, 1)

        q, k, v, beta = chunks(q) * dim**-0.5, chunks(k), chunks(v), chunks(beta)
        total = chunks(log_decay).squeeze(-1).cumsum(-1)  # G
        not_after = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
        exponent = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(~not_after, -torch.inf)
        decay = exponent.exp()
        from_start = total.exp().unsqueeze(-1)
        solve = _inverse((beta * (k @ k.transpose(-1, -2)) * decay).tril(-1))
        to_end = (total[..., -1:] - total).exp().unsqueeze(-1)
        states, corrections = _walk(
            solve @ (beta * v), solve @ (beta * from_start * k), k * to_end, from_start[..., -1, 0]
        )
        inside = (q @ k.transpose(-1, -2)) * decay
        out = (q * from_start) @ states + inside @ corrections
        return out.view(batch, heads, length, -1).transpose(1, 2)
