"""How experts without a slot are dealt with: what can be wished for. Checked before any packing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from strata.gpu.stream_plan import NUM_STREAMED
from strata.tiers.policy_table import DEFAULT_POLICY, check_policy
from strata.tiers.share import NUM_STAGES, fixed_counts

if TYPE_CHECKING:
    from strata.gpu.loan_plan import LoanRules
    from strata.tiers.expert_profile import ExpertProfile
    from strata.tiers.policy_table import PolicyOptions

# A layer takes thousandths of a second even where all of it is computed by a slow processor.
LIMIT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """How experts without a slot are dealt with.

    Attributes:
        policy: a name of ``tiers.policy_table``.
        policy_options: of that policy.
        staged_share: part of a layer's distinct misses that is copied and computed on the card, the
            rest being computed by the host; None for what ends both at the same time.
        num_stages: staging slots; most experts of a layer that are copied for a window.
        keeps_copied: what a window copies for itself stays, in slots of those worth least; no more
            is copied than there are such slots.
        num_streamed: experts without a slot of a step of a prompt's products.
        loans: what prompts borrow of the slots, which all layers share then; None for nothing.
        limit_seconds: how long the host may take for a layer.
        lock_bytes: most memory of the host that is page-locked; None for all of it.
        profile: whose best keys are in slots at first; None for no preference.
        has_full_check: compare every slot with the host's memory at the start, not only the first.

    Raises:
        SettingsError: there is no such policy, or it is not a share.
    """

    policy: str = DEFAULT_POLICY
    policy_options: PolicyOptions | None = None
    staged_share: float | None = 0.0
    num_stages: int = NUM_STAGES
    keeps_copied: bool = False
    num_streamed: int = NUM_STREAMED
    loans: LoanRules | None = None
    limit_seconds: float = LIMIT_SECONDS
    lock_bytes: int | None = None
    profile: ExpertProfile | None = None
    has_full_check: bool = False

    def __post_init__(self) -> None:
        check_policy(self.policy)
        if self.staged_share is not None:
            fixed_counts(0, self.staged_share)
