"""The objects that stories turn on, with the adjectives that suit them and what can befall them.

Owns the list only; which plot takes which thing is said by the plots.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Thing:
    """An object a story turns on, with adjectives that suit it and tags that plots ask for."""

    name: str
    adjectives: tuple[str, ...]
    tags: frozenset[str]


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
    apron (carry wear): white, blue, clean, new
    belt (carry): brown, leather, long, new
    bottle (carry breaks): green, blue, glass, small
    bracelet (carry breaks): silver, golden, pretty, little
    broom (carry breaks): old, long, new, wooden
    camera (carry breaks): old, small, black, new
    chair (breaks): wooden, little, old, blue
    cushion (carry): soft, red, round, blue
    diamond (carry): shiny, big, little, bright
    fan (carry breaks blows): pretty, green, silk, little
    flag (carry blows): red, blue, yellow, striped
    fork (carry): silver, golden, little, old
    glove (carry blows wear): warm, woollen, red, soft
    globe (breaks): round, blue, old, big
    hammer (carry): old, big, strong, little
    jar (carry breaks): glass, big, green, round
    jacket (carry wear): blue, warm, leather, red
    jumper (carry wear): warm, woollen, striped, red
    kettle (carry): old, copper, black, little
    ladder (breaks): long, wooden, old, tall
    locket (carry): golden, silver, little, old
    magnet (carry): red, strong, little, big
    mask (carry breaks): funny, golden, red, green
    medal (carry): golden, silver, shiny, round
    mitten (carry blows wear): red, warm, woollen, blue
    mug (carry breaks): blue, big, yellow, red
    net (carry breaks): long, green, old, strong
    notebook (carry): green, small, blue, thick
    pearl (carry): white, shiny, big, round
    pen (carry breaks): blue, golden, silver, black
    pillow (carry): soft, white, big, blue
    plate (carry breaks): blue, round, white, golden
    purse (carry): little, red, leather, green
    quilt (carry wear): warm, old, colourful, soft
    rocket (breaks toy): red, silver, little, fast
    rope (carry): long, strong, thick, old
    rose (blows): red, white, yellow, pretty
    ruby (carry): red, shiny, big, little
    seashell (carry): pink, white, big, shiny
    shirt (carry blows wear): blue, white, clean, new
    shoe (carry): red, new, old, brown
    skateboard (breaks toy): blue, fast, new, red
    spade (carry breaks): little, new, red, strong
    stamp (blows): old, red, little, blue
    stool (breaks): wooden, little, round, old
    suitcase (carry): brown, big, old, leather
    sword (carry breaks toy): wooden, silver, long, little
    tambourine (carry music): round, silver, red, little
    teacup (carry breaks): white, pretty, little, blue
    tent (carry breaks): green, little, yellow, big
    ticket (blows): golden, yellow, little, red
    toy car (carry breaks toy): red, blue, fast, little
    trophy (carry breaks): golden, silver, big, shiny
    ukulele (carry breaks music): little, brown, old, new
    vase (carry breaks): blue, tall, pretty, glass
    violin (carry breaks music): old, brown, fine, little
    wand (carry breaks): silver, long, golden, old
    wallet (carry): brown, old, leather, thick
    xylophone (carry music): colourful, little, wooden, new
    yo-yo (carry breaks toy): red, green, wooden, blue
    puzzle (carry toy): big, new, old, colourful
    snow globe (carry breaks): round, little, pretty, old
    magic stone (carry): green, round, little, blue
    treasure chest (carry): old, wooden, big, little
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
    orange (food): round, sweet, big, juicy
    plum (food): blue, ripe, big, sweet
    banana (food): yellow, ripe, big, sweet
    pizza (food): hot, big, round, fine
    sandwich (food): big, thick, fresh, fine
    pumpkin (food): orange, big, round, ripe
    turnip (food): big, white, round, fresh
    sausage (food): long, fat, hot, big
    chocolate cake (food): big, sweet, round, little
    basket of berries (food): small, big, full, little
""")
