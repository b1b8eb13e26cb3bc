"""Very short plots of four to six sentences.

Form of the texts: see ``story_grammar``.
"""

from __future__ import annotations

from training.tasks.story_grammar import Plot, Question, parse_beats

_PUDDLE = Plot(
    "puddle",
    ("rain",),
    parse_beats("""
        #rain
        One day it rained so much that there was a big puddle in front of the door.
        After a rainy night, there was a big puddle {spot1}.

        #plan
        {Hero} wanted to keep {his} feet dry, so {he} walked around it very slowly.
        "I must not get wet," said {hero}, and {he} stepped around it on tiptoe.

        #splash
        Then {a_friend} called {friend} came running and jumped right in. Splash! {Hero} was wet all
          over.
        But {friend}, {a_friend}, came along and jumped in with both feet. Splash!

        #end
        {Hero} looked at {himself} and laughed. Then {he} jumped in too.
        First {hero} was angry. Then {he} laughed, and they both jumped until they were tired.
    """),
    questions=(
        Question("splash", "Who jumped into the puddle first?", "{Friend} did.", "{friend}"),
    ),
)

_NEST = Plot(
    "nest",
    ("a small good deed",),
    parse_beats("""
        #find
        One {weather} morning {hero} found a little bird {spot1}. It had fallen out of its nest.
        One {weather} day {hero} heard a quiet peep {spot1}. A tiny bird lay there.

        #try
        {Hero} wanted to put it back, but the nest was too high.

        #help
        So {he} asked {friend}, {a_friend}. {Friend} brought a ladder, and they put the bird back.
        {Friend}, {a_friend}, came with a ladder, and together they put the bird back.

        #end
        In the evening the mother bird sang her best song for them.
        The mother bird sang for joy, and {hero} smiled all day.
    """),
    questions=(
        Question("find", "What did {hero} find?", "{Hero} found a little bird.", "bird"),
        Question("find", "Where was the bird?", "The bird was {spot1}.", "{spot1}"),
        Question("help", "Who brought a ladder?", "{Friend} brought a ladder.", "{friend}"),
    ),
)

_SWAP = Plot(
    "swap",
    ("a small gift",),
    parse_beats("""
        #has
        {Hero} had {a_thing}, and {friend}, {a_friend}, had {food}.

        #want
        "I wish I had {one_thing}," said {friend}. "And I am so hungry," said {hero}.
        {Friend} looked at the {thing}, and {hero} looked at the food.

        #share
        So they sat down {spot1}, ate together, and then played with the {thing}.
        Then they laughed. They ate together {spot1}, and after that they shared the {thing}.

        #end
        When you share, everybody has more.
        It was a very good day.
    """),
    fits=frozenset({"toy", "music"}),
    questions=(
        Question("has", "What did {hero} have?", "{Hero} had {a_thing}.", "{thing}"),
        Question("has", "What did {friend} have?", "{Friend} had {food}.", "{food}"),
        Question("share", "Where did they eat?", "They ate {spot1}.", "{spot1}"),
    ),
)

_FORGOT = Plot(
    "forgot",
    ("something forgotten",),
    parse_beats("""
        #search
        One {weather} morning {hero} looked everywhere for {his} {adj_thing}. It was not {spot1},
          and it was not {spot2}.
        "Where is my {adj_thing}?" asked {hero}. {He} looked {spot1}. {He} looked {spot2}. Nothing!

        #friend
        {A_friend} called {friend} came by and began to laugh. "Look {own_place}!" said {friend}.

        #found
        There it was! {Hero} had put the {thing} there {himself}.
        And really, there was the {thing}. It had been there all the time.

        #end
        {Hero} laughed too, and they had {food} together.
        "What would I do without you?" said {hero}.
    """),
    fits=frozenset({"carry"}),
    choices={"own_place": ("in your bag", "under your hat", "behind your back", "on your chair")},
    questions=(
        Question(
            "search", "What did {hero} look for?", "{Hero} looked for {his} {thing}.", "{thing}"
        ),
        Question("search", "Where did {hero} look first?", "{Hero} looked {spot1}.", "{spot1}"),
        Question("friend", "Who began to laugh?", "{Friend} began to laugh.", "{friend}"),
    ),
)

_LIGHT = Plot(
    "light",
    ("a light in the night",),
    parse_beats("""
        #lost
        One night {a_friend} called {friend} could not find the way home.

        #light
        {Hero} put {a_thing} in the window, as {he} did every night.
        But in {hero}'s window stood {a_thing}, and it shone far into the night.

        #see
        {Friend} saw the light of the {thing} and walked towards it.

        #end
        "Come in," said {hero}, and gave {f_him} {food}. Since then, they have been friends.
        Soon they both sat by the fire and had {food}.
    """),
    fits=frozenset({"light"}),
    questions=(
        Question("lost", "Who was lost?", "{Friend} was lost.", "{friend}"),
        Question("light", "What was in the window?", "It was {a_thing}.", "{thing}"),
    ),
)

_APPLE = Plot(
    "last bit",
    ("the last piece",),
    parse_beats("""
        #has
        {Hero} and {friend}, {a_friend}, had {a_thing}. They ate and ate until only one bit was
          left.

        #polite
        "You take it," said {hero}. "No, you take it," said {friend}.
        "It is for you," said {friend}. "No, for you," said {hero}.

        #bird
        While they were talking, {a_animal} came and ate it up.
        Then came {a_animal}. Snap! The last bit of the {thing} was gone.

        #end
        They looked at each other and laughed. "Now it is fair," said {hero}.
    """),
    fits=frozenset({"food"}),
    questions=(
        Question("has", "What did they have?", "They had {a_thing}.", "{thing}"),
        Question("bird", "Who ate the last bit?", "The {animal} ate it.", "{animal}"),
    ),
)

PLOTS = (_PUDDLE, _NEST, _SWAP, _FORGOT, _LIGHT, _APPLE)
