"""Small problems in words whose answer is a sum, a difference, a product or a share.

Owns the texts and their steps; answered at once here, with the reasoning written out in
``thinking``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from training.tasks.arithmetic import draw_difference, draw_sum, exchange, grade_number
from training.tasks.example import Example, Split, Task, in_split
from training.tasks.story_world import HE_NAMES, SHE_NAMES

if TYPE_CHECKING:
    import random

_ITEMS = (
    "apples", "marbles", "books", "coins", "stickers", "pencils", "nuts", "shells", "cards",
    "stamps", "balloons", "buttons", "flowers", "cookies", "pears", "toys", "stones", "eggs",
    "ribbons", "plums", "postcards", "beads", "cherries", "candles",
)  # fmt: skip
_FOODS = ("apples", "nuts", "cookies", "pears", "plums", "cherries", "grapes", "carrots", "sweets")
_HOLDERS = ("box", "bag", "basket", "jar", "drawer")


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem and its solution.

    Attributes:
        text: the problem with its question.
        reasons: for each step what the text says, such as "Tom gets 9 more, so I add".
        steps: the calculation of each step, such as "12 + 9 = 21".
        answer: the last sentence, such as "Tom has 21 apples."
        value: the number asked for.
    """

    text: str
    reasons: tuple[str, ...]
    steps: tuple[str, ...]
    answer: str
    value: int


def _person(rng: random.Random) -> tuple[str, str]:
    if rng.random() < 0.5:
        return rng.choice(HE_NAMES), "he"
    return rng.choice(SHE_NAMES), "she"


def _other(rng: random.Random, name: str) -> str:
    while True:
        other, _ = _person(rng)
        if other != name:
            return other


def _added(rng: random.Random, split: Split) -> Problem:
    a, b = draw_sum(rng, split, 2, 99)
    (name, pronoun), items = _person(rng), rng.choice(_ITEMS)
    other = _other(rng, name)
    him = "him" if pronoun == "he" else "her"
    has = f"How many {items} does {name} have now?"
    own = f"{name} has {a + b} {items}."
    place = rng.choice(("on the table", "in the box", "in the garden", "on the shelf"))
    text, reason, answer = rng.choice(
        (
            (f"{name} has {a} {items} and gets {b} more. {has}", f"{name} gets {b} more", own),
            (f"{name} has {a} {items}. {other} gives {him} {b} more. {has}",
             f"{other} gives {b} more", own),
            (f"{name} had {a} {items}. Then {pronoun} found {b} more. {has}",
             f"{name} found {b} more", own),
            (f"{name} has {a} {items} and {other} has {b}. How many {items} do they have together?",
             "The question is how many there are together",
             f"Together they have {a + b} {items}."),
            (f"There are {a} {items} {place}. {name} brings {b} more."
             f" How many {items} are there now?",
             f"{name} brings {b} more", f"There are {a + b} {items} now."),
            (f"{name} read {a} pages on Monday and {b} pages on Tuesday."
             f" How many pages did {name} read?",
             "The question is how many pages there are in all", f"{name} read {a + b} pages."),
        )
    )  # fmt: skip
    return Problem(text, (f"{reason}, so I add.",), (f"{a} + {b} = {a + b}",), answer, a + b)


def _taken(rng: random.Random, split: Split) -> Problem:
    while True:
        a, b = draw_difference(rng, split, 2, 99)
        if a - b >= 2:
            break
    (name, pronoun), items, food = _person(rng), rng.choice(_ITEMS), rng.choice(_FOODS)
    other = _other(rng, name)
    left = a - b
    text, reason, answer = rng.choice(
        (
            (f"{name} has {a} {items} and gives {b} to {other}."
             f" How many {items} does {name} have left?",
             f"{name} gives {b} away", f"{name} has {left} {items} left."),
            (f"{name} had {a} {food}. Then {pronoun} ate {b}. How many {food} are left?",
             f"{name} ate {b}", f"There are {left} {food} left."),
            (f"{name} has {a} {items}. {name} loses {b} of them."
             f" How many {items} does {name} still have?",
             f"{name} loses {b}", f"{name} still has {left} {items}."),
            (f"There are {a} birds in a tree. {b} fly away. How many birds are left?",
             f"{b} fly away", f"There are {left} birds left."),
            (f"A shop has {a} {items} and sells {b}. How many {items} are left?",
             f"The shop sells {b}", f"There are {left} {items} left."),
            (f"{name} has {a} {items}. {other} has {b}. How many more {items} does {name} have?",
             "The question is how many more there are", f"{name} has {left} more {items}."),
        )
    )  # fmt: skip
    return Problem(text, (f"{reason}, so I subtract.",), (f"{a} - {b} = {left}",), answer, left)


def _multiplied(rng: random.Random, split: Split) -> Problem:
    while True:
        a, b = rng.randint(2, 12), rng.randint(2, 12)
        if in_split(f"{a} times {b} things", split):
            break
    (name, _), items, holder = _person(rng), rng.choice(_ITEMS), rng.choice(_HOLDERS)
    holders = f"{holder}es" if holder == "box" else f"{holder}s"
    text, answer = rng.choice(
        (
            (f"A {holder} holds {b} {items}. How many {items} are in {a} {holders}?",
             f"There are {a * b} {items}."),
            (f"{name} has {a} {holders} with {b} {items} each. How many {items} does {name} have?",
             f"{name} has {a * b} {items}."),
            (f"There are {a} children. Each child has {b} {items}. How many {items} are there?",
             f"There are {a * b} {items}."),
        )
    )  # fmt: skip
    reason = f"There are {a} times {b} {items}, so I multiply."
    return Problem(text, (reason,), (f"{a} x {b} = {a * b}",), answer, a * b)


def _shared(rng: random.Random, split: Split) -> Problem:
    while True:
        b, each = rng.randint(2, 10), rng.randint(2, 12)
        if in_split(f"{b * each} for {b}", split):
            break
    (name, _), items, holder = _person(rng), rng.choice(_ITEMS), rng.choice(_HOLDERS)
    holders = f"{holder}es" if holder == "box" else f"{holder}s"
    a = b * each
    text, answer = rng.choice(
        (
            (f"{name} shares {a} {items} among {b} children. How many {items} does each child get?",
             f"Each child gets {each} {items}."),
            (f"{name} puts {a} {items} into {b} {holders}, the same number in each."
             f" How many {items} are in each {holder}?",
             f"There are {each} {items} in each {holder}."),
        )
    )  # fmt: skip
    reason = f"{a} {items} are shared by {b}, so I divide."
    return Problem(text, (reason,), (f"{a} / {b} = {each}",), answer, each)


def _two_steps(rng: random.Random, split: Split) -> Problem:
    while True:
        a, b = draw_sum(rng, split, 2, 60)
        c = rng.randint(2, a + b)
        low, high = sorted((a + b, c))
        if a + b - c >= 2 and in_split(f"{low}-{high}", Split.TRAIN):
            break
    (name, pronoun), items = _person(rng), rng.choice(_ITEMS)
    other = _other(rng, name)
    first, second = rng.choice(
        (("gets {b} more", "gives {c} to {other}"), ("finds {b} more", "loses {c}"),
         ("buys {b} more", "sells {c}"))
    )  # fmt: skip
    first, second = first.format(b=b), second.format(c=c, other=other)
    text = (
        f"{name} has {a} {items}. {name} {first}. Then {pronoun} {second}."
        f" How many {items} does {name} have now?"
    )
    left = a + b - c
    return Problem(
        text,
        (f"First {name} {first}, so I add.", f"Then {name} {second}, so I subtract."),
        (f"{a} + {b} = {a + b}", f"{a + b} - {c} = {left}"),
        f"{name} has {left} {items}.",
        left,
    )


_KINDS = (_added, _added, _taken, _taken, _multiplied, _shared, _two_steps)


def draw_problem(rng: random.Random, split: Split) -> Problem:
    """A problem whose numbers are in the split."""
    return rng.choice(_KINDS)(rng, split)


def word_problem(rng: random.Random, split: Split) -> Example:
    """A problem answered with its calculation and a sentence."""
    problem = draw_problem(rng, split)
    answer = " ".join([*(f"{step}." for step in problem.steps), problem.answer])
    return exchange("word_problem", problem.text, answer, value=problem.value)


TASKS: tuple[Task, ...] = (Task("word_problem", word_problem, grade_number, 0.3),)
