"""Sums, differences, products and quotients asked and answered in one line.

Owns the drawing of operands, which decides what is held out: a pair of operands belongs to one
split in every task that adds, subtracts or multiplies. Written-out reasoning is in ``thinking``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from training.tasks.example import Example, Split, Task, in_split
from training.tasks.grading import last_number, words_of

if TYPE_CHECKING:
    import random

TABLE_SIZE = 20

ADDITION_REQUESTS = (
    "What is {a} + {b}?", "What is {a}+{b}?", "{a}+{b}=", "{a} + {b} =", "{a} + {b}", "{a}+{b}",
    "{a} + {b} = ?", "Add {a} and {b}.", "Compute {a} plus {b}", "Compute {a} + {b}.",
    "What is {a} plus {b}?", "How much is {a} + {b}?", "How much is {a} plus {b}?",
    "What is the sum of {a} and {b}?", "Calculate {a} + {b}.", "{a} plus {b}", "What's {a} + {b}?",
    "Please add {a} and {b}.", "Can you add {a} and {b}?",
)  # fmt: skip
SUBTRACTION_REQUESTS = (
    "What is {a} - {b}?", "What is {a}-{b}?", "{a}-{b}=", "{a} - {b} =", "{a} - {b}", "{a}-{b}",
    "Subtract {b} from {a}.", "Compute {a} minus {b}", "Compute {a} - {b}.",
    "What is {a} minus {b}?", "How much is {a} - {b}?", "Take {b} away from {a}.",
    "Calculate {a} - {b}.", "{a} minus {b}", "What's {a} - {b}?",
)  # fmt: skip
PRODUCT_REQUESTS = (
    "What is {a}*{b}?", "What is {a} * {b}?", "{a}*{b}", "{a} * {b}", "{a}*{b}=", "{a} x {b} =",
    "{a} x {b}", "{a}x{b}", "What is {a} x {b}?", "What is {a} times {b}?", "{a} times {b}",
    "Multiply {a} by {b}.", "Compute {a} times {b}", "How much is {a} * {b}?",
    "How much is {a} times {b}?", "What is the product of {a} and {b}?", "Calculate {a} * {b}.",
)  # fmt: skip
SPELLED_PRODUCT_REQUESTS = ("What is {a} times {b}?", "{a} times {b}", "Multiply {a} by {b}.")
QUOTIENT_REQUESTS = (
    "What is {a} / {b}?", "What is {a}/{b}?", "{a}/{b}", "{a} / {b} =", "{a} / {b}",
    "Divide {a} by {b}.", "What is {a} divided by {b}?", "How much is {a} divided by {b}?",
    "{a} divided by {b}", "Compute {a} / {b}.",
)  # fmt: skip

NUMBER_WORDS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
    "nineteen", "twenty",
)  # fmt: skip


def exchange(task: str, request: str, answer: str, **facts: object) -> Example:
    """One question and one answer as an example."""
    messages = (
        {"role": "user", "content": request},
        {"role": "assistant", "content": answer},
    )
    return Example(task, messages, facts=facts)


def grade_number(example: Example, text: str) -> bool:
    """Whether the last number of the answer is the expected value."""
    return bool(last_number(text) == example.facts["value"])


def is_sum_in(a: int, b: int, split: Split, *, sign: str = "+") -> bool:
    """Whether the sum (or with "-" the difference) of the two belongs to the split."""
    # Everybody tries 2 + 2 first: sums of two digits are taught, and the others are held out.
    if sign == "+" and a < 10 and b < 10:
        return split is Split.TRAIN
    low, high = sorted((a, b))
    return in_split(f"{low}{sign}{high}", split)


def draw_sum(rng: random.Random, split: Split, low: int = 0, high: int = 99) -> tuple[int, int]:
    """Two numbers from ``low`` to ``high`` to be added; the unordered pair is in the split."""
    while True:
        a, b = rng.randint(low, high), rng.randint(low, high)
        if is_sum_in(a, b, split):
            return a, b


def draw_difference(
    rng: random.Random, split: Split, low: int = 0, high: int = 99
) -> tuple[int, int]:
    """A number and one not larger, to be subtracted; the pair is in the split."""
    while True:
        b, a = sorted((rng.randint(low, high), rng.randint(low, high)))
        if is_sum_in(a, b, split, sign="-"):
            return a, b


def draw_long_product(rng: random.Random, split: Split) -> tuple[int, int]:
    """A two-digit number above the tables and a digit from 2; the pair is in the split."""
    while True:
        a, b = rng.randint(TABLE_SIZE + 1, 99), rng.randint(2, 9)
        if in_split(f"{a}*{b}", split):
            return a, b


def draw_factors(rng: random.Random) -> tuple[int, int]:
    """Two numbers of the tables. Tables are learnt by heart, so every pair is taught."""
    if rng.random() < 0.02:
        return 12, 12
    # Half from the small tables, which are asked more.
    limit = 12 if rng.random() < 0.5 else TABLE_SIZE
    return rng.randint(1, limit), rng.randint(1, limit)


def _addition(task: str, low: int, high: int, rng: random.Random, split: Split) -> Example:
    a, b = draw_sum(rng, split, low, high)
    request = rng.choice(ADDITION_REQUESTS).format(a=a, b=b)
    return exchange(task, request, f"{a} + {b} = {a + b}.", value=a + b)


def add_two_digits(rng: random.Random, split: Split) -> Example:
    """A sum of two numbers below 100."""
    # Small sums are few among all pairs and asked the most.
    high = 12 if split is Split.TRAIN and rng.random() < 0.06 else 99
    return _addition("add_two_digits", 0, high, rng, split)


def add_three_digits(rng: random.Random, split: Split) -> Example:
    """A sum of two numbers of up to three digits, mostly three."""
    low = 100 if rng.random() < 0.8 else 1
    return _addition("add_three_digits", low, 999, rng, split)


def _subtraction(task: str, a: int, b: int, rng: random.Random) -> Example:
    request = rng.choice(SUBTRACTION_REQUESTS).format(a=a, b=b)
    return exchange(task, request, f"{a} - {b} = {a - b}.", value=a - b)


def subtract_two_digits(rng: random.Random, split: Split) -> Example:
    """A difference of two numbers below 100; one in ten is negative."""
    a, b = draw_difference(rng, split)
    if rng.random() < 0.1:
        a, b = b, a
    return _subtraction("subtract_two_digits", a, b, rng)


def subtract_three_digits(rng: random.Random, split: Split) -> Example:
    """A difference of two numbers of up to three digits, never negative."""
    low = 100 if rng.random() < 0.7 else 1
    a, b = draw_difference(rng, split, low, 999)
    return _subtraction("subtract_three_digits", a, b, rng)


def times_table(rng: random.Random, split: Split) -> Example:
    """A product of the tables up to 20 x 20; what is held out is a pair in one phrasing.

    12 x 12 is taught in every phrasing.
    """
    while True:
        a, b = draw_factors(rng)
        if rng.random() < 0.1:
            request = rng.choice(SPELLED_PRODUCT_REQUESTS)
            request = request.format(a=NUMBER_WORDS[a], b=NUMBER_WORDS[b])
            request = request[0].upper() + request[1:]
        else:
            request = rng.choice(PRODUCT_REQUESTS).format(a=a, b=b)
        is_wanted = split is Split.TRAIN if a == b == 12 else in_split(request, split)
        if is_wanted:
            return exchange("times_table", request, f"{a} x {b} = {a * b}.", value=a * b)


def multiply_by_digit(rng: random.Random, split: Split) -> Example:
    """A two-digit number times a digit."""
    a, b = draw_long_product(rng, split)
    first, second = (a, b) if rng.random() < 0.7 else (b, a)
    request = rng.choice(PRODUCT_REQUESTS).format(a=first, b=second)
    answer = f"{first} x {second} = {a * b}."
    return exchange("multiply_by_digit", request, answer, value=a * b)


def divide(rng: random.Random, split: Split) -> Example:
    """A quotient without remainder, from the tables; held out as the tables are."""
    while True:
        b, value = draw_factors(rng)
        a = b * value
        request = rng.choice(QUOTIENT_REQUESTS).format(a=a, b=b)
        if in_split(request, split):
            return exchange("divide", request, f"{a} / {b} = {value}.", value=value)


def draw_unequal(rng: random.Random, split: Split) -> tuple[int, int]:
    """Two different numbers below 1,000 that are often alike in their first digits."""
    while True:
        a = rng.randint(0, 999) if rng.random() < 0.7 else rng.randint(0, 99)
        near = max(0, a + rng.choice((-1, 1)) * rng.randint(1, 99))
        b = near if rng.random() < 0.5 else rng.randint(0, 999)
        low, high = sorted((a, b))
        if a != b and in_split(f"{low}<{high}", split):
            return a, b


def compare_numbers(rng: random.Random, split: Split) -> Example:
    """Which of two numbers is larger or smaller, or whether one is."""
    a, b = draw_unequal(rng, split)
    is_larger = rng.random() < 0.6
    word = rng.choice(("larger", "bigger", "greater")) if is_larger else "smaller"
    wanted = max(a, b) if is_larger else min(a, b)
    if rng.random() < 0.25:
        holds = a == wanted
        request = f"Is {a} {word} than {b}?"
        answer = f"Yes, {a} is {word} than {b}." if holds else f"No, {a} is not {word} than {b}."
        return exchange("compare_numbers", request, answer, value="yes" if holds else "no")
    ask = rng.choice(
        (
            "Which is {word}, {a} or {b}?", "Which number is {word}: {a} or {b}?",
            "What is the {word} number, {a} or {b}?", "{a} or {b}: which is {word}?",
        )
    )  # fmt: skip
    request = ask.format(word=word, a=a, b=b)
    return exchange("compare_numbers", request, f"The {word} number is {wanted}.", value=wanted)


def grade_comparison(example: Example, text: str) -> bool:
    """Whether the right number is named, or the answer begins with the right yes or no."""
    value = example.facts["value"]
    if isinstance(value, str):
        return words_of(text)[:1] == [value]
    return grade_number(example, text)


def _neighbour(rng: random.Random, n: int) -> tuple[str, str, int]:
    if rng.random() < 0.6:
        ask = rng.choice(
            ("What number comes after {n}?", "What comes after {n}?", "Which number follows {n}?")
        )
        return ask.format(n=n), f"After {n} comes {n + 1}.", n + 1
    ask = rng.choice(("What number comes before {n}?", "What comes before {n}?"))
    return ask.format(n=n + 1), f"Before {n + 1} comes {n}.", n


def _doubled(rng: random.Random, n: int) -> tuple[str, str, int]:
    if rng.random() < 0.5:
        ask = rng.choice(("What is double {n}?", "What is twice {n}?", "Double {n}."))
        return ask.format(n=n), f"2 x {n} = {2 * n}.", 2 * n
    ask = rng.choice(("What is half of {n}?", "Halve {n}.", "How much is half of {n}?"))
    return ask.format(n=2 * n), f"{2 * n} / 2 = {n}.", n


def _counted(rng: random.Random, n: int) -> tuple[str, str, int]:
    last = n + rng.randint(3, 9)
    ask = rng.choice(("Count from {n} to {last}.", "Please count from {n} to {last}."))
    answer = ", ".join(str(number) for number in range(n, last + 1)) + "."
    return ask.format(n=n, last=last), answer, last


def count_on(rng: random.Random, split: Split) -> Example:
    """The next number, the double, the half, or counting from one number to another."""
    while True:
        make = rng.choice((_neighbour, _doubled, _counted))
        request, answer, value = make(rng, rng.randint(1, 120))
        if in_split(request, split):
            return exchange("count_on", request, answer, value=value)


TASKS: tuple[Task, ...] = (
    Task("add_two_digits", add_two_digits, grade_number, 2.0),
    Task("subtract_two_digits", subtract_two_digits, grade_number, 0.5),
    Task("add_three_digits", add_three_digits, grade_number, 0.35),
    Task("subtract_three_digits", subtract_three_digits, grade_number, 0.25),
    Task("times_table", times_table, grade_number, 0.35),
    Task("multiply_by_digit", multiply_by_digit, grade_number, 0.6),
    Task("divide", divide, grade_number, 0.1),
    Task("compare_numbers", compare_numbers, grade_comparison, 0.5),
    Task("count_on", count_on, grade_number, 0.1),
)
