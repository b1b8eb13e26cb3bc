"""Who and what the stories are about: beings, things, places, names and small choices.

Owns words only; how they become sentences is in ``story_grammar`` and the plots.
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


@dataclass(frozen=True, slots=True)
class Thing:
    """An object a story turns on, with adjectives that suit it and tags that plots ask for."""

    name: str
    adjectives: tuple[str, ...]
    tags: frozenset[str]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a hero lives: "the forest", "in a green forest", "in the forest"."""

    name: str
    lives: str
    at: str


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

ANIMALS = (*_WALKERS, *_FLYERS, *_SWIMMERS, *_WATER_BIRDS)
# Children are asked for most, so they are drawn more often.
PEOPLE = (*_PEOPLE, *_ELDERS, *_PEOPLE[:2], *_PEOPLE[:2], *_PEOPLE[:2], *_PEOPLE[:2], *_PEOPLE[:2])
BEINGS = (*ANIMALS, *PEOPLE)

HE_NAMES = (
    "Finn", "Tom", "Max", "Leo", "Ben", "Sam", "Jacob", "Hugo", "Felix", "Otto", "Bruno", "Milo",
    "Jack", "Theo", "Noah", "Emil", "Toby", "Paul", "Peter", "Anton", "Oliver", "Henry", "Simon",
    "Jasper", "Arlo", "Rufus", "Barnaby", "Pip", "Basil", "Oscar", "Albert", "Fred", "Rory",
    "Ned", "Hector", "Monty", "Ivo", "Walter", "Kit", "Dan", "Karl", "Luca", "Nico", "Victor",
    "Alfie", "Sven", "Jonas", "Martin", "Gus", "Tim",
)  # fmt: skip
SHE_NAMES = (
    "Mia", "Lily", "Anna", "Emma", "Clara", "Ella", "Nora", "Rosa", "Hazel", "Ivy", "Poppy",
    "Daisy", "Ruby", "Lena", "Greta", "Ada", "Flora", "Zoe", "Nina", "Lucy", "Olive", "Sara",
    "Eva", "Maya", "Tilly", "Penny", "Bella", "Molly", "Juna", "Frida", "Ida", "Martha", "Pia",
    "Stella", "Willa", "Dora", "Fern", "Holly", "Luna", "Mina", "Nelly", "Sophie", "Tess",
    "Wanda", "Alma", "Elsa", "Kate", "Marie", "Jane", "Ruth",
)  # fmt: skip


def _things(text: str) -> tuple[Thing, ...]:
    """Things from lines ``name (tag tag): adjective, adjective``."""
    found = []
    for line in text.strip().splitlines():
        head, _, adjectives = line.partition(":")
        name, _, tags = head.strip().partition(" (")
        words = tuple(word.strip() for word in adjectives.split(","))
        found.append(Thing(name, words, frozenset(tags.rstrip(")").split())))
    return tuple(found)


# carry: a small possession; breaks; blows: the wind can take it; light; music; food; toy; wear.
THINGS = _things("""
    lantern (carry breaks light): small, red, golden, old
    lamp (carry breaks light): little, green, silver, old
    candle (light): white, long, yellow, thick
    torch (carry light): small, blue, strong, silver
    kite (carry breaks blows toy): red, blue, yellow, green
    balloon (blows): red, yellow, blue, big
    ball (carry blows toy): red, blue, round, yellow
    hat (carry blows wear): blue, straw, green, tall
    scarf (carry blows wear): red, long, woollen, striped
    ribbon (carry blows): red, blue, silk, golden
    cap (carry blows wear): green, red, blue, small
    feather (carry blows): white, golden, blue, long
    paper star (blows): golden, yellow, silver, blue
    coat (carry wear): green, warm, thick, blue
    blanket (carry wear): warm, soft, blue, woollen
    drum (carry breaks music): little, red, round, big
    flute (carry breaks music): wooden, silver, small, old
    fiddle (carry breaks music): old, brown, little, fine
    bell (carry music): golden, silver, small, shiny
    horn (carry music): brass, old, shiny, little
    whistle (carry music): silver, tin, wooden, little
    guitar (carry breaks music): old, brown, small, blue
    trumpet (carry music): shiny, golden, old, little
    harp (music): golden, small, old, silver
    toy boat (carry breaks toy): blue, wooden, white, red
    doll (carry breaks toy): little, wooden, old, pretty
    teddy bear (carry toy): brown, soft, old, little
    wagon (toy): red, wooden, blue, little
    puppet (carry breaks toy): wooden, funny, little, green
    spinning top (carry toy): red, wooden, yellow, small
    toy train (carry breaks toy): red, green, wooden, blue
    marble (carry toy): blue, green, glass, shiny
    sled (toy): wooden, red, fast, new
    cup (carry breaks): blue, white, golden, small
    teapot (breaks): brown, blue, round, white
    basket (carry): small, big, brown, round
    bucket (carry): blue, tin, red, small
    umbrella (carry breaks blows): red, yellow, black, big
    book (carry): old, blue, thick, red
    box (carry): small, wooden, golden, green
    key (carry): golden, silver, old, little
    coin (carry): golden, silver, shiny, old
    ring (carry): golden, silver, shiny, little
    button (carry): red, golden, shiny, big
    pebble (carry): white, smooth, shiny, grey
    shell (carry): pink, white, big, shiny
    watch (carry breaks): silver, old, golden, little
    clock (breaks): old, wooden, little, round
    mirror (carry breaks): small, silver, round, old
    brush (carry): little, wooden, fine, new
    pencil (carry): red, blue, long, yellow
    spoon (carry): silver, wooden, golden, big
    crown (carry): golden, silver, little, shiny
    necklace (carry breaks): silver, pretty, long, golden
    compass (carry): old, golden, small, brass
    telescope (carry breaks): long, old, brass, small
    bag (carry): green, brown, leather, big
    pot (carry): old, copper, big, black
    stone (carry): shiny, round, green, smooth
    picture (carry): pretty, little, old, bright
    music box (carry breaks): little, silver, old, wooden
    letter (blows): long, white, little, yellow
    flower (blows): red, yellow, white, pretty
    leaf (blows): golden, red, big, green
    apple (food): red, big, shiny, green
    cake (food): big, sweet, round, little
    pie (food): warm, big, sweet, little
    pear (food): yellow, ripe, big, green
    carrot (food): big, orange, long, sweet
    pancake (food): big, round, sweet, warm
    cheese (food): round, yellow, big, fine
    biscuit (food): round, sweet, big, crunchy
    loaf of bread (food): warm, fresh, round, big
    bun (food): warm, sweet, round, fresh
    melon (food): green, big, round, sweet
    jar of honey (food): big, golden, little, full
    basket of berries (food): small, big, full, little
""")


def _places(text: str) -> tuple[Place, ...]:
    """Places from lines ``name: lives | at``; "*" in ``lives`` stands for an adjective choice."""
    found = []
    for line in text.strip().splitlines():
        name, _, rest = line.strip().partition(": ")
        lives, _, at = rest.partition(" | ")
        found.append(Place(name, lives, at))
    return tuple(found)


PLACES = _places("""
    the forest: in a [green|deep|quiet|big] forest | in the forest
    the wood: in a little wood | in the wood
    the meadow: near a [sunny|green|wide] meadow | in the meadow
    the village: in a [small|little|quiet] village | in the village
    the town: in a [small|busy|pretty] town | in the town
    the hill: on a [green|high|windy] hill | on the hill
    the valley: in a [green|quiet|wide] valley | in the valley
    the river: by a [slow|wide|blue] river | by the river
    the lake: by a [blue|quiet|deep] lake | by the lake
    the sea: by the [blue|wide|] sea | by the sea
    the farm: on a [small|big|quiet] farm | on the farm
    the mountain: at the foot of a [high|tall] mountain | at the foot of the mountain
    the garden: in a [big|pretty|wild] garden | in the garden
    the mill: next to an old mill | by the mill
    the castle: in an old castle | at the castle
    the island: on a [small|green|sunny] island | on the island
    the park: near a [big|green] park | in the park
    the orchard: next to an apple orchard | in the orchard
    the harbour: near a [busy|little] harbour | at the harbour
    the city: in a [big|busy] city | in the city
    the jungle: in a [green|warm|wild] jungle | in the jungle
    the beach: near a [long|white|sunny] beach | on the beach
    the lighthouse: in a [tall|white|] lighthouse | at the lighthouse
    the cottage: in a [little|small|cosy] cottage | at the cottage
    the pond: next to a [little|round|quiet] pond | by the pond
    the stream: beside a [clear|little] stream | beside the stream
    the field: at the edge of a [wide|golden] field | in the field
    the bridge: near an old stone bridge | by the bridge
""")

# Small choices; a slot such as spot2 takes an entry of "spot" that no other slot has.
POOLS: dict[str, tuple[str, ...]] = {
    "spot": (
        "under a bush", "behind a big stone", "in the long grass", "beside the path",
        "next to the fence", "in a hollow tree", "behind the mill", "under the old oak",
        "near the well", "under a pile of leaves", "beside the gate", "behind the shed",
        "on a low wall", "under a wooden bench", "at the foot of a tall tree",
        "between two rocks", "in a patch of clover", "behind the barn", "under the bridge",
        "next to a mossy log", "on the stone steps", "in the tall reeds",
    ),
    "junk": (
        "an old boot", "a sleepy beetle", "a wet leaf", "a broken plate", "a grey stone",
        "a snail", "an empty nest", "a rusty nail", "a pine cone", "a ladybird", "a muddy sock",
        "a spider", "a long worm", "a bit of string",
    ),
    "food": (
        "a warm bun", "a bowl of soup", "a slice of cake", "a sweet pear", "some bread and honey",
        "a handful of nuts", "a plate of pancakes", "a cup of cocoa", "some fresh bread",
        "a piece of apple pie", "a bag of cherries", "a big biscuit", "some warm milk",
        "a bowl of berries",
    ),
    "weather": (
        "sunny", "windy", "cold", "cloudy", "warm", "bright", "grey", "cool", "fine", "quiet",
    ),
    "family": (
        "mother and father", "grandmother", "mother", "father", "big sister", "little brother",
        "two brothers", "three sisters", "grandfather", "aunt", "uncle",
    ),
    "elder_family": ("sister", "brother", "old aunt", "two sisters"),
    "likes": (
        "to watch the clouds", "to sit in the sun", "to listen to the wind", "to count the stars",
        "to walk in the rain", "to hum little songs", "to ask questions", "to look at the moon",
        "to jump over puddles", "to tell funny stories", "to play outside",
        "to get up early", "to make new friends", "to collect round stones", "to smell the flowers",
    ),
    "helper": (
        "old owl", "wise turtle", "kind gardener", "old shepherd", "friendly postman",
        "clever crow", "old fisherman", "busy beaver", "kind baker", "old miller", "brown hen",
        "grey goose", "old woman", "old man", "friendly farmer", "wise frog", "quiet heron",
        "old horse", "kind teacher", "big brown cow", "little robin", "old sailor",
    ),
    "animal": (
        "sparrow", "mouse", "hen", "rabbit", "squirrel", "kitten", "lamb", "hedgehog", "duckling",
        "puppy", "frog",
    ),
}  # fmt: skip
