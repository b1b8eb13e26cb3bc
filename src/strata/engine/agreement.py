"""How far two engines agree: divergence of next-token distributions, and of the first choice.

Owns the arithmetic and the reading of one session along given tokens. Knows no other engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from strata.engine.session import Logits, Session, Tokens


@dataclass(frozen=True, slots=True)
class Agreement:
    """Means over positions. Divergence in nats."""

    num_positions: int
    mean_kl: float
    max_kl: float
    argmax_share: float

    @classmethod
    def of(cls, their_logprobs: Logits, our_logits: Logits) -> Agreement:
        """KL(theirs || ours) and the share of equal first choices.

        Args:
            their_logprobs: [N, V] log probabilities; minus infinity is allowed.
            our_logits: [N, V] logits, not normalised.
        """
        theirs = log_softmax(their_logprobs)
        ours = log_softmax(our_logits)
        probs = np.exp(theirs)
        # 0 * log 0 counts as 0: an impossible token costs nothing.
        terms = probs * (np.where(probs > 0, theirs, ours) - ours)
        kl = np.maximum(terms.sum(axis=1), 0.0)
        same = theirs.argmax(axis=1) == ours.argmax(axis=1)
        return cls(len(kl), float(kl.mean()), float(kl.max()), float(same.mean()))


def log_softmax(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    """log softmax of each row [N, V], in float64."""
    exact = logits.astype(np.float64)
    shifted = exact - exact.max(axis=1, keepdims=True)
    total = np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    result: NDArray[np.float64] = shifted - total
    return result


def logits_along(session: Session, prompt: Tokens, answer: Tokens) -> Logits:
    """Logits [N, V] that each of the N tokens of ``answer`` would have been picked from.

    The prompt is read, the answer decoded token by token. The session is reset first.
    """
    session.reset()
    rows = [session.prefill(prompt)]
    for index in range(len(answer) - 1):
        rows.append(session.decode(answer[index : index + 1])[0])
        session.commit(1)
    return np.stack(rows)
