"""Inputs of the tests of prompt products: random experts, room that is poisoned first."""

from __future__ import annotations

import numpy as np
import torch
from tests.unit.reference.stored_rows import random_rows

from strata.gpu.kernels.expand import Expanded, expand, expanded_bytes, expanded_in
from strata.gpu.kernels.prompt_codes import PromptCodes, empty_prompt_codes, quantize_prompt
from strata.gpu.packing import PackedMatrix, pack

INNERS = {32: 608, 64: 320, 256: 512}
"""Weights in a row by block size of the format; the first two end in the middle of a group."""


def random_experts(name: str, num_matrices: int, num_rows: int, inner: int) -> np.ndarray:
    """[M, R, row_bytes] uint8 as a file holds them."""
    seed = int(np.random.default_rng().integers(1 << 30))
    return random_rows(name, num_matrices * num_rows, inner, seed).reshape(
        num_matrices, num_rows, -1
    )


def pack_experts(name: str, raw: np.ndarray, inner: int, device: str) -> PackedMatrix:
    """Matrices packed one by one and laid end to end."""
    packed = [pack(name, torch.from_numpy(rows.copy()).to(device), inner) for rows in raw]
    panels = torch.cat([matrix.panels for matrix in packed])
    return PackedMatrix(name, 8 * len(panels), inner, panels)


def expanded_room(name: str, num_matrices: int, num_rows: int, inner: int, device: str) -> Expanded:
    """Room for expanded matrices, every byte 0xFF: a NaN, or -1."""
    size = expanded_bytes(name, num_matrices, num_rows, inner)
    scratch = torch.full((size,), 255, dtype=torch.uint8, device=device)
    return expanded_in(scratch, name, num_matrices, num_rows, inner)


def poisoned_codes(num_rows: int, inner: int, device: str) -> PromptCodes:
    """Room for codes of a prompt that nobody can have computed."""
    room = empty_prompt_codes(num_rows, inner, device)
    room.codes.fill_(-128)
    for field in (room.scales, room.scaled_sums, room.scaled_half_sums):
        field.fill_(float("nan"))
    return room


def prompt_codes(x: np.ndarray, device: str) -> PromptCodes:
    """Codes of rows [T, inner]."""
    codes = poisoned_codes(*x.shape, device)
    bad = torch.zeros(1, dtype=torch.int32, device=device)
    quantize_prompt(torch.from_numpy(x).to(device), codes, bad)
    assert bad.item() == 0
    return codes


def expanded(name: str, raw: np.ndarray, inner: int, device: str) -> Expanded:
    """Stored matrices [M, R, row_bytes] as the products read them."""
    room = expanded_room(name, len(raw), raw.shape[1], inner, device)
    expand(pack_experts(name, raw, inner, device), room)
    return room
