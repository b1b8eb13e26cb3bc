"""Seeded generators of synthetic examples, and what a right answer to each is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from training.tasks import arithmetic, stories

if TYPE_CHECKING:
    from training.tasks.example import Task

# Every task the trainer draws from and the evaluation can ask.
ALL_TASKS: tuple[Task, ...] = (*stories.TASKS, *arithmetic.TASKS)
