"""Editing and copying of given text: every answer follows exactly from the request.

Owns one small function per kind of edit. The grader compares letter for letter.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from training.tasks.example import Example, Split, Task, in_split
from training.tasks.filler import plain_paragraph, plain_sentence
from training.tasks.word_pools import (
    ANIMALS,
    CITIES,
    COLOURS,
    FIRST_NAMES,
    FOODS,
    JOBS,
    MONTHS,
    OBJECTS,
    PLAIN_WORDS,
    ROOMS,
    WEEKDAYS,
    code_word,
    join_words,
    made_up_word,
    number_of_digits,
)


@dataclass(frozen=True, slots=True)
class Edit:
    """A request, the text it is about, and the answer."""

    request: str
    text: str
    answer: str


_LISTS = (ANIMALS, FOODS, OBJECTS, CITIES, FIRST_NAMES, COLOURS)


def _bare(word: str) -> str:
    return word.strip(".,!?:;\"'")


def _items(rng: random.Random, fewest: int = 3, most: int = 8) -> list[str]:
    """Different things of one kind."""
    return rng.sample(rng.choice(_LISTS), rng.randint(fewest, most))


def _listing(rng: random.Random, items: list[str]) -> str:
    return rng.choice((", ", ", ", "\n")).join(items)


def _like(listing: str, items: list[str]) -> str:
    """The items laid out as the listing is."""
    return ("\n" if "\n" in listing else ", ").join(items)


def _words_once(sentence: str) -> list[str]:
    """Words that the sentence has once, whatever their case, without punctuation at them."""
    words = [word.lower() for word in sentence.split()]
    bare = [_bare(word) for word in words]
    return [word for word in sentence.split() if word.isalpha() and bare.count(word.lower()) == 1]


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
        "weekday": (day, f"{name} goes to {city} on {day} with a {rng.choice(OBJECTS)}."),
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


_ORDINALS = ("first", "second", "third", "fourth", "fifth")


def _one_sentence(rng: random.Random) -> Edit:
    sentences = [plain_sentence(rng) for _ in range(rng.randint(2, 5))]
    at = rng.choice((0, -1, rng.randrange(len(sentences))))
    which = "last" if at == -1 else _ORDINALS[at]
    request = rng.choice(
        (
            "Give the {} sentence of this text:",
            "Repeat only the {} sentence:",
            "What is the {} sentence of this text?",
        )
    ).format(which)
    return Edit(request, " ".join(sentences), sentences[at])


def _one_item(rng: random.Random) -> Edit:
    items = _items(rng, 3, 9)
    at = rng.choice((0, -1, rng.randrange(min(5, len(items)))))
    which = "last" if at == -1 else _ORDINALS[at]
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


_TEMPLATES = (
    "Dear {name}, your {item} is ready in {city}.",
    "{name} lives in {city} and has a {item}.",
    "Send the {item} to {name} in {city}.",
    "On {day} {name} goes to {city}.",
    "Hello {name}! Please bring a {item} on {day}.",
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


_EDITS: tuple[tuple[Callable[[random.Random], Edit], float], ...] = (
    (_copy, 3.0),
    (_replace, 2.0),
    (_remove, 1.0),
    (_upper, 1.0),
    (_lower, 1.0),
    (_reverse_list, 1.5),
    (_sort_words, 1.5),
    (_sort_numbers, 1.5),
    (_count_items, 1.0),
    (_extract, 2.0),
    (_one_sentence, 1.0),
    (_one_item, 1.0),
    (_join, 1.0),
    (_split, 1.0),
    (_number_lines, 1.0),
    (_bullet_lines, 0.5),
    (_fill, 1.0),
    (_correct, 1.0),
    (_put_before, 0.5),
)
_FORMS = tuple(form for form, _ in _EDITS)
_SHARES = tuple(share for _, share in _EDITS)


def generate(rng: random.Random, split: Split) -> Example:
    """One edit; the key is the text and what becomes of it."""
    form = rng.choices(_FORMS, _SHARES)[0]
    edit = form(rng)
    while not in_split(f"{edit.text}\n{edit.answer}", split):
        edit = form(rng)
    between = "\n" if "\n" in edit.text or rng.random() < 0.5 else " "
    prompt = f"{edit.request}{between}{edit.text}"
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
