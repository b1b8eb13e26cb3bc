"""Speed of one model on this machine, measured through the session protocol.

Owns what is measured and how. Does not print, and knows no other engine (``engine.rival`` does).
"""

from __future__ import annotations

import itertools
import resource
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from strata.engine.conversation import Conversation
from strata.engine.conversation_points import Keeping
from strata.engine.picks import picks_of
from strata.engine.sampler import SamplingParams
from strata.engine.step import DraftCounts, advance, drafts_of

_STATUS = Path("/proc/self/status")

if TYPE_CHECKING:
    from collections.abc import Sequence

    from strata.engine.session import OnProgress, Session, Tokens


@dataclass(frozen=True, slots=True)
class Measurement:
    """One round: a prompt read, then tokens decoded. Times in seconds.

    Drafts are counted by place in the window, as in ``Timings``.
    """

    prompt_tokens: int
    prompt_s: float
    decode_tokens: int
    decode_s: float
    ttft_s: float
    drafts_proposed: tuple[int, ...] = ()
    drafts_accepted: tuple[int, ...] = ()

    @property
    def prompt_tokens_per_s(self) -> float:
        """Speed of reading."""
        return self.prompt_tokens / self.prompt_s

    @property
    def decode_tokens_per_s(self) -> float:
        """Speed of writing."""
        return self.decode_tokens / self.decode_s

    def as_dict(self) -> dict[str, object]:
        """Fields by name, for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Medians:
    """Medians over rounds."""

    prompt_tokens_per_s: float
    decode_tokens_per_s: float
    ttft_s: float

    @classmethod
    def of(cls, rounds: Sequence[Measurement]) -> Medians:
        """Medians of at least one round."""
        return cls(
            statistics.median(item.prompt_tokens_per_s for item in rounds),
            statistics.median(item.decode_tokens_per_s for item in rounds),
            statistics.median(item.ttft_s for item in rounds),
        )


def draft_counts(rounds: Sequence[Measurement]) -> list[dict[str, int]]:
    """Drafts of all rounds by place in the window, the first draft first."""
    proposed, accepted = (
        [sum(counts) for counts in itertools.zip_longest(*of_rounds, fillvalue=0)]
        for of_rounds in (
            [item.drafts_proposed for item in rounds],
            [item.drafts_accepted for item in rounds],
        )
    )
    return [
        {"proposed": offered, "accepted": kept}
        for offered, kept in zip(proposed, accepted, strict=True)
    ]


def random_prompt(vocab_size: int, num_tokens: int, seed: int) -> Tokens:
    """Token ids [num_tokens] int32, uniform over the vocabulary; the same for the same seed."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, vocab_size, num_tokens, dtype=np.int32)


def measure(
    session: Session,
    prompt: Tokens,
    num_decode: int,
    *,
    draft_tokens: int = 0,
    on_progress: OnProgress | None = None,
) -> Measurement:
    """One round on a session that is reset first; tokens are picked greedily.

    Args:
        session: must hold the prompt and ``num_decode`` tokens.
        prompt: [N] int32.
        num_decode: tokens decoded after the first one, which the prompt gives.
        draft_tokens: drafts of the draft layer in one window, if the session has one.
        on_progress: called with (tokens done, prompt and decode tokens).
    """
    total = len(prompt) + num_decode

    def report(done: int, _of: int) -> None:
        if on_progress is not None:
            on_progress(done, total)

    def propose(so_far: Sequence[int], num_wanted: int) -> Sequence[int]:
        # The last window has no room for drafts that nobody wants.
        return drafts(so_far, min(num_wanted, end - len(so_far) - 1))

    picks = picks_of(SamplingParams(temperature=0.0), None, session.picker)
    drafts = drafts_of(session.drafter, draft_tokens)
    counts = DraftCounts()
    session.reset()
    conversation = Conversation(session, Keeping(max_checkpoints=0))
    tokens: list[int] = prompt.tolist()
    end = len(tokens) + num_decode + 1
    started_s = time.perf_counter()
    logits = conversation.read(prompt, on_progress=report)
    prompt_s = time.perf_counter() - started_s
    assert logits is not None  # noqa: S101 - nothing stops the reading
    tokens.append(picks.after(logits, tokens).id)
    first_s = time.perf_counter()
    while len(tokens) < end:
        picked = advance(conversation, tokens, propose=propose, picks=picks, counts=counts)
        tokens += [token.id for token in picked]
        report(len(tokens) - 1, total)
    return Measurement(
        prompt_tokens=len(prompt),
        prompt_s=prompt_s,
        decode_tokens=num_decode,
        decode_s=time.perf_counter() - first_s,
        ttft_s=first_s - started_s,
        drafts_proposed=tuple(counts.proposed),
        drafts_accepted=tuple(counts.accepted),
    )


def busy_share(seconds: float, stat: Path = Path("/proc/stat")) -> float | None:
    """Share of all processors that work on something meanwhile; this thread sleeps.

    None where the system does not say. Speeds measured on a busy machine mean little.
    """
    if not stat.exists():
        return None
    before = _processor_ticks(stat)
    time.sleep(seconds)
    after = _processor_ticks(stat)
    total = sum(after) - sum(before)
    # The fourth and fifth figures are idle time, without and with reads from disk under way.
    idle = sum(after[3:5]) - sum(before[3:5])
    return (total - idle) / total if total else None


def _processor_ticks(stat: Path) -> list[int]:
    return [int(figure) for figure in stat.read_text().splitlines()[0].split()[1:9]]


def peak_memory_bytes() -> int:
    """Most memory this process has held in RAM so far."""
    # getrusage would count the parent's pages too, in a process that was started by a large one.
    if _STATUS.exists():
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
