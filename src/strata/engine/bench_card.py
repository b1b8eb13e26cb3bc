"""Speed of one model on a card: windows by row count, prompts by length, kernels, memory.

Owns what is measured, in which order and at which position, and the report. The card's own clock
and its ceilings are a ``Probe``; does not print.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from strata.engine.bench import Measurement, Medians, draft_counts, measure
from strata.engine.sampling_params import SamplingParams
from strata.engine.session import MAX_WINDOW_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from strata.engine.session import OnProgress, Session, Tokens

SEED = 20261129
WINDOWS = 24  # timed for each number of rows
WARM_UP = 4
# A prompt whose first step is no longer than this is read window by window.
_WINDOW_STEP = MAX_WINDOW_ROWS


class KernelCost(Protocol):
    """A kernel's part of a window."""

    @property
    def name(self) -> str:
        """Of its function."""

    @property
    def calls(self) -> float:
        """Launches."""

    @property
    def seconds(self) -> float:
        """Of all of them."""

    @property
    def num_bytes(self) -> float | None:
        """The least it must move; None where nothing but activations passes."""

    @property
    def floor_s(self) -> float | None:
        """The least time it could take."""

    @property
    def bound(self) -> str | None:
        """What sets the floor: "memory" or "products"."""


class Probe(Protocol):
    """The card as the measuring needs it."""

    def facts(self) -> Mapping[str, object]:
        """What the card is."""

    def ceilings(self) -> Mapping[str, float]:
        """Measured rates a second; takes memory."""

    def memory(self, capacity: int, /) -> Mapping[str, int]:
        """Bytes "planned", "peak" and "taken_with_driver"."""

    def window_seconds(self, session: Any, num_rows: int, /) -> float:
        """The card's own time for a window; the session must be reset afterwards."""

    def window_kernels(self, session: Any, num_rows: int, /) -> Sequence[KernelCost]:
        """Its kernels; likewise."""

    def prompt_kernels(self, run: Callable[[], object], num_rows: int, /) -> Sequence[KernelCost]:
        """Kernels of ``run``, which reads one chunk of a prompt."""


@dataclass(frozen=True, slots=True)
class CardPlan:
    """What is measured.

    Attributes:
        prompts: lengths.
        contexts: tokens in the conversation where windows are measured.
        rows: of the windows.
        decode_tokens: after each prompt, one by one through the engine.
        rounds: of each prompt; medians are shown.
    """

    prompts: tuple[int, ...]
    contexts: tuple[int, ...]
    rows: tuple[int, ...] = tuple(range(1, MAX_WINDOW_ROWS + 1))
    decode_tokens: int = 64
    rounds: int = 3

    @property
    def capacity(self) -> int:
        """Tokens of the conversation that everything fits into."""
        windows = sum(self.rows) * (WINDOWS + WARM_UP) + MAX_WINDOW_ROWS
        longest = max(self.contexts, default=0) + windows
        return max(longest, max(self.prompts, default=0) + self.decode_tokens + 1)


@dataclass(frozen=True, slots=True)
class WindowCost:
    """Windows of so many rows, all of them kept. Medians, in seconds.

    Attributes:
        context: tokens before the first window.
        rows: of a window.
        wall_s: from the host's call until the next one may begin.
        card_s: what of it the card works.
        kernels: of the card's part.
    """

    context: int
    rows: int
    wall_s: float
    card_s: float
    kernels: Sequence[KernelCost] = ()

    @property
    def host_s(self) -> float:
        """What the host adds."""
        return self.wall_s - self.card_s

    @property
    def floor_s(self) -> float:
        """Sum of the kernels' floors."""
        return sum(kernel.floor_s or 0.0 for kernel in self.kernels)


@dataclass(slots=True)
class CardReport:
    """All figures of one run; ``prompts`` has the rounds of each length."""

    plan: CardPlan
    card: Mapping[str, object]
    memory: Mapping[str, int]
    ceilings: Mapping[str, float]
    prompts: dict[int, list[Measurement]] = field(default_factory=dict)
    windows: list[WindowCost] = field(default_factory=list)
    prompt_kernels: Sequence[KernelCost] = ()
    prompt_kernel_tokens: int = 0

    def as_dict(self) -> dict[str, Any]:
        """For JSON; times in seconds."""
        return {
            "plan": asdict(self.plan),
            "card": dict(self.card),
            "memory_bytes": dict(self.memory),
            "ceilings_per_s": dict(self.ceilings),
            "prompts": [
                {
                    "tokens": length,
                    **asdict(Medians.of(rounds)),
                    "rounds": [item.as_dict() for item in rounds],
                    "drafts": draft_counts(rounds),
                }
                for length, rounds in self.prompts.items()
            ],
            "windows": [
                {
                    "context": cost.context,
                    "rows": cost.rows,
                    "wall_s": cost.wall_s,
                    "card_s": cost.card_s,
                    "host_s": cost.host_s,
                    "floor_s": cost.floor_s,
                    "kernels": [_fields(kernel) for kernel in cost.kernels],
                }
                for cost in self.windows
            ],
            "prompt_kernels": {
                "tokens": self.prompt_kernel_tokens,
                "kernels": [_fields(kernel) for kernel in self.prompt_kernels],
            },
        }


def _fields(kernel: KernelCost) -> dict[str, object]:
    names = ("name", "calls", "seconds", "num_bytes", "floor_s", "bound")
    return {name: getattr(kernel, name) for name in names}


def measure_card(
    session: Session,
    probe: Probe,
    plan: CardPlan,
    prompt_of: Callable[[int], Tokens],
    *,
    draft_tokens: int = 0,
    on_progress: OnProgress | None = None,
) -> CardReport:
    """Everything, on a session of at least ``plan.capacity`` tokens.

    Args:
        session: on the card that ``probe`` measures.
        probe: its clock.
        plan: what to measure.
        prompt_of: gives a prompt of a length, [N] int32.
        draft_tokens: drafts of the draft layer in one window, where tokens are decoded one by one.
        on_progress: called with (steps done, steps in all).
    """
    return _Run(session, probe, plan, prompt_of, draft_tokens, on_progress).report()


class _Run:
    """One run of everything; arguments are those of ``measure_card``."""

    def __init__(
        self,
        session: Session,
        probe: Probe,
        plan: CardPlan,
        prompt_of: Callable[[int], Tokens],
        draft_tokens: int,
        on_progress: OnProgress | None,
    ) -> None:
        self._session, self._probe, self._plan = session, probe, plan
        self._prompt_of, self._draft_tokens = prompt_of, draft_tokens
        self._tell = on_progress
        self._done = 0
        self._total = len(plan.prompts) * (plan.rounds + 1) + 2 * len(plan.contexts) + 2

    def report(self) -> CardReport:
        plan, probe = self._plan, self._probe
        prompts = {length: self._prompt(length) for length in plan.prompts}
        windows = [cost for context in plan.contexts for cost in self._windows(context)]
        profiled, kernels = self._prompt_kernels()
        self._step()
        self._session.reset()
        memory = probe.memory(self._session.capacity)
        report = CardReport(
            plan, probe.facts(), memory, probe.ceilings(), prompts, windows, kernels, profiled
        )
        self._step()
        return report

    def _step(self) -> None:
        self._done += 1
        if self._tell is not None:
            self._tell(self._done, self._total)

    def _prompt(self, length: int) -> list[Measurement]:
        """Rounds but the first, which compiles and captures."""
        plan, found = self._plan, []
        for _ in range(plan.rounds + 1):
            prompt = self._prompt_of(length)
            found.append(
                measure(self._session, prompt, plan.decode_tokens, draft_tokens=self._draft_tokens)
            )
            self._step()
        return found[1:]

    def _windows(self, context: int) -> list[WindowCost]:
        session, probe, rows = self._session, self._probe, self._plan.rows
        prompt = self._prompt_of(context)
        session.reset()
        session.prefill(prompt)
        if session.picker is not None:
            session.picker.begin(SamplingParams(temperature=0.0), prompt.tolist())
        self._step()
        walls = {num: self._wall_seconds(num, prompt) for num in rows}
        # Launching a window again and again ruins the state, so this comes last; shapes stay.
        costs = [
            WindowCost(
                context,
                num,
                walls[num],
                probe.window_seconds(session, num),
                probe.window_kernels(session, num),
            )
            for num in rows
        ]
        session.reset()
        self._step()
        return costs

    def _wall_seconds(self, num_rows: int, ids: Tokens) -> float:
        """Median time of a greedy window, all rows kept; picked by the card if it does that."""
        session = self._session
        decode = session.decode if session.picker is None else session.picker.decode
        rng = np.random.default_rng(SEED + num_rows)
        walls = []
        for _ in range(WARM_UP + WINDOWS):
            window = rng.choice(ids, num_rows)
            started_s = time.perf_counter()
            decode(window)
            session.commit(num_rows)
            walls.append(time.perf_counter() - started_s)
        return statistics.median(walls[WARM_UP:])

    def _prompt_kernels(self) -> tuple[int, Sequence[KernelCost]]:
        """Kernels of the first step of the longest prompt, and that step's length."""
        length = max(self._plan.prompts, default=0)
        if not length:
            return 0, ()
        session, prompt = self._session, self._prompt_of(length)
        read: list[int] = []
        session.reset()
        session.prefill(
            prompt, on_progress=lambda done, _of: read.append(done), should_stop=lambda: True
        )
        step = read[0]
        if step <= _WINDOW_STEP:
            return 0, ()

        def run() -> None:
            session.reset()
            session.prefill(prompt[:step])

        return step, self._probe.prompt_kernels(run, step)
