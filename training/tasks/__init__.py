"""Seeded generators of synthetic examples, and what a right answer to each is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from training.tasks import (
    arithmetic,
    claims,
    code_words,
    drills,
    editing,
    instructions,
    json_objects,
    recall,
    small_talk,
    stories,
    story_questions,
    thinking,
    tools,
    turns,
    word_problems,
)

if TYPE_CHECKING:
    from training.tasks.example import Task

# Every task the trainer draws from and the evaluation can ask.
ALL_TASKS: tuple[Task, ...] = (
    *stories.TASKS,
    *story_questions.TASKS,
    *arithmetic.TASKS,
    *word_problems.TASKS,
    *thinking.TASKS,
    *small_talk.TASKS,
    *claims.TASKS,
    *instructions.TASKS,
    *turns.TASKS,
    *recall.TASKS,
    *drills.TASKS,
    *code_words.TASKS,
    *editing.TASKS,
    *json_objects.TASKS,
    *tools.TASKS,
)
