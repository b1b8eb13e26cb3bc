"""Stories on request, as chat and as plain text.

Owns the requests and what a good answer to them is; the stories come from the plots.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from training.tasks import (
    story_plots_deeds,
    story_plots_friends,
    story_plots_kindness,
    story_plots_outdoors,
    story_plots_short,
    story_plots_things,
)
from training.tasks.example import Example, Split, Task, in_split
from training.tasks.grading import has_phrase, with_article
from training.tasks.story_grammar import Story, tell

if TYPE_CHECKING:
    import random

PLOTS = (
    *story_plots_things.PLOTS,
    *story_plots_outdoors.PLOTS,
    *story_plots_kindness.PLOTS,
    *story_plots_deeds.PLOTS,
    *story_plots_friends.PLOTS,
)
SHORT_PLOTS = story_plots_short.PLOTS

# What the brief asks for is 80 to 220 words; an answer may stray a little.
WORD_LIMITS = (80, 220)
GRADED_WORDS = (60, 260)
GRADED_SHORT_WORDS = (20, 110)

_TELL = (
    "Tell me a story", "Tell me a story", "Tell me a short story", "Write a story",
    "Write a short story", "Please tell me a story", "Can you tell me a story",
    "I would like to hear a story", "Make up a story", "Tell a story", "Write a little story",
    "Could you write a short story", "Give me a story",
)  # fmt: skip
_OPEN_REQUESTS = (
    "Tell me a bedtime story.", "A story, please.", "I want to hear a story.",
    "Write a story for a child.", "Tell me a story for children.", "Tell me something nice.",
    "Story please!", "Please write a story for me.",
)  # fmt: skip
_SHORT_TELL = (
    "Tell me a very short story", "Write a very short story", "Tell me a tiny story",
    "Tell me a story in a few sentences", "Please tell me a very short story",
)  # fmt: skip
_CONTINUE = (
    "Continue this story: ", "Please continue: ", "Finish this story: ", "Go on with this story: ",
)  # fmt: skip


def draw_story(rng: random.Random, split: Split, *, starts_once: bool | None = None) -> Story:
    """A story of the usual length."""
    while True:
        story = tell(rng.choice(PLOTS), rng, split, starts_once=starts_once)
        if WORD_LIMITS[0] <= len(story.text.split()) <= WORD_LIMITS[1]:
            return story


def draw_short_story(rng: random.Random, split: Split) -> Story:
    """A story of a few sentences."""
    return tell(rng.choice(SHORT_PLOTS), rng, split, optional_share=0.3)


def story_text(rng: random.Random, split: Split) -> str:
    """A story as a plain document."""
    short = rng.random() < 0.1
    return (draw_short_story(rng, split) if short else draw_story(rng, split)).text


def _named_hero(story: Story, rng: random.Random) -> tuple[str, list[str]]:
    """The hero as a request may name it, and the words the story must have."""
    cast, slots = story.cast, story.slots
    drawn = rng.random()
    if drawn < 0.55:
        return slots["a_kind"], [cast.hero.kind]
    if drawn < 0.75:
        return slots["a_hero"], [cast.hero.kind]
    if drawn < 0.9:
        return f"{slots['a_kind']} called {cast.hero_name}", [cast.hero.kind, cast.hero_name]
    return f"{cast.hero_name} the {cast.hero.kind}", [cast.hero.kind, cast.hero_name]


def _named_thing(story: Story, rng: random.Random) -> tuple[str, list[str]]:
    if rng.random() < 0.7:
        return story.slots["one_thing"], [story.cast.thing.name]
    return story.slots["a_thing"], [story.slots["adj_thing"]]


def subject(story: Story, rng: random.Random) -> tuple[str, list[str]]:
    """What a request says of the story, such as "a fox and a lantern", and the words it must have.

    The words do occur: what a line left out is not asked for.
    """
    while True:
        phrase, must = _draw_subject(story, rng)
        if all(has_phrase(story.text, word) for word in must):
            return phrase, must


def _draw_subject(story: Story, rng: random.Random) -> tuple[str, list[str]]:
    cast, plot = story.cast, story.plot
    if rng.random() < 0.15:
        return rng.choice(plot.topics), []
    if rng.random() < 0.04:
        return cast.place.name, [cast.place.name.removeprefix("the ")]
    hero, must = _named_hero(story, rng)
    phrase = hero
    drawn = rng.random()
    if plot.fits and drawn < 0.5:
        thing, words = _named_thing(story, rng)
        phrase = f"{thing} and {hero}" if rng.random() < 0.1 else f"{hero} and {thing}"
        must = [*must, *words]
    elif "friend" in plot.slots and drawn < 0.7:
        named = rng.random() < 0.2
        friend = with_article(cast.friend.kind)
        phrase = f"{hero} and {cast.friend_name if named else friend}"
        must = [*must, cast.friend_name if named else cast.friend.kind]
    if rng.random() < 0.15:
        phrase = f"{phrase} {cast.place.at}"
        must = [*must, cast.place.name.removeprefix("the ")]
    return phrase, must


def _request(story: Story, rng: random.Random, verbs: tuple[str, ...]) -> tuple[str, list[str]]:
    verb = rng.choice(verbs)
    end = "?" if verb.startswith(("Can", "Could")) else "."
    drawn = rng.random()
    if drawn < 0.12:
        return f"{verb}{end}", []
    phrase, must = subject(story, rng)
    if must and drawn < 0.2:
        return f"{verb} with {phrase} in it{end}", must
    return f"{verb} about {phrase}{end}", must


def _example(task: str, request: str, story: Story, **facts: object) -> Example:
    messages = (
        {"role": "user", "content": request},
        {"role": "assistant", "content": story.text},
    )
    return Example(task, messages, facts=facts)


def tell_story(rng: random.Random, split: Split) -> Example:
    """A story about what the user names, or about anything."""
    story = draw_story(rng, split)
    if rng.random() < 0.06:
        request, must = rng.choice(_OPEN_REQUESTS), list[str]()
    else:
        request, must = _request(story, rng, _TELL)
    return _example("tell_story", request, story, is_short=False, must=tuple(must))


def tell_short_story(rng: random.Random, split: Split) -> Example:
    """A story of a few sentences."""
    story = draw_short_story(rng, split)
    request, must = _request(story, rng, _SHORT_TELL)
    return _example("tell_short_story", request, story, is_short=True, must=tuple(must))


def continue_story(rng: random.Random, split: Split) -> Example:
    """A story told from its beginning, which the user has written."""
    while True:
        starts_once = rng.random() < 0.85
        story = draw_story(rng, split, starts_once=starts_once)
        words = story.text.split(" ")
        # The whole first sentence at most; what comes after belongs to the plot.
        first = re.split(r"(?<=[.])\s", story.text, maxsplit=1)[0].split(" ")
        shortest = min(4, len(first))
        is_plain = rng.random() < 0.4
        count = shortest if is_plain else rng.randint(shortest, len(first))
        begin = " ".join(words[:count])
        if is_plain:
            begin = begin.rstrip(",")
        dots = "..." if rng.random() < 0.25 and not begin.endswith(".") else ""
        lead = rng.choice(_CONTINUE) if rng.random() < 0.25 else ""
        request = f"{lead}{begin}{dots}"
        # "Once upon a time" alone is the same in both splits; its story is not.
        if begin == "Once upon a time" or in_split(begin, split):
            return _example("continue_story", request, story, is_short=False, must=(), starts=begin)


def _repeats_itself(text: str) -> bool:
    """Whether a sentence of some length comes twice."""
    found = re.split(r"(?<=[.!?])\s+", text)
    sentences = [sentence for sentence in found if len(sentence.split()) > 5]
    return len(set(sentences)) < len(sentences)


def grade_story(example: Example, text: str) -> bool:
    """Whether the text has the length, the asked-for words and beginning, and no repetition."""
    facts = example.facts
    least, most = GRADED_SHORT_WORDS if facts["is_short"] else GRADED_WORDS
    text = text.strip()
    return (
        least <= len(text.split()) <= most
        and text.endswith((".", "!", "?", '"'))
        and all(has_phrase(text, word) for word in facts["must"])
        and text.startswith(facts.get("starts", ""))
        and not _repeats_itself(text)
    )


TASKS: tuple[Task, ...] = (
    Task("tell_story", tell_story, grade_story, 1.9),
    Task("continue_story", continue_story, grade_story, 0.8),
    Task("tell_short_story", tell_short_story, grade_story, 0.3),
)
