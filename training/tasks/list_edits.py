"""Edits of lists: order, number, layout.

Owns one small function per kind of edit, and how often each is drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from training.tasks.edit import Edit
from training.tasks.filler import plain_sentence
from training.tasks.text_edits import ORDINALS
from training.tasks.word_pools import (
    ANIMALS,
    CITIES,
    COLOURS,
    FIRST_NAMES,
    FOODS,
    OBJECTS,
    join_words,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

_LISTS = (ANIMALS, FOODS, OBJECTS, CITIES, FIRST_NAMES, COLOURS)


def _items(rng: random.Random, fewest: int = 3, most: int = 8) -> list[str]:
    """Different things of one kind."""
    return rng.sample(rng.choice(_LISTS), rng.randint(fewest, most))


def _listing(rng: random.Random, items: list[str]) -> str:
    return rng.choice((", ", ", ", "\n")).join(items)


def _like(listing: str, items: list[str]) -> str:
    """The items laid out as the listing is."""
    return ("\n" if "\n" in listing else ", ").join(items)


def _reverse_list(rng: random.Random) -> Edit:
    items = _items(rng)
    text = _listing(rng, items)
    request = rng.choice(
        (
            "Reverse the order of this list:",
            "Write this list backwards:",
            "Turn the order of these around:",
        )
    )
    return Edit(request, text, _like(text, items[::-1]))


def _sort_words(rng: random.Random) -> Edit:
    items = _items(rng, 3, 7)
    text = _listing(rng, items)
    request = rng.choice(
        (
            "Sort this list by the alphabet:",
            "Put these words into alphabetical order:",
            "Sort these words alphabetically:",
        )
    )
    return Edit(request, text, _like(text, sorted(items)))


def _sort_numbers(rng: random.Random) -> Edit:
    numbers = rng.sample(range(1, 100 if rng.random() < 0.6 else 1000), rng.randint(3, 7))
    items = [str(number) for number in numbers]
    text = _listing(rng, items)
    is_down = rng.random() < 0.35
    request = rng.choice(
        (
            "Sort these numbers from {first} to {last}:",
            "Put these numbers in order, {first} first:",
            "Order these numbers, {first} to {last}:",
        )
    ).format(first="largest" if is_down else "smallest", last="smallest" if is_down else "largest")
    ordered = [str(number) for number in sorted(numbers, reverse=is_down)]
    return Edit(request, text, _like(text, ordered))


def _count_items(rng: random.Random) -> Edit:
    items = _items(rng, 2, 12)
    request = rng.choice(
        (
            "How many items are in this list? Answer with the number only.",
            "Count the items of this list. Give only the number.",
            "How many things are listed here? Only the number, please.",
        )
    )
    return Edit(request, _listing(rng, items), str(len(items)))


def _one_item(rng: random.Random) -> Edit:
    items = _items(rng, 3, 9)
    at = rng.choice((0, -1, rng.randrange(min(5, len(items)))))
    which = "last" if at == -1 else ORDINALS[at]
    request = rng.choice(
        (
            "Give the {} item of this list:",
            "What is the {} item? Give only the item.",
            "Name only the {} one:",
        )
    ).format(which)
    return Edit(request, _listing(rng, items), items[at])


def _join(rng: random.Random) -> Edit:
    items = _items(rng)
    choice = rng.random()
    if choice < 0.5:
        request, answer = "Join these lines with commas:", ", ".join(items)
    elif choice < 0.75:
        request, answer = 'Join these lines with commas and "and":', join_words(items)
    else:
        request, answer = "Join these lines with spaces:", " ".join(items)
    return Edit(request, "\n".join(items), answer)


def _split(rng: random.Random) -> Edit:
    items = _items(rng)
    request = rng.choice(
        (
            "Write each item on a line of its own:",
            "Put every item of this list on its own line:",
            "One item per line, please:",
        )
    )
    return Edit(request, ", ".join(items), "\n".join(items))


def _number_lines(rng: random.Random) -> Edit:
    items = _items(rng) if rng.random() < 0.7 else [plain_sentence(rng) for _ in range(3)]
    request = rng.choice(
        ("Number these lines:", "Put a number before each line:", "Make a numbered list of these:")
    )
    answer = "\n".join(f"{number}. {item}" for number, item in enumerate(items, 1))
    return Edit(request, "\n".join(items), answer)


def _bullet_lines(rng: random.Random) -> Edit:
    items = _items(rng)
    request = rng.choice(
        (
            'Put "- " before each line:',
            'Make a list of these lines, each beginning with "- ":',
        )
    )
    return Edit(request, "\n".join(items), "\n".join(f"- {item}" for item in items))


# How often each is drawn is relative.
LIST_EDITS: tuple[tuple[Callable[[random.Random], Edit], float], ...] = (
    (_reverse_list, 1.5),
    (_sort_words, 1.5),
    (_sort_numbers, 1.5),
    (_count_items, 1.0),
    (_one_item, 1.0),
    (_join, 1.0),
    (_split, 1.0),
    (_number_lines, 1.0),
    (_bullet_lines, 0.5),
)
