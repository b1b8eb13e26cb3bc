"""What several layers are made of: norms, products, rotation, segments."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

# What a block adds to the streams at first, as a share of its input.
BRANCH_GAIN = 0.3


@dataclass(slots=True)
class Segments:
    """Documents of a batch of rows. All begin at multiples of the index block.

    Attributes:
        offset: [B, T] int64, tokens since the beginning of the document.
        visible: [B, 1, T, T] bool, query row sees key column.
        index_queries: [B, Q] int64, rows for which the indexer is trained.
        cos: [T, rope dim / 2] float32.
        sin: the same.
        is_sparse: attention sees only the selected cells.
    """

    offset: Tensor
    visible: Tensor
    index_queries: Tensor
    cos: Tensor
    sin: Tensor
    is_sparse: bool


class Norm(nn.Module):
    """RMS norm over groups of ``group`` values, gamma 1 + w."""

    def __init__(self, dim: int, group: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim))
        self._group = group
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., dim] to the same, in the dtype of x."""
        grouped = x.float().unflatten(-1, (-1, self._group))
        scale = torch.rsqrt(grouped.square().mean(-1, keepdim=True) + self._eps)
        return ((grouped * scale).flatten(-2) * (1 + self.weight)).to(x.dtype)


def linear(inputs: int, outputs: int, gain: float = 1.0) -> nn.Linear:
    """A product without bias; rows of length about ``gain``."""
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=gain * inputs**-0.5)
    return layer


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The first 2 * pairs values of every head turned: [B, T, heads, width]."""
    pairs = cos.shape[-1]
    first, second, rest = x.split([pairs, pairs, x.shape[-1] - 2 * pairs], -1)
    c, s = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)
    return torch.cat([first * c - second * s, second * c + first * s, rest], -1)
