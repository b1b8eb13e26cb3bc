"""Plots among friends: wishes, surprises, new neighbours, sick beds, games.

Form of the texts: see ``story_grammar``.
"""

from __future__ import annotations

from training.tasks.story_grammar import Plot, Question, parse_beats

_BIRTHDAY = Plot(
    "birthday",
    ("a birthday", "a surprise", "a party"),
    parse_beats("""
        /#morning
        One {weather} morning {hero} woke up and was very happy, for it was {his} birthday.
        "Today is my birthday!" said {hero} and jumped out of bed.

        #wish
        There was one thing {he} wished for, and that was {a_thing}.
        {He} had wished for {a_thing} for a long time.

        #ask1
        {He} ran to {friend}, {a_friend} who lived next door. "Do you know what day it is?" "Yes,"
          said {friend}. "It is [Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday]."
        First {he} met {friend}, {a_friend}. "Do you know what day it is today?" "A fine day for a
          walk," said {friend} and went on.

        #ask2
        Then {he} met {a_helper}. "I have no time today," said {helper} and hurried away.
        {He} waved to {a_helper}, but {helper} only looked at the clouds.

        /#sad
        "They have all forgotten it," thought {hero}. {He} sat down {spot1} and was sad.
        {Hero} went home slowly. {His} eyes were wet. "Nobody remembers my birthday," {he} said.

        ?evening
        It grew dark, and {hero} wanted to go to bed early.
        {He} ate a dry piece of bread, all alone.

        /#surprise
        But when {he} opened the door, all the lights went on. "Surprise!" cried {friend} and all
          the others.
        Then there was a knock. In came {friend} with a cake, and behind {f_him} came all {his}
          friends, singing.

        #present
        "We wanted to surprise you," said {friend}, and gave {him} a parcel. In it was {a_thing}!
        On the table lay a present with a blue ribbon. {Hero} opened it. It was {a_thing}!

        /#end
        They ate {food} and danced half the night. It was {hero}'s best birthday ever.
        "I thought you had forgotten me," said {hero}. "Never!" said {friend}.
        That night {hero} fell asleep with the {thing} next to {his} pillow.
    """),
    fits=frozenset({"carry", "music", "toy"}),
    questions=(
        Question("wish", "What did {hero} wish for?", "{Hero} wished for {a_thing}.", "{thing}"),
        Question(
            "sad",
            "Why was {hero} sad?",
            "{Hero} thought that everybody had forgotten {his} birthday.",
            "birthday",
        ),
        Question("present", "What did {hero} get?", "{Hero} got {a_thing}.", "{thing}"),
    ),
)

_STAR = Plot(
    "star",
    ("a star", "a wish", "finding a friend", "friendship"),
    parse_beats("""
        #alone
        {Hero} had everything {he} needed, but {he} had no friend.
        {Hero} was often alone, and sometimes {he} felt lonely.

        /#star
        One clear night {he} saw a falling star. "I wish I had a friend," {he} said softly.
        One evening {hero} looked up at the sky. A star fell, and {he} made a wish. "I wish for a
          friend."

        #fall
        The star fell behind the {behind}. "I will go and find it," said {hero}.
        It seemed to fall just behind the {behind}. So {hero} set out to look for it.

        #walk1
        {He} walked [all night|for a long time]. {Spot1} {he} saw something shine, but it was only
          {junk_bright}.
        On the way {he} asked {a_helper}. "Stars do not fall on the ground," said {helper}. But
          {hero} went on.

        ?tired
        {His} feet were tired, but {he} did not stop.
        "Just a little farther," {he} said to {himself}.

        /#meet
        Behind the {behind} sat {a_friend}, looking at the grass. "What are you doing here?" asked
          {hero}.
        When {he} came to the {behind}, somebody was there already. It was {a_friend}.

        #same
        "I saw a star fall, and now I am looking for it," said the {f_kind}. "I wished for a
          friend."
        "My name is {friend}," said the {f_kind}. "I saw a star fall here. I wished for somebody to
          play with."

        #laugh
        {Hero} laughed. "So did I!" They looked at each other and forgot about the star.
        "Then we both have what we wished for," said {hero}.

        /#end
        They did not find the star. But from that night on, {hero} and {friend} were never lonely
          again.
        Since then, {hero} and {friend} look at the stars together every evening.
        The two sat side by side until the sun came up. And high above them, a new star was shining.
    """),
    choices={
        "behind": ("hill", "mill", "old wall", "big rock", "barn"),
        "junk_bright": ("a wet stone", "a piece of glass", "an old tin", "a glow-worm", "a puddle"),
    },
    not_for=frozenset({"sea"}),
    questions=(
        Question("star", "What did {hero} wish for?", "{Hero} wished for a friend.", "friend"),
        Question("fall", "Where did the star fall?", "It fell behind the {behind}.", "{behind}"),
        Question("same", "Who else was looking for the star?", "It was {friend}.", "{friend}"),
    ),
)

_PULLING = Plot(
    "pulling",
    ("working together", "helping each other", "something very heavy"),
    parse_beats("""
        /#problem
        One {weather} day, a big {block} lay across the path. Nobody could get past.
        After the storm, a huge {block} blocked the road.

        #need
        {Hero} had to get past, for {he} wanted to {errand}.
        "I want to {errand}, but the way is closed," said {hero}.

        #try1
        {He} pushed and pushed. The {block} did not move at all.
        {He} pulled with all {his} strength, but it was too heavy.

        #friend
        Then came {a_friend} called {friend}. They pushed together. The {block} moved a tiny bit,
          but no more.
        {A_friend} called {friend} came along. "I am strong," said {friend}. The two pushed, but the
          {block} stayed where it was.

        ?helper
        Then {a_helper} helped too. They pulled, they pushed, and they groaned.
        "Let me help," said {a_helper}. Now there were three of them. The {block} shook, but it did
          not roll.

        /#small
        At last {a_animal} came. "I can help you," said the {animal}. The others laughed. "You are
          much too small!"
        Then {a_animal} came by and wanted to help. "You?" asked {friend}. "You are so little!"

        #idea
        "I am small, but I have an idea," said the {animal}. "Put this long pole under it, and push
          down at the other end."
        But the {animal} crept under the {block} and pulled out a small twig. "Now try again," it
          said.

        #works
        They did so, and then they all pushed. One, two, three! The {block} rolled away.
        "One, two, three!" they called. The {block} rolled to the side with a loud rumble, and the
          path was free.

        /#end
        "Thank you, little friend," said {hero}. And {he} could {errand} at last.
        After that, nobody said again that the {animal} was too small.
        They all ate {food} together. Then {hero} went on to {errand}.
    """),
    choices={
        "block": ("stone", "log", "rock", "tree trunk"),
        "errand": (
            "go to the market",
            "visit {his} aunt",
            "fetch water",
            "go to school",
            "bring home some wood",
            "see the sea",
        ),
    },
    not_for=frozenset({"sea"}),
    questions=(
        Question("problem", "What blocked the way?", "A {block} blocked the way.", "{block}"),
        Question("idea", "Who had the idea?", "The {animal} had the idea.", "{animal}"),
        Question("friend", "Who helped {hero} first?", "{Friend} helped first.", "{friend}"),
    ),
)

_SICK = Plot(
    "sick friend",
    ("a sick friend", "cheering somebody up", "taking care of someone"),
    parse_beats("""
        #friend
        {His} best friend was {friend}, {a_friend}. They played together every day.
        {Hero} had a good friend, {a_friend} called {friend}.

        /#sick
        One {weather} day, {friend} did not come out to play. {Friend} was ill and lay in bed.
        But one {weather} day {friend} was ill. {F_he} had to stay in bed and could not even smile.

        #plan
        "I will make {f_him} happy," said {hero}.
        {Hero} wanted to cheer {f_him} up. But how?

        #try1
        First {he} told {f_him} a funny story, but {friend} was too tired to laugh.
        First {he} brought some flowers, but {friend} only sneezed. Achoo!

        ?try2
        Then {he} danced on one leg, but {friend} only closed {f_his} eyes.
        Then {he} sang a song. "Please, not so loud," said {friend}.

        /#helper
        {Hero} asked {a_helper}. "A warm soup and a quiet friend, that is the best medicine," said
          {helper}.
        "What can I do?" {he} asked {a_helper}. "Cook a soup, and just be there," said {helper}.

        #soup
        So {hero} cooked a soup with [carrots|beans|potatoes|leeks] and [onions|herbs|noodles|peas].
          It smelled wonderful.
        {Hero} put {veg} into a pot and stirred until the soup was hot.

        #eat
        {Friend} ate the soup, spoon by spoon. Then {hero} sat by the bed and read to {f_him} until
          {f_he} fell asleep.
        {Friend} took a little sip, then another. "It is good," {f_he} said, and there was some
          colour in {f_his} cheeks.

        /#well
        After three days, {friend} was well again.
        The next week {friend} jumped out of bed. "I am well again!"

        #end
        "Your soup made me well," said {friend}. "And you were with me."
        And when {hero} had a cold later that year, {friend} cooked the soup.
        They ran out into the sun together, and everything was good.
    """),
    choices={"veg": ("carrots and peas", "beans and onions", "potatoes and leeks")},
    questions=(
        Question("sick", "Who was ill?", "{Friend} was ill.", "{friend}"),
        Question("soup", "What did {hero} cook?", "{Hero} cooked a soup.", "soup"),
        Question("helper", "Who told {hero} what to do?", "{Helper} did.", "{helper}"),
    ),
)

_NEIGHBOUR = Plot(
    "new neighbour",
    ("a new neighbour", "making a friend", "being shy", "not judging by looks"),
    parse_beats("""
        /#new
        One {weather} day, somebody new moved into the house next door. It was {a_friend} called
          {friend}.
        One {weather} morning, {a_friend} called {friend} moved into the empty house across the
          road.

        #rumour
        "{Friend} never says hello," said the others. "{F_he} must be very proud."
        The others did not like {f_him}. "{F_he} is strange," they said, and they stayed away.

        #wonder
        But {hero} thought, "Maybe {f_he} is only shy."
        {Hero} was not so sure. {He} had seen {friend} look out of the window with sad eyes.

        #try1
        {Hero} knocked at the door, but nobody opened.
        {He} waved over the fence. {Friend} ran inside at once.

        ?try2
        The next day {he} put {food} in front of the door. An hour later it was gone, but nobody
          came out.
        Then {he} wrote a letter. "Dear {friend}, do you want to play with me?" No answer came.

        /#meet
        Then {hero} had an idea. {He} sat down {spot1} and began to play with {his} {adj_thing}.
        On the third day, {hero} took {his} {adj_thing} and sat down near {friend}'s garden.

        #comes
        After a while {friend} came out, step by step. "That is a nice {thing}," said {friend}. "May
          I hold it?"
        Slowly the door opened. "May I see your {thing}?" asked {friend}.

        #talk
        "Of course," said {hero}. They talked and talked. {Friend} was not proud at all, only very
          shy.
        {Hero} gave {f_him} the {thing}. Soon they were both laughing.

        /#end
        Before long, all the others came to play too. And {friend} was not shy anymore.
        Since then, the door of {friend}'s house has always been open.
        And that is how {hero} found a very good friend.
    """),
    fits=frozenset({"toy", "music"}),
    questions=(
        Question("new", "Who was the new neighbour?", "It was {friend}.", "{friend}"),
        Question("talk", "What was {friend} really like?", "{Friend} was only shy.", "shy"),
        Question("meet", "What did {hero} take along?", "{Hero} took the {thing}.", "{thing}"),
    ),
)

_HIDING = Plot(
    "hide and seek",
    ("hide and seek", "a game", "playing with friends"),
    parse_beats("""
        /#game
        One {weather} afternoon, {hero} and {his} friend {friend}, {a_friend}, played hide and seek.
        One {weather} day, {a_friend} called {friend} came by. "Let us play hide and seek!" said
          {friend}.

        #count
        {Hero} closed {his} eyes and counted to [ten|twenty|thirty]. "I am coming!" {he} called.
        {Hero} had to seek. {He} stood with {his} face to a tree and counted slowly.

        #look1
        {He} looked {spot1}. There was only {junk1}.
        First {he} looked {spot1}, but nobody was there.

        #look2
        Then {he} looked {spot2}. There was {junk2}, but no {friend}.
        {Spot2} something moved! But it was only {a_animal}.

        ?worry
        {Hero} looked and looked. It was getting late. "Where are you, {friend}?" {he} called.
        "Maybe {f_he} has gone home," thought {hero}. But {friend} would never do that.

        /#clue
        Then {he} heard something very quiet. It was a sneeze!
        Then {hero} saw {clue}. "Aha!" {he} said.

        #found
        {He} crept closer and looked {spot3}. "Found you!" There lay {friend}, fast asleep.
        And there, {spot3}, was {friend}. {F_he} had fallen asleep while waiting.

        #wake
        {Friend} opened one eye. "Did I win?" {f_he} asked. "Yes," said {hero}. "It was the best
          hiding place of all."
        "Wake up!" said {hero} softly. They both laughed until their bellies hurt.

        /#end
        Then they went home together and ate {food}.
        The next day it was {hero}'s turn to hide. And where did {he} hide? {Spot3}, of course!
        On the way home they sang a song, and the moon came up.
    """),
    choices={
        "clue": (
            "footprints in the sand",
            "a foot that stuck out",
            "two ears behind the leaves",
            "a bit of a sleeve",
        ),
    },
    questions=(
        Question("game", "What did they play?", "They played hide and seek.", "hide and seek"),
        Question("found", "Where did {friend} hide?", "{Friend} hid {spot3}.", "{spot3}"),
        Question("look1", "Where did {hero} look first?", "{Hero} looked {spot1}.", "{spot1}"),
    ),
)

PLOTS = (_BIRTHDAY, _STAR, _PULLING, _SICK, _NEIGHBOUR, _HIDING)
