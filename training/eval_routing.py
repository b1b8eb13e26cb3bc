"""How a cache of experts would fare: hits of a least-recently-used one, and shares of use.

Owns the counting over expert ids of tokens in order; where the ids come from is ``eval_text``.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

CACHE_SHARES = (0.12, 0.25, 0.5)


@dataclass(frozen=True, slots=True)
class LayerRouting:
    """One layer's experts over a text.

    Attributes:
        hit_shares: by share of the experts that the cache holds, hits of all look-ups.
        use_shares: by share of the experts, the part of all uses that the most used of that
            number have. A router without favourites gives the share itself.
        most_used: the part of all uses that the most used expert has.
        num_unused: experts that no token chose.
    """

    layer: int
    hit_shares: dict[str, float]
    use_shares: dict[str, float]
    most_used: float
    num_unused: int

    def as_dict(self) -> dict[str, Any]:
        """For the JSON file."""
        return asdict(self)


def cache_slots(share: float, num_experts: int) -> int:
    """Experts that a cache of this share holds, at least one."""
    return max(1, round(share * num_experts))


def lru_hits(expert_ids: NDArray[np.integer[Any]], num_slots: int) -> int:
    """Look-ups [T, K], token by token and in a token as listed, that find their expert.

    The cache begins empty; a miss takes the place of the expert not used for longest.
    """
    held: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for expert in expert_ids.reshape(-1).tolist():
        if expert in held:
            hits += 1
            held.move_to_end(expert)
            continue
        if len(held) == num_slots:
            held.popitem(last=False)
        held[expert] = None
    return hits


def layer_routing(
    layer: int, expert_ids: NDArray[np.integer[Any]], num_experts: int
) -> LayerRouting:
    """Statistics of one layer's expert ids [T, K]."""
    num_uses = expert_ids.size
    uses = np.sort(np.bincount(expert_ids.reshape(-1), minlength=num_experts))[::-1]
    slots = {f"{100 * share:.0f} %": cache_slots(share, num_experts) for share in CACHE_SHARES}
    return LayerRouting(
        layer,
        hit_shares={name: lru_hits(expert_ids, num) / num_uses for name, num in slots.items()},
        use_shares={name: float(uses[:num].sum() / num_uses) for name, num in slots.items()},
        most_used=float(uses[0] / num_uses),
        num_unused=int((uses == 0).sum()),
    )


def routing_table(expert_ids: NDArray[np.integer[Any]], num_experts: int) -> list[LayerRouting]:
    """Statistics of every layer. expert_ids: [L, T, K]."""
    return [layer_routing(layer, ids, num_experts) for layer, ids in enumerate(expert_ids)]
