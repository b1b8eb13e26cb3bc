"""A code word hidden in a long text: the task that long context is measured with.

Owns the needle sentences, the questions, and how a text of a given length is put together. The
filler comes from ``training.tasks.filler`` or from whoever calls (paragraphs of the corpus).
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass

from training.tasks.example import Example, Split, Task, in_split
from training.tasks.filler import plain_paragraph, plain_sentence
from training.tasks.word_pools import FIRST_NAMES, OBJECTS, ROOMS, code_word, number_of_digits

# Makes one paragraph of filler.
Paragraphs = Callable[[random.Random], str]

# Characters a token of the demo's tokenizer holds: of the built-in filler (4.40 measured) and of
# the corpus' paragraphs (4.09), less a margin, so that hardly any long text outgrows the context.
FILLER_CHARS_PER_TOKEN = 4.35
CORPUS_CHARS_PER_TOKEN = 3.95
SHORT_TOKENS = (100, 900)
LONG_TOKENS = (900, 8100)
# Room for the turn marks, the empty thinking and the answer, taken off the length asked for.
ANSWER_TOKENS = 64


@dataclass(frozen=True, slots=True)
class _Kind:
    """What is hidden: how it is called, and whether it is a number."""

    noun: str
    is_number: bool = False
    # What several of the same kind belong to: places or people.
    of: str = "place"


_KINDS = (
    _Kind("code word"),
    _Kind("code word"),
    _Kind("code word"),
    _Kind("secret word"),
    _Kind("password"),
    _Kind("magic word"),
    _Kind("key phrase"),
    _Kind("secret number", is_number=True),
    _Kind("access code", is_number=True),
    _Kind("lucky number", is_number=True, of="person"),
    _Kind("locker code", is_number=True, of="person"),
    _Kind("password", of="person"),
    _Kind("code word", of="person"),
)

_NEEDLES = (
    "The {noun} is {value}.",
    "The {noun} is {value}.",
    "Remember this: the {noun} is {value}.",
    "Important: the {noun} is {value}.",
    "Please note that the {noun} is {value}.",
    "Do not forget that the {noun} is {value}.",
    "By the way, the {noun} is {value}.",
    "{value} is the {noun}.",
    'The {noun} is "{value}".',
)
_QUESTIONS = (
    "What is the {noun}?",
    "What is the {noun}?",
    "What is the {noun} in the text?",
    "Which {plain} does the text give for the {noun}?",
    "Tell me the {noun}.",
    "Find the {noun} in the text.",
    "The text hides the {noun}. What is it?",
)
_ANNOUNCEMENTS = (
    "Read the text and find the {noun}.",
    "Somewhere in the text below is the {noun}. Remember it.",
    "The following text contains the {noun}.",
    "Here is a long text. I will ask for the {noun} afterwards.",
)
_OPENINGS = ("Read this text.", "Here is a text.", "Text:", "Read the following text carefully.")
_BOTH_QUESTIONS = (
    "Which two {noun}s are in the text?",
    "What are the two {noun}s in the text, in order?",
    "The text contains two {noun}s. Name them in order.",
)
_FIRST_OR_SECOND = (
    ("The first {noun} is {value}.", "The second {noun} is {value}."),
    ("{noun} number 1 is {value}.", "{noun} number 2 is {value}."),
    ("One {noun} is {value}.", "Another {noun} is {value}."),
)


@dataclass(frozen=True, slots=True)
class _Hidden:
    """What goes into the text and what is asked about it."""

    needles: tuple[str, ...]
    asked: int | None  # place of the needle asked for in ``needles``; None: all, in order
    announcement: str
    question: str
    answer: str
    values: tuple[str, ...]  # expected
    others: tuple[str, ...]  # hidden too, and wrong


def _value(rng: random.Random, kind: _Kind) -> str:
    return str(number_of_digits(rng, 3, 5)) if kind.is_number else code_word(rng)


def _new_value(rng: random.Random, split: Split, kind: _Kind, used: set[str]) -> str:
    while True:
        value = _value(rng, kind)
        if value not in used and in_split(value, split):
            used.add(value)
            return value


def _owner_noun(rng: random.Random, kind: _Kind, taken: set[str]) -> tuple[str, str]:
    """The noun with the place or person it belongs to, bare and with its article if any."""
    while True:
        if kind.of == "person":
            name = rng.choice(FIRST_NAMES)
            noun, spoken = f"{name}'s {kind.noun}", f"{name}'s {kind.noun}"
        else:
            place = rng.choice(ROOMS if rng.random() < 0.6 else OBJECTS)
            noun = f"{kind.noun} of the {place}" if rng.random() < 0.3 else ""
            noun = noun or f"{kind.noun} for the {place}"
            spoken = f"the {noun}"
            name = place
        if name not in taken:
            taken.add(name)
            return noun, spoken


def _say(template: str, spoken: str, plain: str, value: str = "") -> str:
    """Fills a template; ``spoken`` carries its own article or owner."""
    text = template.replace("the {noun}", spoken).replace("The {noun}", spoken)
    text = text.replace("{plain}", plain).replace("{value}", value)
    return text[0].upper() + text[1:] if not text.startswith(value or " ") else text


def _hide_one(rng: random.Random, split: Split) -> _Hidden:
    """One needle that is asked for, and in four of ten cases others that are not."""
    kind = rng.choice(_KINDS)
    used: set[str] = set()
    taken: set[str] = set()
    num_others = rng.choice((0, 0, 0, 0, 0, 0, 1, 1, 2, 3))
    if num_others or kind.of == "person" or rng.random() < 0.2:
        owners = [_owner_noun(rng, kind, taken)[1] for _ in range(num_others + 1)]
    else:
        owners = [f"the {kind.noun}"]
    plain = "number" if kind.is_number else "word"
    values = [_new_value(rng, split, kind, used) for _ in owners]
    needles = [
        _say(rng.choice(_NEEDLES), spoken, plain, value)
        for spoken, value in zip(owners, values, strict=True)
    ]
    asked = rng.randrange(len(owners))
    spoken = owners[asked]
    return _Hidden(
        needles=tuple(needles),
        asked=asked,
        announcement=_say(rng.choice(_ANNOUNCEMENTS), spoken, plain),
        question=_say(rng.choice(_QUESTIONS), spoken, plain),
        answer=_say("The {noun} is {value}.", spoken, plain, values[asked]),
        values=(values[asked],),
        others=tuple(value for at, value in enumerate(values) if at != asked),
    )


def _hide_two(rng: random.Random, split: Split) -> _Hidden:
    """Two needles, both asked for in the order of the text."""
    kind = rng.choice(_KINDS[:4])
    used: set[str] = set()
    values = tuple(_new_value(rng, split, kind, used) for _ in range(2))
    needles = tuple(
        template.replace("{noun}", kind.noun).replace("{value}", value)
        for template, value in zip(rng.choice(_FIRST_OR_SECOND), values, strict=True)
    )
    return _Hidden(
        needles=tuple(needle[0].upper() + needle[1:] for needle in needles),
        asked=None,
        announcement=f"The following text contains two {kind.noun}s.",
        question=rng.choice(_BOTH_QUESTIONS).replace("{noun}", kind.noun),
        answer=f"The two {kind.noun}s are {values[0]} and {values[1]}.",
        values=values,
        others=(),
    )


_SENTENCE_END = re.compile(r"(?<=[.!?]) +(?=[A-Z\"])")


def _insert(rng: random.Random, paragraphs: list[str], needle: str, depth: float) -> None:
    """Puts the needle at this share of the text, between or inside paragraphs."""
    target = depth * sum(len(paragraph) for paragraph in paragraphs)
    at = 0
    while at < len(paragraphs) and len(paragraphs[at]) <= target:
        target -= len(paragraphs[at])
        at += 1
    sentences = _SENTENCE_END.split(paragraphs[at]) if at < len(paragraphs) else []
    if len(sentences) < 2 or rng.random() < 0.25:
        after = at < len(paragraphs) and target > len(paragraphs[at]) / 2
        paragraphs.insert(at + after, needle)
        return
    place = 0
    while place < len(sentences) and len(sentences[place]) / 2 < target:
        target -= len(sentences[place])
        place += 1
    sentences.insert(place, needle)
    paragraphs[at] = " ".join(sentences)


def _conversation(rng: random.Random, task: str, hidden: _Hidden, text: str) -> Example:
    choice = rng.random()
    if choice < 0.25:
        prompt = f"{hidden.announcement}\n\n{text}\n\n{hidden.question}"
    elif choice < 0.5:
        prompt = f"{rng.choice(_OPENINGS)}\n\n{text}\n\n{hidden.question}"
    else:
        prompt = f"{text}\n\n{hidden.question}"
    return Example(
        task=task,
        messages=(
            {"role": "user", "content": prompt},
            {"role": "assistant", "content": hidden.answer},
        ),
        facts={"values": hidden.values, "others": hidden.others},
    )


def _assemble(
    rng: random.Random, hidden: _Hidden, paragraphs: list[str], depth: float | None
) -> str:
    """The text with all needles in it; ``depth`` is that of the needle asked for."""
    depths = sorted(rng.random() for _ in hidden.needles)
    if depth is not None and hidden.asked is None:
        depths[0] = depth
        depths[1:] = [depth + (1 - depth) * rng.random() for _ in depths[1:]]
    elif hidden.asked is not None:
        rng.shuffle(depths)
        if depth is not None:
            depths[hidden.asked] = depth
    # The needle asked for last, so that its depth is that of the finished text.
    for at in sorted(range(len(depths)), key=lambda at: at == hidden.asked):
        _insert(rng, paragraphs, hidden.needles[at], depths[at])
    text = "\n\n".join(paragraphs)
    if hidden.asked is None:
        first, second = hidden.needles
        if text.index(first) > text.index(second):
            text = text.replace(second, "\0").replace(first, second).replace("\0", first)
    return text


def _hide(rng: random.Random, split: Split) -> _Hidden:
    return _hide_two(rng, split) if rng.random() < 0.12 else _hide_one(rng, split)


def _cut(paragraph: str, num_chars: int) -> str:
    """The first sentences of the paragraph that fit; empty where none does."""
    kept, length = [], 0
    for sentence in _SENTENCE_END.split(paragraph):
        length += len(sentence) + 1
        if length > num_chars:
            break
        kept.append(sentence)
    return " ".join(kept)


def code_word_example(
    rng: random.Random,
    split: Split,
    paragraphs: Paragraphs,
    target_chars: int,
    depth: float | None,
    task: str = "code_word",
) -> Example:
    """A text of about ``target_chars`` characters, never more, with the question behind it.

    Args:
        rng: the only source of chance.
        split: which code words may be hidden.
        paragraphs: gives a paragraph of filler at each call.
        target_chars: length of the text.
        depth: where the needle asked for is, 0 (start) to 1 (end); None draws it.
        task: name given to the example.
    """
    hidden = _hide(rng, split)
    room = target_chars - sum(len(needle) + 2 for needle in hidden.needles)
    chosen: list[str] = []
    while True:
        paragraph = paragraphs(rng)
        if len(paragraph) + 2 > room:
            break
        chosen.append(paragraph)
        room -= len(paragraph) + 2
    # A corpus may give a sentence that is longer than all the room there is.
    rest = _cut(paragraph, room - 2) or ("" if chosen else _cut(plain_paragraph(rng), room - 2))
    if rest:
        chosen.append(rest)
    return _conversation(rng, task, hidden, _assemble(rng, hidden, chosen, depth))


def make(
    rng: random.Random,
    split: Split,
    num_tokens: int,
    depth: float,
    count_tokens: Callable[[str], int],
    paragraphs: Paragraphs = plain_paragraph,
) -> Example:
    """A conversation of at most ``num_tokens`` tokens and nearly as many, for the evaluation.

    Args:
        rng: the only source of chance.
        split: which code words may be hidden.
        num_tokens: of the whole conversation; ``ANSWER_TOKENS`` of it are kept for all but the
            user's text.
        depth: where the needle is, 0 (start) to 1 (end).
        count_tokens: counts the tokens of a text.
        paragraphs: gives a paragraph of filler at each call.
    """
    hidden = _hide_one(rng, split)
    frame = "\n\n".join((*hidden.needles, hidden.announcement, hidden.question))
    room = num_tokens - ANSWER_TOKENS - count_tokens(frame)
    chosen: list[str] = []
    while True:
        paragraph = paragraphs(rng)
        # Blank lines join the full stop before them, so a part costs what it costs alone.
        cost = count_tokens(f"{paragraph}\n\n")
        if cost > room:
            break
        chosen.append(paragraph)
        room -= cost
    # The last paragraph is made to measure.
    rest = ""
    for sentence in [*_SENTENCE_END.split(paragraph), *(plain_sentence(rng) for _ in range(20))]:
        longer = f"{rest} {sentence}".strip()
        if count_tokens(f"{longer}\n\n") <= room:
            rest = longer
    if rest:
        chosen.append(rest)
    return _conversation(rng, "code_word", hidden, _assemble(rng, hidden, chosen, depth))


def _num_tokens(rng: random.Random, limits: tuple[int, int]) -> int:
    """A length; the logarithm is uniform, so that short ones are as common."""
    low, high = limits
    return int(math.exp(rng.uniform(math.log(low), math.log(high))))


def generate(rng: random.Random, split: Split) -> Example:
    """A short text (100 to 900 tokens) of the built-in filler."""
    length = int(FILLER_CHARS_PER_TOKEN * _num_tokens(rng, SHORT_TOKENS))
    return code_word_example(rng, split, plain_paragraph, length, None)


def long_example(rng: random.Random, split: Split, paragraphs: Paragraphs | None) -> Example:
    """A long text (900 to 8,100 tokens) of the paragraphs, of the built-in filler, or of both.

    One in four is drawn from all lengths alike, so that the longest are not too rare.
    """
    share = rng.choice((0.0, 0.0, 1.0, 1.0, 1.0, 0.5)) if paragraphs else 0.0

    def mixed(rng: random.Random) -> str:
        return paragraphs(rng) if paragraphs and rng.random() < share else plain_paragraph(rng)

    num_tokens = _num_tokens(rng, LONG_TOKENS) if rng.random() < 0.75 else rng.randint(*LONG_TOKENS)
    chars_per_token = CORPUS_CHARS_PER_TOKEN if share else FILLER_CHARS_PER_TOKEN
    length = int(chars_per_token * num_tokens)
    return code_word_example(rng, split, mixed, length, None, "code_word_long")


def generate_long(rng: random.Random, split: Split) -> Example:
    """A long text of the built-in filler."""
    return long_example(rng, split, None)


def grade(example: Example, answer: str) -> bool:
    """Whether the answer names the hidden values in order, and none of the wrong ones."""
    named = re.findall(r"[\w-]+", answer)
    wanted = list(example.facts["values"])
    known = set(wanted) | set(example.facts["others"])
    return [word for word in named if word in known] == wanted


TASKS: tuple[Task, ...] = (
    Task("code_word", generate, grade, 2.0),
    Task("code_word_long", generate_long, grade, 0.0),
)
