"""What everyday things are, each in one short sentence.

Owns the table and the ways to ask; simple facts of other kinds are in ``facts``.
"""

from __future__ import annotations

from training.tasks.facts import Fact
from training.tasks.grading import capitalized, with_article

# "name: what it is"; a name with * takes no article.
_TABLE = """
kettle: a pot with a spout in which water is boiled
teapot: a pot in which tea is made
cup: a small bowl with a handle to drink from
plate: a flat dish from which you eat
spoon: a tool with a small bowl for eating soup
fork: a tool with prongs for eating
knife: a tool with a sharp blade for cutting
oven: a hot box for baking
fridge: a cold cupboard that keeps food fresh
table: a flat board on legs
chair: a seat with a back for one person
sofa: a soft seat for several people
bed: a piece of furniture to sleep in
pillow: a soft bag to rest your head on
blanket: a warm cover for the bed
lamp: a thing that gives light
lantern: a light that you can carry
candle: a stick of wax that gives light when it burns
mirror: a glass in which you see yourself
clock: a machine that shows the time
watch: a small clock worn on the wrist
window: an opening with glass that lets in light
door: a board that opens and closes a room
key: a small piece of metal that opens a lock
ladder: two poles with steps for climbing
hammer: a tool for driving in nails
saw: a tool with teeth for cutting wood
nail: a thin pointed piece of metal that holds wood together
needle: a thin pointed tool for sewing
broom: a long brush for sweeping the floor
bucket: an open pot with a handle for carrying water
basket: a container made of woven sticks
umbrella: a thing that keeps off the rain
scarf: a long piece of cloth worn around the neck
hat: a thing worn on the head
glove: a cover for the hand
shoe: a cover for the foot
coat: a long warm jacket
button: a small round thing that closes clothes
pocket: a small bag sewn into clothes
book: many pages bound together to be read
letter: a message written on paper
pencil: a stick with a dark core for writing
map: a drawing that shows where places are
compass: a tool that shows where north is
telescope: a tube with lenses for looking at the stars
camera: a machine that takes pictures
telephone: a machine for talking to people far away
computer: a machine that works with numbers and words
radio: a machine that plays voices and music from far away
piano: a musical instrument with black and white keys
drum: a musical instrument that you hit
flute: a musical instrument that you blow into
guitar: a musical instrument with six strings
violin: a musical instrument with four strings and a bow
bell: a metal cup that rings when it is hit
kite: a toy that flies in the wind on a string
ball: a round toy that you can throw
doll: a toy that looks like a person
puzzle: a game in which pieces are put together
boat: a small vehicle that floats on water
ship: a large boat that crosses the sea
train: a long vehicle that runs on rails
car: a vehicle with four wheels and an engine
bicycle: a vehicle with two wheels and pedals
bus: a large vehicle that carries many people
plane: a machine with wings that flies
wagon: a cart with four wheels
wheel: a round thing that turns and rolls
bridge: a way over water or a road
road: a way for cars and people
house: a building where people live
castle: a large old building with thick walls
tower: a tall narrow building
school: a place where children learn
library: a place where books are kept
hospital: a place where sick people are helped
bakery: a place where bread is made
shop: a place where things are sold
farm: a place where food is grown and animals are kept
garden: a piece of land where flowers and vegetables grow
museum: a place where old and precious things are shown
harbour: a safe place for ships
lighthouse: a tower with a light that guides ships
mill: a place where corn is made into flour
well: a deep hole from which you get water
forest: a large piece of land full of trees
meadow: a field of grass and flowers
river: water that flows through the land to the sea
lake: a large piece of water with land all around
sea*: a very large body of salt water
island: a piece of land with water all around
mountain: a very high piece of land
valley: low land between hills
hill: a small mountain
beach: a strip of sand beside the sea
desert: a dry land where very little grows
cave: a hollow place in a rock
cloud: many tiny drops of water in the sky
rainbow: an arc of colours in the sky
star: a far sun that shines in the night sky
planet: a round body that moves around a star
storm: very strong wind with rain
snow*: frozen water that falls in white flakes
ice*: frozen water
rain*: water that falls from clouds
fog*: a cloud close to the ground
tree: a tall plant with a trunk and branches
flower: the colourful part of a plant
leaf: a flat green part of a plant
root: the part of a plant that is under the ground
seed: a small thing from which a plant grows
grass*: a low green plant that covers the ground
mushroom: a soft thing with a cap that grows in the forest
apple: a round fruit that grows on a tree
pear: a sweet fruit that is narrow at the top
banana: a long yellow fruit
lemon: a sour yellow fruit
cherry: a small red fruit with a stone
carrot: a long orange vegetable that grows under the ground
potato: a round vegetable that grows under the ground
pumpkin: a large orange vegetable
bread*: a food baked from flour and water
cheese*: a food made from milk
butter*: a soft yellow food made from cream
honey*: a sweet food made by bees
sugar*: a sweet white powder
salt*: a white powder that makes food taste better
soup*: a warm dish that you eat with a spoon
cake: a sweet food baked from flour, eggs and sugar
milk*: a white drink that comes from cows
tea*: a hot drink made from leaves
dog: an animal that barks and lives with people
cat: a small animal that purrs and catches mice
horse: a large animal that people ride
cow: a large animal that gives milk
sheep: an animal that gives wool
goat: an animal with horns that gives milk
pig: a pink animal with a curly tail
hen: a bird that lays eggs
duck: a bird that swims and quacks
owl: a bird that hunts at night
eagle: a large bird with strong wings
penguin: a bird that swims but cannot fly
fox: a wild animal with a red coat and a thick tail
wolf: a wild animal that looks like a large dog
bear: a large wild animal with thick fur
rabbit: a small animal with long ears
mouse: a very small animal with a long tail
squirrel: a small animal with a thick tail that collects nuts
hedgehog: a small animal with spines
frog: a small green animal that jumps and croaks
fish: an animal that lives in water and has fins
whale: a very large animal that lives in the sea
elephant: a very large animal with a trunk
lion: a large wild cat with a mane
giraffe: an animal with a very long neck
monkey: a clever animal that climbs trees
snake: a long animal without legs
spider: a small animal with eight legs that makes webs
bee: an insect that makes honey
ant: a very small insect that works in large groups
butterfly: an insect with large colourful wings
snail: a slow animal that carries its shell
doctor: a person who helps sick people
teacher: a person who helps others to learn
farmer: a person who grows food and keeps animals
baker: a person who bakes bread
sailor: a person who works on a ship
king: a man who rules a country
queen: a woman who rules a country
friend: a person whom you like and trust
neighbour: a person who lives next door
story: words that tell what happened
poem: a short text in verses that often rhyme
song: words that are sung
word: a group of letters with a meaning
number: a word or sign that says how many
triangle: a shape with three sides
square: a shape with four equal sides
circle: a round shape
week: a time of seven days
year: a time of twelve months
"""
_ASKS = (
    "What is {x}?", "What's {x}?", "Tell me what {x} is.", "Can you explain what {x} is?",
    "Explain what {x} is.", "Do you know what {x} is?",
)  # fmt: skip
_GLUE = {
    "a", "an", "and", "by", "for", "from", "in", "is", "it", "of", "on", "or", "that", "the", "to",
    "which", "with", "you", "who",
}  # fmt: skip


def _definition(line: str) -> Fact:
    name, _, meaning = line.partition(": ")
    phrase = name.removesuffix("*") if name.endswith("*") else with_article(name)
    if name == "sea*":
        phrase = "the sea"
    asks = tuple(ask.format(x=phrase) for ask in _ASKS)
    return Fact("definitions", asks, capitalized(f"{phrase} is {meaning}."), meaning)


DEFINITIONS: tuple[Fact, ...] = tuple(_definition(line) for line in _TABLE.strip().splitlines())
# The words that are explained.
DEFINITION_NAMES: tuple[str, ...] = tuple(
    line.partition(":")[0].removesuffix("*") for line in _TABLE.strip().splitlines()
)


def content_words(meaning: str) -> frozenset[str]:
    """The words of a definition that carry its meaning."""
    return frozenset(meaning.replace(",", "").split()) - _GLUE
