"""The differentiable delta rule: against the stepwise reference; its Triton kernels against it."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from training import gated_delta

from strata.reference.gated_delta import stepwise

ROWS, LENGTH, HEADS, DIM = 2, 128, 2, 16


def inputs(seed):
    generator = torch.Generator().manual_seed(seed)
    normal = [torch.randn(ROWS, LENGTH, HEADS, DIM, generator=generator) for _ in range(3)]
    q, k = (torch.nn.functional.normalize(a, dim=-1) for a in normal[:2])
    decay = -torch.rand(ROWS, LENGTH, HEADS, generator=generator) * 0.3
    decay[:, 100] = decay[:, 104] = -40.0
    beta = torch.rand(ROWS, LENGTH, HEADS, generator=generator)
    return [a.clone().requires_grad_() for a in (q, k, normal[2], decay, beta)]


def outputs_and_gradients(seed):
    given = inputs(seed)
    out = gated_delta.gated_delta(*given)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(9))
    (out * weight).sum().backward()
    return [out.detach(), *(a.grad for a in given)]


def test_equals_the_stepwise_reference():
    given = inputs(1)
    ours = gated_delta.gated_delta(*given).detach()
    for row in range(ROWS):
        q, k, v, decay, beta = (a[row].detach().double().numpy() for a in given)
        theirs, _ = stepwise(q, k, v, decay, beta, np.zeros((HEADS, DIM, DIM)))
        assert np.abs(ours[row].numpy() - theirs).max() < 1e-5


def test_gradient_is_the_difference_quotient():
    small = [a.detach()[:1, :64, :1, :4].double() for a in inputs(2)[:3]]
    small += [a.detach()[:1, :64, :1].double() for a in inputs(2)[3:]]

    def loss(*given):
        return gated_delta.gated_delta(*given).square().sum()

    given = [a.requires_grad_() for a in small]
    grads = torch.autograd.grad(loss(*given), given)
    for place, grad in enumerate(grads):
        moved = [a.detach().clone() for a in given]
        step = torch.randn(moved[place].shape, generator=torch.Generator().manual_seed(5)).double()
        values = []
        for sign in (1, -1):
            there = list(moved)
            there[place] = moved[place] + sign * 1e-3 * step
            values.append(loss(*there).item())
        slope = (values[0] - values[1]) / 2e-3
        assert slope == pytest.approx((grad * step).sum().item(), rel=2e-2, abs=2e-2)


def check_kernels():
    """Run by the test below in a process whose Triton interprets."""
    from training.gated_delta_kernels import UnitLowerInverse, Walk

    expected = outputs_and_gradients(3)
    gated_delta._inverse = UnitLowerInverse.apply
    gated_delta._walk = Walk.apply
    for ours, theirs in zip(outputs_and_gradients(3), expected, strict=True):
        assert (ours - theirs).norm() < 1e-5 * theirs.norm()


_CHECK = "from tests.unit.training import test_delta_rule as t; t.check_kernels()"


def test_kernels_equal_the_products():
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-c", _CHECK],
        env={"TRITON_INTERPRET": "1", "PYTHONPATH": ".:src", "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
