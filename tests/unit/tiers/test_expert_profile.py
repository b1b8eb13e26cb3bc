"""The profile file against bytes laid out by hand, and what is refused of it."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.errors import CheckpointError
from strata.tiers.expert_profile import (
    ExpertProfile,
    learned_profile,
    rank_by_uses,
    read_profile,
    write_profile,
)

PAIRS = [(1, 2), (0, 0), (1, 0)]


def by_hand(pairs=PAIRS, layers=2, experts=3, ranks=None, version=1, num_ranked=None):
    table = [-1] * (layers * experts)
    for rank, (layer, expert) in enumerate(pairs):
        if layer < layers and expert < experts:
            table[layer * experts + expert] = rank
    count = len(pairs) if num_ranked is None else num_ranked
    head = b"STRP" + struct.pack("<5I", version, layers, experts, 5, count)
    listed = b"".join(struct.pack("<HH", *pair) for pair in pairs)
    return head + listed + struct.pack(f"<{len(table)}i", *(ranks or table))


def test_a_file_of_another_program_is_read(tmp_path):
    path = tmp_path / "p.bin"
    path.write_bytes(by_hand())
    profile = read_profile(path, 2, 3, "any")
    assert [divmod(int(key), 3) for key in profile.keys] == PAIRS
    assert profile.num_slots == 5
    assert profile.model_name == ""


def test_our_file_begins_as_theirs_and_ends_with_name_and_checksum(tmp_path):
    path = tmp_path / "p.bin"
    keys = np.array([layer * 3 + expert for layer, expert in PAIRS])
    write_profile(path, ExpertProfile(2, 3, 5, keys, "modell \u00e4"))
    data = path.read_bytes()
    name = "modell \u00e4".encode()
    body = by_hand() + b"STRN" + struct.pack("<I", len(name)) + name
    assert data == body + struct.pack("<I", zlib.crc32(body))
    assert read_profile(path, 2, 3, "modell \u00e4").model_name == "modell \u00e4"
    with pytest.raises(CheckpointError, match="learned on 'modell \u00e4', the model is 'other'"):
        read_profile(path, 2, 3, "other")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "begins with b''"),
        (by_hand()[:23], "its head alone needs 24"),
        (by_hand(version=2), "version 2, expected 1"),
        (by_hand(layers=3), "ranks 3 layers of 3 experts, the model has 2 of 3"),
        (by_hand(experts=4), "ranks 2 layers of 4 experts, the model has 2 of 3"),
        (by_hand(num_ranked=7), "7 ranked pairs, expected at most 6"),
        (by_hand()[:-1], "59 bytes, expected at least 60"),
        (by_hand(pairs=[(0, 0), (2, 0)]), "pair 1 is layer 2, expert 0, out of range"),
        (by_hand(pairs=[(0, 3)]), "pair 0 is layer 0, expert 3, out of range"),
        (by_hand(pairs=[(1, 1), (0, 0), (1, 1)]), "expert 1 is ranked twice, as pair 0 and 2"),
        (by_hand(ranks=[1, -1, -1, 2, 0, -1]), "layer 1, expert 1 rank 0, its list -1"),
        (by_hand() + b"abc", "3 bytes of no known kind follow"),
    ],
)
def test_refusals(data, message, tmp_path):
    path = tmp_path / "p.bin"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="expert profile cannot be used") as caught:
        read_profile(path, 2, 3)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "Try:" in str(caught.value)


@settings(max_examples=300, deadline=None)
@given(
    place=st.integers(0, 90),
    payload=st.one_of(
        st.binary(min_size=1, max_size=6),
        st.sampled_from([0, 1, 2**16 - 1, 2**31, 2**32 - 1]).map(lambda n: struct.pack("<I", n)),
    ),
    kind=st.sampled_from(["put", "insert", "cut"]),
    has_tail=st.booleans(),
)
def test_mutated_file(place, payload, kind, has_tail, tmp_path_factory):
    """Either our own error, or a profile whose pairs are in range and distinct."""
    path = tmp_path_factory.getbasetemp() / "mutated.bin"
    keys = np.array([layer * 3 + expert for layer, expert in PAIRS])
    write_profile(path, ExpertProfile(2, 3, 5, keys, "m"))
    raw = bytearray(path.read_bytes() if has_tail else by_hand())
    if kind == "put":
        raw[place : place + len(payload)] = payload
    elif kind == "insert":
        raw[place:place] = payload
    else:
        del raw[place:]
    path.write_bytes(raw)
    message = "Try:"
    try:
        profile = read_profile(path, 2, 3, "m")
        assert len(set(profile.keys.tolist())) == len(profile.keys)
        assert all(0 <= key < 6 for key in profile.keys.tolist())
    except CheckpointError as error:
        message = str(error)
    assert "Try:" in message


def test_ranking_by_uses():
    """Most used first, then the lower key; what was never used expert by expert."""
    uses = np.array([[0, 4, 0], [7, 0, 4]])
    ranked = [divmod(int(key), 3) for key in rank_by_uses(uses).keys]
    assert ranked == [(1, 0), (0, 1), (1, 2), (0, 0), (1, 1), (0, 2)]


def test_a_learned_profile_lists_residents_first():
    prior = ExpertProfile(1, 6, 0, np.array([5, 4, 3, 2]), "m")
    heat = np.array([[9, 2, 0, 2, 8, 0]])
    learned = learned_profile(prior, heat, np.array([1, 3, 5]))
    # Residents by heat, equals by the rank before; then the others, without those nobody knows.
    assert learned.keys.tolist() == [3, 1, 5, 0, 4, 2]
    assert learned.num_slots == 3
    assert learned.model_name == "m"
