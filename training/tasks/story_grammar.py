"""Turns plots into stories: parses the plot texts, casts them, and draws the sentences.

A plot is text. A blank line ends a beat; the first line of a beat is its label, "#name" or
"?name" where the beat may be left out, with "/" before it where a paragraph begins. Each
further line is one way to tell the beat; a line that begins with two spaces continues the line
above. ``[a|b]`` draws one of its parts, ``{slot}`` takes a word of the cast.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from training.tasks.example import Split, in_split
from training.tasks.grading import capitalized, with_article
from training.tasks.story_beings import BEINGS, Being
from training.tasks.story_things import THINGS, Thing
from training.tasks.story_world import HE_NAMES, PLACES, POOLS, SHE_NAMES, Place

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_SLOT = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Beat:
    """One step of a plot, with the ways to tell it."""

    label: str
    is_optional: bool
    starts_paragraph: bool
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """A question that the beat ``label`` answers; templates like the plot's lines."""

    label: str
    ask: str
    answer: str
    key: str


@dataclass(frozen=True, slots=True)
class Plot:
    """A course of events.

    Attributes:
        name: unique.
        topics: what the story is about, as in "a story about sharing".
        beats: in order; the opening comes before them.
        fits: the thing needs one of these tags; empty where the story has no thing.
        not_for: abilities or adjectives of a hero, or places, that would spoil the plot.
        choices: slots of this plot alone, drawn from these phrases.
        linked: slots that go together; one of the mappings is drawn.
        questions: what can be asked.
    """

    name: str
    topics: tuple[str, ...]
    beats: tuple[Beat, ...]
    fits: frozenset[str] = frozenset()
    not_for: frozenset[str] = frozenset()
    choices: Mapping[str, tuple[str, ...]] | None = None
    linked: tuple[Mapping[str, str], ...] = ()
    questions: tuple[Question, ...] = ()

    @property
    def slots(self) -> frozenset[str]:
        """Names of the slots its lines use, in lower case."""
        text = "\n".join(line for beat in self.beats for line in beat.lines)
        return frozenset(name[0].lower() + name[1:] for name in _SLOT.findall(text))


@dataclass(frozen=True, slots=True)
class Cast:
    """Who and what a story is about; ``thing`` is drawn even where the plot has none."""

    hero: Being
    hero_adjective: str
    hero_name: str
    hero_gender: str
    friend: Being
    friend_name: str
    friend_gender: str
    thing: Thing
    thing_adjective: str
    place: Place


@dataclass(frozen=True, slots=True)
class Story:
    """A told story: its beats' sentences in order, by label, and the slots that were used."""

    plot: Plot
    cast: Cast
    slots: Mapping[str, str]
    told: tuple[tuple[Beat, str], ...]

    @property
    def text(self) -> str:
        """The story in paragraphs parted by an empty line."""
        parts: list[str] = []
        for beat, sentences in self.told:
            parts.append(("\n\n" if beat.starts_paragraph else " ") if parts else "")
            parts.append(sentences)
        return "".join(parts)

    @property
    def one_paragraph(self) -> str:
        """The story without paragraphs."""
        return " ".join(sentences for _, sentences in self.told)


def parse_beats(text: str) -> tuple[Beat, ...]:
    """The beats of a plot text (form: see the module's header)."""
    beats = []
    for block in re.split(r"\n\s*\n", textwrap.dedent(text).strip()):
        head, *rest = block.splitlines()
        lines: list[str] = []
        for line in rest:
            if line.startswith("  "):
                lines[-1] += " " + line.strip()
            else:
                lines.append(line.strip())
        starts_paragraph = head.startswith("/")
        mark, label = head.lstrip("/")[0], head.lstrip("/")[1:]
        if mark not in "#?" or not lines:
            raise ValueError(f"beat {head!r} needs '#' or '?' and at least one line")
        beats.append(Beat(label, mark == "?", starts_paragraph, tuple(lines)))
    return tuple(beats)


def fill(template: str, slots: Mapping[str, str], rng: random.Random) -> str:
    """The template with choices drawn and slots filled; no double spaces."""
    drawn = _CHOICE.sub(lambda found: rng.choice(found[1].split("|")), template)
    text = drawn.format_map(slots)
    return " ".join(text.split()) if "  " in text else text


OPENING_ONCE = parse_beats("""
    #opening
    Once upon a time, there was {a_hero} called {hero}. {He} lived {lives}.
    Once upon a time, there was {a_hero} called {hero}. {He} lived {lives} with {his} {family}.
    Once upon a time, {a_hero} called {hero} lived {lives}.
    Once upon a time, there lived {a_hero} called {hero}. {His} home was {lives}.
    Once upon a time there was {a_hero} called {hero} who lived {lives}.
""")[0]
OPENING_OTHER = parse_beats("""
    #opening
    Long ago, {a_hero} called {hero} lived {lives} with {his} {family}.
    {Hero} was {a_hero} who lived {lives}.
    There once was {a_hero} called {hero}. {He} lived {lives}.
    {Lives} lived {a_hero} called {hero}.
    {Hero} was {a_hero}. {He} lived {lives} with {his} {family}.
""")[0]
HABIT = parse_beats("""
    ?habit
    {Hero} liked {likes}.
    {He} liked {likes}, and {he} was [nearly|almost] always [in a good mood|cheerful].
    Most of all, {he} liked {likes}.
    Every day {he} found time {likes}.
    {Hero} liked {likes1} and {likes2}.
""")[0]

GENERAL_QUESTIONS = (
    Question("opening", "Who is the story about?", "The story is about {hero}.", "{hero}"),
    Question("opening", "Where did {hero} live?", "{Hero} lived {lives}.", "{place}"),
    Question(
        "opening", "What was the name of the {kind}?", "The {kind} was called {hero}.", "{hero}"
    ),
    Question("opening", "What is {hero}?", "{Hero} is {a_kind}.", "{kind}"),
)


def draw_being(rng: random.Random, beings: tuple[Being, ...]) -> tuple[Being, str, str]:
    """A kind, a name and "he" or "she"."""
    being = rng.choice(beings)
    gender = being.gender or rng.choice(("he", "she"))
    return being, rng.choice(HE_NAMES if gender == "he" else SHE_NAMES), gender


def _draw_friend(rng: random.Random, hero: Being, name: str, gender: str) -> tuple[Being, str, str]:
    while True:
        friend, friend_name, friend_gender = draw_being(rng, BEINGS)
        if friend.kind == hero.kind or friend_name == name:
            continue
        if "sea" in friend.abilities - hero.abilities:
            continue
        # Two heroes of one pronoun are harder to tell apart.
        if friend_gender != gender or rng.random() < 0.3:
            return friend, friend_name, friend_gender


# Where those of the sea can live.
_COAST = tuple(
    place
    for place in PLACES
    if place.name in ("the sea", "the island", "the harbour", "the beach", "the lighthouse")
)


def _draw_place(rng: random.Random, hero: Being, plot: Plot) -> Place:
    while True:
        place = rng.choice(_COAST if "sea" in hero.abilities else PLACES)
        if place.name not in plot.not_for:
            return place


def cast_plot(plot: Plot, rng: random.Random, split: Split) -> Cast:
    """A cast that suits the plot and whose main words, taken together, are in the split."""
    things = [thing for thing in THINGS if not plot.fits or thing.tags & plot.fits]
    heroes = tuple(being for being in BEINGS if not being.abilities & plot.not_for)
    while True:
        hero, name, gender = draw_being(rng, heroes)
        friend, friend_name, friend_gender = _draw_friend(rng, hero, name, gender)
        thing = rng.choice(things)
        partner = thing.name if plot.fits else friend.kind
        if in_split(f"{hero.kind} and {partner}", split):
            break
    adjectives = [word for word in hero.adjectives if word not in plot.not_for]
    return Cast(
        hero, rng.choice(adjectives), name, gender,
        friend, friend_name, friend_gender,
        thing, rng.choice(thing.adjectives), _draw_place(rng, hero, plot),
    )  # fmt: skip


_PRONOUNS = {
    "he": {"he": "he", "him": "him", "his": "his", "himself": "himself"},
    "she": {"he": "she", "him": "her", "his": "her", "himself": "herself"},
}


def _slots(plot: Plot, cast: Cast, rng: random.Random) -> dict[str, str]:
    """Every slot the plot may use, each also with a capital letter."""
    friend_adjective = rng.choice(cast.friend.adjectives)
    helpers = POOLS["helper"]
    kinds = (cast.hero.kind, cast.friend.kind)
    helper = rng.choice([name for name in helpers if not name.endswith(kinds)])
    adj_thing = f"{cast.thing_adjective} {cast.thing.name}"
    slots = {
        **_PRONOUNS[cast.hero_gender],
        **{f"f_{key}": word for key, word in _PRONOUNS[cast.friend_gender].items()},
        "hero": cast.hero_name,
        "kind": cast.hero.kind,
        "a_kind": with_article(cast.hero.kind),
        "a_hero": with_article(f"{cast.hero_adjective} {cast.hero.kind}"),
        "friend": cast.friend_name,
        "f_kind": cast.friend.kind,
        "a_friend": with_article(f"{friend_adjective} {cast.friend.kind}"),
        "helper": f"the {helper.split()[-1]}",
        "a_helper": with_article(helper),
        "thing": cast.thing.name,
        "adj_thing": adj_thing,
        "a_thing": with_article(adj_thing),
        "one_thing": with_article(cast.thing.name),
        "colour": cast.thing_adjective,
        "place": cast.place.name.removeprefix("the "),
        "at_place": cast.place.at,
        "lives": fill(cast.place.lives, {}, rng),
    }
    pools = {**POOLS, **(plot.choices or {})}
    pools.pop("helper")
    for name, pool in pools.items():
        allowed = [word for word in pool if word not in (*kinds, helper.split()[-1])]
        for number, word in enumerate(rng.sample(allowed, min(4, len(allowed))), 1):
            slots[f"{name}{number}"] = word.format_map(slots) if "{" in word else word
        slots[name] = slots[f"{name}1"]
    if cast.hero_adjective == "old" or "old" in cast.hero.abilities:
        slots["family"] = slots["elder_family"]
    slots["a_animal"] = with_article(slots["animal"])
    if plot.linked:
        options = [link for link in plot.linked if not set(kinds) & set(link.values())]
        _capitalize(slots)
        link = rng.choice(options or list(plot.linked))
        slots.update({key: fill(phrase, slots, rng) for key, phrase in link.items()})
    _capitalize(slots)
    return slots


def _capitalize(slots: dict[str, str]) -> None:
    """Adds to every slot "name" a slot "Name" that begins with a capital letter."""
    slots.update({capitalized(key): capitalized(word) for key, word in list(slots.items())})


def tell(
    plot: Plot,
    rng: random.Random,
    split: Split,
    *,
    optional_share: float = 0.7,
    starts_once: bool | None = None,
) -> Story:
    """A story of the plot.

    Args:
        plot: what happens.
        rng: the only source of chance.
        split: of the cast's main words.
        optional_share: chance of each beat that may be left out.
        starts_once: begin with "Once upon a time"; None leaves it to chance.
    """
    cast = cast_plot(plot, rng, split)
    slots = _slots(plot, cast, rng)
    if starts_once is None:
        starts_once = rng.random() < 0.6
    beats = [OPENING_ONCE if starts_once else OPENING_OTHER, HABIT, *plot.beats]
    told = []
    for beat in beats:
        if beat.is_optional and rng.random() >= optional_share:
            continue
        told.append((beat, fill(rng.choice(beat.lines), slots, rng)))
    return Story(plot, cast, slots, tuple(told))
