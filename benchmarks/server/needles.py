"""Prompts with a code word of their own, and what is said of it when nothing else is going on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

COLOURS = ("amber", "blue", "green", "grey", "pink", "red", "silver", "white", "yellow", "black")
ANIMALS = ("falcon", "otter", "badger", "heron", "rabbit", "fox", "owl", "horse", "goose", "bear")
FILLER = (
    "The bread was warm and the kitchen smelled of butter.",
    "A cat slept on the chair by the window.",
    "The train left the station a few minutes late.",
    "She put the letters into the drawer and closed it.",
    "The garden was quiet after the rain.",
    "He counted the apples twice and wrote the number down.",
    "Nobody had opened the old gate for years.",
    "The children played near the river until it was dark.",
)


@dataclass(frozen=True, slots=True)
class Needle:
    """One question: its text, and the word that must be in the answer."""

    prompt: str
    word: str


def make_needle(rng: random.Random, num_sentences: int) -> Needle:
    """A text with one code word in it, and the question for it."""
    word = f"{rng.choice(COLOURS)}-{rng.choice(ANIMALS)}-{rng.randrange(10, 100)}"
    sentences = [rng.choice(FILLER) for _ in range(num_sentences)]
    sentences.insert(rng.randrange(num_sentences + 1), f"The code word is {word}.")
    text = " ".join(sentences)
    return Needle(f"Read this text.\n\n{text}\n\nWhat is the code word?", word)
