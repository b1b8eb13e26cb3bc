"""What graders share: finding numbers and words in an answer.

Owns no task. Comparisons ignore case and punctuation; numbers may not hide inside other numbers.
"""

from __future__ import annotations

import re

_NUMBER = re.compile(r"(?<![\w.])-?\d+")
_WORD = re.compile(r"[a-z0-9]+")


def last_number(text: str) -> int | None:
    """The last whole number written in digits, or None."""
    numbers = _NUMBER.findall(text)
    return int(numbers[-1]) if numbers else None


def words_of(text: str) -> list[str]:
    """The words of the text in lower case, without punctuation ("Mia's" is "mia", "s")."""
    return _WORD.findall(text.lower())


def has_phrase(text: str, phrase: str) -> bool:
    """Whether the words of ``phrase`` occur in the text, in this order and next to each other."""
    text_words, phrase_words = words_of(text), words_of(phrase)
    width = len(phrase_words)
    return any(
        text_words[start : start + width] == phrase_words
        for start in range(len(text_words) - width + 1)
    )


def is_one_of(text: str, answers: tuple[str, ...]) -> bool:
    """Whether the whole text is one of the answers, letter for letter but for outer spaces."""
    return text.strip() in answers


def with_article(phrase: str) -> str:
    """The phrase with "a" or "an" before it."""
    # Of the words used here only these begin with another sound than their letter says.
    vowel = phrase[0].lower() in "aeiou" and not phrase.startswith(("unicorn", "ukulele", "one"))
    return f"{'an' if vowel else 'a'} {phrase}"


def capitalized(text: str) -> str:
    """The text with its first letter in upper case, the rest as it was."""
    return text[:1].upper() + text[1:]
