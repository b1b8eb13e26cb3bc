"""When what is trained: phases, and the learning rate of every step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Phase:
    """A run of steps on rows of one length.

    Attributes:
        steps: how many.
        length: tokens in a row.
        text_share: of plain text in the tokens.
        is_long: half of the rows begin with one long task.
        is_sparse: attention sees only the cells the indexer selects.
        num_drafts: draft steps trained.
    """

    steps: int
    length: int
    text_share: float
    is_long: bool
    is_sparse: bool
    num_drafts: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """Phases, and a learning rate that warms up, stays, and falls in a straight line.

    Attributes:
        phases: in order.
        batch_tokens: tokens in a step.
        learning_rate: the highest.
        warmup_steps: until it is reached.
        decay_share: of all steps, in which it falls to nearly nothing.
    """

    phases: tuple[Phase, ...]
    batch_tokens: int
    learning_rate: float
    warmup_steps: int
    decay_share: float

    @property
    def num_steps(self) -> int:
        """Of all phases."""
        return sum(phase.steps for phase in self.phases)

    def phase_at(self, step: int) -> Phase:
        """The phase that step (from 0) belongs to."""
        for phase in self.phases:
            if step < phase.steps:
                return phase
            step -= phase.steps
        raise ValueError("the step lies after the last phase")

    def learning_rate_at(self, step: int) -> float:
        """Of step (from 0)."""
        rise = min(1.0, (step + 1) / self.warmup_steps)
        left = (self.num_steps - step) / (self.decay_share * self.num_steps)
        return self.learning_rate * min(rise, max(left, 0.01), 1.0)


def demo_schedule(
    short_steps: int,
    long_steps: int,
    *,
    batch_tokens: int,
    learning_rate: float,
    num_drafts: int = 2,
) -> Schedule:
    """Short rows first, then the whole context with real selection.

    The draft layer is trained in the last third of the short rows and after: before, the trunk it
    reads changes too fast to be worth a third of the time. The learning rate rises in the first
    hundred steps, or in a tenth of a short run.
    """
    plain_steps = short_steps * 2 // 3
    return Schedule(
        phases=(
            Phase(plain_steps, 1024, 0.1, is_long=False, is_sparse=False, num_drafts=0),
            Phase(
                short_steps - plain_steps,
                1024,
                0.1,
                is_long=False,
                is_sparse=False,
                num_drafts=num_drafts,
            ),
            Phase(long_steps, 8192, 0.1, is_long=True, is_sparse=True, num_drafts=num_drafts),
        ),
        batch_tokens=batch_tokens,
        learning_rate=learning_rate,
        warmup_steps=max(1, min(100, (short_steps + long_steps) // 10)),
        decay_share=0.5,
    )
