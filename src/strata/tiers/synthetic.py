"""Routing made up from a seed, that a cache finds as hard as that of real text.

Owns a router in miniature: each expert's score is a constant, its favour with the model, plus what
the text is about, which drifts, plus chance; the best K of a layer are chosen. The longer a text
goes on, the more it is about something. The constants are fitted to hit rates that were published
for real text on this model (docs/expert-cache.md). Integers and IEEE operations only: a seed
gives the same trace on every machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from strata.errors import SettingsError
from strata.tiers.routing_trace import MAX_EXPERTS, MAX_LAYERS, RoutingTrace, RoutingWindow
from strata.tiers.routing_trace import WindowKind as Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Scores = NDArray[np.float64]

PROMPT_CHUNK = 512


@dataclass(frozen=True, slots=True)
class TextHabits:
    """The fitted constants, in units of the spread of chance.

    Attributes:
        favour: spread of an expert's constant score.
        subject: spread of what the text is about, at its beginning.
        drift_tokens: tokens after which a subject has mostly gone.
        settling_tokens: every so many tokens add ``subject`` once more...
        settled_tokens: ...until this one.
    """

    favour: float = 0.08
    subject: float = 0.28
    drift_tokens: float = 34.0
    settling_tokens: float = 158.0
    settled_tokens: float = 600.0


@dataclass(frozen=True, slots=True)
class SyntheticText:
    """What to make.

    Attributes:
        num_layers: L.
        num_experts: E.
        top_k: K.
        num_decoded: decoded tokens of each text.
        num_prompt: prompt tokens before them, in chunks of 512.
        num_texts: texts one after the other; each begins at position 0 with subjects of its own.
        window_rows: rows of a decode window, all of them kept.
    """

    num_layers: int = 48
    num_experts: int = 512
    top_k: int = 10
    num_decoded: int = 600
    num_prompt: int = 0
    num_texts: int = 1
    window_rows: int = 1

    def __post_init__(self) -> None:
        bounds = {
            "num_layers": (1, MAX_LAYERS),
            "num_experts": (1, MAX_EXPERTS),
            "top_k": (1, self.num_experts),
            "num_decoded": (0, 1 << 20),
            "num_prompt": (0, 1 << 20),
            "num_texts": (1, 1 << 10),
            "window_rows": (1, 8),
        }
        for name, (lowest, highest) in bounds.items():
            if not lowest <= getattr(self, name) <= highest:
                raise SettingsError(
                    f"made-up routing cannot have {name} = {getattr(self, name)}: from {lowest} "
                    f"to {highest}.\n  Try: {lowest}"
                )


def synthetic_trace(
    text: SyntheticText, seed: int = 0, habits: TextHabits | None = None
) -> RoutingTrace:
    """A trace of made-up texts; the same for the same arguments."""
    router = _Router(text, seed, habits or TextHabits())
    windows: list[RoutingWindow] = []
    for _ in range(text.num_texts):
        router.begin()
        sizes = [(Kind.PROMPT, size) for size in _cut(text.num_prompt, PROMPT_CHUNK)]
        sizes += [(Kind.DECODE, size) for size in _cut(text.num_decoded, text.window_rows)]
        position = 0
        for kind, size in sizes:
            ids = np.stack([router.next_row() for _ in range(size)], axis=1)
            windows.append(RoutingWindow(kind, position, size, ids))
            position += size
    name = f"synthetic seed {seed}"
    return RoutingTrace(name, text.num_layers, text.num_experts, text.top_k, tuple(windows))


def _cut(num_tokens: int, size: int) -> list[int]:
    """Token counts of pieces of ``size``, the last being what is left."""
    return [min(size, num_tokens - first) for first in range(0, num_tokens, size)]


class _Router:
    """Scores of every expert, token by token."""

    def __init__(self, text: SyntheticText, seed: int, habits: TextHabits) -> None:
        self._shape = (text.num_layers, text.num_experts)
        self._top_k = text.top_k
        self._habits = habits
        self._bits = np.random.Philox(key=seed)
        self._favour = habits.favour * self._chance()
        self._kept = 1.0 - 1.0 / (1.0 + habits.drift_tokens)
        self._renewed = math.sqrt(1.0 - self._kept * self._kept)
        self._subject = self._favour
        self._position = 0

    def begin(self) -> None:
        """A new text, about something else."""
        self._subject = self._chance()
        self._position = 0

    def next_row(self) -> NDArray[np.uint16]:
        """[L, K] the next token's experts, best first; of equals the lower id."""
        habits = self._habits
        if self._position:
            self._subject = self._kept * self._subject + self._renewed * self._chance()
        age = min(float(self._position), habits.settled_tokens)
        strength = habits.subject * (1.0 + age / habits.settling_tokens)
        scores = self._favour + strength * self._subject + self._chance()
        self._position += 1
        order = np.argsort(-scores, axis=-1, kind="stable")
        return order[:, : self._top_k].astype(np.uint16)

    def _chance(self) -> Scores:
        """[L, E] of nearly normal numbers of spread 1: sums of four even ones."""
        num = self._shape[0] * self._shape[1]
        lanes = self._bits.random_raw(num).astype("<u8").view("<u2").reshape(num, 4)
        sums = lanes.astype(np.int64).sum(axis=1) - 2 * 65535
        scaled: Scores = (sums / (65536.0 / math.sqrt(3.0))).reshape(self._shape)
        return scaled
