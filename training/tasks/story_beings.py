"""The kinds of heroes and friends of the stories, with the adjectives that suit them.

Owns the list only; names are in ``story_world``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Being:
    """A kind of hero or friend.

    Attributes:
        kind: the noun, such as "fox".
        adjectives: those that suit it.
        abilities: "flies", "swims" or "old", where a plot must know.
        gender: "he" or "she" where the noun says it, else "".
    """

    kind: str
    adjectives: tuple[str, ...]
    abilities: frozenset[str] = frozenset()
    gender: str = ""


def _beings(text: str, abilities: str = "") -> tuple[Being, ...]:
    """Beings from lines ``kind[/he|/she]: adjective, adjective``."""
    found = []
    for line in text.strip().splitlines():
        kind, _, adjectives = line.partition(":")
        kind, _, gender = kind.strip().partition("/")
        words = tuple(word.strip() for word in adjectives.split(","))
        found.append(Being(kind, words, frozenset(abilities.split()), gender))
    return tuple(found)


_WALKERS = _beings("""
    fox: little, red, clever, young
    rabbit: little, white, brown, quick
    bear: brown, big, young, gentle
    mouse: tiny, little, grey, brave
    squirrel: small, red, quick, busy
    hedgehog: little, round, shy, small
    badger: young, striped, strong, kind
    cat: black, grey, white, clever
    kitten: little, white, fluffy, curious
    dog: brown, big, happy, friendly
    puppy: little, brown, playful, happy
    pony: small, white, brown, gentle
    lamb: little, white, woolly, shy
    goat: white, young, funny, proud
    pig: pink, round, happy, clever
    donkey: grey, small, patient, old
    wolf: young, grey, shy, kind
    mole: small, black, sleepy, busy
    deer: young, shy, brown, gentle
    elephant: little, grey, young, gentle
    lion: young, proud, golden, brave
    monkey: little, funny, clever, brown
    tiger: young, striped, quiet, brave
    giraffe: tall, young, gentle, curious
    panda: young, round, sleepy, gentle
    kangaroo: young, brown, quick, cheerful
    camel: young, patient, brown, proud
    hamster: tiny, round, golden, busy
    snail: little, slow, patient, shy
    lizard: small, green, quick, shy
    raccoon: young, grey, clever, curious
    koala: sleepy, little, grey, gentle
    horse: brown, strong, young, gentle
    cow/she: brown, gentle, big, friendly
    sheep: white, woolly, kind, shy
    dinosaur: little, green, young, friendly
    unicorn: white, young, gentle, shy
    robot: small, silver, friendly, curious
    elf: little, cheerful, clever, small
    giant: gentle, kind, tall, shy
    dwarf: cheerful, strong, old, kind
    monster: small, green, shy, friendly
    wizard/he: old, kind, young, clever
    witch/she: kind, old, cheerful, young
    zebra: young, striped, quick, proud
    hippo: round, big, gentle, sleepy
    rhino: strong, young, gentle, big
    crocodile: green, young, friendly, long
    snake: long, green, shy, young
    worm: little, pink, busy, shy
    caterpillar: green, hungry, little, striped
    ant: tiny, busy, strong, brave
    beetle: small, black, shiny, busy
    spider: small, clever, patient, shy
    hare: brown, quick, young, shy
    llama: woolly, proud, young, funny
    moose: big, young, gentle, shy
    reindeer: young, brown, quick, brave
    skunk: little, shy, striped, friendly
    ox: strong, patient, brown, gentle
    hen/she: brown, busy, white, kind
    rooster/he: proud, loud, red, young
    turkey: fat, proud, young, funny
    ostrich: tall, quick, young, proud
    peacock/he: proud, blue, young, pretty
    ghost: small, white, shy, friendly
    snowman/he: round, white, cheerful, kind
    scarecrow: old, kind, thin, lonely
    troll: big, green, shy, friendly
    teddy: small, brown, soft, old
    gnome: small, old, cheerful, busy
    alien: small, green, friendly, curious
""")
_FLYERS = _beings(
    """
    owl: old, little, brown, wise
    sparrow: small, brown, cheerful, quick
    robin: little, cheerful, small, brave
    crow: black, clever, young, curious
    dragon: small, green, young, friendly
    fairy/she: tiny, kind, cheerful, young
    bee: little, busy, cheerful, small
    parrot: green, clever, funny, young
    eagle: young, proud, brown, brave
    hawk: young, quick, quiet, brown
    stork: white, tall, patient, young
    pigeon: grey, small, friendly, plump
    dove: white, gentle, small, shy
    bat: small, brown, shy, quick
    butterfly: pretty, yellow, little, blue
    ladybird: red, little, tiny, cheerful
    dragonfly: blue, quick, young, pretty
    phoenix: golden, young, proud, gentle
    angel: little, kind, young, gentle
    """,
    "flies",
)
_SWIMMERS = _beings(
    """
    frog: green, little, cheerful, small
    turtle: old, slow, patient, small
    otter: young, playful, brown, quick
    beaver: busy, young, brown, strong
    penguin: little, cheerful, young, funny
    """,
    "swims",
)
_WATER_BIRDS = _beings(
    """
    duck: little, white, cheerful, brown
    goose: white, proud, young, grey
    swan: white, young, proud, gentle
    """,
    "flies swims",
)
_SEA_BEINGS = _beings(
    """
    whale: big, blue, gentle, young
    dolphin: young, playful, quick, grey
    octopus: clever, young, shy, purple
    crab: small, red, funny, busy
    seal: grey, young, playful, round
    walrus: fat, old, kind, sleepy
    seahorse: tiny, yellow, shy, young
    mermaid/she: young, kind, curious, brave
    """,
    "swims sea",
)
_PEOPLE = _beings("""
    boy/he: little, young, clever, kind
    girl/she: little, young, clever, brave
    prince/he: young, brave, kind, shy
    princess/she: young, brave, clever, kind
    knight/he: young, brave, shy, kind
    farmer: young, old, kind, patient
    baker: young, cheerful, kind, busy
    tailor: young, poor, clever, patient
    shepherd: young, patient, quiet, kind
    gardener: old, kind, patient, young
    sailor: young, brave, cheerful, old
    painter: young, poor, cheerful, quiet
    miller: old, strong, cheerful, young
    fisherman/he: old, poor, patient, young
    pirate: young, funny, brave, cheerful
    clown: funny, young, cheerful, kind
    teacher: young, kind, cheerful, patient
    postman/he: young, cheerful, busy, kind
    nurse: young, kind, patient, cheerful
    doctor: young, kind, busy, clever
    cook: round, cheerful, busy, young
    carpenter: young, strong, patient, poor
    shoemaker: old, poor, kind, patient
    potter: young, quiet, patient, poor
    pilot: young, brave, cheerful, clever
    astronaut: young, brave, curious, clever
    singer: young, cheerful, poor, shy
    explorer: young, brave, curious, old
    inventor: clever, funny, young, poor
    magician: young, funny, clever, old
    detective: clever, young, patient, curious
    woodcutter/he: strong, poor, young, kind
    captain: old, brave, cheerful, kind
""")
_ELDERS = _beings(
    """
    king/he: old, kind, wise, gentle
    queen/she: wise, kind, old, gentle
    grandmother/she: old, kind, cheerful, clever
    grandfather/he: old, kind, cheerful, patient
    """,
    "old",
)

ANIMALS = (*_WALKERS, *_FLYERS, *_SWIMMERS, *_WATER_BIRDS, *_SEA_BEINGS)
# Children are asked for most, so they are drawn more often.
PEOPLE = (*_PEOPLE, *_ELDERS, *_PEOPLE[:2], *_PEOPLE[:2], *_PEOPLE[:2], *_PEOPLE[:2], *_PEOPLE[:2])
BEINGS = (*ANIMALS, *PEOPLE)
