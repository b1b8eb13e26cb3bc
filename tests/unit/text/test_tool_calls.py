"""Tool calls parted from prose, checked against a writer of the form that is a few lines long.

The writer is the family's template; what it writes must come back, however the text is cut.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.text.tool_calls import Arguments, CallBegun, CallEnded, Prose, ToolCallParser
from strata.text.tool_values import parameter_types, value_of

PROPERTIES = {
    "text": {"type": "string"},
    "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "count": {"type": "integer"},
    "share": {"type": "number"},
    "is_on": {"type": "boolean"},
    "items": {"type": "array"},
    "more": {"$ref": "#/$defs/more"},
    "level": {"enum": ["low", "high"]},
}
SCHEMA = {"type": "object", "properties": PROPERTIES, "$defs": {"more": {"type": "object"}}}
TOOLS = {"act": SCHEMA, "look": {}}


def written(name: str, arguments: dict[str, object]) -> str:
    """A call as the family's template writes it."""
    parameters = "".join(
        f"<parameter={key}>\n{item if isinstance(item, str) else json.dumps(item)}\n</parameter>\n"
        for key, item in arguments.items()
    )
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def parse(pieces: list[str], *, is_cut: bool = False):
    """(prose, calls as (name, arguments as text, whether ended))."""
    parser = ToolCallParser(TOOLS)
    found = [item for piece in pieces for item in parser.feed(piece)]
    found += parser.finish(is_cut=is_cut)
    prose = ""
    calls: list[list] = []
    for item in found:
        match item:
            case Prose(text):
                prose += text
            case CallBegun(name):
                calls.append([name, "", False])
            case Arguments(text):
                assert not calls[-1][2]
                calls[-1][1] += text
            case CallEnded():
                calls[-1][2] = True
    return prose, [tuple(call) for call in calls]


def read(text: str):
    """(prose, calls as (name, arguments)); the same whole and letter by letter."""
    prose, calls = parse([text])
    assert parse(list(text)) == (prose, calls)
    assert all(is_ended for _, _, is_ended in calls)
    return prose, [(name, json.loads(arguments)) for name, arguments, _ in calls]


TAGS = [
    "<tool_call>",
    "</tool_call>",
    "<function=",
    "<function=act>",
    "</function>",
    "</parameter>",
]
TAGS += [
    "<parameter=text>",
    "<parameter=other>",
    "<",
    ">",
    "\n",
    " ",
    "{",
    '"',
    "\\",
    "é",
    "😀",
    "a",
]
SOUP = st.lists(st.sampled_from(TAGS), max_size=12).map("".join)
# What makes a value end: behind its end tag the form goes on.
ENDS = ("</parameter>", "</function>")


def is_ambiguous(value: object) -> bool:
    return isinstance(value, str) and any(end in value for end in ENDS)


VALUES = {
    "text": st.text(st.characters(exclude_categories=["Cs"])) | SOUP,
    "note": st.none() | st.text("ab <>/\n"),
    "count": st.integers(),
    "share": st.floats(allow_nan=False, allow_infinity=False),
    "is_on": st.booleans(),
    "items": st.lists(st.integers() | st.text("ab</>\n"), max_size=4),
    "more": st.dictionaries(st.text("ab"), st.none() | st.text("<>/ab"), max_size=3),
    "level": st.sampled_from(["low", "high"]),
}
CALLS = st.fixed_dictionaries({}, optional=VALUES)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["act"]), CALLS), min_size=1, max_size=3),
    st.sampled_from(["", "I look.", "Two lines,\nthen calls.", "a < b, <b>bold</b>"]),
    st.randoms(use_true_random=False),
)
def test_what_the_template_writes_comes_back(calls, said, random):
    calls = [
        (name, {key: item for key, item in arguments.items() if not is_ambiguous(item)})
        for name, arguments in calls
    ]
    text = (
        "\n\n".join([said, "\n".join(written(*call) for call in calls)])
        if said
        else "\n".join(written(*call) for call in calls)
    )
    prose, found = read(text)
    assert prose == said
    assert found == calls
    cuts = sorted(random.sample(range(len(text) + 1), min(8, len(text))))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parse(pieces) == parse([text])


@settings(max_examples=300, deadline=None)
@given(
    st.lists(SOUP | st.just(written("act", {"text": "x", "count": 3})), max_size=4), st.booleans()
)
def test_any_text_is_parsed_alike_however_it_is_cut(pieces, is_cut):
    text = "".join(pieces)
    whole = parse([text], is_cut=is_cut)
    assert parse(list(text), is_cut=is_cut) == whole
    assert parse(pieces, is_cut=is_cut) == whole
    for _, arguments, is_ended in whole[1]:
        assert is_ended or is_cut
        if is_ended:
            assert isinstance(json.loads(arguments), dict)


@settings(max_examples=100, deadline=None)
@given(
    st.text("ab<>/= \n`tool_calfunctionparameter")
    | st.lists(st.sampled_from([*"ab <\n"])).map("".join)
)
def test_text_without_a_function_is_prose_to_the_letter(text):
    if "<function=" not in text:
        assert parse(list(text)) == (text, [])


@pytest.mark.parametrize(
    "value",
    [
        "a </parameter> b",
        "</parameter>",
        "x\n</parameter>\nand more",
        "one</parameter>\n<parameter=text>\ntwo",
        "<parameter=inner>\nv\n</parameter>\ndone",
        "close </function> here",
        "</parameter>\n</function>\nthen text",
        "<tool_call>\n<function=act>",
        "\n\nblank lines around\n\n",
        "",
        "\n",
    ],
)
def test_end_tags_inside_a_value_stay_in_it(value):
    assert read(written("act", {"text": value, "count": 1})) == (
        "",
        [("act", {"text": value, "count": 1})],
    )
    assert read(written("act", {"count": 1, "text": value}))[1] == [
        ("act", {"count": 1, "text": value})
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Write <tool_call> to begin, and </tool_call> to end.",
        "`<tool_call>\n<function=act>` begins it.",
        "It says <tool_call><function=other> in the middle.",
        "see <function=act> there",
        "<function=other>\n</function>",
        "1 < 2 <tool",
        "<tool_call>",
        "<tool_call>\n<function=",
        "ends in blank lines\n\n",
    ],
)
def test_tags_named_in_prose_are_prose(text):
    assert read(text) == (text, [])


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("<tool_call><function=look></function></tool_call>", [("look", {})]),
        (
            "<function=act>\n<parameter=count>\n2\n</parameter>\n</function>",
            [("act", {"count": 2})],
        ),
        (
            "<tool_call>\n<function=act>\n<parameter=count>2</parameter>\n</tool_call>",
            [("act", {"count": 2})],
        ),
        (
            "<tool_call>\n<function=act>\n<parameter=text>\nhi\n</function>\n</tool_call>",
            [("act", {"text": "hi"})],
        ),
        ("<tool_call>\n<function=act>\n<parameter=text>\nhi\n", [("act", {"text": "hi"})]),
        (
            '<tool_call>\n<function=act>\n{"count": 1, "text": "a"}\n</function>\n</tool_call>',
            [("act", {"count": 1, "text": "a"})],
        ),
        ("<tool_call>\n<function=new>\n</function>\n</tool_call>", [("new", {})]),
        (
            "<tool_call>\n<function=look>\n</function>\n<function=act>\n</function>\n</tool_call>",
            [("look", {}), ("act", {})],
        ),
        ("<tool_call>\n<function=look>\nwhat?\n</function>\n</tool_call>", [("look", {})]),
    ],
)
def test_sloppy_calls_are_understood(text, calls):
    assert read(text) == ("", calls)


def test_prose_around_calls_loses_only_the_blank_lines_between():
    text = "First.\n\n" + written("look", {}) + "\n\nThen more.\n" + written("look", {})
    assert read(text) == ("First.Then more.", [("look", {}), ("look", {})])


def test_a_string_streams_before_it_ends():
    parser = ToolCallParser(TOOLS)
    parser.feed("<tool_call>\n<function=act>\n<parameter=text>\n")
    assert parser.feed('some "text"') == [Arguments('some \\"text\\"')]
    assert parser.feed("\nnext") == [Arguments("\\nnext")]
    assert parser.feed("\n</par") == []
    assert parser.feed("ty") == [Arguments("\\n</party")]


def test_a_call_cut_short_is_not_closed():
    text = "<tool_call>\n<function=act>\n<parameter=text>\nhalf a sen"
    assert parse(list(text), is_cut=True) == ("", [("act", '{"text": "half a sen', False)])


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "integer"}, "3.0", 3),
        ({"type": "integer"}, "three", "three"),
        ({"type": "boolean"}, "True", True),
        ({"type": ["integer", "null"]}, "None", None),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": "string"}, "null", "null"),
        ({"type": "string"}, "12", "12"),
        ({"type": "number"}, "1e999", "1e999"),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "array"}, "[1, [2]]", [1, [2]]),
        ({"type": "array"}, "[" * 100_000, "[" * 100_000),
        ({"const": 4}, "4", 4),
        ({"allOf": [{}, {"type": "integer"}]}, "4", 4),
        ({"oneOf": [{"type": "integer"}, {}]}, "x", "x"),
        ({"$ref": "#/nowhere"}, "4", 4),
        ({"$ref": "#/properties/p"}, "4", 4),
        ({}, '"quoted"', '"quoted"'),
        ({}, "plain", "plain"),
        (True, "{}", {}),
    ],
)
def test_values_are_typed_by_their_schema(schema, text, value):
    types = parameter_types({"properties": {"p": schema}}, "p")
    assert json.loads(value_of(text, types)) == value
