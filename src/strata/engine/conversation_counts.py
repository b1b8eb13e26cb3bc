"""How often conversations were continued, and from where. Numbers only; read from any thread."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class ConversationCounts:
    """Counts since the start. A request that continues nothing is in ``requests`` alone."""

    requests: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    from_live: int = 0
    from_parked: int = 0
    from_disk: int = 0

    def count(self, num_prompt: int, num_reused: int) -> None:
        """A request found so much of its prompt."""
        self.requests += 1
        self.prompt_tokens += num_prompt
        self.reused_tokens += num_reused

    def count_live(self) -> None:
        """It was in the session, or a state of the same conversation was."""
        self.from_live += 1

    def count_parked(self) -> None:
        """It was in memory."""
        self.from_parked += 1

    def count_disk(self) -> None:
        """It was in a file."""
        self.from_disk += 1

    def as_dict(self) -> dict[str, int]:
        """By name."""
        return asdict(self)
