"""Checked against prompts written out by hand, against Jinja without our sandbox and stand-ins
(the text must be the same), and against a count of control tokens no message may change.
"""

from __future__ import annotations

import datetime
import functools
import json
import time
from pathlib import Path

import jinja2
import jinja2.ext
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.text.conftest import tiny_metadata

from strata.errors import CheckpointError, RequestError
from strata.text.chat_template import ChatTemplate
from strata.text.tokenizer import Span, Tokenizer

SOURCE = (Path(__file__).parent / "chat_form.jinja").read_text(encoding="utf-8")
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>")
CONTROL += ("<|image_pad|>",)
QWEN = ChatTemplate(SOURCE, CONTROL)


def joined(spans: list[Span]) -> str:
    return "".join(span.text for span in spans)


def controls(spans: list[Span]) -> list[str]:
    """Control tokens, in order; trusted spans hold nothing else."""
    found = []
    for span in spans:
        rest = "" if span.is_plain else span.text
        while rest:
            literal = next(literal for literal in CONTROL if rest.startswith(literal))
            found.append(literal)
            rest = rest[len(literal) :]
    return found


def user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


def assistant(content: object, **more: object) -> dict[str, object]:
    return {"role": "assistant", "content": content, **more}


WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "<b>Now & 'then'</b>"},
}
CALL = {"function": {"name": "weather", "arguments": {"city": "Zürich", "days": [1, 2]}}}


def test_one_question() -> None:
    spans = QWEN.render([{"role": "system", "content": " Be brief. "}, user("Hi\n")])
    assert joined(spans) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n"
    )
    assert controls(spans) == ["<|im_start|>", "<|im_end|>"] * 2 + ["<|im_start|>"]
    assert joined(QWEN.render([user("Hi")], None, False)) == "<|im_start|>user\nHi<|im_end|>\n"
    spans = QWEN.render([user("Hi")], enable_thinking=False)
    assert joined(spans).endswith("<think>\n\n</think>\n\n")


def test_tools_and_turns() -> None:
    messages = [
        user("Weather?"),
        assistant("<think>\nold\n</think>\n\nWhere?"),
        user("Zürich"),
        assistant(None, reasoning_content="ask it", tool_calls=[CALL]),
        {"role": "tool", "content": "sunny"},
        {"role": "tool", "content": "warm"},
    ]
    text = joined(QWEN.render(messages, [WEATHER]))
    assert text == (
        "<|im_start|>system\nYou may call these functions:\n<tools>\n"
        '{"type": "function", "function": {"name": "weather", '
        '"description": "<b>Now & \'then\'</b>"}}\n</tools>\n'
        "Call one as <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function>"
        "</tool_call>.<|im_end|>\n"
        "<|im_start|>user\nWeather?<|im_end|>\n<|im_start|>assistant\nWhere?<|im_end|>\n"
        "<|im_start|>user\nZürich<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nask it\n</think>\n\n\n<tool_call>\n<function=weather>\n"
        "<parameter=city>\nZürich\n</parameter>\n<parameter=days>\n[1, 2]\n</parameter>\n"
        "</function>\n</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nsunny\n</tool_response>\n"
        "<tool_response>\nwarm\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\n"
    )
    as_text = {
        "function": {"name": "weather", "arguments": json.dumps({"city": "Zürich", "days": [1, 2]})}
    }
    messages[3] = assistant(None, reasoning_content="ask it", tool_calls=[as_text])
    assert joined(QWEN.render(messages, [WEATHER])) == text


def test_parts_reach_a_template_that_reads_them() -> None:
    spans = QWEN.render(
        [user([{"type": "image_url", "image_url": "x"}, {"type": "text", "text": "What?"}])]
    )
    expected = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>What?<|im_end|>\n"
    assert joined(spans).startswith(expected)
    assert "<|image_pad|>" in controls(spans)


def test_parts_are_joined_for_a_template_that_does_not() -> None:
    plain = ChatTemplate("{% for m in messages %}{{ m.content + ';' }}{% endfor %}")
    parts = [{"type": "text", "text": "a"}, "b", {"type": "text", "text": "c"}]
    assert joined(plain.render([user(parts), user("d")])) == "a\nb\nc;d;"
    with pytest.raises(RequestError, match=r"text only.*'image_url'"):
        plain.render([user([{"type": "image_url", "image_url": "x"}])])


@functools.cache
def bare_template(source: str) -> jinja2.Template:
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )

    def refuse(message: str) -> str:
        raise ValueError(message)

    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.globals["raise_exception"] = refuse
    return environment.from_string(source)


def bare_jinja(source: str, **values: object) -> str:
    """The same rendering by Jinja alone: no sandbox, no limits, no stand-ins."""
    return bare_template(source).render(**values)


pieces = st.sampled_from(
    [
        "<|im_start|>",
        "<|im_end|>",
        "<|im_",
        "start|>",
        "<|",
        "<",
        "|>",
        "<|image_pad|>",
        "assistant",
        "\n",
        " ",
        "<think>",
        "</think>",
        "<tool_response>",
        "é",
        "🙂",
        "\ue000",
        "\U0010fffd",
        '"',
        "{{ 1 }}",
        "{% raise %}",
        "\\ud800",
        "&lt;",
        "hello",
    ]
)
typed = st.lists(pieces, max_size=6).map("".join) | st.text(
    st.characters(exclude_categories=("Cs",)), max_size=20
)
conversations = st.lists(
    st.builds(user, typed) | st.builds(assistant, typed) | st.builds(assistant, typed, name=typed),
    min_size=1,
    max_size=5,
)


@settings(max_examples=300, deadline=None)
@given(messages=conversations, system=typed, tool_text=typed)
def test_whatever_is_typed_stays_text(
    messages: list[dict[str, object]], system: str, tool_text: str
) -> None:
    messages = [{"role": "system", "content": system}, *messages]
    tools = [{"name": "t", "description": tool_text}]
    spans = QWEN.render(messages, tools)
    expected = bare_jinja(SOURCE, messages=messages, tools=tools, add_generation_prompt=True)
    assert joined(spans) == expected
    frame = ["<|im_start|>", "<|im_end|>"]
    assert controls(spans) == frame * len(messages) + ["<|im_start|>"]


MANGLERS = {
    "trim": "{{ text | trim }}",
    "strip": "{{ text.strip() }}{{ text.strip('<|>') }}",
    "split": "{% for part in text.split('|') %}{{ part }}{% endfor %}",
    "split and join": "{{ text.split('x') | join }}",
    "replace": "{{ text | replace('x', '') }}{{ text.replace('x', '') }}",
    "replace forms one": "{{ text | replace('@', '<|im_start|>'[:0]) }}",
    "slice": "{{ text[1:] }}{{ text[:-1] }}{{ text[::-1][::-1] }}",
    "letters": "{% for letter in text %}{{ letter }}{% endfor %}",
    "json": "{{ {'k': text} | tojson }}{{ text | tojson }}",
    "concat": "{{ text ~ text }}{{ text + text }}{{ '%s' % text }}{{ '{}'.format(text) }}",
    "case": "{{ text | lower }}{{ text.upper() | lower }}",
    "set block": "{% set t %}{{ text }}{% endset %}{{ t }}",
    "macro": "{% macro m(x) %}{{ x }}{% endmacro %}{{ m(text) }}",
    "filters": "{{ text | string | safe | indent(2) | truncate(500) | wordwrap(500) }}",
    "list": "{{ [text, text] | join('') }}{{ [text] }}",
}


@pytest.mark.parametrize("mangler", MANGLERS.values(), ids=MANGLERS.keys())
@pytest.mark.parametrize(
    "text", ["<|im_start|>", "<|im_x", "xstart|>", "<x|im_end|x>", "  <|im_end|>  ", "<|IM_END|>"]
)
def test_no_filter_lets_typed_text_out(mangler: str, text: str) -> None:
    source = "<|im_start|>{% set text = messages[0].content %}" + mangler + "<|im_end|>"
    template = ChatTemplate(source, CONTROL)
    spans = template.render([user(text)])
    assert controls(spans) == ["<|im_start|>", "<|im_end|>"]
    assert joined(spans) == bare_jinja(source, messages=[user(text)])


def test_typed_parts_do_not_join_to_a_control_token() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", CONTROL)
    spans = template.render([user("<|im_"), user("start|>")])
    assert spans == [Span("<|im_start|>", is_plain=True)]


def test_literals_a_template_looks_for_are_found_in_messages() -> None:
    source = (
        "{% if '<|im_end|>' in messages[0].content %}found {% endif %}"
        "{{ messages[0].content.split('<|im_end|>')[0] | replace('<|im_start|>', '[<|im_end|>]') }}"
    )
    spans = ChatTemplate(source, CONTROL).render([user("<|im_start|>a<|im_end|>b")])
    assert joined(spans) == "found [<|im_end|>]a"
    assert controls(spans) == ["<|im_end|>"]


BUILT = "{% for m in messages %}{{ '<|' + m.role + '|>' + (m.content | trim) }}{% endfor %}"


@functools.cache
def built_template(control_literals: tuple[str, ...]) -> ChatTemplate:
    return ChatTemplate(BUILT, control_literals)


def test_a_template_that_builds_control_tokens_from_parts(tiny: Tokenizer) -> None:
    template = ChatTemplate(BUILT, tiny.control_literals)
    roles = [
        {"role": "im_start", "content": "hello <|im_start|>"},
        {"role": "im_end", "content": ""},
    ]
    ids = tiny.encode_spans(template.render(roles))
    start, end = tiny.token_id("<|im_start|>"), tiny.token_id("<|im_end|>")
    assert [token for token in ids if token in tiny.special_ids] == [start, end]
    assert tiny.decode(ids) == "<|im_start|>hello <|im_start|><|im_end|>"


@settings(max_examples=200, deadline=None)
@given(texts=st.lists(typed, min_size=1, max_size=4))
def test_built_control_tokens_are_counted_too(tiny: Tokenizer, texts: list[str]) -> None:
    template = built_template(tiny.control_literals)
    messages = [{"role": "im_start", "content": text} for text in texts]
    ids = tiny.encode_spans(template.render(messages))
    assert sum(token in tiny.special_ids for token in ids) == len(texts)


def test_the_whole_way_to_ids(tiny: Tokenizer) -> None:
    metadata = tiny_metadata() | {"tokenizer.chat_template": SOURCE}
    template = ChatTemplate.from_metadata(metadata, tiny)
    assert template.notice is None
    spans = template.render([user("hello <|im_end|>")])
    ids = tiny.encode_spans(spans)
    start, end = tiny.token_id("<|im_start|>"), tiny.token_id("<|im_end|>")
    assert [token for token in ids if token in tiny.special_ids] == [start, end, start]
    assert tiny.decode(ids) == joined(spans)
    assert tiny.token_id("<think>") in ids


def test_tokens_a_template_names_are_trusted(tiny: Tokenizer) -> None:
    metadata = tiny_metadata() | {
        "tokenizer.chat_template": "{{ bos_token }}{{ messages[0].content }}"
    }
    spans = ChatTemplate.from_metadata(metadata, tiny).render([user("<|endoftext|>")])
    assert spans == [Span("<|endoftext|>", is_plain=False), Span("<|endoftext|>", is_plain=True)]


def test_without_a_template_there_is_a_plain_form(tiny: Tokenizer) -> None:
    template = ChatTemplate.from_metadata(tiny_metadata(), tiny)
    assert "no chat template" in (template.notice or "")
    assert joined(template.render([user("hi"), assistant(None)])) == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n<|im_start|>assistant\n"
    )
    with pytest.raises(RequestError, match="cannot be told of tools"):
        template.render([user("hi")], [WEATHER])
    metadata = tiny_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    metadata["tokenizer.ggml.tokens"] = [t.replace("im_", "other_") for t in tokens]
    bare = Tokenizer.from_metadata(metadata)
    template = ChatTemplate.from_metadata(metadata, bare)
    assert joined(template.render([user("hi")])) == "User: hi\n\nAssistant:"


def test_the_message_of_a_template_is_passed_on() -> None:
    with pytest.raises(RequestError, match=r"refused.*Unexpected role judge\."):
        QWEN.render([user("x"), {"role": "judge", "content": "y"}])
    with pytest.raises(RequestError, match="There is no message"):
        QWEN.render([])


@pytest.mark.parametrize(
    "source",
    [
        "{{ nothing.at.all }}",
        "{{ 1 / 0 }}",
        "{{ [] + 1 }}",
        "{{ {}['a'].b }}",
        "{% include 'x' %}",
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__ }}{{ cycler.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ 10 ** 4300 | int }}",
    ],
)
def test_a_failing_template_is_one_clear_error(source: str) -> None:
    with pytest.raises(RequestError, match=r"chat template (failed|refused)"):
        ChatTemplate(source).render([user("x")])


def growing(start: str, step: str, end: str = "") -> str:
    """A template that applies ``step`` to a value 99 times."""
    rounds = "{% for i in range(99) %}" + step + "{% endfor %}"
    return "{% set ns = namespace(x=" + start + ") %}" + rounds + end


RUNAWAY = {
    "range": "{% for i in range(10 ** 9) %}x{% endfor %}",
    "nested loops": (
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    ),
    "nested output": (
        "{% for i in range(99999) %}{% for j in range(999) %}xx{% endfor %}{% endfor %}"
    ),
    "repeat": "{{ 'x' * 10 ** 9 }}",
    "repeat list": "{% for i in [1] * 10 ** 9 %}{% endfor %}",
    "power": "{{ 10 ** (10 ** 7) }}",
    "squares": growing("10", "{% set ns.x = ns.x * ns.x %}"),
    "plus": growing("'x'", "{% set ns.x = ns.x + ns.x %}"),
    "concat": growing("'x'", "{% set ns.x = ns.x ~ ns.x %}"),
    "block": growing("'x'", "{% set t %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = t %}"),
    "replace": growing("'xx'", "{% set ns.x = ns.x | replace('x', 'xxxxx') %}"),
    "join": growing("'xx'", "{% set ns.x = ns.x.join(ns.x) %}"),
    "lists": growing("['x']", "{% set ns.x = [ns.x, ns.x] %}", "{{ ns.x }}"),
    "dicts": growing("1", "{% set ns.x = dict(a=ns.x, b=ns.x) %}", "{{ ns.x | tojson }}"),
    "center": "{{ 'x' | center(10 ** 9) }}",
    "ljust": "{{ 'x'.ljust(10 ** 9) }}",
    "percent": "{{ '%1000000000d' % 1 }}",
    "percent star": "{{ '%*d' % (10 ** 9, 1) }}",
    "format": "{{ '%1000000000d' | format(1) }}",
    "braces": "{{ '{:1000000000}'.format(1) }}",
    "nested braces": "{{ '{:{}}'.format(1, 10 ** 9) }}",
    "slices": "{{ [1] | slice(10 ** 9) | list }}",
    "indent": "{{ 'x' | indent(10 ** 9) }}",
    "macros": (
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}"
    ),
}


@pytest.mark.parametrize("source", RUNAWAY.values(), ids=RUNAWAY.keys())
def test_a_runaway_template_ends_soon(source: str) -> None:
    start = time.perf_counter()
    with pytest.raises(RequestError, match=r"chat template (failed|refused)"):
        ChatTemplate(source).render([user("x")])
    # The limit is counted work; ten seconds leave room for a slow machine.
    assert time.perf_counter() - start < 10


def test_a_long_conversation_is_not_a_runaway() -> None:
    messages = [m for i in range(1000) for m in (user(f"{i} " * 900), assistant("yes " * 200))]
    start = time.perf_counter()
    text = joined(QWEN.render(messages))
    assert len(text) > 3_000_000
    assert time.perf_counter() - start < 5


def test_features_templates_of_other_families_use() -> None:
    source = (
        "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{{ loop.length }}"
        "{{ loop.last }} {% endfor %}{% generation %}gen{% endgeneration %}"
        "{{ strftime_now('%Y') }}{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}"
        "{{ messages | map(attribute='role') | list }}{{ (1, 2) }}"
        "{{ messages | selectattr('role') | list | length }}"
    )
    template = ChatTemplate(source, now=lambda: datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC))
    assert joined(template.render([user("x")] * 3)) == (
        "3False 3False gen2026a1['user', 'user', 'user'](1, 2)3"
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (user("a\ud800"), r"lone surrogate at character 1\.\n  where: messages\[0\]\.content"),
        (user(b"bytes"), "type bytes"),
        (user(object()), "type object"),
        ({"role": "user", 3: "x"}, "key of type int"),
        ({"role": "user", "\udfff": "x"}, "lone surrogate"),
    ],
)
def test_values_that_are_not_json_are_refused(value: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        QWEN.render([value])


def test_deep_nesting_is_refused() -> None:
    deep: object = "x"
    for _ in range(500):
        deep = [deep]
    with pytest.raises(RequestError, match="nested more than 64 deep"):
        QWEN.render([user("x")], extra=deep)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% if %}", "line 1"),
        ("{{ x | nope }}", "nope"),
        ("{{ " + "(" * 5000, ""),
        ("{% foo %}", "foo"),
    ],
)
def test_a_broken_template_names_the_file_part(source: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=f"(?s){message}.*tokenizer.chat_template"):
        ChatTemplate(source)


def test_a_template_must_be_text(tiny: Tokenizer) -> None:
    with pytest.raises(CheckpointError, match="expected text, found int"):
        ChatTemplate.from_metadata({"tokenizer.chat_template": 5}, tiny)
