"""Plots on the way: dark paths, noises, storms, rivers, the lost, the moon.

Form of the texts: see ``story_grammar``.
"""

from __future__ import annotations

from training.tasks.story_grammar import Plot, Question, parse_beats

_DARK_PATH = Plot(
    "dark path",
    ("being brave", "the dark", "being afraid of the dark", "finding the way home"),
    parse_beats("""
        #fear
        {Hero} was afraid of the dark. That is why {he} always kept {a_thing} next to {his} bed.
        There was only one thing {hero} did not like, and that was the dark. But {he} had {a_thing}.
        {Hero} had {a_thing}. Its light was warm and bright.

        /#call
        One night {he} heard a [small|thin] voice outside. "Help! I cannot find my way!"
        One dark evening, somebody called for help from far away.
        Late one night there was a cry from {spot1}. "Is anybody there?"

        #doubt
        {Hero} looked out. It was as black as ink. {His} knees shook a little.
        "It is so dark," thought {hero}. {His} heart beat fast.
        {Hero} pulled the blanket over {his} head. But then the voice called again.

        ?courage
        "Being brave means going even if you are afraid," {his} {family} had once told {him}.
        "If I do not go, nobody will," {he} said to {himself}.

        /#go
        {He} took the {thing} and went out. [Step by step|Slowly], {he} walked into the dark.
        So {he} picked up the {thing}, opened the door, and went out into the night.
        Then {he} held up the {adj_thing} and walked towards the voice.

        #false
        Something moved {spot2}! But it was only {junk1}.
        {He} saw two big eyes {spot2}. It was only {a_animal}.
        A branch went crack. {Hero} jumped, but it was only the wind.

        #find
        At last {he} saw {a_friend} {spot1}. It was {friend}, who had lost the way.
        There, {spot1}, sat {a_friend} called {friend}, cold and lost.

        #home
        "Do not worry," said {hero}. "My {thing} will show us the way." And it did. They walked side
          by side until they came to {friend}'s door.
        {Hero} and {friend} walked close together. The light of the {thing} fell on the path, and
          soon they were home.
        "What a good light!" said {friend}. Together they followed the path home.

        /#end
        "You are very brave," said {friend}. And {hero} was never afraid of the dark again.
        Since that night, {hero} has not been afraid of the dark. {He} and {friend} became best
          friends.
        That night {hero} slept well. The dark was not so bad after all.
    """),
    fits=frozenset({"light"}),
    not_for=frozenset({"sea"}),
    questions=(
        Question("fear", "What did {hero} have?", "{Hero} had {a_thing}.", "{thing}"),
        Question("find", "Who had lost the way?", "{Friend} had lost the way.", "{friend}"),
        Question("find", "Where was {friend}?", "{Friend} was {spot1}.", "{spot1}"),
        Question("go", "What did {hero} take along?", "{Hero} took the {thing}.", "{thing}"),
    ),
)

_NOISE = Plot(
    "noise",
    ("a noise in the night", "a strange sound", "the night"),
    parse_beats("""
        /#noise
        One night, {hero} woke up. There was a strange noise. [Scratch, scratch|Tap, tap, tap|Bump,
          bump]!
        Late one night there was a noise {spot1}. {Hero} sat up in bed.
        In the middle of the night, {hero} heard something {spot1}.

        #guess
        "Is it a [monster|ghost|thief]?" {he} thought, and {his} heart beat fast.
        "Who is there?" called {hero}. Nobody answered.

        #thing
        {He} took {his} {adj_thing} and went to the door [on tiptoe|very quietly].
        {He} lit {his} {adj_thing} and opened the door a little.
        But {hero} wanted to know what it was. {He} took {a_thing} and went outside.

        #look
        {He} held the {thing} high. The light fell on {junk1}. That was not it.
        First {he} looked {spot2}. The light of the {thing} showed only {junk1}.

        ?again
        There was the noise again! {Hero} held {his} breath.
        Then {he} heard it again, much nearer now.

        /#see
        Then the light fell on {a_animal} {spot1}. Its foot was caught in [a net|some string|the
          fence].
        And there, {spot1}, was {a_animal}. It was looking for something to eat.
        Then {he} saw {a_animal} {spot1}. It was wet and cold, and it looked at {him} with big eyes.

        #laugh
        {Hero} laughed. "So it was you! You do not need to be afraid of me."
        "Oh, you poor little thing!" said {hero}. {He} was not afraid anymore.

        #help
        {He} helped the {animal} and gave it {food}.
        {He} brought the {animal} into the warm kitchen and gave it {food}.

        /#end
        Then {he} put out the {thing} and went back to bed. Since then, the {animal} has come to
          visit every night.
        From that day on, the {animal} was {hero}'s friend, and no noise could frighten {him}
          anymore.
        "Good night, little {animal}," said {hero}, and both of them slept until morning.
    """),
    fits=frozenset({"light"}),
    not_for=frozenset({"sea"}),
    questions=(
        Question("see", "What made the noise?", "It was {a_animal}.", "{animal}"),
        Question("see", "Where was the {animal}?", "The {animal} was {spot1}.", "{spot1}"),
        Question("help", "What did the {animal} get to eat?", "It got {food}.", "{food}"),
    ),
)

_STORM = Plot(
    "storm",
    ("a storm", "a rainy day", "helping others", "a guest"),
    parse_beats("""
        #house
        {He} had a [small|tiny] house with a [red|green|blue] door.
        {His} house was very small, with just one room and one bed.

        /#storm
        One evening a great storm came up. The wind howled, and the rain [beat|drummed] on the roof.
        One day the sky turned black, and soon it rained harder than ever before.

        #knock
        Knock, knock! At the door stood {a_friend} called {friend}, wet from head to foot.
        Then there was a knock at the door. It was {a_friend} called {friend}. "May I come in? I am
          so cold," said {friend}.

        #in
        "My house is small, but there is room for two," said {hero}. "Come in!"
        "Of course! Come in and sit by the fire," said {hero}.

        #food
        {He} gave {friend} a dry blanket and {food}.
        They sat by the fire and ate {food}.

        ?second
        Soon there was another knock. It was {a_animal}. "Come in too," said {hero}. "We can sit
          closer together."
        A little later {a_animal} came to the door as well. Now there were three of them, and it was
          warm and cosy.

        /#leak
        In the night the wind tore a hole in the roof. Drip, drip, drip! {Hero} tried to close it
          with [a towel|leaves|paper], but that did not help.
        Then, crash! A branch fell on the roof, and rain came in. {Hero} put a pot under the hole,
          but it was full at once.

        #mend
        "Now I can help you," said {friend}. {F_he} held a board over the hole, and {hero} nailed it
          down.
        "Let me do it," said {friend}. Together they put [a strong board|a big piece of bark] over
          the hole, and the rain stayed outside.

        /#end
        In the morning the sun was shining. "Thank you," they both said at the same time, and they
          laughed.
        The next day the storm was over. But {friend} stayed for breakfast, and the two became good
          friends.
        When the sun came out again, {hero} was glad that {he} had opened {his} door.
    """),
    questions=(
        Question("knock", "Who knocked at the door?", "{Friend} knocked at the door.", "{friend}"),
        Question("food", "What did they have to eat?", "They had {food}.", "{food}"),
        Question("mend", "Who helped {hero} with the roof?", "{Friend} helped {hero}.", "{friend}"),
    ),
)

_RIVER = Plot(
    "river",
    ("visiting grandmother", "crossing a river", "a clever idea"),
    parse_beats("""
        #plan
        {His} grandmother lived on the other side of the river.
        One day {hero} wanted to visit {his} grandmother, who lived across the river.
        It was {hero}'s grandmother's birthday, and she lived on the far side of the river.

        #bring
        {Hero} wanted to bring her {a_thing}.
        "I will bring her {a_thing}," said {hero}. "She will like it."
        {He} took {a_thing} for her and set out early.

        /#gone
        But when {he} came to the river, the bridge was gone. The water had washed it away.
        But after the rain the river was wide and wild, and there was no bridge.

        #try1
        {He} tried to walk through the water, but it was too deep.
        {He} wanted to jump from stone to stone, but the stones were too far apart.

        ?try2
        {He} pushed a log into the water to sit on it, but it rolled over. Splash! {Hero} was wet.
        {He} threw in stones to build a way, but the river carried them off.

        /#helper
        "Where do you want to go?" asked {carrier}.
        Then {carrier} came along. "Where are you going?" asked {the_carrier}.

        #ask
        "To my grandmother," said {hero}. "I have {a_thing} for her."
        {Hero} told {the_carrier} about {his} grandmother and the {thing}.

        #cross
        "Sit down, I will take you across," said {the_carrier}. {Hero} held the {thing} tight, and
          soon they were on the other side.
        "{How}," said {the_carrier}. And so {hero} and the {thing} came safely over the river.

        /#end
        {Hero}'s grandmother was very happy about the {thing}. They ate {food} and told each other
          stories.
        "What a lovely {thing}!" said {hero}'s grandmother, and she gave {him} a big hug.
        {His} grandmother put the {thing} on the table and kissed {him}. On the way home {hero}
          brought {food} for {the_carrier}.
    """),
    fits=frozenset({"food", "carry"}),
    not_for=frozenset({"flies", "swims", "old", "the island"}),
    linked=(
        {"carrier": "a big turtle", "the_carrier": "the turtle", "how": "Hold on to my shell"},
        {"carrier": "a man in a boat", "the_carrier": "the man", "how": "Come into my boat"},
        {"carrier": "a strong horse", "the_carrier": "the horse", "how": "Sit on my back"},
        {"carrier": "a friendly swan", "the_carrier": "the swan", "how": "Sit on my back"},
        {
            "carrier": "a busy beaver",
            "the_carrier": "the beaver",
            "how": "I will pull you on a log",
        },
        {"carrier": "a woman on a raft", "the_carrier": "the woman", "how": "Come on to my raft"},
    ),
    questions=(
        Question("bring", "What did {hero} bring?", "{Hero} brought {a_thing}.", "{thing}"),
        Question("cross", "Who took {hero} across?", "{The_carrier} did.", "{the_carrier}"),
        Question(
            "plan",
            "Who lived across the river?",
            "The grandmother of {hero} lived there.",
            "grandmother",
        ),
    ),
)

_LOST_BABY = Plot(
    "lost baby",
    ("helping a little animal", "a lost little one", "finding a mother"),
    parse_beats("""
        /#cry
        One {weather} morning {hero} heard somebody crying {spot1}. It was a little {baby}.
        One {weather} day, {hero} found a little {baby} {spot1}. It was crying.

        #ask
        "What is wrong?" asked {hero}. "I cannot find my mother," said the {baby}.
        "I have lost my mother!" said the {baby}. "Do not cry," said {hero}. "We will find her."

        #try1
        They went to a {wrong1}. "Is this your {baby}?" asked {hero}. "No," said the {wrong1}. "My
          little ones are all here."
        First they asked a {wrong1}. "Are you its mother?" "No, I am not," said the {wrong1}.

        ?try2
        Then they met a {wrong2}, but the {wrong2} was not its mother either.
        Next they came to a {wrong2}. "That is not my baby," said the {wrong2}. "But I hope you find
          her."

        #tired
        The {baby} was tired, so {hero} carried it. {He} sang a [little|quiet] song, and the {baby}
          stopped crying.
        They sat down to rest, and {hero} shared {food} with the {baby}.

        /#sound
        Then they heard something far away. "{Sound}!" "That is my mother!" cried the {baby}.
        All at once there was a sound near the [pond|hill|barn]. "{Sound}!" The {baby} [jumped
          up|began to run].

        #found
        And there was the big {mother}. She was so happy to see her {baby} again.
        A {mother} came running. "My baby! I have looked for you everywhere!"

        #thanks
        "Thank you, {hero}," said the {mother}. "You have a good heart."
        The {mother} thanked {hero} again and again.

        /#end
        {Hero} waved until they were gone. Then {he} went home and felt [very happy|warm inside].
        From then on, the {baby} came to play with {hero} every day.
    """),
    choices={"wrong": ("pig", "goat", "horse", "donkey", "rabbit", "deer")},
    linked=(
        {"baby": "duckling", "mother": "duck", "sound": "Quack, quack"},
        {"baby": "lamb", "mother": "sheep", "sound": "Baa, baa"},
        {"baby": "kitten", "mother": "cat", "sound": "Meow, meow"},
        {"baby": "calf", "mother": "cow", "sound": "Moo, moo"},
        {"baby": "chick", "mother": "hen", "sound": "Cluck, cluck"},
        {"baby": "puppy", "mother": "dog", "sound": "Woof, woof"},
    ),
    not_for=frozenset({"sea"}),
    questions=(
        Question("cry", "What did {hero} find?", "{Hero} found a little {baby}.", "{baby}"),
        Question("cry", "Where was the {baby}?", "The {baby} was {spot1}.", "{spot1}"),
        Question(
            "ask",
            "Why did the {baby} cry?",
            "The {baby} cried because it had lost its mother.",
            "mother",
        ),
        Question("found", "Who was the mother of the {baby}?", "It was the {mother}.", "{mother}"),
    ),
)

_SLEEPLESS = Plot(
    "cannot sleep",
    ("going to sleep", "bedtime", "the moon", "a good night"),
    parse_beats("""
        /#awake
        One night {hero} could not sleep. {He} turned to the left, and {he} turned to the right.
        It was late, but {hero} was wide awake.

        #try1
        {He} counted [sheep|stars|clouds], one, two, three, up to one hundred. It did not help.
        {He} drank a cup of warm milk, but {he} was still awake.

        ?try2
        {He} put {his} head under the pillow. That did not help either.
        {He} closed {his} eyes very tight. They opened again all by themselves.

        /#out
        So {hero} got up and went outside. The moon was big and round.
        "I will take a little walk," {he} said. Outside, everything was silver in the moonlight.

        #meet
        {Spot1} sat {a_friend} called {friend}. "You cannot sleep either?" asked {friend}.
        {He} met {a_friend} called {friend} {spot1}. "Good evening," said {friend}. "Are you awake
          too?"

        #talk
        They sat down together. "I always think of three nice things from the day," said {friend}.
          "Try it!"
        They listened. The wind sang in the trees, and far away {a_sound}. "Think of three nice
          things," said {friend}. "That always helps."

        #three
        {Hero} thought of [the sun on {his} face|a funny cloud|a kind word], of {food}, and of
          {friend}.
        "First, [the sun|a funny cloud|a kind word]. Second, {food}," said {hero}. "And third, I
          have met you." {He} yawned.

        /#end
        Soon {his} eyes grew heavy. {He} went home, lay down, and slept until the sun was high.
        "Good night," said {friend}. But {hero} was already fast asleep.
        {Hero} went back to bed with a smile. And the moon looked in at the window and smiled too.
    """),
    choices={
        "a_sound": (
            "an owl called",
            "a train passed by",
            "a dog barked",
            "a bell rang",
            "the sea murmured",
        ),
    },
    questions=(
        Question("meet", "Who did {hero} meet?", "{Hero} met {friend}.", "{friend}"),
        Question("meet", "Where was {friend}?", "{Friend} was {spot1}.", "{spot1}"),
        Question("awake", "What was {hero}'s problem?", "{Hero} could not sleep.", "sleep"),
    ),
)

PLOTS = (_DARK_PATH, _NOISE, _STORM, _RIVER, _LOST_BABY, _SLEEPLESS)
