"""Pools of everyday words, names and made-up words that the generators draw from.

Owns the lists and the three ways to draw from them. What a task does with a word is the task's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random


def words_of(text: str) -> tuple[str, ...]:
    """The words of a text, in its order."""
    return tuple(text.split())


FIRST_NAMES = words_of("""
    Ada Adam Agnes Alan Albert Alice Amir Amy Anita Anna Anton Arthur Aron Astrid Barbara Ben Bella
    Bernard Boris Bruno Carl Carla Carmen Cecil Celia Chloe Clara Colin Conrad Cora Daisy Dan Dana
    David Dean Della Diana Diego Dora Edgar Edith Elena Eli Ella Elsa Emil Emma Eric Erica Esther
    Eva Felix Fiona Flora Frank Freda Fritz Gina Gloria Grace Greta Gus Hana Hans Harry Hazel Heidi
    Helen Henry Hugo Ida Igor Ines Iris Irma Isaac Ivan Ivy Jack Jana Jane Jasper Jean Jill Joan
    Joel John Jonas Joyce Judith Julia Karen Karl Kate Kim Kira Kurt Lara Laura Lena Leo Leon Lily
    Linda Lisa Lola Louis Lucas Lucy Luis Luna Mara Marco Maria Mark Martha Martin Mary Max Maya
    Mia Mila Milo Mona Nadia Nancy Nell Nico Nina Noah Nora Olga Oliver Olivia Omar Oscar Otto Owen
    Pablo Paul Paula Pedro Penny Peter Petra Philip Pia Quentin Rachel Ralph Ray Rita Robert Robin
    Roger Rosa Ruby Ruth Sam Sandra Sara Simon Sofia Stella Sven Tara Ted Teresa Theo Tim Tina Toby
    Tom Ulla Vera Victor Viola Walter Wanda Wendy Will Yara Yusuf Zara Zoe
    """)

CITIES = words_of("""
    Amsterdam Antwerp Athens Auckland Baltimore Bangkok Barcelona Basel Bergen Berlin Bern
    Bologna Bordeaux Boston Bremen Bristol Brussels Budapest Cairo Calgary Cardiff Chicago
    Cologne Copenhagen Dallas Delhi Denver Detroit Dresden Dublin Edinburgh Florence Frankfurt
    Geneva Genoa Ghent Glasgow Gothenburg Graz Hamburg Hanover Havana Helsinki Houston Istanbul
    Jakarta Kyoto Leeds Leipzig Lima Lisbon Liverpool London Lyon Madrid Malaga Manchester
    Manila Marseille Melbourne Memphis Miami Milan Montreal Munich Nairobi Nantes Naples
    Nashville Nice Oslo Ottawa Oxford Palermo Paris Perth Phoenix Pisa Porto Portland Prague
    Quito Reykjavik Riga Rome Rotterdam Salzburg Seattle Seoul Seville Sheffield Singapore Sofia
    Stockholm Stuttgart Sydney Tallinn Tampere Tokyo Toronto Toulouse Trieste Turin Utrecht
    Valencia Vancouver Venice Verona Vienna Vilnius Warsaw Wellington York Zagreb Zurich
    """)

COLOURS = words_of("""
    red blue green yellow orange purple pink brown black white grey violet silver gold turquoise
    beige crimson indigo scarlet maroon teal olive ivory amber coral
    """)

ANIMALS = words_of("""
    badger bear beaver bee beetle bison bull butterfly camel canary cat cow crab crane cricket crow
    deer dog dolphin donkey dove dragonfly duck eagle falcon ferret finch fox frog gecko giraffe
    goat goose hamster hare hawk hedgehog heron horse jackdaw kangaroo kitten koala ladybird lamb
    lark leopard lion lizard lobster lynx magpie mole moose moth mouse newt octopus otter owl ox
    panda panther parrot peacock pelican penguin pheasant pig pigeon pony puffin quail rabbit
    raccoon raven robin salmon seal sheep snail sparrow squid squirrel stork swallow swan tiger
    toad tortoise trout turkey turtle walrus wasp whale wolf wombat woodpecker wren yak zebra
    """)

FOODS = words_of("""
    almond apple apricot bacon bagel banana barley bean biscuit bread broccoli butter cabbage cake
    candy carrot cashew celery cheese cherry chestnut chocolate cinnamon cocoa coconut coffee
    cookie corn cream cucumber cumin curry custard date fennel fig garlic ginger grape gravy hazel
    honey jam jelly juice kale leek lemon lentil lettuce lime mango maple melon milk mint muffin
    mushroom mustard noodle nutmeg oat olive onion orange oregano pancake papaya parsley parsnip
    pasta pastry peach peanut pear pepper pickle pie pineapple pizza plum popcorn potato pretzel
    pudding pumpkin radish raisin rhubarb rice saffron salad salt sandwich sauce soup spinach
    sugar syrup tea thyme toast toffee tomato turnip vanilla vinegar waffle walnut wheat yogurt
    """)

OBJECTS = words_of("""
    anchor apron arrow axe bag ball balloon banner barrel basket bed bell belt bench bicycle
    blanket boat book boot bottle bowl box bracelet brick bridge brush bucket button cabinet
    camera candle canvas cap card carpet cart chain chair chalk chest clock coat coin compass
    cradle crate cup curtain cushion desk doll door drum easel engine fan feather fence fiddle
    flag flute fork fountain frame gate glass glove guitar hammer handle hat helmet hook horn
    jacket jar kettle key kite knife ladder lamp lantern lens letter lock locket magnet map marble
    mask mat medal mirror mug nail napkin necklace needle net notebook oar oven paddle pan paper
    pencil pendulum penny piano pillow pipe plate pocket pot pump puppet purse quilt racket radio
    rake ribbon ring rope rug ruler saddle sail saw scarf scissors screw shelf ship shirt shoe
    shovel sled sofa spade spoon stamp stool stove suitcase sweater table teapot telescope tent
    thimble thread ticket tower toy tray trumpet tub umbrella vase violin wagon wallet watch wheel
    whistle window wire
    """)

NATURE = words_of("""
    acorn agate alder aspen autumn bamboo bay beach beech berry birch blossom boulder branch breeze
    brook bush canyon cave cedar clay cliff cloud clover coast comet copper cotton creek crystal
    daisy dawn delta desert dew diamond dune dusk dust earth ember emerald evening fern field fir
    flame flint flower fog forest frost garden garnet glacier granite grass gravel grove harbour
    heather hill holly horizon ice iron island ivy jade jasmine juniper lagoon lake lava lavender
    leaf lichen lightning lilac lily lotus marsh meadow meteor mist moon morning moss mountain
    myrtle north oak oasis ocean opal orbit orchard orchid palm pearl pebble pine planet pollen
    pond poppy prairie quartz rain rainbow reef ridge river root rose ruby sand sapphire sea seed
    shadow shell shore silk sky slate snow south spark spring spruce star steam steel stone storm
    stream summer summit sun sunset thistle thunder tide timber topaz tulip tundra valley velvet
    vine violet volcano water waterfall wave west willow wind winter wood
    """)

ROOMS = words_of("""
    kitchen garden library garage cellar attic office bathroom bedroom hall workshop studio
    balcony pantry nursery gym laboratory archive chapel theatre canteen greenhouse
    """)

JOBS = words_of("""
    baker teacher nurse farmer painter singer driver builder doctor gardener tailor writer cook
    pilot sailor carpenter plumber librarian dentist waiter potter printer jeweller florist
    postman shepherd translator mason photographer mechanic
    """)

HOBBIES = words_of("""
    chess swimming reading painting dancing cycling fishing hiking running singing cooking sailing
    skating knitting gardening drawing tennis football rowing climbing photography juggling yoga
    """)

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

MONTHS = words_of("""
    January February March April May June July August September October November December
    """)

# Every pool of plain nouns, each word once, in a fixed order.
PLAIN_WORDS = tuple(dict.fromkeys(ANIMALS + FOODS + OBJECTS + NATURE + COLOURS))

_FIRST_SYLLABLES = words_of("""
    bel bran cal cor dal dar dor drim fal fen flo gal gar gol gren hal har hol jar jor kal kel kor
    lan lor lum mal mar mel mor nal nel nor pel per quil ral ren ros sal sel sol sten tam tel tor
    tril val vel vor wen wil yar yel zan zel zor
    """)
_LAST_SYLLABLES = words_of("""
    ba bin da den do fa fin ga gan ka ken kin la lin lo ma men min na nel nix ra ren rin ro sa sen
    ta ten tin to va ven vin vo wen za zen zin zo
    """)


def made_up_word(rng: random.Random) -> str:
    """A word of two or three syllables that means nothing, in lower case."""
    middle = rng.choice(_LAST_SYLLABLES) if rng.random() < 0.4 else ""
    return rng.choice(_FIRST_SYLLABLES) + middle + rng.choice(_LAST_SYLLABLES)


def number_of_digits(rng: random.Random, fewest: int, most: int) -> int:
    """A whole number; first its number of digits is drawn, so short ones are as likely."""
    digits = rng.randint(fewest, most)
    return rng.randrange(10 ** (digits - 1), 10**digits)


def code_word(rng: random.Random) -> str:
    """A code word of one to three plain words and two digits, such as ``amber-falcon-27``."""
    words = [rng.choice(PLAIN_WORDS) for _ in range(rng.randint(1, 3))]
    return "-".join([*words, f"{rng.randint(10, 99)}"])


def join_words(words: list[str]) -> str:
    """The words as English lists them: ``a``, ``a and b``, ``a, b and c``."""
    if len(words) == 1:
        return words[0]
    return f"{', '.join(words[:-1])} and {words[-1]}"


def with_article(noun: str) -> str:
    """The noun after ``a`` or ``an``."""
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"
