"""Expanded weights against the integers and scales of ``reference.block_terms``."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
from tests.unit.gpu.prompt_inputs import (  # noqa: E402
    INNERS,
    expanded_room,
    pack_experts,
    poisoned_codes,
    random_experts,
)

from strata.formats.block_formats import FORMATS  # noqa: E402
from strata.gpu.kernels.expand import SINGLE, SPLIT, expand  # noqa: E402
from strata.gpu.kernels.prompt_codes import quantize_prompt  # noqa: E402
from strata.gpu.packing_fields import BLOCK_FORMATS  # noqa: E402
from strata.reference import expert_numerics  # noqa: E402
from strata.reference.block_terms import block_terms  # noqa: E402


def _whole_codes(found) -> np.ndarray:
    """[M, R, inner] integers that the planes of an expanded matrix stand for."""
    planes = found.codes.cpu().numpy().astype(np.int32).transpose(0, 1, 3, 2, 4)
    planes = planes.reshape(*planes.shape[:3], -1)
    if found.kind == SINGLE:
        return planes[:, 0]
    if found.kind == SPLIT:
        assert not planes[:, 0].reshape(-1, 2, 16)[:, 1].any()
        assert not planes[:, 1].reshape(-1, 2, 16)[:, 0].any()
        return planes[:, 0] + planes[:, 1]
    return 256 * planes[:, 0] + planes[:, 1]


def _by_row(factors) -> np.ndarray:
    """[M, R, B * terms], the order of ``BlockTerms``, from [M, terms, B, R]."""
    moved = factors.cpu().numpy().transpose(0, 3, 2, 1)
    return moved.reshape(*moved.shape[:2], -1)


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_expanded_weights_are_the_terms_of_the_reference(name: str, device: str) -> None:
    inner, num_rows = INNERS[FORMATS[name].block_size], 11
    raw = random_experts(name, 2, num_rows, inner)
    found = expanded_room(name, 2, num_rows, inner, device)
    expand(pack_experts(name, raw, inner, device), found)
    for matrix, rows in enumerate(raw):
        terms = block_terms(name, rows)
        codes = terms.codes.astype(np.int32)
        if terms.sub_scales is not None:
            codes = codes * np.repeat(terms.sub_scales, 16, axis=1)
        sign = -1 if name == "Q3_K" else 1
        assert np.array_equal(sign * _whole_codes(found)[matrix], codes)
        # A scale repeated for integer scales of 16 weights stands once for 32 here.
        scales = terms.scales.reshape(num_rows, inner // 32, -1)
        scales = scales if found.kind == SPLIT else scales[:, :, :1]
        assert np.array_equal(sign * _by_row(found.scales)[matrix], scales.reshape(num_rows, -1))
        if terms.min_scales is not None:
            assert np.array_equal(_by_row(found.minima)[matrix], terms.min_scales)
        else:
            assert found.num_minima == 0


@pytest.mark.parametrize("inner", [32, 320])
def test_codes_are_those_of_the_reference(inner: int, device: str) -> None:
    x = np.random.default_rng().normal(0, 4, (5, inner)).astype(np.float32)
    x[1, :32] = 0
    x[2, :32] = 1e-43
    found = poisoned_codes(5, inner, device)
    bad = torch.zeros(1, dtype=torch.int32, device=device)
    quantize_prompt(torch.from_numpy(x).to(device), found, bad)
    codes, scales = expert_numerics.quantize_activations(x, "test")
    assert np.array_equal(found.codes.cpu().numpy(), codes)
    assert np.array_equal(found.scales.cpu().numpy(), scales)
    for field, width in ((found.scaled_sums, 32), (found.scaled_half_sums, 16)):
        sums = codes.reshape(5, -1, width).sum(axis=-1, dtype=np.int32).astype(np.float32)
        expected = np.repeat(scales, 32 // width, axis=1) * sums
        assert np.array_equal(field.cpu().numpy(), expected)
    assert bad.item() == 0


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_a_value_that_is_no_number_is_told(value: float, device: str) -> None:
    x = torch.zeros(3, 64, device=device)
    x[2, 40] = value
    bad = torch.zeros(1, dtype=torch.int32, device=device)
    quantize_prompt(x, poisoned_codes(3, 64, device), bad)
    assert bad.item() == 1
