"""Muon for the matrices inside the layers, AdamW for everything else.

Source of Muon: Jordan et al. 2024 (kellerjordan.github.io/posts/muon); of the scale that lets
both share one learning rate: Liu et al. 2025 (arXiv 2502.16982).
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Iterable

# Coefficients of the quintic that brings singular values near one, from the first source.
_QUINTIC = (3.4445, -4.7750, 2.0315)
_STEPS = 5


def orthogonalised(g: Tensor) -> Tensor:
    """The nearest semi-orthogonal matrix to each of a stack, roughly: [n, r, c] bfloat16."""
    a, b, c = _QUINTIC
    x = g.bfloat16()
    is_tall = x.shape[-2] > x.shape[-1]
    if is_tall:
        x = x.transpose(-1, -2)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(_STEPS):
        square = x @ x.transpose(-1, -2)
        x = a * x + (b * square + c * square @ square) @ x
    return x.transpose(-1, -2) if is_tall else x


class Muon:
    """Momentum, orthogonalised; all matrices of one shape in one stack.

    Args:
        parameters: of two or three dimensions; of a stack every matrix is its own.
        momentum: share of the old direction kept.
        weight_decay: times the learning rate, per step.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], momentum: float, weight_decay: float
    ) -> None:
        self._momentum = momentum
        self._decay = weight_decay
        self._groups: dict[tuple[int, int], list[nn.Parameter]] = defaultdict(list)
        for parameter in parameters:
            rows, columns = parameter.shape[-2:]
            self._groups[rows, columns].append(parameter)
        self._buffers = {
            shape: torch.zeros(
                sum(p.numel() // (shape[0] * shape[1]) for p in group), *shape,
                device=group[0].device,
            )
            for shape, group in self._groups.items()
        }  # fmt: skip

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """One update from the gradients."""
        for shape, group in self._groups.items():
            buffer = self._buffers[shape]
            grads = torch.cat([_grad(p).view(-1, *shape) for p in group])
            buffer.lerp_(grads, 1 - self._momentum)
            update = orthogonalised(grads.lerp(buffer, self._momentum)).float()
            scale = 0.2 * max(shape) ** 0.5 * learning_rate
            sizes = [p.numel() // (shape[0] * shape[1]) for p in group]
            flat = [p.view(-1, *shape) for p in group]
            torch._foreach_mul_(flat, 1 - learning_rate * self._decay)
            torch._foreach_add_(flat, list(update.split(sizes)), alpha=-scale)

    def state_dict(self) -> dict[str, Tensor]:
        """Momentum by shape."""
        return {f"{rows}x{columns}": b for (rows, columns), b in self._buffers.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Puts back what ``state_dict`` gave."""
        for (rows, columns), buffer in self._buffers.items():
            buffer.copy_(state[f"{rows}x{columns}"])


def _grad(parameter: nn.Parameter) -> Tensor:
    return parameter.new_zeros(parameter.shape) if parameter.grad is None else parameter.grad


class Optimizer:
    """Both, with one learning rate.

    Args:
        network: whose parameters are trained, but those that want no gradient.
        weight_decay: of the matrices inside the layers.
    """

    def __init__(self, network: nn.Module, weight_decay: float = 0.05) -> None:
        matrices, tables, rest = [], [], []
        for name, parameter in network.named_parameters():
            if not parameter.requires_grad:
                continue
            is_matrix = parameter.ndim >= 2 and "conv1d" not in name
            if is_matrix and ("embed" in name or "lm_head" in name):
                tables.append(parameter)
            elif is_matrix and min(parameter.shape[-2:]) > 16:
                matrices.append(parameter)
            else:
                rest.append(parameter)
        self._muon = Muon(matrices, momentum=0.95, weight_decay=weight_decay)
        is_fused = next(network.parameters()).is_cuda
        self._adam = torch.optim.AdamW(
            [{"params": tables, "scale": 1.5}, {"params": rest, "scale": 1.0}],
            lr=1.0, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0, fused=is_fused,
        )  # fmt: skip

    def step(self, learning_rate: float) -> None:
        """One update of all parameters."""
        for group in self._adam.param_groups:
            group["lr"] = learning_rate * group["scale"]
        self._adam.step()
        self._muon.step(learning_rate)

    def tensors(self) -> dict[str, Tensor]:
        """Everything needed to go on, by name."""
        out = {f"muon.{name}": tensor for name, tensor in self._muon.state_dict().items()}
        for number, parameter in enumerate(self._adam_parameters()):
            for name, value in self._adam.state[parameter].items():
                out[f"adam.{number}.{name}"] = value
        return out

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Puts back what ``tensors`` gave."""
        muon = {n.removeprefix("muon."): t for n, t in tensors.items() if n.startswith("muon.")}
        self._muon.load_state_dict(muon)
        for number, parameter in enumerate(self._adam_parameters()):
            prefix = f"adam.{number}."
            self._adam.state[parameter] = {
                n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)
            }

    def _adam_parameters(self) -> list[nn.Parameter]:
        return [p for group in self._adam.param_groups for p in group["params"]]
