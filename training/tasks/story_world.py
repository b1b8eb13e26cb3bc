"""Where the stories happen, what their heroes are called, and small choices.

Owns words only; how they become sentences is in ``story_grammar`` and the plots.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """Where a hero lives: "the forest", "in a green forest", "in the forest"."""

    name: str
    lives: str
    at: str


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
        "a handful of nuts", "a plate of pancakes", "a slice of toast", "some fresh bread",
        "a piece of apple pie", "a bag of cherries", "a big biscuit", "a plate of dumplings",
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
