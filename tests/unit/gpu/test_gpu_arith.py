"""The kernels' single operations, bit for bit against ``reference.expert_numerics``."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from strata.gpu.kernels import arith  # noqa: E402
from strata.reference import expert_numerics  # noqa: E402

BLOCK = 1024


@triton.jit
def _unary_kernel(x_ptr, exp_ptr, sigmoid_ptr, silu_ptr, rint_ptr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    tl.store(exp_ptr + offs, arith.exp(x))
    tl.store(sigmoid_ptr + offs, arith.sigmoid(x))
    tl.store(silu_ptr + offs, arith.silu(x))
    tl.store(rint_ptr + offs, arith.rint(x))


@triton.jit
def _dot4_kernel(a_ptr, b_ptr, acc_ptr, out_ptr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    dot = arith.dot4(tl.load(a_ptr + offs), tl.load(b_ptr + offs), tl.load(acc_ptr + offs))
    tl.store(out_ptr + offs, dot)


def test_exp_sigmoid_silu_and_rint_have_the_reference_bits(device: str) -> None:
    rng = np.random.default_rng()
    x = np.concatenate(
        [
            rng.normal(0, 20, 15 * BLOCK).astype(np.float32),
            np.linspace(-105, 89, BLOCK - 8, dtype=np.float32),
            np.array([0.0, -0.0, -104.0, 88.7, 1e30, -1e30, 0.5, 2.5], np.float32),
        ]
    )
    values = torch.from_numpy(x).to(device)
    outs = [torch.full_like(values, float("nan")) for _ in range(4)]
    _unary_kernel[(len(x) // BLOCK,)](values, *outs, BLOCK=BLOCK, **arith.LAUNCH)
    references = (
        expert_numerics.exp_f32(x),
        expert_numerics.sigmoid_f32(x),
        expert_numerics.silu_f32(x),
        np.rint(np.where(abs(x) < 1e6, x, 0)) + np.float32(0),
    )
    for found, expected in zip(outs, references, strict=True):
        is_tested = slice(None) if expected is not references[3] else abs(x) < 1e6
        found_bits = found.cpu().numpy()[is_tested].view(np.uint32)
        assert np.array_equal(found_bits, expected[is_tested].view(np.uint32))


def test_a_nan_stays_a_nan(device: str) -> None:
    values = torch.full((BLOCK,), float("nan"), device=device)
    outs = [torch.zeros_like(values) for _ in range(4)]
    _unary_kernel[(1,)](values, *outs, BLOCK=BLOCK, **arith.LAUNCH)
    assert all(out.isnan().all() for out in outs)


def test_dot4_is_the_sum_of_four_signed_products(device: str) -> None:
    rng = np.random.default_rng()
    a, b = rng.integers(-128, 128, (2, BLOCK, 4)).astype(np.int8)
    acc = rng.integers(-(2**20), 2**20, BLOCK).astype(np.int32)
    expected = acc + (a.astype(np.int32) * b.astype(np.int32)).sum(axis=1)
    words = [torch.from_numpy(v.view(np.int32).reshape(-1)).to(device) for v in (a, b)]
    out = torch.full((BLOCK,), -1, dtype=torch.int32, device=device)
    _dot4_kernel[(1,)](*words, torch.from_numpy(acc).to(device), out, BLOCK=BLOCK, **arith.LAUNCH)
    assert np.array_equal(out.cpu().numpy(), expected)
