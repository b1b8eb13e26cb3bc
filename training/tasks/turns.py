"""Conversations of two to five turns; the last answer needs what was said before.

Owns the courses of conversation. What is said in between comes from the other tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from training.tasks.arithmetic import (
    ADDITION_REQUESTS,
    draw_sum,
    exchange,
    is_sum_in,
)
from training.tasks.example import Example, Message, Split, Task, in_split
from training.tasks.facts import FACTS, Fact
from training.tasks.grading import has_phrase, last_number, with_article
from training.tasks.small_talk import chat, draw_definition, draw_fact
from training.tasks.stories import draw_short_story, draw_story, grade_story, subject
from training.tasks.story_questions import ask_about, grade_key
from training.tasks.story_world import HE_NAMES, SHE_NAMES
from training.tasks.word_pools import ANIMALS, CITIES, FIRST_NAMES, HOBBIES, JOBS

if TYPE_CHECKING:
    import random

NAMES = tuple(dict.fromkeys((*HE_NAMES, *SHE_NAMES, *FIRST_NAMES)))
_COLOURS = ("red", "blue", "green", "yellow", "white", "black", "purple", "orange", "pink")
_NUMBERS = tuple(str(number) for number in range(2, 100))
_INSTRUMENTS = ("piano", "guitar", "violin", "flute", "drums", "trumpet", "harp", "cello")
_FOODS = (
    "soup", "cake", "pizza", "rice", "cheese", "bread", "pasta", "salad", "honey", "chocolate",
    "ice cream", "pancakes", "noodles", "apples", "grapes", "cherries", "toast", "jam", "yogurt",
    "popcorn", "beans", "potatoes", "plums", "waffles", "nuts", "melon", "carrots", "pears",
)  # fmt: skip
_PETS = ("dog", "cat", "rabbit", "parrot", "hamster", "horse", "goat", "goldfish")

# What the user says, what is answered, how it is asked later, the later answer, the words.
_Texts = tuple[str, ...]
_MEMORIES: tuple[tuple[_Texts, _Texts, _Texts, str, _Texts], ...] = (
    (("My name is {x}.", "Hi, I am {x}.", "Hello! My name is {x}.", "I am called {x}."),
     ("Nice to meet you, {x}!", "Hello, {x}! How can I help you?"),
     ("What is my name?", "Do you remember my name?", "Who am I?", "What was my name again?"),
     "Your name is {x}.", NAMES),
    (("My favourite colour is {x}.", "I like the colour {x} best."),
     ("That is a nice colour.", "I will remember that you like {x}."),
     ("What is my favourite colour?", "Which colour do I like best?"),
     "Your favourite colour is {x}.", _COLOURS),
    (("My favourite number is {x}.", "I like the number {x} best."),
     ("That is a good number.", "{x} is a good number."),
     ("What is my favourite number?", "Which number do I like best?"),
     "Your favourite number is {x}.", _NUMBERS),
    (("My favourite animal is the {x}.", "The {x} is my favourite animal."),
     ("The {x} is a fine animal.", "I will remember that."),
     ("What is my favourite animal?", "Which animal do I like best?"),
     "Your favourite animal is the {x}.", ANIMALS),
    (("I live in {x}.", "My home is in {x}.", "I come from {x}."),
     ("{x} is a nice place.", "I will remember that."),
     ("Where do I live?", "Which city do I live in?"), "You live in {x}.", CITIES),
    (("I would like some {x}, please.", "My favourite food is {x}.", "I like {x} best."),
     ("That sounds good.", "{x}? A good choice.", "I will remember that."),
     ("What food did I name?", "Which food do I like?"), "You like {x}.", _FOODS),
    (("My hobby is {x}.", "In my free time I like {x}."),
     ("That is a nice hobby.", "That sounds like fun."),
     ("What is my hobby?", "What do I like to do?"), "Your hobby is {x}.", HOBBIES),
    (("I work as {a_x}.", "I am {a_x}."),
     ("That is a good job.", "That is interesting work."),
     ("What is my job?", "What do I do for a living?"), "You are {a_x}.", JOBS),
    (("I play the {x}.", "I am learning to play the {x}."),
     ("How nice! Music is fun.", "The {x} sounds lovely."),
     ("What do I play?", "Which instrument do I play?"), "You play the {x}.", _INSTRUMENTS),
    (("I have {a_x}.", "At home I have {a_x}."),
     ("How nice! What is its name?", "That is nice."),
     ("What pet do I have?", "Which animal do I have?"), "You have {a_x}.", _PETS),
    (("My {pet} is called {x}.", "I have {a_pet} called {x}."),
     ("{x} is a nice name.", "I will remember that."),
     ("What is my {pet} called?", "What is the name of my {pet}?"),
     "Your {pet} is called {x}.", NAMES),
)  # fmt: skip


def user(text: str) -> Message:
    """A message of the user."""
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    """A message of the assistant."""
    return {"role": "assistant", "content": text}


def _small_exchange(rng: random.Random) -> list[Message]:
    """A turn that has nothing to do with the rest."""
    drawn = rng.random()
    if drawn < 0.35:
        a, b = draw_sum(rng, Split.TRAIN)
        request = rng.choice(ADDITION_REQUESTS).format(a=a, b=b)
        return [user(request), assistant(f"{a} + {b} = {a + b}.")]
    if drawn < 0.7:
        ask, fact = draw_fact(rng, Split.TRAIN)
    elif drawn < 0.85:
        ask, fact = draw_definition(rng, Split.TRAIN)
    else:
        return list(chat(rng, Split.TRAIN).messages)
    return [user(ask), assistant(fact.answer)]


def _remembered(rng: random.Random) -> tuple[list[Message], str, str, str]:
    """What is told at first, and later the question, the answer and its key."""
    says, replies, asks, answer, words = rng.choice(_MEMORIES)
    x, pet = rng.choice(words), rng.choice(_PETS)
    slots = {"x": x, "a_x": with_article(x), "pet": pet, "a_pet": with_article(pet)}
    reply = rng.choice(replies).format_map(slots)
    told = [
        user(rng.choice(says).format_map(slots)),
        assistant(reply[0].upper() + reply[1:]),
    ]
    return told, rng.choice(asks).format_map(slots), answer.format_map(slots), x


def remember(rng: random.Random, split: Split) -> Example:
    """What the user said of himself one to four turns earlier."""
    while True:
        told, ask, answer, key = _remembered(rng)
        messages = list(told)
        between = rng.choice((0, 1, 1, 2, 2, 3))
        if between and rng.random() < 0.4:
            other, _, other_answer, _ = _remembered(rng)
            # Two things of one kind would leave the question open.
            if other_answer.split()[:-1] != answer.split()[:-1] and "called" not in other_answer:
                messages = [*other, *told] if rng.random() < 0.5 else [*told, *other]
                between -= 1
        for _ in range(between):
            messages += _small_exchange(rng)
        if in_split(f"{ask} {answer} after {len(messages)}", split):
            break
    messages += [user(ask), assistant(answer)]
    return Example("remember", messages, facts={"key": key})


_PLUS = ("And {b} more?", "Plus {b}?", "Now add {b}.", "And plus {b}?", "Add {b} to that.")
_MINUS = ("And minus {b}?", "Now take away {b}.", "Minus {b}?", "Subtract {b} from that.")
_TWICE = ("And twice that?", "Now double it.", "Double that.")


# Some results have no partner in the held-out split; then the conversation is drawn anew.
_STEP_TRIES = 200


def _next_step(rng: random.Random, value: int, split: Split) -> tuple[str, str, int] | None:
    """A follow-up on the last result, its answer and the new result; None if none was found."""
    for _ in range(_STEP_TRIES):
        kind = rng.random()
        if kind < 0.5:
            b = rng.randint(1, 60)
            if is_sum_in(value, b, split):
                request = rng.choice(_PLUS).format(b=b)
                return request, f"{value} + {b} = {value + b}.", value + b
        elif kind < 0.85:
            b = rng.randint(1, 60)
            if b <= value and is_sum_in(value, b, split, sign="-"):
                request = rng.choice(_MINUS).format(b=b)
                return request, f"{value} - {b} = {value - b}.", value - b
        elif value < 100 and in_split(f"twice {value}", split):
            return rng.choice(_TWICE), f"2 x {value} = {2 * value}.", 2 * value
    return None


def calculate_on(rng: random.Random, split: Split) -> Example:
    """A sum and what is added to, or taken from, its result."""
    while True:
        example = _calculation(rng, split)
        if example is not None:
            return example


def _calculation(rng: random.Random, split: Split) -> Example | None:
    a, b = draw_sum(rng, Split.TRAIN)
    value = a + b
    messages = [
        user(rng.choice(ADDITION_REQUESTS).format(a=a, b=b)),
        assistant(f"{a} + {b} = {value}."),
    ]
    steps = rng.randint(1, 3)
    for step in range(steps):
        of_step = split if step == steps - 1 else Split.TRAIN
        found = _next_step(rng, value, of_step)
        if found is None:
            return None
        request, answer, value = found
        messages += [user(request), assistant(answer)]
    return Example("calculate_on", messages, facts={"value": value})


def grade_last_number(example: Example, text: str) -> bool:
    """Whether the last number of the answer is the expected value."""
    return bool(last_number(text) == example.facts["value"])


# A question of one kind and how the next one leaves out what is the same.
_ELLIPSES = {
    "capitals": ("What is the capital of ", ("And of {x}?", "And {x}?", "What about {x}?")),
    "colours": ("What colour is ", ("And {x}?", "And what about {x}?", "What about {x}?")),
    "opposites": ("What is the opposite of ", ("And of {x}?", "And the opposite of {x}?")),
    "plurals": ("What is the plural of ", ("And of {x}?", "And the plural of {x}?")),
    "past tenses": ("What is the past tense of ", ("And of {x}?", "And what about {x}?")),
    "young animals": ("What do you call a young ", ("And a young {x}?", "And {a_x}?")),
    "sounds": ("What sound does ", ("And {x}?", "And what about {x}?")),
    "materials": ("What is ", ("And {x}?", "What about {x}?")),
}  # fmt: skip
_ENDINGS = (" make?", " made of?", " called?", "?")


def _asked_of(fact: Fact) -> tuple[str, str] | None:
    """The question in the form of its topic, and what it asks about."""
    if fact.topic not in _ELLIPSES:
        return None
    before = _ELLIPSES[fact.topic][0]
    for ask in fact.asks:
        if ask.startswith(before):
            rest = ask.removeprefix(before)
            for ending in _ENDINGS:
                if rest.endswith(ending):
                    return ask, rest.removesuffix(ending)
    return None


_ASKED: dict[str, list[tuple[Fact, str, str]]] = {topic: [] for topic in _ELLIPSES}
for _fact in FACTS:
    _found = _asked_of(_fact)
    if _found is not None:
        _ASKED[_fact.topic].append((_fact, *_found))


def ask_on(rng: random.Random, split: Split) -> Example:
    """A fact, and then "And of Italy?"."""
    topic = rng.choice(tuple(_ELLIPSES))
    while True:
        facts = rng.sample(_ASKED[topic], rng.randint(2, 4))
        if in_split(" ".join(x for _, _, x in facts[-2:]), split):
            break
    first, ask, _ = facts[0]
    messages = [user(ask), assistant(first.answer)]
    for fact, _, x in facts[1:]:
        short = rng.choice(_ELLIPSES[topic][1]).format(x=x, a_x=with_article(x))
        messages += [user(short), assistant(fact.answer)]
    return Example("ask_on", messages, facts={"key": facts[-1][0].key})


def _without_article(text: str) -> str:
    for article in ("a ", "an ", "the "):
        text = text.removeprefix(article)
    return text


def grade_phrase(example: Example, text: str) -> bool:
    """Whether the key is in a short answer."""
    key = _without_article(str(example.facts["key"]))
    return has_phrase(text, key) and len(text.split()) <= 20


_AGAIN = ("Tell me another one.", "Another one, please.", "One more!", "Another story, please.")
_AGAIN_ABOUT = ("Now one about {x}.", "And one about {x}, please.", "Tell me one about {x} now.")
_SHORTER = (
    "Now a shorter one.", "And now a very short one, please.", "Tell me a shorter story.",
    "A shorter one, please.",
)  # fmt: skip
_SHORTER_ABOUT = ("Now a shorter one about {x}.", "And a very short one about {x}, please.")


def second_story(rng: random.Random, split: Split) -> Example:
    """A story, and then another or a shorter one."""
    first = draw_story(rng, Split.TRAIN)
    phrase, _ = subject(first, rng)
    messages = [user(f"Tell me a story about {phrase}."), assistant(first.text)]
    is_short = rng.random() < 0.6
    second = draw_short_story(rng, split) if is_short else draw_story(rng, split)
    must: list[str] = []
    if rng.random() < 0.6:
        phrase, must = subject(second, rng)
        forms = _SHORTER_ABOUT if is_short else _AGAIN_ABOUT
        request = rng.choice(forms).format(x=phrase)
    else:
        request = rng.choice(_SHORTER if is_short else _AGAIN)
    messages += [user(request), assistant(second.text)]
    facts = {"is_short": is_short, "must": tuple(must)}
    return Example("second_story", messages, facts=facts)


def ask_about_told_story(rng: random.Random, split: Split) -> Example:
    """A question about the story that the model has told."""
    story = draw_short_story(rng, split) if rng.random() < 0.5 else draw_story(rng, split)
    phrase, _ = subject(story, rng)
    length = "very short " if len(story.text.split()) < 75 else ""
    messages = [user(f"Tell me a {length}story about {phrase}."), assistant(story.text)]
    asked = ask_about(story, rng)
    messages += [user(asked.ask), assistant(asked.answer)]
    return Example("ask_about_told_story", messages, facts={"key": asked.key})


def mixed(rng: random.Random, split: Split) -> Example:
    """Two to five turns that have nothing to do with each other; the last is a fact."""
    messages: list[Message] = []
    for _ in range(rng.randint(1, 4)):
        messages += _small_exchange(rng)
    while True:
        ask, fact = draw_fact(rng, Split.TRAIN)
        if in_split(f"{messages[-2]['content']} {ask}", split):
            break
    last = exchange("mixed", ask, fact.answer, key=fact.key)
    return Example("mixed", [*messages, *last.messages], facts=last.facts)


TASKS: tuple[Task, ...] = (
    Task("remember", remember, grade_phrase, 0.7),
    Task("calculate_on", calculate_on, grade_last_number, 0.4),
    Task("ask_on", ask_on, grade_phrase, 0.25),
    Task("second_story", second_story, grade_story, 0.25),
    Task("ask_about_told_story", ask_about_told_story, grade_key, 0.2),
    Task("mixed", mixed, grade_phrase, 0.3),
)
