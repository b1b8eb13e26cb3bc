"""Room for results, poisoned or zero, and comparison of codes field by field."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

import torch

from strata.gpu.kernels.quantize import empty_codes

if TYPE_CHECKING:
    from strata.gpu.kernels.quantize import Codes


def zero_codes(num_rows: int, inner: int, device: str) -> Codes:
    """Room for codes, all zero, as whoever writes only the blocks that exist expects it."""
    codes = empty_codes(num_rows, inner, device)
    for field in fields(codes):
        getattr(codes, field.name).zero_()
    return codes


def assert_equal_codes(codes: Codes, expected: Codes) -> None:
    """Every field has the same values."""
    for field in fields(codes):
        assert torch.equal(getattr(codes, field.name), getattr(expected, field.name)), field.name


def poison(device: str, *shape: int) -> torch.Tensor:
    """float32 NaN: a place that is read or left out shows."""
    return torch.full(shape, torch.nan, device=device)
