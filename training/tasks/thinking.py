"""Answers that are thought about first: sums column by column, words letter by letter, sorting.

Owns the reasoning texts. The numbers are drawn by ``arithmetic``, so that what is held out there
is held out here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from training.tasks import arithmetic
from training.tasks.arithmetic import (
    draw_difference,
    draw_long_product,
    draw_sum,
    grade_number,
    is_sum_in,
)
from training.tasks.definitions import DEFINITION_NAMES
from training.tasks.example import Example, Split, Task, in_split
from training.tasks.grading import capitalized, is_one_of
from training.tasks.story_beings import BEINGS
from training.tasks.story_questions import (
    asked_message,
    draw_story_question,
    draw_text_question,
    grade_key,
)
from training.tasks.story_things import THINGS
from training.tasks.word_pools import PLAIN_WORDS
from training.tasks.word_problems import draw_problem

if TYPE_CHECKING:
    import random

_COLUMNS = ("Ones", "Tens", "Hundreds", "Thousands", "Ten thousands")


# Longer words make reasoning that a small model loses track of.
_LONGEST_WORD = 8
_KNOWN_WORDS = (
    *(being.kind for being in BEINGS),
    *(thing.name for thing in THINGS),
    *DEFINITION_NAMES,
    *PLAIN_WORDS,
)
WORDS = tuple(
    word
    for word in dict.fromkeys(_KNOWN_WORDS)
    if word.isalpha() and word.islower() and 3 <= len(word) <= _LONGEST_WORD
)


def thought(task: str, request: str, reasoning: str, answer: str, **facts: object) -> Example:
    """A question answered after reasoning."""
    messages = (
        {"role": "user", "content": request},
        {"role": "assistant", "reasoning_content": reasoning, "content": answer},
    )
    return Example(task, messages, is_thinking=True, facts=facts)


def add_columns(a: int, b: int) -> str:
    """The addition column by column from the right."""
    lines = [f"{a} + {b}, column by column."]
    carry = 0
    width = max(len(str(a)), len(str(b)))
    for column, (x, y) in enumerate(_digit_pairs(a, b, width)):
        total = x + y + carry
        terms = f"{x} + {y} + {carry}" if carry else f"{x} + {y}"
        line = f"{_COLUMNS[column]}: {terms} = {total}, write {total % 10}"
        carry = total // 10
        lines.append(f"{line}, carry {carry}." if carry else f"{line}.")
    if carry:
        lines.append(f"{_COLUMNS[width]}: write {carry}.")
    lines.append(f"The sum is {a + b}.")
    return "\n".join(lines)


def subtract_columns(a: int, b: int) -> str:
    """The subtraction column by column from the right; ``b`` is not larger than ``a``."""
    lines = [f"{a} - {b}, column by column."]
    borrow = 0
    for column, (x, y) in enumerate(_digit_pairs(a, b, len(str(a)))):
        terms = f"{x} - {y} - {borrow}" if borrow else f"{x} - {y}"
        result = x - y - borrow
        if result >= 0:
            lines.append(f"{_COLUMNS[column]}: {terms} = {result}, write {result}.")
            borrow = 0
        else:
            larger = terms.replace(str(x), str(x + 10), 1)
            written = f"{larger} = {result + 10}, write {result + 10}, borrow 1."
            lines.append(f"{_COLUMNS[column]}: {terms} is below 0, so {written}")
            borrow = 1
    lines.append(f"The difference is {a - b}.")
    return "\n".join(lines)


def _digit_pairs(a: int, b: int, width: int) -> list[tuple[int, int]]:
    """Digits of both numbers from the right."""
    first, second = str(a).zfill(width)[::-1], str(b).zfill(width)[::-1]
    return [(int(x), int(y)) for x, y in zip(first, second, strict=True)]


def _range(rng: random.Random) -> tuple[int, int]:
    """Bounds of two to four digits; three most often."""
    return rng.choice(((10, 99), (100, 999), (100, 999), (10, 999), (1000, 9999)))


def think_sum(rng: random.Random, split: Split) -> Example:
    """A sum or a difference of numbers of two to four digits."""
    low, high = _range(rng)
    if rng.random() < 0.65:
        a, b = draw_sum(rng, split, low, high)
        request = rng.choice(arithmetic.ADDITION_REQUESTS).format(a=a, b=b)
        answer = f"{a} + {b} = {a + b}."
        return thought("think_sum", request, add_columns(a, b), answer, value=a + b)
    a, b = draw_difference(rng, split, low, high)
    request = rng.choice(arithmetic.SUBTRACTION_REQUESTS).format(a=a, b=b)
    answer = f"{a} - {b} = {a - b}."
    return thought("think_sum", request, subtract_columns(a, b), answer, value=a - b)


def think_product(rng: random.Random, split: Split) -> Example:
    """A two-digit number times a digit, by tens and ones."""
    while True:
        a, b = draw_long_product(rng, split)
        tens, ones = a - a % 10, a % 10
        # The reasoning must not teach a sum that is held out.
        if split is Split.HELD_OUT or is_sum_in(tens * b, ones * b, Split.TRAIN):
            break
    request = rng.choice(arithmetic.PRODUCT_REQUESTS).format(a=a, b=b)
    if ones:
        reasoning = (
            f"{a} is {tens} + {ones}.\n{tens} x {b} = {tens * b}.\n{ones} x {b} = {ones * b}.\n"
            f"{tens * b} + {ones * b} = {a * b}."
        )
    else:
        reasoning = f"{tens // 10} x {b} = {tens // 10 * b}, and with a zero that is {a * b}."
    return thought("think_product", request, reasoning, f"{a} x {b} = {a * b}.", value=a * b)


def think_problem(rng: random.Random, split: Split) -> Example:
    """A problem in words, step by step."""
    problem = draw_problem(rng, split)
    pairs = zip(problem.reasons, problem.steps, strict=True)
    reasoning = "\n".join(f"{reason} {step}." for reason, step in pairs)
    return thought("think_problem", problem.text, reasoning, problem.answer, value=problem.value)


def think_comparison(rng: random.Random, split: Split) -> Example:
    """Which of two numbers is larger or smaller, digit by digit."""
    a, b = arithmetic.draw_unequal(rng, split)
    is_larger = rng.random() < 0.6
    word = "larger" if is_larger else "smaller"
    wanted = max(a, b) if is_larger else min(a, b)
    first, second = str(a), str(b)
    if len(first) != len(second):
        more, fewer = max(a, b), min(a, b)
        reasoning = f"{more} has {len(str(more))} digits and {fewer} has {len(str(fewer))}. "
    else:
        lines = []
        for x, y in zip(first, second, strict=True):
            if x == y:
                lines.append(f"{x} and {y} are the same.")
            else:
                sign = "more" if x > y else "less"
                lines.append(f"{x} is {sign} than {y}.")
                break
        reasoning = f"Digit by digit from the left. {' '.join(lines)} "
    reasoning += f"So {max(a, b)} is larger and {min(a, b)} is smaller."
    ask = rng.choice(("Which is {word}, {a} or {b}?", "Which number is {word}: {a} or {b}?"))
    request = ask.format(word=word, a=a, b=b)
    answer = f"The {word} number is {wanted}."
    return thought("think_comparison", request, reasoning, answer, value=wanted)


def draw_word(rng: random.Random, split: Split) -> str:
    """A word whose letters are asked for in this split only."""
    while True:
        word = rng.choice(WORDS)
        if in_split(f"letters of {word}", split):
            return word


def _spelled(word: str) -> str:
    return ", ".join(word)


def _count_letters(rng: random.Random, word: str) -> tuple[str, str, str]:
    ask = rng.choice(
        ('How many letters does the word "{w}" have?', "How many letters are in {w}?",
         "Count the letters of {w}.")
    )  # fmt: skip
    counted = ", ".join(f"{letter} {number}" for number, letter in enumerate(word, 1))
    answer = f'The word "{word}" has {len(word)} letters.'
    return ask.format(w=word), f"I count the letters: {counted}.", answer


def _reverse(rng: random.Random, word: str) -> tuple[str, str, str]:
    ask = rng.choice(
        ('Write the word "{w}" backwards.', "Reverse the word {w}.", "Spell {w} backwards.")
    )
    reasoning = f"The letters are {_spelled(word)}. From the end: {_spelled(word[::-1])}."
    return ask.format(w=word), reasoning, word[::-1]


def _spell(rng: random.Random, word: str) -> tuple[str, str, str]:
    ask = rng.choice(("Spell the word {w}.", 'How do you spell "{w}"?', "Spell {w}."))
    return ask.format(w=word), f'I write "{word}" letter by letter.', "-".join(word)


def _end_letter(rng: random.Random, word: str) -> tuple[str, str, str]:
    which, letter = rng.choice((("first", word[0]), ("last", word[-1])))
    request = f'What is the {which} letter of the word "{word}"?'
    reasoning = f"The letters are {_spelled(word)}."
    return request, reasoning, f'The {which} letter is "{letter}".'


def _occurrences(rng: random.Random, word: str) -> tuple[str, str, str]:
    letter = rng.choice(word) if rng.random() < 0.85 else rng.choice("aeiost")
    number = word.count(letter)
    lines = []
    seen = 0
    for found in word:
        if found == letter:
            seen += 1
            lines.append(f"{found} yes {seen}")
        else:
            lines.append(f"{found} no")
    times = "once" if number == 1 else f"{number} times"
    request = f'How many times is the letter "{letter}" in the word "{word}"?'
    answer = f'The letter "{letter}" is in "{word}" {number} time{"" if number == 1 else "s"}.'
    return request, f"{', '.join(lines)}. So it is there {times}.", answer


_LETTER_TASKS = (_count_letters, _count_letters, _reverse, _spell, _end_letter, _occurrences)


def think_letters(rng: random.Random, split: Split) -> Example:
    """A question about the letters of one word."""
    word = draw_word(rng, split)
    request, reasoning, answer = rng.choice(_LETTER_TASKS)(rng, word)
    return thought("think_letters", request, reasoning, answer, expected=answer)


def think_longer_word(rng: random.Random, split: Split) -> Example:
    """Which of two words is longer."""
    while True:
        a, b = draw_word(rng, split), rng.choice(WORDS)
        if len(a) != len(b):
            break
    if rng.random() < 0.5:
        a, b = b, a
    which = rng.choice(("longer", "shorter"))
    wanted = max(a, b, key=len) if which == "longer" else min(a, b, key=len)
    reasoning = "\n".join(
        f"{word}: {', '.join(f'{letter} {number}' for number, letter in enumerate(word, 1))}."
        for word in (a, b)
    )
    relation = f"{len(a)} is {'more' if len(a) > len(b) else 'less'} than {len(b)}."
    request = f'Which word is {which}, "{a}" or "{b}"?'
    answer = f'The {which} word is "{wanted}".'
    return thought(
        "think_longer_word", request, f"{reasoning}\n{relation}", answer, expected=answer
    )


def think_sort(rng: random.Random, split: Split) -> Example:
    """Three to five numbers or words in order; the smallest is taken out again and again."""
    count = rng.randint(3, 5)
    are_words = rng.random() < 0.4
    while True:
        if are_words:
            items = rng.sample(WORDS, count)
            if len({word[0] for word in items}) < count:
                continue
        else:
            items = [str(number) for number in rng.sample(range(1, 100), count)]
        if in_split(" ".join(items), split):
            break
    left = list(items)
    ordered = sorted(items) if are_words else sorted(items, key=int)
    name = "first in the alphabet" if are_words else "smallest"
    lines = []
    for item in ordered[:-1]:
        left.remove(item)
        lines.append(f"The {name} is {item}. Left: {', '.join(left)}.")
    lines.append(f"The last is {ordered[-1]}.")
    noun = "words in alphabetical order" if are_words else "numbers from small to large"
    verb = rng.choice(("Sort these", "Put these", "Please sort these"))
    request = f"{verb} {noun}: {', '.join(items)}."
    answer = ", ".join(ordered)
    return thought("think_sort", request, "\n".join(lines), answer, expected=answer)


def think_reading(rng: random.Random, split: Split) -> Example:
    """A question about a story or a text; the reasoning repeats what the text says."""
    is_story = rng.random() < 0.6
    asked = draw_story_question(rng, split) if is_story else draw_text_question(rng, split)
    reasoning = f"The text says: {asked.support}"
    request = asked_message(asked, rng)
    return thought("think_reading", request, reasoning, capitalized(asked.answer), key=asked.key)


def grade_exact(example: Example, text: str) -> bool:
    """Whether the answer is the reference answer, letter for letter."""
    return is_one_of(text, (str(example.facts["expected"]),))


TASKS: tuple[Task, ...] = (
    Task("think_sum", think_sum, grade_number, 0.55),
    Task("think_product", think_product, grade_number, 0.2),
    Task("think_problem", think_problem, grade_number, 0.3),
    Task("think_comparison", think_comparison, grade_number, 0.1),
    Task("think_letters", think_letters, grade_exact, 0.6),
    Task("think_longer_word", think_longer_word, grade_exact, 0.1),
    Task("think_sort", think_sort, grade_exact, 0.4),
    Task("think_reading", think_reading, grade_key, 0.3),
)
