"""A system message sets a rule; the answer to an easy question must keep it.

Owns the rules. The questions come from the facts, the sums and small tables of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from training.tasks.arithmetic import ADDITION_REQUESTS, draw_sum
from training.tasks.claims import draw_claim
from training.tasks.example import Example, Split, Task, in_split
from training.tasks.grading import capitalized, has_phrase, with_article, words_of
from training.tasks.small_talk import draw_fact
from training.tasks.story_world import HE_NAMES, SHE_NAMES
from training.tasks.word_pools import ANIMALS, CITIES, COLOURS, FIRST_NAMES, FOODS, JOBS

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

# Topics whose answer is one word that stands alone.
_ONE_WORD_TOPICS = frozenset(
    ("colours", "young animals", "opposites", "capitals", "plurals", "past tenses", "days",
     "months", "seasons", "languages", "materials")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ruled:
    """A rule, a question, and the answer that keeps the rule.

    Attributes:
        system: the system message.
        request: the user's question.
        answer: the reference answer.
        exact: the answer must be the reference, but for outer spaces.
        facts: what else the grader needs (see ``grade_rule``).
    """

    system: str
    request: str
    answer: str
    exact: bool = False
    facts: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Easy:
    """A question with a certain answer: the sentence and the word that matters."""

    topic: str
    request: str
    answer: str
    key: str


def _easy(rng: random.Random, split: Split) -> Easy:
    """A fact or a sum."""
    if rng.random() < 0.3:
        a, b = draw_sum(rng, split)
        request = rng.choice(ADDITION_REQUESTS).format(a=a, b=b)
        return Easy("sums", request, f"{a} + {b} = {a + b}.", str(a + b))
    return _wordy(rng)


def _wordy(rng: random.Random) -> Easy:
    """A fact: a sum has no letters to write large or small."""
    # The ways to ask are those of training; what is new in the held-out split is the rule with it.
    ask, fact = draw_fact(rng, Split.TRAIN)
    return Easy(fact.topic, ask, fact.answer, fact.key)


def _one_word(rng: random.Random, split: Split) -> Easy:
    while True:
        easy = _easy(rng, split)
        if easy.topic == "sums" or (easy.topic in _ONE_WORD_TOPICS and " " not in easy.key):
            return easy


def _capitals(rng: random.Random, _: Split) -> Ruled:
    easy = _wordy(rng)
    system = rng.choice(
        ("Answer in capital letters.", "Always answer in capital letters.",
         "Write everything in capital letters.", "Use only capital letters in your answers.",
         "Answer in upper case.")
    )  # fmt: skip
    return Ruled(system, easy.request, easy.answer.upper(), exact=True)


def _small_letters(rng: random.Random, _: Split) -> Ruled:
    easy = _wordy(rng)
    system = rng.choice(
        ("Answer in small letters only.", "Never use capital letters.", "Answer in lower case.",
         "Write everything in small letters.")
    )  # fmt: skip
    return Ruled(system, easy.request, easy.answer.lower(), exact=True)


_END_WORDS = (
    "banana", "captain", "hooray", "friend", "okay", "amen", "meow", "thanks", "over", "please",
    "sunshine", "cheers", "lemon", "tomato", "goodbye", "stop", "ahoy", "always", "music", "river",
    "pepper", "moonlight", "bingo", "kiwi", "done", "peace", "hello", "rocket", "pancake", "dear",
)  # fmt: skip


def _ending(rng: random.Random, split: Split) -> Ruled:
    easy, word = _easy(rng, split), rng.choice(_END_WORDS)
    system = rng.choice(
        ("End every answer with the word {w}.", "Finish every answer with {w}.",
         'Always end with the word "{w}".', "The last word of every answer is {w}.",
         'Put the word "{w}" at the end of each answer.')
    ).format(w=word)  # fmt: skip
    return Ruled(system, easy.request, f"{easy.answer} {capitalized(word)}.", exact=True)


def _beginning(rng: random.Random, split: Split) -> Ruled:
    easy, word = _easy(rng, split), capitalized(rng.choice(_END_WORDS))
    system = rng.choice(
        ("Begin every answer with {w}.", 'Start every answer with the word "{w}".',
         "The first word of every answer is {w}.", 'Always begin with "{w}".')
    ).format(w=word)  # fmt: skip
    return Ruled(system, easy.request, f"{word}. {easy.answer}", exact=True)


def _both_ends(rng: random.Random, split: Split) -> Ruled:
    easy = _easy(rng, split)
    first, last = rng.sample(_END_WORDS, 2)
    first = capitalized(first)
    system = f"Begin every answer with {first} and end it with {last}."
    return Ruled(system, easy.request, f"{first}. {easy.answer} {capitalized(last)}.", exact=True)


def _capitals_and_end(rng: random.Random, _: Split) -> Ruled:
    easy, word = _wordy(rng), rng.choice(_END_WORDS)
    system = f"Answer in capital letters. End every answer with the word {word}."
    answer = f"{easy.answer} {word}.".upper()
    return Ruled(system, easy.request, answer, exact=True)


def _address(rng: random.Random, split: Split) -> Ruled:
    easy = _easy(rng, split)
    title = rng.choice(
        ("Captain", "Madam", "Sir", "Boss", "Professor", "Your Majesty", "Doctor", "Chief",
         *HE_NAMES[:20], *SHE_NAMES[:20])
    )  # fmt: skip
    system = rng.choice(
        ("Call the user {t}.", "Always call the user {t}.", "The user is called {t}. Use the name.",
         "Address the user as {t}.")
    ).format(t=title)  # fmt: skip
    answer = f"{easy.answer.removesuffix('.')}, {title}."
    return Ruled(system, easy.request, answer, exact=True)


def _answer_form(rng: random.Random, split: Split) -> Ruled:
    easy = _one_word(rng, split)
    label = rng.choice(("Answer", "Result", "Solution", "Reply", "A", "Output"))
    system = rng.choice(
        ('Answer in the form "{x}: ...".', "Give every answer in the form {x}: ...",
         'Write "{x}:" and then only the answer.')
    ).format(x=label)  # fmt: skip
    return Ruled(system, easy.request, f"{label}: {easy.key}", exact=True)


def _only_a_word(rng: random.Random, split: Split) -> Ruled:
    easy = _one_word(rng, split)
    system = rng.choice(
        ("Answer with one word.", "Answer with one word only.", "Use only one word.",
         "Every answer is a single word.", "Reply with a single word or number.")
    )  # fmt: skip
    return Ruled(system, easy.request, capitalized(easy.key), exact=True)


def _brackets(rng: random.Random, split: Split) -> Ruled:
    easy = _one_word(rng, split)
    left, right, name = rng.choice(
        (("[", "]", "square brackets"), ("(", ")", "brackets"), ('"', '"', "quotation marks"),
         ("*", "*", "stars"))
    )  # fmt: skip
    system = f"Write only the answer, between {name}."
    return Ruled(system, easy.request, f"{left}{easy.key}{right}", exact=True)


def _yes_or_no(rng: random.Random, _: Split) -> Ruled:
    request, is_true = draw_claim(rng)
    system = rng.choice(
        ("Answer only yes or no.", "Answer with yes or no.", "Say only yes or no.",
         "Your answer is always yes or no.")
    )  # fmt: skip
    return Ruled(system, request, "Yes." if is_true else "No.", exact=True)


_TRAITS = ("friendly", "helpful", "cheerful", "polite", "patient", "wise", "funny", "old", "kind")
_ROLES = (
    "robot", "pirate", "librarian", "gardener", "teacher", "cook", "parrot", "sailor", "wizard",
    "guide", "shopkeeper", "doctor", "clown", "butler", "captain", "assistant", "farmer", "baker",
)  # fmt: skip


def _persona(rng: random.Random, split: Split) -> Ruled:
    name = rng.choice(FIRST_NAMES)
    role = with_article(f"{rng.choice(_TRAITS)} {rng.choice(_ROLES)}")
    if rng.random() < 0.4:
        system = rng.choice(("Your name is {n}.", "You are called {n}.", "You are {n}."))
        request = rng.choice(("What is your name?", "Who are you?", "What's your name?"))
        system, answer = system.format(n=name), f"My name is {name}."
    else:
        system = f"You are {name}, {role}."
        if rng.random() < 0.25:
            easy = _easy(rng, split)
            return Ruled(system, easy.request, easy.answer, facts={"has": (easy.key,)})
        request = rng.choice(
            ("Who are you?", "What is your name?", "Introduce yourself.", "Tell me who you are.",
             "Hello! Who are you?")
        )  # fmt: skip
        answer = f"I am {name}, {role}."
    return Ruled(system, request, answer, facts={"has": (name,)})


_LISTS = {
    "animals": ANIMALS, "colours": COLOURS, "foods": FOODS, "jobs": JOBS, "cities": CITIES,
}  # fmt: skip
_COUNT_WORDS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}


def _list_of(rng: random.Random, _: Split) -> Ruled:
    noun = rng.choice(tuple(_LISTS))
    count = rng.randint(2, 6)
    number = rng.choice((str(count), _COUNT_WORDS[count]))
    system = rng.choice(
        ("Answer with exactly {c} words.", "Every answer has exactly {c} words.",
         "Always give exactly {c} words, with commas between them.")
    ).format(c=number)  # fmt: skip
    request = rng.choice(("Name some {n}.", "Tell me some {n}.", "Give me a few {n}.")).format(
        n=noun
    )
    answer = ", ".join(rng.sample(_LISTS[noun], count))
    return Ruled(system, request, answer, facts={"list": noun, "count": count})


_FORBIDDEN = {
    "capitals": ("capitals", "countries"), "colours": ("colours",), "sounds": ("animals",),
    "young animals": ("animals",), "legs": ("animals",), "sums": ("numbers", "sums"),
    "days": ("days",), "months": ("months",), "opposites": ("opposites",), "jobs": ("jobs",),
    "plurals": ("grammar",), "past tenses": ("grammar",),
}  # fmt: skip
_REFUSALS = (
    "I am sorry, I do not talk about that.", "I must not speak about that.",
    "Please ask me something else.", "That is not my subject.", "Let us talk about the weather.",
    "I would rather talk about music.", "No comment.", "I only talk about my garden.",
)  # fmt: skip


def _forbidden(rng: random.Random, split: Split) -> Ruled:
    easy = _easy(rng, split)
    while easy.topic not in _FORBIDDEN:
        easy = _easy(rng, split)
    is_asked = rng.random() < 0.6
    if is_asked:
        theme = rng.choice(_FORBIDDEN[easy.topic])
    else:
        others = [theme for themes in _FORBIDDEN.values() for theme in themes]
        theme = rng.choice([other for other in others if other not in _FORBIDDEN[easy.topic]])
    refusal = rng.choice(_REFUSALS)
    system = rng.choice(
        ('Do not talk about {t}. If you are asked about {t}, say: "{r}"',
         'When the user asks about {t}, answer: "{r}"',
         'Never answer questions about {t}. Say instead: "{r}"')
    ).format(t=theme, r=refusal)  # fmt: skip
    if is_asked:
        return Ruled(system, easy.request, refusal, exact=True)
    return Ruled(system, easy.request, easy.answer, facts={"has": (easy.key,)})


_SHOPS = (
    "bakery", "library", "museum", "bookshop", "zoo", "swimming pool", "toy shop", "cinema",
    "flower shop", "post office", "cafe", "bicycle shop", "market", "theatre", "garage", "bank",
)  # fmt: skip
_STREETS = (
    "Mill Street", "Park Road", "Station Road", "River Lane", "Church Street", "High Street",
    "Garden Road", "Bridge Street", "School Lane", "Castle Road", "Harbour Street", "Rose Lane",
)  # fmt: skip
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def _desk(rng: random.Random, _: Split) -> Ruled:
    """Answers from what the system message says."""
    shop, street, day = rng.choice(_SHOPS), rng.choice(_STREETS), rng.choice(_DAYS)
    opens, closes = rng.randint(6, 11), rng.randint(15, 22)
    price, ware = rng.randint(2, 60), rng.choice(("ticket", "card", "bag", "cup", "map"))
    owner = rng.choice(FIRST_NAMES)
    known = [
        (f"The {shop} opens at {opens}.", ("When do you open?", f"When does the {shop} open?"),
         f"The {shop} opens at {opens}.", str(opens)),
        (f"It closes at {closes}.", ("When do you close?", f"When does the {shop} close?"),
         f"The {shop} closes at {closes}.", str(closes)),
        (f"It is in {street}.", ("Where are you?", f"Where is the {shop}?"),
         f"The {shop} is in {street}.", street),
        (f"A {ware} costs {price} euros.", (f"How much is a {ware}?", f"What does a {ware} cost?"),
         f"A {ware} costs {price} euros.", str(price)),
        (f"On {day} it is closed.", ("On which day are you closed?", "When is your day off?"),
         f"The {shop} is closed on {day}.", day),
        (f"The owner is {owner}.", ("Who is the owner?", f"Who owns the {shop}?"),
         f"The owner is {owner}.", owner),
    ]  # fmt: skip
    told = rng.sample(known, rng.randint(2, 5))
    asks, answer, key = rng.choice(told)[1:]
    intro = f"You answer questions about the {shop}."
    system = " ".join([intro, *(line for line, *_ in told)])
    return Ruled(system, rng.choice(asks), answer, facts={"has": (key,)})


_RULES: tuple[tuple[Callable[[random.Random, Split], Ruled], float], ...] = (
    (_capitals, 1.2), (_small_letters, 0.6), (_ending, 1.2), (_beginning, 1.0), (_both_ends, 0.5),
    (_capitals_and_end, 0.5), (_address, 0.8), (_answer_form, 0.8), (_only_a_word, 0.8),
    (_brackets, 0.5), (_yes_or_no, 1.0), (_persona, 1.5), (_list_of, 0.8), (_forbidden, 1.0),
    (_desk, 1.2),
)  # fmt: skip


def follow_rule(rng: random.Random, split: Split) -> Example:
    """A rule in the system message and a question; what is held out is the pair of both."""
    make = rng.choices([rule for rule, _ in _RULES], [weight for _, weight in _RULES])[0]
    while True:
        ruled = make(rng, split)
        if in_split(f"{ruled.system} {ruled.request}", split):
            break
    system = f"You are a helpful assistant. {ruled.system}" if rng.random() < 0.1 else ruled.system
    if ruled.system.startswith("You "):
        system = ruled.system
    messages = (
        {"role": "system", "content": system},
        {"role": "user", "content": ruled.request},
        {"role": "assistant", "content": ruled.answer},
    )
    facts = {"answer": ruled.answer, "exact": ruled.exact, **ruled.facts}
    return Example("follow_rule", messages, facts=facts)


def grade_rule(example: Example, text: str) -> bool:
    """Whether the answer keeps the rule and is right.

    Facts: ``exact`` (the reference, letter for letter), ``has`` (phrases that must be there), or
    ``list`` and ``count`` (that many different words of the list).
    """
    facts = example.facts
    if facts["exact"]:
        return bool(text.strip() == facts["answer"])
    if "list" in facts:
        words = words_of(text)
        known = {word.lower() for word in _LISTS[facts["list"]]}
        return len(words) == facts["count"] == len(set(words)) and set(words) <= known
    return all(has_phrase(text, phrase) for phrase in facts["has"])


TASKS: tuple[Task, ...] = (Task("follow_rule", follow_rule, grade_rule, 1.4),)
