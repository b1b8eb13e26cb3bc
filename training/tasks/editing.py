"""Editing and copying of given text: every answer follows exactly from the request.

Owns the prompt and the grader, which compares letter for letter. The edits are in
``training.tasks.text_edits`` and ``training.tasks.list_edits``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from training.tasks.example import Example, Split, Task, in_split
from training.tasks.list_edits import LIST_EDITS
from training.tasks.text_edits import TEXT_EDITS

if TYPE_CHECKING:
    import random

_FORMS = tuple(form for form, _ in TEXT_EDITS + LIST_EDITS)
_SHARES = tuple(share for _, share in TEXT_EDITS + LIST_EDITS)


def generate(rng: random.Random, split: Split) -> Example:
    """One edit; the key is the text and what becomes of it."""
    form = rng.choices(_FORMS, _SHARES)[0]
    edit = form(rng)
    while not in_split(f"{edit.text}\n{edit.answer}", split):
        edit = form(rng)
    between = "\n" if "\n" in edit.text or rng.random() < 0.5 else " "
    prompt = f"{edit.request}{between}{edit.text}".strip()
    return Example(
        task="editing",
        messages=(
            {"role": "user", "content": prompt},
            {"role": "assistant", "content": edit.answer},
        ),
        facts={"answer": edit.answer},
    )


def grade(example: Example, answer: str) -> bool:
    """Whether the answer is the edited text, letter for letter."""
    return bool(answer.strip() == example.facts["answer"].strip())


TASKS: tuple[Task, ...] = (Task("editing", generate, grade, 1.5),)
