"""What goes into a request and what comes out of it. Plain data.

Owns the finish reasons, the timings and the events. Knows no model and no thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from strata.engine.sampler import Sampled
    from strata.tiers.counters import TierCounts

Message = Mapping[str, object]  # {"role": "user", "content": "..."} and what the template knows
Prompt = str | Sequence[Message] | Sequence[int] | NDArray[np.int32]

# An answer no one bounded ends here, or where the context ends.
DEFAULT_MAX_TOKENS = 512


class FinishReason(StrEnum):
    """Why an answer ended."""

    STOP = "stop"  # an end token, or one of the request's stop texts
    LENGTH = "length"  # max_tokens, or the context is full
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Timings:
    """What one request cost so far. Seconds of its own turns, and counts of tokens."""

    prompt_tokens: int
    reused_tokens: int  # of the prompt; already read by an earlier request
    generated_tokens: int
    prompt_s: float  # reading the rest of the prompt
    decode_s: float  # from the first token to the last
    ttft_s: float  # from the call to the first token, others' turns included
    # By place in the window, the first draft first: windows that had a draft there, and in how
    # many of them it was kept.
    drafts_proposed: tuple[int, ...] = ()
    drafts_accepted: tuple[int, ...] = ()
    experts: TierCounts | None = None  # where they were found; None where all are in one place

    @property
    def prompt_tokens_per_s(self) -> float:
        """Prompt tokens really read, a second; 0 when none were."""
        num_read = self.prompt_tokens - self.reused_tokens
        return num_read / self.prompt_s if self.prompt_s > 0 else 0.0

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens after the first, a second; 0 below two tokens."""
        if self.generated_tokens < 2 or self.decode_s <= 0:
            return 0.0
        return (self.generated_tokens - 1) / self.decode_s


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One step of an answer.

    ``text`` may be empty while bytes of a character, or the start of a stop text, are held back;
    the texts of all events together are the answer. The last event has a ``finish_reason`` and
    the final ``timings``, and may carry text without tokens; its ``stop_text`` is the stop text
    that ended the answer, if one did. ``logprobs`` has one item for each token when the request
    asked for them.
    """

    request_id: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[Sampled, ...] = ()
    finish_reason: FinishReason | None = None
    timings: Timings | None = None
    stop_text: str | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer."""

    request_id: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    timings: Timings
    logprobs: tuple[Sampled, ...] = ()
