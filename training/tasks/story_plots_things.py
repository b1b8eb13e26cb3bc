"""Plots that turn on a small possession: lost, found, given, shared, stuck, broken.

Form of the texts: see ``story_grammar``.
"""

from __future__ import annotations

from training.tasks.story_grammar import Plot, Question, parse_beats

_LOST = Plot(
    "lost",
    ("losing and finding something", "not giving up", "looking for something"),
    parse_beats("""
        #loves
        {Hero} had {a_thing}. {He} took it everywhere.
        {His} grandmother had given {him} {a_thing}, and {he} [loved it very much|took good care of
          it].
        The best thing {hero} had was {a_thing}. {He} [never went out without it|looked at it every
          day].
        What {hero} loved most was {his} {adj_thing}.

        /#loss
        One {weather} morning, the {thing} was gone. "Oh no!" said {hero}. "Where can it be?"
        But one {weather} day {hero} could not find the {thing}. {He} felt [very sad|sad and
          worried].
        One {weather} day {hero} came home from a long walk, and the {thing} was not there anymore.
          "I have lost it!" {he} [cried|said].
        Then, one {weather} morning, {hero} woke up and the {thing} was not in its place.

        #look1
        First {he} looked {spot1}, but it was not there.
        {He} looked {spot1} first. There was only {junk1}.
        {Hero} went out to look for it. {Spot1} {he} found only {junk1}.

        ?look2
        Then {he} looked {spot2}, but there was only {junk2}.
        Next {he} looked {spot2}. No {thing} there!
        {He} looked {spot2} too, but {he} found nothing.

        /#helper
        {Hero} sat down and was close to tears. Just then {a_helper} came by. "What is wrong?" asked
          {helper}.
        Then {a_helper} came along the path. "Why do you look so sad?" asked {helper}.
        {Hero} met {a_helper}. "You look tired," said {helper}. "What are you looking for?"

        #tip
        "I have lost my {thing}," said {hero}. "I think I saw it {spot3}," said {helper}.
        "My {adj_thing} is lost," said {hero}. {Helper} [smiled|nodded]. "I saw something {spot3}.
          Come with me!"
        "I am looking for {a_thing}," said {hero}. "Then look {spot3}," said {helper}. "I saw it
          there this morning."

        #found
        They went there together, and there it was! The {thing} lay {spot3}.
        {Hero} ran as fast as {he} could. The {thing} was really there, {spot3}!
        And yes, {spot3} lay the {adj_thing}, [safe and dry|just a little dusty|as good as new].

        ?thanks
        "Thank you!" said {hero}, and {he} gave {helper} {food}.
        {Hero} was so happy that {he} shared {food} with {helper}.
        "You are a true friend," said {hero} to {helper}.

        /#end
        From that day on, {hero} always [put the {thing} in a safe place|took good care of the
          {thing}].
        {Hero} carried the {thing} home, and that night {he} slept very well.
        {Hero} held the {thing} tight all the way home. {He} had never been so glad.
        After that, whenever someone lost something, {hero} was the first to help look for it.
    """),
    fits=frozenset({"carry"}),
    questions=(
        Question("loss", "What did {hero} lose?", "{Hero} lost {his} {thing}.", "{thing}"),
        Question("look1", "Where did {hero} look first?", "{Hero} looked {spot1}.", "{spot1}"),
        Question("found", "Where was the {thing}?", "The {thing} was {spot3}.", "{spot3}"),
        Question("tip", "Who helped {hero}?", "{Helper} helped {hero}.", "{helper}"),
        Question(
            "loss",
            "Why was {hero} sad?",
            "{Hero} was sad because {his} {thing} was lost.",
            "{thing}",
        ),
        Question("loves", "What did {hero} love?", "{Hero} loved {his} {thing}.", "{thing}"),
    ),
)

_FINDER = Plot(
    "finder",
    ("being honest", "honesty", "giving something back"),
    parse_beats("""
        /#find
        One {weather} day, {hero} found {a_thing} {spot1}. "How pretty!" {he} said.
        One {weather} morning, {hero} went for a walk and saw something {spot1}. It was {a_thing}.
        One {weather} afternoon {hero} looked {spot1}, and there lay {a_thing}.

        #want
        {He} wanted to keep it. But whose was it?
        {He} [liked it very much|would have loved to keep it], but {he} knew that somebody must miss
          it.
        "I would like to keep it," thought {hero}. "But it is not mine."

        #ask1
        First {he} asked {a_helper}. "No, it is not mine," said {helper}.
        {Hero} showed it to {a_helper}. "Nice, but I have never seen it before," said {helper}.
        {He} met {a_helper}. "Is this your {thing}?" {he} asked. "No," said {helper}. "Ask somebody
          else."

        ?ask2
        Then {he} asked {a_animal}, but the {animal} only shook its head.
        Next {he} asked {a_animal}. "Not mine," said the {animal}.

        /#owner
        At last {hero} heard somebody crying. It was {a_friend} called {friend}. "I have lost my
          {thing}," said {friend}.
        Then {he} met {a_friend} called {friend}, who was looking for something. "Have you seen
          {a_thing}?" asked {friend}.
        In the evening {hero} met {friend}, {a_friend}, who looked very sad. "My {adj_thing} is
          gone," said {friend}.

        #give
        "Here it is!" said {hero} and gave it back.
        {Hero} held out the {thing}. "Is this it?" {he} asked. "Yes!" cried {friend}.
        "I found it {spot1}," said {hero}. "Please take it."

        #reward
        {Friend} was so glad that {f_he} gave {hero} {food}.
        {Friend} jumped for joy and shared {food} with {hero}.
        "You are honest," said {friend}. "Come and eat {food} with me!"

        /#end
        Since then, {hero} and {friend} have been [good|best] friends.
        {Hero} went home without the {thing}, but with a new friend, and that was much better.
        That evening {hero} felt warm inside. It is good to be honest.
        And {hero} was happier than if {he} had kept the {thing}.
    """),
    fits=frozenset({"carry"}),
    questions=(
        Question("find", "What did {hero} find?", "{Hero} found {a_thing}.", "{thing}"),
        Question(
            "find",
            "Where did {hero} find the {thing}?",
            "{Hero} found it {spot1}.",
            "{spot1}",
        ),
        Question("owner", "Whose {thing} was it?", "It was the {thing} of {friend}.", "{friend}"),
        Question("reward", "What did {friend} share with {hero}?", "It was {food}.", "{food}"),
        Question("owner", "Who had lost the {thing}?", "{Friend} had lost it.", "{friend}"),
    ),
)

_GIFT = Plot(
    "gift",
    ("a present", "being kind", "kindness", "a birthday present"),
    parse_beats("""
        #friend
        {His} best friend was {a_friend} called {friend}.
        {Hero} had a good friend, {a_friend} called {friend}.
        Next door lived {a_friend} called {friend}. The two were best friends.

        /#want
        Tomorrow was {friend}'s birthday, but {hero} had no present.
        It was nearly {friend}'s birthday. "What can I give {f_him}?" thought {hero}.
        One {weather} day {friend} had a birthday, and {hero} wanted to bring {f_him} something
          nice.

        #fail
        First {he} made {f_him} a [picture|card|little house of leaves], but the [wind blew it
          away|rain made it wet|goat next door ate it].
        First {he} baked a cake, but it was [black as coal|hard as a stone|flat as a plate].
        First {he} picked some flowers, but [they were limp by noon|a cow ate them all].

        ?sad
        {Hero} was sad. "Now I have nothing," {he} said.
        "Oh dear," said {hero}. "That is no good."

        /#advice
        Then {a_helper} said, "Give something that you love yourself."
        {He} asked {a_helper}. "The best present comes from the heart," said {helper}.
        "Do not worry," said {a_helper}. "What do you like best of all that you have?"

        #idea
        {Hero} thought of {his} {adj_thing}. {He} cleaned it and put a ribbon on it.
        {Hero} thought for a long time. Then {he} took {his} {adj_thing} and [wrapped it in
          paper|put it in a little box].
        "I have {a_thing}!" said {hero}. {He} wrapped it in green paper.

        /#give
        When {friend} saw the {thing}, {f_he} [jumped for joy|clapped|laughed with joy]. "It is the
          best present of all!"
        {Friend} opened the present. "{A_thing}!" {f_he} cried. "Thank you, {hero}!"
        "For me?" asked {friend}. {F_his} eyes shone when {f_he} saw the {adj_thing}.

        #end
        Then they ate {food} and [sang|laughed|danced] until it was dark.
        And the two friends used the {thing} together, day after day.
        {Hero} learned that giving makes you just as happy as getting.
        It was the nicest birthday they had ever had.
    """),
    fits=frozenset({"carry", "music", "toy"}),
    questions=(
        Question(
            "idea", "What did {hero} give {friend}?", "{Hero} gave {friend} {a_thing}.", "{thing}"
        ),
        Question("friend", "Who was {hero}'s best friend?", "It was {friend}.", "{friend}"),
        Question("want", "Whose birthday was it?", "It was {friend}'s birthday.", "{friend}"),
        Question("advice", "Who gave {hero} advice?", "{Helper} gave {hero} advice.", "{helper}"),
    ),
)

_SHARING = Plot(
    "sharing",
    ("sharing", "learning to share", "playing together"),
    parse_beats("""
        #has
        {Hero} had {a_thing}, and {he} was very proud of it.
        One day {hero} got {a_thing} from {his} aunt. It was the finest {thing} of all.
        Nobody else had such {a_thing} as {hero}.

        /#asks
        One {weather} day, {a_friend} called {friend} came by. "May I play with your {thing}?"
          {f_he} asked.
        {A_friend} called {friend} saw it. "What a fine {thing}!" said {friend}. "Can we play with
          it together?"

        #no
        "No," said {hero}. "It is mine!" {Friend} went away with a sad face.
        "No, you may not," said {hero}, and {he} held the {thing} tight. So {friend} went home.
        {Hero} shook {his} head. "I want to play alone," {he} said. {Friend} said nothing and left.

        #alone
        {Hero} played alone. At first it was fun, but soon it was [boring|dull and quiet].
        So {hero} sat alone with {his} {thing}. After a while it was no fun at all.
        But playing alone was not nice. There was nobody to laugh with.

        ?advice
        "{One_thing} is more fun for two," said {a_helper} who came by.
        {A_helper} looked over the fence. "Where is your friend?" asked {helper}. {Hero} looked at
          the ground.

        /#sorry
        {Hero} ran to {friend}'s house. "I am sorry," {he} said. "Please come and play with me."
        Then {hero} knew what to do. {He} went to {friend} and said, "I am sorry. Let us share the
          {thing}."
        {He} took the {thing} and knocked at {friend}'s door. "You go first," {he} said.

        #together
        They took turns all afternoon and [laughed a lot|had great fun].
        {Friend} smiled. Soon the two were playing and laughing {spot1}.
        They played with the {thing} until the sun went down.

        /#end
        Since that day, {hero} has shared everything with {friend}.
        "Sharing is much more fun," said {hero}, and {friend} [nodded|laughed].
        From then on, the {thing} belonged to both of them.
    """),
    fits=frozenset({"toy", "music"}),
    questions=(
        Question("asks", "Who wanted to play with the {thing}?", "{Friend} wanted to.", "{friend}"),
        Question("has", "What did {hero} have?", "{Hero} had {a_thing}.", "{thing}"),
        Question(
            "no",
            "Why did {friend} go away?",
            "{Friend} went away because {hero} did not share the {thing}.",
            "share",
        ),
    ),
)

_STUCK = Plot(
    "stuck",
    ("a windy day", "helping each other", "the wind"),
    parse_beats("""
        #has
        {Hero} had {a_thing}. {He} loved it very much.
        {Hero} had got {a_thing} from {his} uncle, and {he} took it outside every day.

        /#wind
        One windy day, a strong wind pulled the {thing} away from {him} and blew it high up into a
          tree.
        One day the wind blew very hard. Whoosh! It carried the {thing} up into {a_tree} tree.
        {Hero} was outside when a sudden wind blew the {thing} away. It got stuck in the top of a
          tree.

        #try1
        {Hero} jumped as high as {he} could, but the tree was too tall.
        {He} jumped once, twice, three times. It was no use.
        {Hero} tried to climb the tree, but {he} slipped down again.

        #try2
        Then {he} tried with a long stick, but the stick broke.
        Then {he} shook the tree. Only [leaves|a few apples|some twigs] fell down.
        Then {he} stood on a box, but that was still not high enough.

        /#helper
        "Can I help?" asked a little voice. It was {climber}.
        {Climber} had watched it all. "Wait a moment," said {the_climber}.
        Just then {climber} came by. "That is easy for me," said {the_climber}.

        #down
        {The_climber} went up to the top in no time and let the {thing} fall softly to the ground.
        Up went {the_climber}, higher and higher. A moment later the {thing} came gently down.
        {The_climber} got hold of the {thing} and brought it down without a scratch.

        ?thanks
        "Thank you so much!" said {hero}. "You are very [brave|clever]."
        {Hero} was so glad that {he} gave {the_climber} {food}.

        /#end
        From then on, {hero} held the {thing} tight when the wind was strong.
        After that, the two met every day and played with the {thing} together.
        {Hero} waved until {the_climber} was out of sight. How good it is to have help!
    """),
    fits=frozenset({"blows"}),
    not_for=frozenset({"sea", "flies"}),
    choices={"a_tree": ("a tall pine", "an old oak", "a big apple", "a tall birch")},
    linked=(
        {"climber": "a quick squirrel", "the_climber": "the squirrel"},
        {"climber": "a clever monkey", "the_climber": "the monkey"},
        {"climber": "a small woodpecker", "the_climber": "the woodpecker"},
        {"climber": "a friendly blackbird", "the_climber": "the blackbird"},
        {"climber": "a white dove", "the_climber": "the dove"},
    ),
    questions=(
        Question(
            "down", "Who got the {thing} down?", "{The_climber} got it down.", "{the_climber}"
        ),
        Question("wind", "Where was the {thing}?", "The {thing} was in a tree.", "tree"),
        Question("wind", "What blew the {thing} away?", "The wind blew it away.", "wind"),
    ),
)

_BROKEN = Plot(
    "broken",
    ("mending something", "a broken thing", "asking for help"),
    parse_beats("""
        #has
        {Hero} had {a_thing}. It had belonged to {his} grandfather.
        {Hero} was very fond of {his} {adj_thing}.
        {Hero} kept {a_thing} in {his} room. It was {his} greatest treasure.

        /#breaks
        One {weather} day {he} dropped it. Crack! The {thing} was broken.
        One {weather} morning {he} tripped over {junk1}, and the {thing} fell and broke.
        But one {weather} day there was a loud crash. The {thing} had fallen to the floor and was
          broken.

        #feels
        {Hero} [began to cry|was very sad]. "My poor {thing}!" {he} said.
        "What shall I do now?" said {hero}, and a tear ran down {his} face.

        #try
        {He} tried to mend it with [grass|mud|honey|a leaf and some mud], but it fell apart again.
        First {he} tied it with [grass|an old ribbon|thin string]. It did not hold.

        /#helper
        Then {he} took it to {a_helper}. "Do not cry," said {helper}. "I can show you how to mend
          it."
        {A_helper} saw {his} sad face. "Let me see," said {helper}. "We can mend this together."

        #mend
        {Hero} held the pieces, and {helper} put [strong glue|warm wax|a little glue and strong
          thread] on them. They waited until it was dry.
        They worked all afternoon with [glue|small nails|wire] and a lot of patience.

        #good
        In the evening, the {thing} was whole again. It was [nearly|almost] as good as new.
        At last the {adj_thing} was mended. You could hardly see the crack.

        ?thanks
        "How can I thank you?" asked {hero}. "Help somebody else one day," said {helper}.
        {Hero} thanked {helper} with {food}.

        /#end
        Since then, {hero} has liked the {thing} even more than before.
        {Hero} was proud, for now {he} knew how to mend things.
        And whenever something broke, everybody said, "Ask {hero}, {he} can mend it!"
    """),
    fits=frozenset({"breaks"}),
    questions=(
        Question("breaks", "What was broken?", "The {thing} was broken.", "{thing}"),
        Question("helper", "Who helped {hero} to mend it?", "{Helper} helped {hero}.", "{helper}"),
        Question(
            "feels",
            "Why was {hero} sad?",
            "{Hero} was sad because the {thing} was broken.",
            "{thing}",
        ),
    ),
)

PLOTS = (_LOST, _FINDER, _GIFT, _SHARING, _STUCK, _BROKEN)
