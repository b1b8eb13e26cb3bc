"""Reasoning parted from the answer: however the stream is cut, as str.partition does it."""

import itertools

import pytest

from strata.text.thoughts import THINK_END, ThoughtSplitter

TEXTS = (
    "I add.\n</think>\n\n2 + 2 = 4.",
    "a < b, </thin, </think>x</think>y",
    "</think>",
    "never ends </thi",
    "",
)


def parted(pieces, *, is_thinking=True):
    splitter = ThoughtSplitter(is_thinking=is_thinking)
    fed = [splitter.feed(piece) for piece in pieces]
    return "".join(t for t, _ in fed) + splitter.finish(), "".join(said for _, said in fed)


@pytest.mark.parametrize("text", TEXTS)
def test_cuts_do_not_matter(text):
    thought, _, said = text.partition(THINK_END)
    expected = thought, said.lstrip("\n")
    assert parted(text) == expected  # character by character
    for first, second in itertools.combinations(range(len(text) + 1), 2):
        assert parted([text[:first], text[first:second], text[second:]]) == expected


def test_without_thinking_everything_is_said():
    assert parted(TEXTS[0], is_thinking=False) == ("", TEXTS[0])
