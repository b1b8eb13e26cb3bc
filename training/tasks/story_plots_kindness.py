"""Plots of kindness: food and warmth given away, and what comes back.

Form of the texts: see ``story_grammar``.
"""

from __future__ import annotations

from training.tasks.story_grammar import Plot, Question, parse_beats

_HUNGRY = Plot(
    "hungry",
    ("sharing food", "being kind to a stranger", "a picnic"),
    parse_beats("""
        #has
        One {weather} morning {hero} [made|got|bought] {a_thing}. It smelled [wonderful|very good].
        One {weather} day {hero} packed {a_thing} and went for a walk. "What a fine {thing}!" {he}
          said.

        #sit
        {He} sat down {spot1} and wanted to eat it.
        {Hero} looked for a nice place {spot1} and sat down.

        /#meets
        Then {a_friend} called {friend} came by. "I have not eaten all day," said {friend}.
        But then {he} saw {a_friend} who looked very hungry. "My name is {friend}," said the
          {f_kind}.

        #think
        {Hero} looked at the {thing}. It was not very much for two.
        {Hero} was hungry too. {He} thought about it for a moment.

        #share
        Then {he} broke the {thing} in two. "Half for you and half for me," {he} said.
        "We can share," said {hero}, and {he} gave {friend} the bigger half of the {thing}.

        #eat
        They ate together, and the {thing} tasted better than ever.
        {Friend} ate every bit. "That was the best {thing} of my life!"

        /#trouble
        A few days later, {hero} was on the way home when it began to [snow|rain] very hard. {He}
          could not find the path.
        Some time later, {hero} fell into a hole and could not get out. {He} called for help.

        #saved
        Then {he} heard a voice. It was {friend}! "Hold on to me," said {friend}, and {f_he} helped
          {him} home.
        {Friend} heard {him} and came at once. "You helped me, now I help you," said {friend}.

        /#end
        After that, they often sat together {spot1} and shared whatever they had.
        "It is good to have a friend," said {hero}.
        {Hero} smiled. Half of {a_thing} had brought {him} a whole friend.
    """),
    fits=frozenset({"food"}),
    questions=(
        Question("share", "What did {hero} share?", "{Hero} shared the {thing}.", "{thing}"),
        Question("meets", "Who was hungry?", "{Friend} was hungry.", "{friend}"),
        Question("sit", "Where did {hero} sit down?", "{Hero} sat down {spot1}.", "{spot1}"),
        Question("saved", "Who helped {hero}?", "{Friend} helped {hero}.", "{friend}"),
    ),
)

_CRUMBS = Plot(
    "crumbs",
    ("a missing meal", "a mystery", "being kind", "crumbs"),
    parse_beats("""
        /#has
        One {weather} morning {hero} put {a_thing} on the window sill.
        One {weather} day {hero} put {a_thing} on the table and went to fetch some water.

        #gone
        When {he} came back, the {thing} was gone! Only a few crumbs were left.
        A little later {he} looked again. No {thing}! "Who has taken it?" cried {hero}.

        #track
        {Hero} saw something on the ground. It was a trail of small bits, and {he} followed it.
        "I will find out," said {hero}, and {he} followed the trail of crumbs.

        #look1
        First {he} looked {spot1}, but there was only {junk1}.
        The trail went past {a_helper}. "I have not eaten your {thing}," said {helper}, "but I saw
          somebody run that way."

        ?look2
        Then the trail turned and went on. {Hero} had to crawl through a hedge.
        Then it went once around the well and back again. How strange!

        /#see
        And there, {spot2}, sat {a_animal} with five hungry little ones. They were eating the
          {thing}.
        At the end of the trail, {spot2}, {he} found {a_animal} and its little ones. "Please do not
          be angry," said the {animal}. "My children are so hungry."

        #feels
        {Hero} was not angry anymore.
        {Hero} looked at the little ones and had to smile.

        #share
        "You can have it," {he} said. "But next time, just ask me!"
        "Eat as much as you like," said {hero}. "I can get another one."

        /#end
        The next day there was a bunch of [red|blue|yellow] flowers on the window sill. It was from
          the {animal}.
        Since then, {hero} has always put a second plate on the table, just in case.
        Every week after that, the {animal} came to visit, and they all ate {food}.
    """),
    fits=frozenset({"food"}),
    not_for=frozenset({"sea"}),
    questions=(
        Question("has", "What did {hero} put down?", "{Hero} put down {a_thing}.", "{thing}"),
        Question("see", "Who had taken the {thing}?", "The {animal} had taken it.", "{animal}"),
        Question("see", "Where was the {animal}?", "The {animal} was {spot2}.", "{spot2}"),
    ),
)

_COLD = Plot(
    "cold",
    ("winter", "a cold day", "keeping warm", "giving"),
    parse_beats("""
        #has
        When winter came, {hero} got {a_thing} from {his} {family}. It was warm and soft.
        For the winter {hero} had {a_thing}. {He} wore it every day.

        /#snow
        One cold morning, snow lay everywhere. {Hero} put on the {thing} and went out.
        One day it snowed and snowed. {Hero} took the {thing} and went out to play.

        #meets
        {Spot1} {he} saw {a_friend} called {friend}, who was shaking with cold.
        Then {he} met {a_friend} called {friend} {spot1}. {Friend}'s nose was blue with cold.

        #try
        "Jump up and down, then you will be warm," said {hero}. They jumped, but {friend} was still
          cold.
        {Hero} tried to make a fire, but the wood was too wet.

        #give
        So {hero} took off the {thing} and gave it to {friend}.
        "Take my {adj_thing}," said {hero}. "I live near here, and you have far to go."

        #warm
        "Oh, how warm!" said {friend}. "I will never forget this."
        Soon {friend} was warm again and smiled.

        /#reward
        The next day there was a [big|soft] parcel at {hero}'s door. In it were the {thing} and a
          pair of [red|blue|green|yellow] mittens.
        A week later {friend} came back with the {thing}. {F_he} also brought {food}.

        #end
        And {hero} was not cold [for the rest of|all] the winter.
        "The best thing against the cold is a warm heart," said {friend}.
        That winter the two friends built the biggest snowman of all.
    """),
    fits=frozenset({"wear"}),
    not_for=frozenset({"the jungle", "the island", "the beach"}),
    questions=(
        Question("meets", "Who was cold?", "{Friend} was cold.", "{friend}"),
        Question("give", "What did {hero} give away?", "{Hero} gave away the {thing}.", "{thing}"),
        Question("meets", "Where was {friend}?", "{Friend} was {spot1}.", "{spot1}"),
    ),
)

PLOTS = (_HUNGRY, _CRUMBS, _COLD)
