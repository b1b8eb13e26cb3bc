"""transformers as the truth: in float64 where it names float32, with ties made to order."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import Qwen4ExpForCausalLM


@contextlib.contextmanager
def widened() -> Iterator[None]:
    """Lets transformers compute in float64 where its code asks for float32 by name."""
    saved = torch.Tensor.float, torch.float32, torch.float, torch.get_default_dtype()
    torch.Tensor.float = torch.Tensor.double
    torch.float32 = torch.float = torch.float64
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.Tensor.float, torch.float32, torch.float, default = saved
        torch.set_default_dtype(default)


@contextlib.contextmanager
def stable_block_choice() -> Iterator[None]:
    """Makes ``Tensor.topk`` prefer the lower index among equals, which torch leaves open.

    Blocks whose index heads all score negative tie at zero, so small models meet this often.
    """
    plain = torch.Tensor.topk

    def topk(self: torch.Tensor, k: int, dim: int = -1) -> SimpleNamespace:
        values, indices = torch.sort(self, dim=dim, descending=True, stable=True)
        return SimpleNamespace(values=values.narrow(dim, 0, k), indices=indices.narrow(dim, 0, k))

    torch.Tensor.topk = topk
    try:
        yield
    finally:
        torch.Tensor.topk = plain


class HfRun:
    """A conversation in transformers, fed piece by piece through its cache."""

    def __init__(self, model: Qwen4ExpForCausalLM) -> None:
        self._model = model
        self._cache: Any = None

    def forward(self, tokens: np.ndarray, positions: np.ndarray | None = None) -> np.ndarray:
        """Logits [T, V] of the next tokens; positions [T, 3] or None to count on."""
        is_wide = self._model.dtype == torch.float64
        with (
            torch.no_grad(),
            stable_block_choice(),
            widened() if is_wide else contextlib.nullcontext(),
        ):
            ids = torch.from_numpy(np.asarray(tokens, np.int64))[None]
            where = None if positions is None else torch.from_numpy(positions.T.copy())[:, None]
            out = self._model(ids, cache=self._cache, use_cache=True, position_ids=where)
        self._cache = out.cache
        return out.logits[0].numpy()
