"""A small table of simple facts with several ways to ask for each.

Owns about 600 facts: colours, sounds, young, opposites, capitals, days, months, counts, materials,
jobs, plurals, past tenses. Definitions of things are in ``definitions``.
"""

from __future__ import annotations

from dataclasses import dataclass

from training.tasks.grading import capitalized, with_article


@dataclass(frozen=True, slots=True)
class Fact:
    """Something certain.

    Attributes:
        topic: the group, such as "capitals".
        asks: at least three ways to ask.
        answer: one sentence.
        key: the word or words that make an answer right.
    """

    topic: str
    asks: tuple[str, ...]
    answer: str
    key: str


def _pairs(text: str) -> list[tuple[str, str]]:
    """Pairs from "left=right" entries parted by commas or lines."""
    entries = [entry.strip() for entry in text.replace("\n", ",").split(",")]
    found = []
    for entry in entries:
        if entry:
            left, _, right = entry.partition("=")
            found.append((left.strip(), right.strip()))
    return found


def _facts(topic: str, table: str, asks: tuple[str, ...], answer: str) -> list[Fact]:
    """One fact for each pair; {x} and {y} are its sides, {a_x} and {a_y} have their articles."""
    found = []
    for x, y in _pairs(table):
        words = {"x": x, "y": y, "a_x": with_article(x), "a_y": with_article(y)}
        filled = tuple(capitalized(ask.format_map(words)) for ask in asks)
        found.append(Fact(topic, filled, capitalized(answer.format_map(words)), y))
    return found


_COLOURS = """
    a banana=yellow, grass=green, the sky=blue, snow=white, coal=black, blood=red, a carrot=orange
    a lemon=yellow, a tomato=red, a strawberry=red, milk=white, chocolate=brown, an elephant=grey
    a crow=black, a swan=white, a frog=green, a polar bear=white, a pumpkin=orange, a cherry=red
    a cucumber=green, the sun=yellow, a flamingo=pink, a pea=green, a fire engine=red, chalk=white
    an orange=orange, a lime=green, a ruby=red, an emerald=green, a mouse=grey
"""
_SOUNDS = """
    cow=moo, dog=woof, cat=meow, duck=quack, sheep=baa, pig=oink, hen=cluck, lion=roar, bee=buzz
    snake=hiss, owl=hoot, mouse=squeak, frog=croak, horse=neigh, crow=caw, bird=tweet, wolf=howl
    rooster=cock-a-doodle-doo, goose=honk, donkey=hee-haw
"""
_YOUNG = """
    dog=puppy, cat=kitten, cow=calf, horse=foal, sheep=lamb, goat=kid, pig=piglet, hen=chick
    duck=duckling, bear=cub, lion=cub, fox=cub, deer=fawn, frog=tadpole, goose=gosling, swan=cygnet
    owl=owlet, kangaroo=joey, elephant=calf, whale=calf, seal=pup, tiger=cub, wolf=cub
    butterfly=caterpillar, hare=leveret
"""
_HOMES = """
    bee=a hive, bird=a nest, spider=a web, rabbit=a burrow, horse=a stable, dog=a kennel
    fox=a den, pig=a sty, cow=a barn, fish=the water, ant=an anthill, lion=a den, snail=a shell
    bat=a cave, mole=a tunnel
"""
_LEGS = """
    dog=four, cat=four, spider=eight, bird=two, ant=six, cow=four, bee=six, horse=four, duck=two
    snake=no, beetle=six, person=two, hen=two, fly=six
"""
_OPPOSITES = """
    hot=cold, big=small, long=short, high=low, fast=slow, old=young, happy=sad, open=closed
    full=empty, hard=soft, wet=dry, light=dark, day=night, left=right, up=down, in=out, on=off
    rich=poor, strong=weak, loud=quiet, clean=dirty, early=late, near=far, first=last
    easy=difficult
    thick=thin, wide=narrow, deep=shallow, heavy=light, good=bad, right=wrong, true=false, new=old
    begin=end, push=pull, buy=sell, win=lose, give=take, come=go, laugh=cry, remember=forget
    before=after, above=below, inside=outside, always=never, everything=nothing, love=hate, yes=no
    sweet=sour, sharp=blunt, smooth=rough, brave=afraid, kind=unkind, friend=enemy, north=south
    east=west, summer=winter, man=woman, boy=girl, brother=sister, king=queen, black=white
    float=sink
    question=answer, more=less, many=few, beautiful=ugly, asleep=awake, safe=dangerous
"""
_CAPITALS = """
    France=Paris, Germany=Berlin, Italy=Rome, Spain=Madrid, Portugal=Lisbon, England=London
    Ireland=Dublin, Scotland=Edinburgh, Wales=Cardiff, Austria=Vienna, Switzerland=Bern
    Belgium=Brussels, Denmark=Copenhagen, Sweden=Stockholm, Norway=Oslo, Finland=Helsinki
    Iceland=Reykjavik, Poland=Warsaw, Hungary=Budapest, Greece=Athens, Turkey=Ankara, Egypt=Cairo
    Japan=Tokyo, China=Beijing, India=New Delhi, Australia=Canberra, Canada=Ottawa, Brazil=Brasilia
    Argentina=Buenos Aires, Chile=Santiago, Peru=Lima, Mexico=Mexico City, Cuba=Havana
    Kenya=Nairobi
    Morocco=Rabat, Romania=Bucharest, Bulgaria=Sofia, Croatia=Zagreb, Estonia=Tallinn, Latvia=Riga
    Lithuania=Vilnius, the Netherlands=Amsterdam, the Czech Republic=Prague, Slovakia=Bratislava
    Slovenia=Ljubljana, Thailand=Bangkok, Vietnam=Hanoi, South Korea=Seoul, New Zealand=Wellington
    the United States=Washington, Colombia=Bogota, Ghana=Accra, Nepal=Kathmandu
"""
_LANGUAGES = """
    France=French, Germany=German, Italy=Italian, Spain=Spanish, Portugal=Portuguese
    England=English
    Japan=Japanese, China=Chinese, Poland=Polish, Greece=Greek, Sweden=Swedish, Norway=Norwegian
    Denmark=Danish, Finland=Finnish, Hungary=Hungarian, Turkey=Turkish, Mexico=Spanish
    Brazil=Portuguese, Austria=German, Egypt=Arabic
"""
_MATERIALS = """
    bread=flour, butter=milk, cheese=milk, glass=sand, paper=wood, wine=grapes, jam=fruit
    a book=paper
    a tyre=rubber, a window=glass, a nail=iron, a coin=metal, a jumper=wool, a candle=wax, ice=water
    cider=apples, chocolate=cocoa, a snowman=snow, a brick=clay, an omelette=eggs, raisins=grapes
    toast=bread, a sandcastle=sand, a log=wood, a key=metal, a pancake=flour
"""
_COUNTS = """
    days|in a week=seven, months|in a year=twelve, hours|in a day=twenty-four
    minutes|in an hour=sixty, seconds|in a minute=sixty, fingers|on one hand=five
    wheels|on a bicycle=two, wheels|on a car=four, sides|on a triangle=three
    sides|on a square=four, weeks|in a year=fifty-two, letters|in the alphabet=twenty-six
    seasons|in a year=four, eyes|in a face=two, eggs|in a dozen=twelve
    centimetres|in a metre=one hundred, metres|in a kilometre=one thousand
    years|in a century=one hundred, days|in a year=365, toes|on two feet=ten
    grams|in a kilogram=one thousand, strings|on a violin=four, strings|on a guitar=six
    years|in a decade=ten, colours|in a rainbow=seven, halves|in a whole=two
"""
_JOBS = """
    bakes bread=baker, cuts hair=barber, teaches children=teacher, puts out fires=firefighter
    flies a plane=pilot, brings letters=postman, grows vegetables=farmer, helps sick people=doctor
    looks after teeth=dentist, builds houses=builder, paints pictures=painter, makes clothes=tailor
    mends pipes=plumber, catches fish=fisherman, looks after sheep=shepherd, drives a bus=bus driver
    works with wood=carpenter, writes books=writer, sells meat=butcher, cares for animals=vet
    grinds corn=miller, mends cars=mechanic, sings songs=singer, cooks in a restaurant=cook
"""
_PLURALS = """
    mouse=mice, child=children, foot=feet, tooth=teeth, man=men, woman=women, goose=geese
    sheep=sheep
    leaf=leaves, knife=knives, baby=babies, box=boxes, city=cities, wolf=wolves, potato=potatoes
    fox=foxes, bus=buses, dog=dogs, tree=trees, book=books, story=stories, wife=wives, loaf=loaves
    house=houses, fish=fish, berry=berries, glass=glasses, ox=oxen
"""
_PASTS = """
    go=went, see=saw, eat=ate, run=ran, sing=sang, write=wrote, come=came, give=gave, take=took
    find=found, buy=bought, think=thought, bring=brought, drink=drank, swim=swam, fly=flew
    know=knew
    sleep=slept, speak=spoke, break=broke, make=made, walk=walked, play=played, read=read, sit=sat
    stand=stood, begin=began, fall=fell, hold=held, win=won
"""
_SENSES = "see=eyes, hear=ears, smell=nose, taste=tongue, walk=feet, chew=teeth, breathe=lungs"
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip
_SEASONS = ("spring", "summer", "autumn", "winter")
_NUMBERS = """
    0=zero, 1=one, 2=two, 3=three, 4=four, 5=five, 6=six, 7=seven, 8=eight, 9=nine, 10=ten
    11=eleven
    12=twelve, 13=thirteen, 14=fourteen, 15=fifteen, 16=sixteen, 17=seventeen, 18=eighteen
    19=nineteen, 20=twenty, 30=thirty, 40=forty, 50=fifty, 60=sixty, 70=seventy, 80=eighty
    90=ninety, 100=one hundred, 1000=one thousand
"""


def _both_ways(table: str) -> str:
    """The pairs and their reverses, without a word that would have two answers."""
    pairs = _pairs(table)
    first = dict(pairs)
    for left, right in pairs:
        first.setdefault(right, left)
    return ", ".join(f"{left}={right}" for left, right in first.items())


def _cycle(topic: str, noun: str, names: tuple[str, ...]) -> list[Fact]:
    following = ", ".join(f"{a}={b}" for a, b in zip(names, names[1:] + names[:1], strict=True))
    before = ", ".join(f"{b}={a}" for a, b in zip(names, names[1:] + names[:1], strict=True))
    after_asks = (
        f"What {noun} comes after {{x}}?", f"Which {noun} comes after {{x}}?",
        f"Which {noun} follows {{x}}?", "What comes after {x}?",
    )  # fmt: skip
    before_asks = (
        f"What {noun} comes before {{x}}?", f"Which {noun} comes before {{x}}?",
        "What comes before {x}?",
    )  # fmt: skip
    return [
        *_facts(topic, following, after_asks, "After {x} comes {y}."),
        *_facts(topic, before, before_asks, "Before {x} comes {y}."),
    ]


def _counted(table: str) -> list[Fact]:
    found = []
    for counted, number in _pairs(table):
        noun, _, where = counted.partition("|")
        asks = (
            f"How many {noun} are there {where}?", f"How many {noun} are {where}?",
            f"Tell me how many {noun} there are {where}.",
        )  # fmt: skip
        found.append(Fact("counts", asks, f"There are {number} {noun} {where}.", number))
    return found


FACTS: tuple[Fact, ...] = (
    *_facts(
        "colours", _COLOURS,
        ("What colour is {x}?", "Which colour is {x}?", "Tell me the colour of {x}.",
         "What is the colour of {x}?"),
        "{x} is {y}.",
    ),
    *_facts(
        "sounds", _SOUNDS,
        ("What sound does {a_x} make?", "What does {a_x} say?", "How does {a_x} sound?",
         "What noise does {a_x} make?"),
        "{a_x} says {y}.",
    ),
    *_facts(
        "young animals", _YOUNG,
        ("What is a young {x} called?", "What do you call a young {x}?",
         "What is a baby {x} called?", "What is the young of {a_x} called?"),
        "A young {x} is called {a_y}.",
    ),
    *_facts(
        "animal homes", _HOMES,
        ("Where does {a_x} live?", "What is the home of {a_x}?", "Where is {a_x} at home?"),
        "{a_x} lives in {y}.",
    ),
    *_facts(
        "legs", _LEGS,
        ("How many legs does {a_x} have?", "How many legs has {a_x}?",
         "Tell me how many legs {a_x} has."),
        "{a_x} has {y} legs.",
    ),
    *_facts(
        "opposites", _both_ways(_OPPOSITES),
        ("What is the opposite of {x}?", "Tell me the opposite of {x}.", "Opposite of {x}?",
         "Which word is the opposite of {x}?"),
        "The opposite of {x} is {y}.",
    ),
    *_facts(
        "capitals", _CAPITALS,
        ("What is the capital of {x}?", "Which city is the capital of {x}?",
         "Tell me the capital of {x}.", "What's the capital of {x}?", "Capital of {x}?",
         "Name the capital of {x}."),
        "The capital of {x} is {y}.",
    ),
    *_facts(
        "capitals", ", ".join(f"{y}={x}" for x, y in _pairs(_CAPITALS)),
        ("{x} is the capital of which country?", "Of which country is {x} the capital?",
         "Which country has {x} as its capital?"),
        "{x} is the capital of {y}.",
    ),
    *_facts(
        "languages", _LANGUAGES,
        ("Which language do people speak in {x}?", "What language is spoken in {x}?",
         "What language do they speak in {x}?"),
        "In {x} people speak {y}.",
    ),
    *_facts(
        "materials", _MATERIALS,
        ("What is {x} made of?", "What is {x} made from?", "From what is {x} made?"),
        "{x} is made of {y}.",
    ),
    *_counted(_COUNTS),
    *_facts(
        "jobs", _JOBS,
        ("Who {x}?", "What do you call someone who {x}?", "Which job has someone who {x}?"),
        "{a_y} {x}.",
    ),
    *_facts(
        "plurals", _PLURALS,
        ("What is the plural of {x}?", "Tell me the plural of {x}.", "Plural of {x}?",
         "One {x}, two what?"),
        "The plural of {x} is {y}.",
    ),
    *_facts(
        "past tenses", _PASTS,
        ("What is the past tense of {x}?", "Tell me the past tense of {x}.",
         "Past tense of {x}?"),
        "The past tense of {x} is {y}.",
    ),
    *_facts(
        "senses", _SENSES,
        ("What do we {x} with?", "With what do people {x}?", "What do you need to {x}?"),
        "We {x} with our {y}.",
    ),
    *_facts(
        "number words", _NUMBERS,
        ("Write {x} as a word.", "How do you spell the number {x}?", "What is {x} in words?",
         "Write the number {x} in words."),
        "{x} in words is {y}.",
    ),
    *_facts(
        "number words", ", ".join(f"{y}={x}" for x, y in _pairs(_NUMBERS)),
        ("Write {x} as a number.", "Write {x} in digits.", "What is {x} in digits?"),
        "{x} in digits is {y}.",
    ),
    *_cycle("days", "day", _DAYS),
    *_cycle("months", "month", _MONTHS),
    *_cycle("seasons", "season", _SEASONS),
)  # fmt: skip

TOPICS: tuple[str, ...] = tuple(dict.fromkeys(fact.topic for fact in FACTS))
