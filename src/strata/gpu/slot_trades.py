"""What windows and prompts asked for, put to the policy; who is meant to be where changes as told.

Owns when a policy is asked and when its answer is left alone. Moves no bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from strata.tiers.policy_table import make_policy
from strata.tiers.replay import carry_out

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from strata.gpu.slot_table import SlotTable
    from strata.tiers.policies import Admission, Policy
    from strata.tiers.policy_table import PolicyOptions
    from strata.tiers.slots import Residency

    Ints = NDArray[np.int64]

# Experts that are brought in beside one window, however many a prompt left to be brought: more
# would take the link from what the window needs.
MOVES_BESIDE = 64


class SlotTrades:
    """The trades of one model.

    Args:
        residency: who is meant to be where; changed here.
        table: who is where.
        name: of the policy.
        options: of it.
    """

    def __init__(
        self, residency: Residency, table: SlotTable, name: str, options: PolicyOptions | None
    ) -> None:
        self._residency, self._table = residency, table
        self._policy: Policy = make_policy(name, residency, options)

    def change(self, name: str, options: PolicyOptions | None) -> None:
        """Another policy, which knows nothing yet.

        Raises:
            SettingsError: there is no such policy.
        """
        self._policy = make_policy(name, self._residency, options)

    @property
    def heat(self) -> Ints:
        """[L, E] what each expert is worth."""
        return self._policy.heat()

    def of_window(
        self, ids: Ints, num_kept: int, is_whole: Sequence[bool], num_left: Ints | None
    ) -> None:
        """A window was accepted.

        Args:
            ids: [L, T, K] what it asked for.
            num_kept: of its rows.
            is_whole: layers whose experts all have slots.
            num_left: [L] experts it has left in slots itself: of these layers a policy learns only.
        """
        is_open, policy = self._is_open, self._policy
        is_done = np.zeros(len(ids), bool) if num_left is None else num_left > 0
        for layer, is_no_matter in enumerate(is_whole):
            if not is_no_matter:
                asked = policy.ask(layer, ids[layer], is_prompt=False)
                self._carry_out(asked if is_open else (), is_done)
        settled = policy.settle(num_kept)
        self._carry_out(settled if is_open else (), is_done)

    def of_prompt(self, ids: Ints, is_whole: Sequence[bool]) -> None:
        """A prompt has been read: the best of what it asked for is left in the slots.

        Args:
            ids: [L, T, K] what its last rows asked for.
            is_whole: as above.
        """
        is_open, policy = self._is_open, self._policy
        for layer, is_no_matter in enumerate(is_whole):
            if not is_no_matter:
                asked = policy.ask(layer, ids[layer], is_prompt=True)
                carry_out(self._residency, asked if is_open else ())
        settled = policy.settle(0)
        carry_out(self._residency, settled if is_open else ())

    def _carry_out(self, admissions: Iterable[Admission], is_done: NDArray[np.bool_]) -> None:
        """Those of layers that have not done for themselves."""
        num_experts = self._residency.layout.num_experts
        carry_out(
            self._residency, (one for one in admissions if not is_done[one.key // num_experts])
        )

    @property
    def _is_open(self) -> bool:
        """Whether slots may change hands: while many are on their way a policy only learns."""
        return len(self._table.wanting()) < MOVES_BESIDE
