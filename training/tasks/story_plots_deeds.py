"""Plots of doing: learning, making music, gardening, racing, pulling, looking for treasure.

Form of the texts: see ``story_grammar``.
"""

from __future__ import annotations

from training.tasks.story_grammar import Plot, Question, parse_beats

_LEARNING = Plot(
    "learning",
    ("learning something new", "practising", "trying again"),
    parse_beats("""
        #wish
        {Hero} wanted to learn {skill}, but {he} did not know how.
        All the others knew how {skill}, but {hero} did not. {He} wanted to learn it too.

        /#try1
        One {weather} day {he} tried it for the first time. {Fail}
        On a {weather} morning {he} tried. {Fail}

        #feels
        "I will never learn it," said {hero}, and {he} sat down {spot1}.
        Somebody laughed, and {hero} went away with a red face.
        {Hero} was sad. "It is too hard for me," {he} said.

        /#friend
        Then {a_friend} called {friend} sat down next to {him}. "I could not do it at first either,"
          said {friend}.
        {A_friend} called {friend} had seen it. "Nobody can do it at first," said {friend}. "Come, I
          will show you."

        #tip
        "{Tip}," said {friend}.
        {Friend} showed {him} how to do it. "{Tip}," {f_he} said.

        #practice
        They practised every day, in the morning and in the evening.
        {Hero} tried again and again, [ten|twenty|a hundred] times. Each time it went a little
          better.
        Day after day {hero} practised with {friend}.

        ?nearly
        Once {he} nearly gave up. But {friend} said, "Just one more time!"
        After a week {he} could nearly do it.

        /#done
        And then, all at once, it worked! {Success}
        On the seventh day {hero} took a deep breath and tried once more. {Success}

        #end
        "I did it!" cried {hero}. {Friend} clapped [loudly|and cheered].
        {Hero} was very proud. Since then, {he} has never said "I cannot do it" again, only "I
          cannot do it yet".
        And the next year, {hero} taught it to somebody else.
    """),
    not_for=frozenset({"swims"}),
    linked=(
        {
            "skill": "to swim",
            "fail": "But {he} only splashed and swallowed a lot of water.",
            "tip": "Move slowly and keep your head up",
            "success": "{Hero} swam all the way across the pond.",
        },
        {
            "skill": "to whistle",
            "fail": "But only air came out, and not a single note.",
            "tip": "Make your mouth round and blow very gently",
            "success": "{Hero} whistled a whole song.",
        },
        {
            "skill": "to skate",
            "fail": "But {his} feet slipped, and bump, {he} sat on the ice.",
            "tip": "Bend your knees and look ahead",
            "success": "{Hero} skated in a big circle and did not fall once.",
        },
        {
            "skill": "to dance",
            "fail": "But {he} stepped on {his} own feet and fell over.",
            "tip": "Listen to the music and count to three",
            "success": "{Hero} danced round and round without a mistake.",
        },
        {
            "skill": "to read",
            "fail": "But the letters looked like little black ants to {him}.",
            "tip": "Take one letter after the other",
            "success": "{Hero} read a whole page all alone.",
        },
        {
            "skill": "to ride a bicycle",
            "fail": "But the bicycle fell over after one second.",
            "tip": "Look ahead and do not stop pedalling",
            "success": "{Hero} rode down the whole road and rang the bell.",
        },
        {
            "skill": "to paint",
            "fail": "But {his} picture was only one big brown spot.",
            "tip": "First look, then paint",
            "success": "{Hero} painted a tree, and everybody knew at once that it was a tree.",
        },
    ),
    questions=(
        Question(
            "wish", "What did {hero} want to learn?", "{Hero} wanted to learn {skill}.", "{skill}"
        ),
        Question("friend", "Who helped {hero}?", "{Friend} helped {hero}.", "{friend}"),
    ),
)

_MUSIC = Plot(
    "music",
    ("music", "a song", "making others happy", "a party"),
    parse_beats("""
        #quiet
        It was a long, grey winter, and nobody smiled anymore.
        Everybody there was sad, for it had rained for [three weeks|many days].
        All the people there worked from morning to night, and nobody ever sang.

        /#find
        One day {hero} found {a_thing} {spot1}.
        One {weather} day, {hero} got {a_thing} from {a_helper}.

        #try
        {He} tried to play it, but it sounded [terrible|like a hungry goose|like an old door].
        At first it made only a funny noise. "Please stop!" said the others.

        #practice
        So {hero} practised {spot2}, where nobody could hear {him}.
        {Hero} did not give up. Every evening {he} practised a little.

        ?friend
        {A_friend} called {friend} sat down and listened. "Go on," said {friend}. "It gets better
          every day!"
        Only {a_friend} called {friend} came to listen. "I like it," said {friend}.

        /#play
        Then, one evening, {hero} played the {thing} in the middle of the square. First one foot
          tapped, then another.
        One evening {hero} took the {adj_thing} and played a happy song. All the windows opened.

        #dance
        Soon everybody was [dancing|singing and dancing]. Even the old people laughed.
        People came out of their houses and [danced|sang|clapped their hands] until late at night.

        #thanks
        "You have made us happy again," they said, and {hero} got {food}.
        "How good it is to have music!" they said.

        /#end
        Since then, there has been music every evening, and {hero} plays the {thing}.
        From that day on, nobody said a bad word about the {thing} again.
        {Hero} hung the {thing} over {his} bed and fell asleep with a smile.
    """),
    fits=frozenset({"music"}),
    questions=(
        Question("play", "What did {hero} play?", "{Hero} played the {thing}.", "{thing}"),
        Question("find", "What did {hero} get?", "{Hero} got {a_thing}.", "{thing}"),
        Question("practice", "Why did {hero} practise?", "{Hero} wanted to play well.", "well"),
    ),
)

_GARDEN = Plot(
    "garden",
    ("a garden", "waiting", "being patient", "a seed"),
    parse_beats("""
        /#seed
        One spring day, {hero} found a [tiny|small|round] seed {spot1}. "What will it be?" {he}
          wondered.
        In spring, {a_helper} gave {hero} a little seed. "Take good care of it," said {helper}.

        #plant
        {He} dug a hole, put the seed in, and gave it some water.
        {Hero} planted it in the ground next to {his} door.

        #wait
        The next day {he} looked. Nothing! The day after, still nothing.
        {He} waited one day, two days, three days. Nothing happened.

        ?fail
        {He} sang to it. {He} even told it a story. But the ground stayed bare.
        "Hurry up!" {he} said to the seed. But seeds do not hurry.

        #advice
        "Be patient," said {a_friend} called {friend}. "Give it water and let the sun do the rest."
        {A_friend} called {friend} laughed. "Good things need time," said {friend}.

        /#dry
        Then came a hot, dry week. Every evening {hero} carried water from the well.
        Then it did not rain for a long time. So {hero} brought a bucket of water every morning.

        #sprout
        At last a little green leaf came out of the ground. {Hero} [danced|jumped] for joy.
        And one morning there was something green! It grew and grew.

        #grown
        By the end of the summer it was {a_plant}, [taller than the house|the biggest that anyone
          had ever seen].
        In autumn it had become {a_plant}, and everybody came to see it.

        /#end
        {Hero} and {friend} {used}, and there was enough for everybody.
        {Hero} called all {his} friends. They {used} and had a party {spot2}.
        "You were right," said {hero} to {friend}. They {used}, and {hero} kept one seed for the
          next year.
    """),
    linked=(
        {"plant": "pumpkin", "a_plant": "a big pumpkin", "used": "made a big pot of pumpkin soup"},
        {
            "plant": "sunflower",
            "a_plant": "a golden sunflower",
            "used": "gave its seeds to the birds",
        },
        {"plant": "bean plant", "a_plant": "a tall bean plant", "used": "cooked a pot of beans"},
        {
            "plant": "strawberry plant",
            "a_plant": "a fine strawberry plant",
            "used": "ate sweet strawberries",
        },
        {"plant": "melon", "a_plant": "a huge melon", "used": "cut the melon into slices"},
        {"plant": "cabbage", "a_plant": "a giant cabbage", "used": "made cabbage soup"},
    ),
    not_for=frozenset({"sea"}),
    questions=(
        Question("grown", "What did the seed become?", "It became {a_plant}.", "{plant}"),
        Question("advice", "Who told {hero} to wait?", "It was {friend}.", "{friend}"),
        Question("dry", "What did {hero} carry to the plant?", "{Hero} carried water.", "water"),
    ),
)

_RACE = Plot(
    "race",
    ("a race", "winning and losing", "helping a rival"),
    parse_beats("""
        #race
        Every summer there was a big race. The prize was {a_thing}.
        One day there was to be a race around the lake. The winner would get {a_thing}.

        #wish
        {Hero} wanted to win the {thing} very much. {He} practised every morning.
        "I would love to win that {thing}!" said {hero}. So {he} ran up and down the hill every day.

        /#start
        On the day of the race, {hero} stood next to {a_friend} called {friend}, who was very fast.
          "One, two, three, go!"
        "Ready, steady, go!" They all ran off. {A_friend} called {friend} was in front, and {hero}
          came right after.

        #behind
        {Hero} ran as fast as {he} could, but {friend} was faster.
        {Hero} did {his} best, but little by little {he} fell behind.

        #accident
        Then, near the end, {friend} fell over a root and cried, "My foot! It hurts!"
        But just before the end, {friend} slipped and fell into the mud.

        ?thought
        Now {hero} could win. The end was so near!
        For a moment, {hero} thought of the {thing}.

        /#stop
        But {hero} stopped. "Lean on me," {he} said. Together they walked on.
        {He} did not run on. {He} helped {friend} up, and they went on side by side.

        #finish
        They were the last to arrive, but everybody [cheered|clapped] for them.
        All the others were there already when they came in, side by side.

        #prize
        "The {thing} is for the one with the biggest heart," said {a_helper}, and gave it to {hero}.
        Then {a_helper} gave the {thing} to {hero}. "You did not win the race," said {helper}, "but
          you won a friend."

        /#end
        Since then, {hero} and {friend} have always run together.
        {Hero} and {friend} shared the {thing}, one week at {hero}'s house and one week at
          {friend}'s.
        It was the best race of {hero}'s life.
    """),
    fits=frozenset({"carry"}),
    not_for=frozenset({"sea"}),
    questions=(
        Question("race", "What was the prize?", "The prize was {a_thing}.", "{thing}"),
        Question("accident", "Who fell?", "{Friend} fell.", "{friend}"),
        Question("prize", "Who got the {thing} in the end?", "{Hero} got the {thing}.", "{hero}"),
    ),
)

_TREASURE = Plot(
    "treasure",
    ("a treasure", "an old map", "an adventure"),
    parse_beats("""
        /#map
        One {weather} day, {hero} found an old map {spot1}. There was a red cross on it.
        One rainy day, {hero} looked around in the attic and found an old map with a red cross.

        #friend
        {He} showed it to {his} friend {friend}, {a_friend}. "A treasure!" said {friend}. "Let us
          look for it!"
        "Will you come with me?" {he} asked {friend}, {a_friend}. "Of course!" said {friend}.

        #walk
        They walked over a hill and through a [dark|deep|thick] wood.
        First they followed a stream. Then they climbed over a high wall.

        ?trouble
        Once they took the wrong path and had to go all the way back.
        Then it began to rain, and they had to wait {spot4}.

        #dig1
        They began to dig {dig1}, but there was only {junk1}.
        They came to the cross and dug a hole. They found {junk1} and nothing else.

        #turn
        "Wait," said {friend}. "We are holding the map upside down!"
        Then {hero} looked at the map again. "It is not here," {he} said. "It is {dig2}!"

        /#find
        So they went on and dug {dig2}. There was a box! In it lay {a_thing}.
        {Dig2} they found an old chest. Slowly they opened it, and inside was {a_thing}.

        #joy
        "How beautiful!" said {friend}. "It belongs to both of us," said {hero}.
        "We found the treasure!" they cried, and they danced around it.

        /#end
        They took the {thing} home and showed it to everybody.
        {Hero} still has the {thing}. But the best treasure is a friend who comes along.
        At home they ate {food} and looked at the {adj_thing} until it was time for bed.
    """),
    fits=frozenset({"carry"}),
    choices={
        "dig": (
            "under the old oak",
            "behind the barn",
            "beside the gate",
            "next to a mossy log",
            "between two rocks",
            "at the foot of a tall tree",
            "near the well",
            "behind the mill",
        ),
    },
    questions=(
        Question("map", "What did {hero} find first?", "{Hero} found an old map.", "map"),
        Question("find", "What was the treasure?", "The treasure was {a_thing}.", "{thing}"),
        Question("friend", "Who went with {hero}?", "{Friend} went with {hero}.", "{friend}"),
        Question("find", "Where was the treasure?", "The treasure was {dig2}.", "{dig2}"),
    ),
)

PLOTS = (_LEARNING, _MUSIC, _GARDEN, _RACE, _TREASURE)
