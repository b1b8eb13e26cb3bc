"""What a synthetic example is, and which instances are kept from training.

Owns the types that the generators make and the trainer, the evaluation and the tests read.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

Message = Mapping[str, Any]
Tool = Mapping[str, Any]

# One instance in this many is never trained on.
HELD_OUT_SHARE = 16


class Split(Enum):
    """Which instances a generator may draw."""

    TRAIN = "train"
    HELD_OUT = "held out"


@dataclass(frozen=True, slots=True)
class Example:
    """One conversation, ending with the assistant's answer.

    Attributes:
        task: name of the generator.
        messages: OpenAI form; ``role``, ``content`` (text), and of the assistant also
            ``reasoning_content`` (text) or ``tool_calls``
            (``[{"function": {"name": str, "arguments": dict}}]``). The last is the assistant's.
        tools: OpenAI function schemas offered in the conversation.
        is_thinking: the answer is given with thinking on.
        facts: what the grader needs besides the messages (the expected value, the schema ...).
    """

    task: str
    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    is_thinking: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def prompt(self) -> Sequence[Message]:
        """The messages before the answer."""
        return self.messages[:-1]


# Makes one example of the split; deterministic in the state of the generator it is given.
Generator = Callable[[random.Random, Split], Example]
# Says whether the text after the thinking (special tokens included, end of turn cut) is right.
Grader = Callable[[Example, str], bool]


@dataclass(frozen=True, slots=True)
class Task:
    """A generator, its grader, and how often it is drawn in training (relative weight)."""

    name: str
    generate: Generator
    grade: Grader
    weight: float


def is_held_out(key: str) -> bool:
    """Whether the instance with this key belongs to the held-out split."""
    return zlib.crc32(key.encode()) % HELD_OUT_SHARE == 0


def in_split(key: str, split: Split) -> bool:
    """Whether the instance with this key may be drawn for ``split``."""
    return is_held_out(key) == (split is Split.HELD_OUT)
