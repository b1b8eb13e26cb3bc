"""Bfloat16 weights of a run in a few small files, to be carried between machines.

Exponents of trained weights repeat, their mantissas do not: the high bytes of all weights are
compressed together, the low bytes are stored as they are. About 11 bits a weight.
"""

from __future__ import annotations

import json
import lzma
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from pathlib import Path

PART_BYTES = 15_500_000
_TABLE = "weights.json"
_COMPRESSION = [{"id": lzma.FILTER_LZMA2, "preset": 1}]


def write_weights(state: dict[str, Tensor], folder: Path) -> list[Path]:
    """Writes ``weights.json`` and ``weights-N.bin``; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(state)
    shapes = {name: list(state[name].shape) for name in names}
    flat = torch.cat([state[name].detach().to("cpu", torch.bfloat16).flatten() for name in names])
    raw = flat.view(torch.uint8).numpy().reshape(-1, 2)
    high = lzma.compress(raw[:, 1].tobytes(), format=lzma.FORMAT_RAW, filters=_COMPRESSION)
    stored = high + raw[:, 0].tobytes()
    parts = [stored[i : i + PART_BYTES] for i in range(0, len(stored), PART_BYTES)]
    # The table goes first and comes last: parts of two runs are never taken for one.
    (folder / _TABLE).unlink(missing_ok=True)
    paths = [folder / f"weights-{number}.bin" for number in range(len(parts))]
    for path, part in zip(paths, parts, strict=True):
        path.write_bytes(part)
    table = {"shapes": shapes, "high_bytes": len(high), "parts": len(parts)}
    (folder / _TABLE).write_text(json.dumps(table), encoding="utf-8")
    return [folder / _TABLE, *paths]


def read_weights(folder: Path) -> dict[str, Tensor]:
    """What ``write_weights`` wrote, bfloat16."""
    table = json.loads((folder / _TABLE).read_text(encoding="utf-8"))
    parts = [folder / f"weights-{number}.bin" for number in range(table["parts"])]
    stored = b"".join(path.read_bytes() for path in parts)
    size = table["high_bytes"]
    high = lzma.decompress(stored[:size], format=lzma.FORMAT_RAW, filters=_COMPRESSION)
    raw = np.empty((len(high), 2), np.uint8)
    raw[:, 1] = np.frombuffer(high, np.uint8)
    raw[:, 0] = np.frombuffer(stored[size:], np.uint8)
    flat = torch.from_numpy(raw).view(torch.bfloat16).flatten()
    state, start = {}, 0
    for name, shape in table["shapes"].items():
        count = int(np.prod(shape))
        state[name] = flat[start : start + count].reshape(shape).clone()
        start += count
    return state
