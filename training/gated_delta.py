"""The gated delta rule over whole sequences, differentiable; the maths of ``strata.reference``.

Owns the chunked form in PyTorch and the choice of flash-linear-attention's kernels for it.
"""

from __future__ import annotations

import torch
from torch import Tensor

try:
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule as _fla_chunked
except ImportError:  # the processor, or a machine without it
    _fla_chunked = None

HAS_FLA = _fla_chunked is not None
CHUNK = 64


def chunked(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
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

    def chunks(a: Tensor) -> Tensor:
        """[B, H, T / C, C, ...] float32."""
        a = a.float().view(batch, length // CHUNK, CHUNK, heads, -1)
        return a.permute(0, 3, 1, 2, 4)

    q, k, v, beta = chunks(q) * dim**-0.5, chunks(k), chunks(v), chunks(beta)
    total = chunks(log_decay).squeeze(-1).cumsum(-1)  # G
    not_after = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    exponent = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(~not_after, -torch.inf)
    decay = exponent.exp()
    from_start = total.exp().unsqueeze(-1)
    before = (beta * (k @ k.transpose(-1, -2)) * decay).tril(-1)
    system = before + torch.eye(CHUNK, device=q.device)
    right = torch.cat([beta * v, beta * from_start * k], -1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    values, keys = solved.split([v.shape[-1], dim], -1)
    inside = (q @ k.transpose(-1, -2)) * decay
    reading = q * from_start
    to_end = (total[..., -1:] - total).exp().unsqueeze(-1)
    leaving = (k * to_end).transpose(-1, -2)
    kept = from_start[..., -1:, :]

    memory = q.new_zeros(batch, heads, dim, v.shape[-1])
    outputs = []
    for n in range(length // CHUNK):
        corrections = values[:, :, n] - keys[:, :, n] @ memory
        outputs.append(reading[:, :, n] @ memory + inside[:, :, n] @ corrections)
        memory = kept[:, :, n] * memory + leaving[:, :, n] @ corrections
    out = torch.stack(outputs, 2)
    return out.permute(0, 2, 3, 1, 4).reshape(batch, length, heads, -1)


@torch.compiler.disable
def fla_chunked(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
    """``chunked`` by flash-linear-attention's Triton kernels, bfloat16 products."""
    out, _ = _fla_chunked(q, k, v, g=log_decay, beta=beta, output_final_state=False)
    return out


def gated_delta(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
    """``chunked``, by the fastest means on this device; bfloat16 in means bfloat16 products."""
    if HAS_FLA and q.is_cuda and q.dtype == torch.bfloat16:
        return fla_chunked(q, k, v, log_decay.float(), beta)
    return chunked(q, k, v, log_decay, beta)
