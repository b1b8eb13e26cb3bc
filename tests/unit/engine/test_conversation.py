"""Conversation against a fake session that tells prompt reading from decoding.

Checked against a fresh session that reads the same prompt once: logits must be equal, not close.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes import FakeSession

from strata.engine.conversation import Conversation
from strata.engine.conversation_points import Keeping

CUT = 8


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def fresh_logits(prompt: np.ndarray, cut_tokens: int = CUT) -> np.ndarray:
    return FakeSession(50, 400, cut_tokens).prefill(prompt)


def answer(conversation: Conversation, first: int, num_tokens: int) -> list[int]:
    """Decodes some tokens after a prompt, as an answer would."""
    tokens = [first + step for step in range(num_tokens)]
    for token in tokens:
        window = ids(token % 50)
        conversation.decode(window)
        conversation.commit(window, 1)
    return [token % 50 for token in tokens]


def test_second_turn_reuses_the_prompt_up_to_its_last_cut():
    session = FakeSession(50, 400, CUT)
    conversation = Conversation(session, Keeping(2))
    prompt = np.arange(20, dtype=np.int32)
    assert conversation.resume(prompt) == 0
    conversation.read(prompt)
    reply = answer(conversation, 30, 5)
    longer = np.concatenate([prompt, ids(*reply), ids(1, 2, 3)])

    assert conversation.resume(longer) == 16  # 20 tokens, cut at 16
    logits = conversation.read(longer)
    assert np.array_equal(logits, fresh_logits(longer))
    assert session.num_prefilled == 20 + 12


def test_decoded_tokens_are_never_reused_as_prompt():
    session = FakeSession(50, 400, CUT)
    conversation = Conversation(session, Keeping(2))
    prompt = np.arange(5, dtype=np.int32)
    conversation.read(prompt)
    reply = answer(conversation, 30, 3)  # the live end now lies on a cut, at 8
    longer = np.concatenate([prompt, ids(*reply), ids(1)])
    assert conversation.resume(longer) == 0
    assert np.array_equal(conversation.read(longer), fresh_logits(longer))


def test_a_prompt_that_ends_on_a_cut_is_not_read_twice():
    session = FakeSession(50, 400, CUT)
    conversation = Conversation(session, Keeping(2))
    prompt = np.arange(16, dtype=np.int32)
    conversation.read(prompt)
    answer(conversation, 30, 3)
    assert conversation.resume(prompt) == 16
    assert np.array_equal(conversation.read(prompt), fresh_logits(prompt))
    assert session.num_prefilled == 16
    answer(conversation, 30, 3)  # and it can be decoded from
    assert session.history == [*range(16), 30, 31, 32]


def test_where_it_does_not_matter_how_tokens_were_read_the_live_end_is_used():
    session = FakeSession(50, 400, cut_tokens=1)
    conversation = Conversation(session, Keeping(2))
    prompt = np.arange(21, dtype=np.int32)
    conversation.read(prompt)
    reply = answer(conversation, 30, 5)
    longer = np.concatenate([prompt, ids(*reply), ids(1, 2, 3)])
    assert conversation.resume(longer) == 26
    assert np.array_equal(conversation.read(longer), fresh_logits(longer, 1))
    assert session.num_prefilled == 21 + 3
    # Another question after the first prompt: its end was kept.
    other = np.concatenate([prompt, ids(40, 41)])
    assert conversation.resume(other) == 21
    assert np.array_equal(conversation.read(other), fresh_logits(other, 1))


@pytest.mark.parametrize("max_checkpoints", [0, 1, 3])
def test_number_of_checkpoints_is_bounded(max_checkpoints: int):
    conversation = Conversation(FakeSession(50, 400, CUT), Keeping(max_checkpoints))
    for length in range(10, 80, 10):  # each prompt goes on from the one before it
        prompt = np.arange(length, dtype=np.int32) % 50
        conversation.resume(prompt)
        conversation.read(prompt)
    one = FakeSession(50, 400, CUT).snapshot(with_cells=False).num_bytes + 4 * 50  # and logits
    assert conversation.checkpoint_bytes == one * max_checkpoints


def test_stopped_reading_keeps_what_was_read():
    session = FakeSession(50, 400, CUT)
    conversation = Conversation(session, Keeping(2))
    prompt = np.arange(40, dtype=np.int32)
    seen: list[tuple[int, int]] = []
    stopped = conversation.read(
        prompt,
        on_progress=lambda done, total: seen.append((done, total)),
        should_stop=lambda: len(seen) >= 2,
    )
    assert stopped is None
    assert seen == [(8, 40), (16, 40)]
    assert conversation.resume(prompt) == 16
    assert np.array_equal(conversation.read(prompt), fresh_logits(prompt))


def test_progress_counts_reused_tokens():
    conversation = Conversation(FakeSession(50, 400, CUT), Keeping(2))
    prompt = np.arange(20, dtype=np.int32)
    conversation.read(prompt)
    longer = np.arange(30, dtype=np.int32)
    conversation.resume(longer)
    seen: list[tuple[int, int]] = []
    conversation.read(longer, on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(24, 30), (30, 30)]


@settings(max_examples=60, deadline=None)
@given(
    turns=st.lists(
        st.tuples(
            st.integers(0, 60),  # tokens kept of what was said before
            st.lists(st.integers(0, 3), min_size=1, max_size=25),  # new prompt tokens
            st.integers(0, 20),  # tokens decoded after it
        ),
        min_size=1,
        max_size=8,
    ),
    max_checkpoints=st.integers(0, 3),
    cut_tokens=st.sampled_from([1, 3, CUT]),
)
def test_any_turns_give_the_logits_of_a_fresh_read(
    turns: list[tuple[int, list[int], int]], max_checkpoints: int, cut_tokens: int
):
    session = FakeSession(50, 4000, cut_tokens)
    conversation = Conversation(session, Keeping(max_checkpoints))
    said: list[int] = []
    for num_kept, new, num_decoded in turns:
        prompt = np.array(said[:num_kept] + new, dtype=np.int32)
        num_reused = conversation.resume(prompt)
        assert num_reused % cut_tokens == 0
        assert np.array_equal(conversation.read(prompt), fresh_logits(prompt, cut_tokens))
        said = prompt.tolist() + answer(conversation, 7, num_decoded)
        assert session.history == said
