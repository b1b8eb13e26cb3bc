"""Everyday tools that do something and only say whether they could."""

from __future__ import annotations

from training.tasks.tool_kinds import Parameter, ToolKind
from training.tasks.tool_parameters import (
    DAY,
    DEVICES,
    FOOD,
    MINUTES,
    ON_DAY,
    PATH,
    ROOM,
    TEXT,
    TIME,
    decimal,
    email_address,
    integer,
    one_of,
    one_of_few,
    phone_number,
    string,
    tool,
)
from training.tasks.word_pools import (
    COLOURS,
    FIRST_NAMES,
    FOODS,
    OBJECTS,
    PLAIN_WORDS,
    made_up_word,
    words_of,
)

SEND_EMAIL = tool(
    "send_email email mail",
    "Send an email",
    (
        string("to address recipient", "Email address", email_address),
        string("subject title", "Subject of the email", lambda rng: rng.choice(PLAIN_WORDS)),
    ),
    (
        'Send an email to {to} with the subject "{subject}".',
        'Write an email to {to}, subject "{subject}".',
    ),
    "The email to {to} is sent.",
    "email",
)
CALL_NUMBER = tool(
    "call_number dial call",
    "Call a phone number",
    (string("number phone phone_number", "The phone number", phone_number),),
    ("Call {number}.", "Dial the number {number}."),
    "I am calling {number}.",
    "phone",
)
ADD_EXPENSE = tool(
    "add_expense log_expense note_expense",
    "Add an amount to the expenses",
    (Parameter(words_of("amount euros sum"), "number", "Amount in euros", decimal),),
    ("Add {amount} euros to my expenses.", "Note an expense of {amount} euros."),
    "I added {amount} euros to your expenses.",
)
ACTIONS: tuple[ToolKind, ...] = (
    SEND_EMAIL,
    CALL_NUMBER,
    ADD_EXPENSE,
    tool(
        "set_timer start_timer timer",
        "Start a timer",
        (MINUTES,),
        ("Set a timer for {minutes} minutes.", "Start a timer of {minutes} minutes."),
        "The timer is set for {minutes} minutes.",
        "timer",
    ),
    tool(
        "set_alarm alarm wake_up",
        "Set an alarm",
        (TIME, ON_DAY),
        ("Set an alarm for {time}.", "Wake me at {time}."),
        "The alarm is set for {time}.",
        "alarm",
    ),
    tool(
        "send_message message write_message text_person",
        "Send a message to a person",
        (string("to recipient receiver name", "Who gets it", one_of(FIRST_NAMES)), TEXT),
        ('Send {to} the message "{text}".', 'Tell {to}: "{text}".', 'Write "{text}" to {to}.'),
        "I sent the message to {to}.",
        "email",
    ),
    tool(
        "turn_on switch_on start_device",
        "Turn on a device in a room",
        (string("device machine name", "The device", one_of(DEVICES)), ROOM),
        ("Turn on the {device} in the {room}.", "Switch on the {device} in the {room}."),
        "The {device} in the {room} is on.",
    ),
    tool(
        "turn_off switch_off stop_device",
        "Turn off a device in a room",
        (string("device machine name", "The device", one_of(DEVICES)), ROOM),
        ("Turn off the {device} in the {room}.", "Switch off the {device} in the {room}."),
        "The {device} in the {room} is off.",
    ),
    tool(
        "play_song play play_music",
        "Play a song",
        (
            string(
                "song title name", "Title of the song", lambda rng: made_up_word(rng).capitalize()
            ),
        ),
        ('Play the song "{song}".', "Play {song}.", "I want to hear {song}."),
        "Now playing {song}.",
    ),
    tool(
        "add_item add_to_list put_on_list",
        "Add an item to a list",
        (
            string("item entry thing", "What to add", one_of(FOODS + OBJECTS)),
            one_of_few("list list_name", "Which list", "shopping travel party work"),
        ),
        ("Add {item} to the {list} list.", "Put {item} on the {list} list."),
        "I added {item} to the {list} list.",
    ),
    tool(
        "create_event add_event new_event",
        "Put an event into the calendar",
        (string("title event name", "Title", one_of(PLAIN_WORDS)), DAY, TIME),
        (
            'Create the event "{title}" on {day} at {time}.',
            'Put "{title}" into my calendar on {day} at {time}.',
        ),
        'The event "{title}" is on {day} at {time}.',
        "alarm",
    ),
    tool(
        "lock_door lock close_door",
        "Lock the door of a room",
        (ROOM,),
        ("Lock the door of the {room}.", "Lock the {room}."),
        "The door of the {room} is locked.",
        "door",
    ),
    tool(
        "open_window window_open air_room",
        "Open the window of a room",
        (ROOM,),
        ("Open the window in the {room}.", "Open the {room} window."),
        "The window in the {room} is open.",
    ),
    tool(
        "book_table reserve_table reservation",
        "Book a table in a restaurant",
        (integer("people guests seats", "Number of people", 2, 12), TIME, ON_DAY),
        ("Book a table for {people} people at {time}.", "Reserve a table for {people} at {time}."),
        "The table for {people} people is booked at {time}.",
    ),
    tool(
        "write_file save_file create_file",
        "Write a text into a file",
        (PATH, TEXT),
        ('Write "{text}" into the file {path}.', 'Save "{text}" as {path}.'),
        "The text is in {path}.",
    ),
    tool(
        "delete_file remove_file erase_file",
        "Delete a file",
        (PATH,),
        ("Delete the file {path}.", "Remove {path}."),
        "The file {path} is deleted.",
    ),
    tool(
        "order_food order place_order",
        "Order food",
        (FOOD, integer("quantity count amount", "How many", 1, 20)),
        ("Order {quantity} portions of {food}.", "I want to order {quantity} portions of {food}."),
        "I ordered {quantity} portions of {food}.",
    ),
    tool(
        "set_temperature heat_room set_heating",
        "Set the temperature of a room",
        (ROOM, integer("degrees temperature target", "Degrees", 12, 28)),
        ("Set the {room} to {degrees} degrees.", "Heat the {room} to {degrees} degrees."),
        "The {room} is set to {degrees} degrees.",
    ),
    tool(
        "set_volume volume loudness",
        "Set the volume of the speakers",
        (integer("level percent volume", "From 0 to 100", 0, 100),),
        ("Set the volume to {level}.", "Change the volume to {level} percent."),
        "The volume is {level} now.",
    ),
    tool(
        "set_reminder remind reminder",
        "Set a reminder",
        (TEXT, TIME),
        ('Remind me at {time}: "{text}".', 'Set a reminder "{text}" for {time}.'),
        "I will remind you at {time}.",
        "alarm",
    ),
    tool(
        "dim_light set_light brightness",
        "Set the brightness of the light in a room",
        (ROOM, integer("percent level brightness", "From 0 to 100", 0, 100)),
        (
            "Dim the light in the {room} to {percent} percent.",
            "Set the light in the {room} to {percent} percent.",
        ),
        "The light in the {room} is at {percent} percent.",
    ),
    tool(
        "set_mode washing_mode choose_mode",
        "Set the mode of the washing machine",
        (
            one_of_few("mode program setting", "The mode", "cotton wool silk quick eco"),
            one_of_few("spin speed", "Speed", "slow medium fast", " at {} speed"),
        ),
        ("Set the washing machine to {mode}.", "Run the washing machine in {mode} mode."),
        "The washing machine is set to {mode}.",
    ),
    tool(
        "draw_circle circle paint_circle",
        "Draw a circle",
        (
            integer("radius size", "Radius", 1, 200),
            string("colour color paint", "Colour", one_of(COLOURS)),
        ),
        (
            "Draw a {colour} circle with radius {radius}.",
            "Paint a circle of radius {radius} in {colour}.",
        ),
        "The {colour} circle is drawn.",
    ),
    tool(
        "water_plants water sprinkle",
        "Water the plants in a room",
        (ROOM, MINUTES),
        (
            "Water the plants in the {room} for {minutes} minutes.",
            "Water the {room} plants for {minutes} minutes.",
        ),
        "The plants in the {room} get water for {minutes} minutes.",
    ),
)
