"""Edits of sentences: copy, replace, extract, fill in.

Owns one small function per kind of edit, and how often each is drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from training.tasks.edit import Edit
from training.tasks.filler import plain_paragraph, plain_sentence
from training.tasks.word_pools import (
    CITIES,
    FIRST_NAMES,
    JOBS,
    MONTHS,
    OBJECTS,
    PLAIN_WORDS,
    ROOMS,
    WEEKDAYS,
    code_word,
    made_up_word,
    number_of_digits,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Callable


def _bare(word: str) -> str:
    return word.strip(".,!?:;\"'")


def _words_once(sentence: str) -> list[str]:
    """Words that the sentence has once, whatever their case, without punctuation at them."""
    words = [word.lower() for word in sentence.split()]
    bare = [_bare(word) for word in words]
    found = [word for word in sentence.split() if word.isalpha() and bare.count(word.lower()) == 1]
    # Articles and the like make dull exercises; a sentence without other words has those.
    return [word for word in found if len(word) > 3] or found


def _copy(rng: random.Random) -> Edit:
    choice = rng.random()
    if choice < 0.35:
        text = plain_sentence(rng)
    elif choice < 0.55:
        text = plain_paragraph(rng)
    elif choice < 0.7:
        text = " ".join(made_up_word(rng) for _ in range(rng.randint(2, 10)))
    elif choice < 0.85:
        text = " ".join(str(number_of_digits(rng, 1, 5)) for _ in range(rng.randint(1, 8)))
    else:
        text = "\n".join(code_word(rng) for _ in range(rng.randint(1, 5)))
    request = rng.choice(
        (
            "Repeat this text exactly:",
            "Copy this text:",
            "Write this again, word for word:",
            "Say exactly this:",
            "Repeat after me:",
        )
    )
    return Edit(request, text, text)


def _say(rng: random.Random) -> Edit:
    choice = rng.random()
    if choice < 0.4:
        text = " ".join(rng.choice(PLAIN_WORDS) for _ in range(rng.randint(1, 4)))
    elif choice < 0.6:
        text = code_word(rng)
    else:
        text = plain_sentence(rng).rstrip(".")
    return Edit(rng.choice(('Say "{}".', 'Write "{}".', 'Repeat "{}".')).format(text), "", text)


def _replace(rng: random.Random) -> Edit:
    text = plain_sentence(rng)
    old = rng.choice(_words_once(text))
    new = rng.choice(PLAIN_WORDS) if rng.random() < 0.7 else made_up_word(rng)
    request = rng.choice(
        (
            'Replace the word "{old}" by "{new}":',
            'Change "{old}" to "{new}" in this sentence:',
            'Write "{new}" instead of "{old}":',
        )
    ).format(old=old, new=new)
    answer = " ".join(new if word == old else word for word in text.split(" "))
    return Edit(request, text, answer)


def _remove(rng: random.Random) -> Edit:
    text = plain_sentence(rng)
    word = rng.choice(_words_once(text))
    request = rng.choice(
        (
            'Remove the word "{}":',
            'Delete the word "{}" from this sentence:',
            'Leave out the word "{}":',
        )
    ).format(word)
    return Edit(request, text, " ".join(other for other in text.split(" ") if other != word))


def _upper(rng: random.Random) -> Edit:
    text = plain_sentence(rng)
    request = rng.choice(
        (
            "Write this in upper case:",
            "Put this into capital letters:",
            "Change this text to upper case:",
        )
    )
    return Edit(request, text, text.upper())


def _lower(rng: random.Random) -> Edit:
    text = plain_sentence(rng)
    text = text.upper() if rng.random() < 0.5 else text
    request = rng.choice(
        (
            "Write this in lower case:",
            "Put this into small letters:",
            "Change this text to lower case:",
        )
    )
    return Edit(request, text, text.lower())


def _extract(rng: random.Random) -> Edit:
    """The one email address, number, date, time or city in a sentence or two."""
    name = rng.choice(FIRST_NAMES)
    kind = rng.choice(("email address", "number", "date", "name", "city", "weekday"))
    city, day = rng.choice(CITIES), rng.choice(WEEKDAYS)
    found, sentence = {
        "email address": (
            (address := f"{made_up_word(rng)}{rng.randint(1, 99)}@{made_up_word(rng)}.com"),
            f"You can reach {name} at {address} on {day}.",
        ),
        "number": (
            (number := str(number_of_digits(rng, 2, 6))),
            f"{name} found {number} coins near {city} on {day}.",
        ),
        "date": (
            (date := f"{rng.randint(1, 28)} {rng.choice(MONTHS)} {rng.randint(1950, 2030)}"),
            f"The meeting with {name} in {city} is on {date} in the {rng.choice(ROOMS)}.",
        ),
        "name": (name, f"On {day} the {rng.choice(JOBS)} met {name} in {city}."),
        "city": (city, f"On {day} {name} took the train to {city}."),
        "weekday": (day, f"{name} goes to {city} on {day} with the {rng.choice(OBJECTS)}."),
    }[kind]
    request = rng.choice(
        (
            "Give only the {} in this text:",
            "Find the {} in this text. Answer with it alone.",
            "Extract the {}:",
            "Which {} is in this text? Give only that.",
        )
    ).format(kind)
    return Edit(request, sentence, found)


ORDINALS = ("first", "second", "third", "fourth", "fifth")


def _one_sentence(rng: random.Random) -> Edit:
    sentences = [plain_sentence(rng) for _ in range(rng.randint(2, 5))]
    at = rng.choice((0, -1, rng.randrange(len(sentences))))
    which = "last" if at == -1 else ORDINALS[at]
    request = rng.choice(
        (
            "Give the {} sentence of this text:",
            "Repeat only the {} sentence:",
            "What is the {} sentence of this text?",
        )
    ).format(which)
    return Edit(request, " ".join(sentences), sentences[at])


_TEMPLATES = (
    "Dear {name}, your {item} is ready in {city}.",
    "{name} lives in {city} and has the {item}.",
    "Send the {item} to {name} in {city}.",
    "On {day} {name} goes to {city}.",
    "Hello {name}! Please bring the {item} on {day}.",
    "The {item} of {name} costs {price} euros.",
    "{name} works as a {job} in {city}.",
)


def _fill(rng: random.Random) -> Edit:
    template = rng.choice(_TEMPLATES)
    drawn = {
        "name": rng.choice(FIRST_NAMES),
        "city": rng.choice(CITIES),
        "item": rng.choice(OBJECTS),
        "day": rng.choice(WEEKDAYS),
        "price": str(number_of_digits(rng, 1, 3)),
        "job": rng.choice(JOBS),
    }
    used = {slot: value for slot, value in drawn.items() if f"{{{slot}}}" in template}
    listed = "\n".join(f"{slot}: {value}" for slot, value in used.items())
    request = rng.choice(
        (
            "Fill in the template:",
            "Put the values into the template:",
            "Complete this template with the values below:",
        )
    )
    return Edit(request, f"{template}\n{listed}", template.format(**used))


def _misspelt(rng: random.Random, word: str) -> str:
    """The word with two neighbouring letters swapped, or one left out or doubled."""
    while True:
        at = rng.randrange(1, len(word) - 1)
        choice = rng.random()
        if choice < 0.4:
            wrong = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
        elif choice < 0.7:
            wrong = word[:at] + word[at + 1 :]
        else:
            wrong = word[:at] + word[at] + word[at:]
        if wrong != word and wrong not in PLAIN_WORDS:
            return wrong


def _correct(rng: random.Random) -> Edit:
    """The right spelling is given, so that nothing has to be known."""
    text = plain_sentence(rng)
    long = [word for word in _words_once(text) if len(word) > 4]
    while not long:
        text = plain_sentence(rng)
        long = [word for word in _words_once(text) if len(word) > 4]
    right = rng.choice(long)
    wrong = _misspelt(rng, right)
    request = rng.choice(
        (
            'Correct the spelling. The right word is "{}":',
            'One word is misspelt; it should be "{}". Correct it:',
        )
    ).format(right)
    spoilt = " ".join(wrong if word == right else word for word in text.split(" "))
    return Edit(request, spoilt, text)


def _put_before(rng: random.Random) -> Edit:
    text = plain_sentence(rng)
    added = f"{rng.choice(FIRST_NAMES)}:"
    if rng.random() < 0.5:
        request = f'Write "{added}" before this text:'
        return Edit(request, text, f"{added} {text}")
    mark = rng.choice(("(end)", "Thank you.", "Goodbye.", "That is all."))
    return Edit(f'Write "{mark}" after this text:', text, f"{text} {mark}")


# How often each is drawn is relative.
TEXT_EDITS: tuple[tuple[Callable[[random.Random], Edit], float], ...] = (
    (_copy, 3.0),
    (_say, 1.0),
    (_replace, 2.0),
    (_remove, 1.0),
    (_upper, 1.0),
    (_lower, 1.0),
    (_extract, 2.0),
    (_one_sentence, 1.0),
    (_fill, 1.0),
    (_correct, 1.0),
    (_put_before, 0.5),
)
