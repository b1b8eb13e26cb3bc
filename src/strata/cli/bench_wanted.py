"""What ``strata bench`` is asked for, and what that means on a processor and on a card."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from strata.engine.bench_card import CardPlan
from strata.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

PROMPT_TOKENS = 512
# On a card, as far as the model's context reaches.
CARD_PROMPTS = (512, 4096, 16384, 32768)
CARD_CONTEXT = 4096


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured."""

    prompt_tokens: int
    decode_tokens: int
    rounds: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """The command's options, None where nothing was said."""

    prompt_tokens: int | None
    decode_tokens: int
    rounds: int
    text: Path | None
    prompts: tuple[int, ...] | None
    contexts: tuple[int, ...] | None
    routing: Path | None = None
    rates: Path | None = None

    @property
    def plan(self) -> Plan:
        """For the processor."""
        return Plan(self.prompt_tokens or PROMPT_TOKENS, self.decode_tokens, self.rounds)

    def card_plan(self, context_len: int) -> CardPlan:
        """For a card, by the length of the model's own context."""
        lengths = self.prompts
        if lengths is None and self.prompt_tokens is not None:
            lengths = (self.prompt_tokens,)
        if lengths is None:
            room = context_len - self.decode_tokens - 1
            lengths = tuple(size for size in CARD_PROMPTS if size <= room) or (max(1, room),)
        contexts = self.contexts
        if contexts is None:
            contexts = (CARD_CONTEXT if context_len >= 2 * CARD_CONTEXT else context_len // 2,)
        return CardPlan(lengths, contexts, decode_tokens=self.decode_tokens, rounds=self.rounds)


def sizes_of(flag: str, text: str | None) -> tuple[int, ...] | None:
    """Numbers of tokens between commas; None where the flag was not given.

    Raises:
        SettingsError: something else.
    """
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise SettingsError(f"{flag} cannot use {text!r}.\n  Try: {flag} 512,4096")
    return tuple(int(part) for part in parts)
