"""Questions with a short certain answer about a story or a few sentences in the message.

Owns the short texts of places, colours, owners and likings; the stories come from ``stories``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from training.tasks.example import Example, Split, Task, in_split
from training.tasks.grading import capitalized, has_phrase, with_article
from training.tasks.stories import draw_short_story, draw_story
from training.tasks.story_grammar import GENERAL_QUESTIONS, Question, Story, fill
from training.tasks.story_world import HE_NAMES, SHE_NAMES
from training.tasks.word_pools import FIRST_NAMES

if TYPE_CHECKING:
    import random

NAMES = tuple(dict.fromkeys((*HE_NAMES, *SHE_NAMES, *FIRST_NAMES)))
COLOURS = (
    "red", "blue", "green", "yellow", "white", "black", "brown", "grey", "pink", "purple",
    "orange", "golden", "silver",
)  # fmt: skip
ROOMS = (
    "kitchen", "garden", "bathroom", "bedroom", "garage", "cellar", "attic", "hall", "shed",
    "school", "shop", "park", "library", "office", "barn", "market",
)  # fmt: skip
OBJECTS = (
    "cup", "ball", "book", "key", "hat", "lamp", "spoon", "bag", "shoe", "coat", "apple",
    "pen", "plate", "clock", "towel", "umbrella", "letter", "map", "rope", "bottle", "brush",
    "candle", "drum", "kite", "doll", "bucket", "scarf", "mirror", "glove", "whistle",
)  # fmt: skip
SPOTS = (
    "on the table", "under the bed", "in the cupboard", "on the shelf", "behind the door",
    "in the drawer", "on the chair", "next to the window", "under the sofa", "in the basket",
    "on the stairs", "in the box", "beside the oven", "on the desk", "under the bench",
)  # fmt: skip
ANIMALS = ("cat", "dog", "horse", "rabbit", "parrot", "goat", "hamster", "pony", "duck", "hen")
FOODS = (
    "apples", "bread", "cheese", "soup", "cake", "carrots", "rice", "pears", "nuts", "grapes",
    "pancakes", "honey", "noodles", "beans", "eggs", "cherries",
)  # fmt: skip
REASONS = (
    ("was tired", "had walked all day"), ("was happy", "had found a coin"),
    ("was sad", "had lost a shoe"), ("was hungry", "had not eaten all day"),
    ("was wet", "had fallen into the pond"), ("was late", "had missed the bus"),
    ("was cold", "had no coat"), ("laughed", "had heard a joke"), ("ran", "was late for school"),
    ("was proud", "had won the race"), ("stayed at home", "had a cold"),
    ("was angry", "had broken a cup"), ("opened the window", "felt too warm"),
    ("lit a candle", "could see nothing in the dark"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Asked:
    """A question about a text.

    Attributes:
        text: what is read.
        ask: the question.
        answer: the reference answer, one sentence.
        key: the words the answer must have.
        support: the sentences of the text that say it.
    """

    text: str
    ask: str
    answer: str
    key: str
    support: str


def _without_article(phrase: str) -> str:
    for article in ("the ", "a ", "an "):
        phrase = phrase.removeprefix(article)
    return phrase


def _colour_question(story: Story) -> Question | None:
    if story.cast.thing_adjective not in COLOURS:
        return None
    for beat, sentences in story.told:
        if story.slots["adj_thing"] in sentences:
            return Question(
                beat.label,
                "What colour was the {thing}?",
                "The {thing} was {colour}.",
                "{colour}",
            )
    return None


def ask_about(story: Story, rng: random.Random) -> Asked:
    """One of the questions that the told beats answer."""
    told = {beat.label: sentences for beat, sentences in story.told}
    candidates = [question for question in story.plot.questions if question.label in told]
    colour = _colour_question(story)
    if colour is not None:
        candidates.append(colour)
    # The plot's own questions are harder, so they are asked more.
    if not candidates or rng.random() < 0.25:
        candidates = list(GENERAL_QUESTIONS)
    while True:
        question = rng.choice(candidates)
        key = fill(question.key, story.slots, rng)
        support = told[question.label]
        # A line may say it in other words, and then another question is asked.
        if has_phrase(support, _without_article(key)) or question.label == "no":
            break
        candidates = [*(other for other in candidates if other != question), *GENERAL_QUESTIONS]
    text = story.text if rng.random() < 0.7 else story.one_paragraph
    ask = fill(question.ask, story.slots, rng)
    return Asked(text, ask, fill(question.answer, story.slots, rng), _without_article(key), support)


def _names(rng: random.Random, count: int) -> list[str]:
    return rng.sample(NAMES, count)


def _names_of_known_pronoun(rng: random.Random, count: int) -> list[str]:
    return rng.sample((*HE_NAMES, *SHE_NAMES), count)


def _choose(rng: random.Random, facts: list[tuple[str, str, str, str]]) -> Asked:
    """A text of all the facts (sentence, question, answer, key) and the question of one."""
    sentence, ask, answer, key = rng.choice(facts)
    return Asked(" ".join(fact[0] for fact in facts), ask, answer, key, sentence)


def _put(rng: random.Random) -> Asked:
    count = rng.randint(2, 5)
    things, spots = rng.sample(OBJECTS, count), rng.sample(SPOTS, count)
    verb = rng.choice(("put", "left", "found"))
    facts = [
        (
            f"{name} {verb} the {thing} {spot}.",
            f"Where is the {thing}?",
            f"The {thing} is {spot}.",
            spot,
        )
        for name, thing, spot in zip(_names(rng, count), things, spots, strict=True)
    ]
    if verb == "found":
        facts = [
            (text, ask.replace(" is ", " was "), answer.replace(" is ", " was "), key)
            for text, ask, answer, key in facts
        ]
    return _choose(rng, facts)


def _who_put(rng: random.Random) -> Asked:
    count = rng.randint(2, 5)
    things, spots = rng.sample(OBJECTS, count), rng.sample(SPOTS, count)
    facts = [
        (
            f"{name} put the {thing} {spot}.",
            f"Who put the {thing} {spot}?",
            f"{name} put the {thing} {spot}.",
            name,
        )
        for name, thing, spot in zip(_names(rng, count), things, spots, strict=True)
    ]
    return _choose(rng, facts)


def _coloured(rng: random.Random) -> Asked:
    count = rng.randint(2, 5)
    things, colours = rng.sample(OBJECTS, count), rng.sample(COLOURS[:-2], count)
    facts = [
        (
            f"The {thing} is {colour}.",
            f"What colour is the {thing}?",
            f"The {thing} is {colour}.",
            colour,
        )
        for thing, colour in zip(things, colours, strict=True)
    ]
    return _choose(rng, facts)


def _owned(rng: random.Random) -> Asked:
    count = rng.randint(2, 5)
    facts = []
    animals, colours = rng.sample(ANIMALS, count), rng.sample(COLOURS[:8], count)
    for name, animal, colour in zip(_names(rng, count), animals, colours, strict=True):
        text = f"{name} has {with_article(f'{colour} {animal}')}."
        questions = (
            (f"Who has {with_article(animal)}?", f"{name} has {with_article(animal)}.", name),
            (
                f"What colour is the {animal} of {name}?",
                f"The {animal} of {name} is {colour}.",
                colour,
            ),
            (f"What animal does {name} have?", f"{name} has {with_article(animal)}.", animal),
        )
        facts.append((text, *rng.choice(questions)))
    return _choose(rng, facts)


def _liked(rng: random.Random) -> Asked:
    count = rng.randint(2, 5)
    facts = []
    for name, food in zip(_names(rng, count), rng.sample(FOODS, count), strict=True):
        questions = (
            (f"Who likes {food}?", f"{name} likes {food}.", name),
            (f"What does {name} like?", f"{name} likes {food}.", food),
        )
        facts.append((f"{name} likes {food}.", *rng.choice(questions)))
    return _choose(rng, facts)


def _moved(rng: random.Random) -> Asked:
    """Who goes where; the last move of each counts."""
    names = _names(rng, rng.randint(2, 3))
    verb = rng.choice(("went to", "walked to", "ran to"))
    last: dict[str, tuple[str, str]] = {}
    lines: list[str] = []
    for room in rng.sample(ROOMS, rng.randint(2, 5)):
        name = rng.choice(names)
        sentence = f"{'Then ' if lines else ''}{name} {verb} the {room}."
        last[name] = (sentence, room)
        lines.append(sentence)
    name = rng.choice(list(last))
    sentence, room = last[name]
    ask = rng.choice((f"Where is {name}?", f"Where is {name} now?"))
    return Asked(" ".join(lines), ask, f"{name} is in the {room}.", room, sentence)


def _caused(rng: random.Random) -> Asked:
    count = rng.randint(1, 3)
    facts = []
    names = _names_of_known_pronoun(rng, count)
    for name, (state, reason) in zip(names, rng.sample(REASONS, count), strict=True):
        text = rng.choice(
            (f"{name} {state} because {{}} {reason}.", f"{name} {reason}, so {{}} {state}.")
        )
        pronoun = "he" if name in HE_NAMES else "she"
        ask = f"Why was {name} {state[4:]}?" if state.startswith("was ") else ""
        if not ask:
            verb, _, rest = state.partition(" ")
            present = {"laughed": "laugh", "ran": "run", "stayed": "stay"}
            present |= {"opened": "open", "lit": "light"}
            ask = f"Why did {name} {present[verb]}{' ' if rest else ''}{rest}?"
        answer = f"{name} {state} because {pronoun} {reason}."
        facts.append((text.format(pronoun), ask, answer, reason))
    return _choose(rng, facts)


_TEXTS = (_put, _who_put, _coloured, _owned, _liked, _moved, _caused)


def draw_text_question(rng: random.Random, split: Split) -> Asked:
    """A few sentences and a question; the asked sentence is in the split."""
    while True:
        asked = rng.choice(_TEXTS)(rng)
        if in_split(asked.answer, split):
            return asked


def draw_story_question(rng: random.Random, split: Split) -> Asked:
    """A story and a question; the story's cast is in the split."""
    is_short = rng.random() < 0.5
    story = draw_short_story(rng, split) if is_short else draw_story(rng, split)
    return ask_about(story, rng)


_FORMS = (
    "{text}\n\n{ask}", "{text}\n\n{ask}", "{text}\n\nQuestion: {ask}",
    "Read the text and answer the question.\n\n{text}\n\n{ask}",
    "{ask}\n\n{text}", "Text: {text}\n\nQuestion: {ask}",
    "Here is a story.\n\n{text}\n\n{ask}",
)  # fmt: skip


def asked_message(asked: Asked, rng: random.Random) -> str:
    """The user's message: the text and the question in one of a few forms."""
    form = rng.choice(_FORMS if len(asked.text) > 200 else _FORMS[:-1])
    if len(asked.text) <= 200 and rng.random() < 0.5:
        form = "{text} {ask}"
    return form.format(text=asked.text, ask=asked.ask)


def _example(task: str, asked: Asked, rng: random.Random) -> Example:
    messages = (
        {"role": "user", "content": asked_message(asked, rng)},
        {"role": "assistant", "content": capitalized(asked.answer)},
    )
    return Example(task, messages, facts={"key": asked.key})


def story_question(rng: random.Random, split: Split) -> Example:
    """A question about a story."""
    return _example("story_question", draw_story_question(rng, split), rng)


def text_question(rng: random.Random, split: Split) -> Example:
    """A question about one of a few plain sentences."""
    return _example("text_question", draw_text_question(rng, split), rng)


def grade_key(example: Example, text: str) -> bool:
    """Whether the answer is short and has the key words."""
    key = str(example.facts["key"])
    return has_phrase(text, key) and len(text.split()) <= 12 + len(key.split())


TASKS: tuple[Task, ...] = (
    Task("story_question", story_question, grade_key, 1.2),
    Task("text_question", text_question, grade_key, 0.8),
)
