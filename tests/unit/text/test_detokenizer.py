"""Checked against ``bytes.decode`` of the whole, and against trying every way to go on."""

from __future__ import annotations

import codecs
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.errors import SettingsError
from strata.text.detokenizer import Detokenizer, StopMatcher

CHARACTERS = ["a", "é", "€", "한", "🙂", "\U0010ffff", "\u0301", "\ufffd"]

broken = st.one_of(
    st.binary(max_size=12),
    st.lists(st.sampled_from([c.encode() for c in CHARACTERS])).map(b"".join),
    st.lists(
        st.sampled_from([b"\xf0\x9f", b"\xe2", b"\x82", b"\xed\xa0", b"\xc0", b"\xe0\x80"])
    ).map(b"".join),
)


@st.composite
def token_streams(draw: st.DrawFn) -> list[bytes]:
    data = b"".join(draw(st.lists(broken, max_size=4)))
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=10)))
    borders = [0, *cuts, len(data)]
    return [data[start:end] for start, end in pairwise(borders)]


# Enough ways to go on to tell decided text from undecided: nothing, an ASCII letter, a new
# character, and every run of continuation bytes that could complete a character.
CONTINUATIONS = [b"", b"a", "🙂".encode()] + [
    bytes([first]) + b"\x80" * more
    for first in (0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF)
    for more in range(3)
]


def common_start(texts: list[str]) -> str:
    shortest = min(texts, key=len)
    fits = (n for n in range(len(shortest), -1, -1) if all(t[:n] == shortest[:n] for t in texts))
    return shortest[: next(fits)]


@settings(max_examples=500, deadline=None)
@given(stream=token_streams())
def test_text_is_the_longest_decided_prefix(stream: list[bytes]) -> None:
    detokenizer = Detokenizer(stream.__getitem__)
    text = ""
    seen = b""
    for token_id, token in enumerate(stream):
        text += detokenizer.push(token_id)
        seen += token
        futures = [(seen + more).decode("utf-8", errors="replace") for more in CONTINUATIONS]
        assert text == common_start(futures)
    assert text + detokenizer.flush() == seen.decode("utf-8", errors="replace")


def test_flush_starts_anew() -> None:
    detokenizer = Detokenizer(lambda token_id: [b"\xf0\x9f", b"ok"][token_id])
    assert detokenizer.push(0) + detokenizer.flush() == "\ufffd"
    assert detokenizer.push(1) + detokenizer.flush() == "ok"


def test_skipped_ids_do_not_break_a_character() -> None:
    detokenizer = Detokenizer([b"\xe2\x82", b"<|im_end|>", b"\xac"].__getitem__, skip_ids={1})
    assert [detokenizer.push(index) for index in range(3)] == ["", "", "€"]


def test_work_per_token_does_not_grow() -> None:
    # Counted, not timed: bytes the decoder keeps between tokens are all it can read again.
    looked_up = []
    tokens = [bytes([byte]) for byte in "aé€🙂".encode()]

    def token_bytes(token_id: int) -> bytes:
        looked_up.append(token_id)
        return tokens[token_id]

    detokenizer = Detokenizer(token_bytes)
    kept = 0
    for index in range(16_384):
        detokenizer.push(index % len(tokens))
        kept = max(kept, len(detokenizer._decoder.getstate()[0]))
    assert kept == 3
    assert len(looked_up) == 16_384
    assert isinstance(detokenizer._decoder, codecs.IncrementalDecoder)


def reference_cut(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The first letter that completes a stop string decides; the longest such string is cut."""
    for end in range(len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


@settings(max_examples=500, deadline=None)
@given(data=st.data())
def test_stop_strings_cut_where_the_definition_says(data: st.DataObject) -> None:
    letters = st.text("ab\n", max_size=12)
    stops = data.draw(st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=4))
    pushes = data.draw(st.lists(letters, max_size=6))
    matcher = StopMatcher(stops)
    given_text, seen = "", ""
    for push in pushes:
        given_text += matcher.push(push)
        seen += push
        expected, stop = reference_cut(seen, stops)
        assert matcher.matched == stop
        # Held back is exactly what some way to go on would cut.
        if stop is None:
            futures = [reference_cut(seen + more, stops)[0] for more in ["", *stops]]
            futures += [reference_cut(seen + s[k:], stops)[0] for s in stops for k in range(len(s))]
            assert given_text == min(futures, key=len)
        else:
            assert given_text == expected
    given_text += matcher.flush()
    assert given_text == reference_cut(seen, stops)[0]


def test_no_stop_strings_hold_nothing_back() -> None:
    matcher = StopMatcher([])
    assert matcher.push("abc") == "abc"
    assert matcher.flush() == ""


def test_empty_stop_string_is_refused() -> None:
    with pytest.raises(SettingsError, match="empty"):
        StopMatcher(["a", ""])
