"""Parked conversations, one situation at a time: what is copied, what is let go, what comes back.

Checked against a fresh session that reads the same prompt once, and against counts of the fake's
copies. Random orders of all of it are in ``test_conversation_cache``.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.fakes import PAGE_TOKENS, FakeSession

from strata.engine.conversation import Conversation
from strata.engine.conversation_history import Checkpoint, History, Page, new_key
from strata.engine.conversation_points import Keeping, PointKind, least_needed, points_of
from strata.engine.conversation_ram import Parked
from strata.session_rules import Snapshot

TURN = 1
END, ROOT, STEP, TURN_KIND = PointKind.END, PointKind.ROOT, PointKind.STEP, PointKind.TURN


class Talk:
    """A conversation on a fake session, every prompt of it checked against a fresh one."""

    def __init__(self, cut_tokens: int = 1, **keeping: int) -> None:
        options = {"ram_bytes": 1 << 20, "turn_id": TURN, "root_tokens": 40, "worth_tokens": 8}
        self.session = FakeSession(50, 400, cut_tokens)
        self.conversation = Conversation(self.session, Keeping(**options | keeping))
        self.cut_tokens = cut_tokens

    def ask(self, prompt: list[int], num_decoded: int = 0) -> int:
        """Tokens of the prompt that were reused."""
        tokens = np.array(prompt, np.int32)
        num_reused = self.conversation.resume(tokens)
        logits = self.conversation.read(tokens)
        fresh = FakeSession(50, 400, self.cut_tokens)
        assert np.array_equal(logits, fresh.prefill(tokens))
        for step in range(num_decoded):
            window = np.array([20 + step], np.int32)
            assert np.array_equal(self.conversation.decode(window), fresh.decode(window))
            fresh.commit(1)
            self.conversation.commit(window, 1)
        return num_reused

    @property
    def num_loaded(self) -> int:
        return self.session.cells.num_loaded


def of(token: int, num: int) -> list[int]:
    return [token] * num


def test_two_clients_that_take_turns_read_only_what_is_new():
    talk = Talk()
    one, two = [TURN, *of(2, 50)], [TURN, *of(3, 60)]
    assert (talk.ask(one), talk.ask(two)) == (0, 0)
    for _ in range(3):
        for said in (one, two):
            before = len(said)
            said += [TURN, *of(4, 10)]
            assert talk.ask(said) >= before
    report = talk.conversation.report()
    assert report["from_parked"] == 6
    assert report["parked"] == 1


def test_cells_that_lie_in_the_session_are_not_copied_again():
    talk = Talk()
    long, short = of(2, 20 * PAGE_TOKENS), of(3, 2 * PAGE_TOKENS)
    talk.ask(long)
    talk.ask(short)
    assert talk.num_loaded == 0
    assert talk.ask([*long, 5]) == len(long)
    # The short one wrote over its own pages and the one that its windows reach into.
    assert talk.num_loaded <= 6 * PAGE_TOKENS


def test_one_too_short_to_be_parked_still_writes_over_pages():
    talk = Talk(worth_tokens=20)
    long = of(2, 60)
    talk.ask(long)
    assert talk.ask(of(3, 10)) == 0
    assert talk.ask([*long, 4]) == 60
    assert talk.session.history == [*long, 4]


def test_pages_copied_before_going_back_are_not_those_after_it():
    talk = Talk()
    begin = [TURN, *of(2, 28), TURN]
    talk.ask([*begin, *of(3, 30)])
    talk.ask(of(9, 30))  # the first one is parked, all its pages are whole
    other = [*begin, *of(4, 40)]
    assert talk.ask(other) == 29
    talk.ask(of(9, 40))
    assert talk.ask([*other, 5]) == len(other)
    assert talk.session.history == [*other, 5]


def test_after_going_back_decoded_tokens_are_no_prompt():
    talk = Talk(cut_tokens=8)
    prompt = [TURN, *of(2, 31), TURN, 5]
    talk.ask(prompt, num_decoded=6)
    assert talk.ask(prompt, num_decoded=6) == 32  # 34 read, 40 in the session: on the grid
    assert talk.ask([*prompt, 20, 21, 22, 23, 24, 25, 7]) == 32


def test_a_conversation_that_is_resumed_is_not_parked_twice():
    talk = Talk()
    one = of(2, 40)
    for step in range(5):
        one += of(3 + step, 10)
        talk.ask(one)
        talk.ask(of(9, 40))
    assert len(talk.conversation._parked) == 1


def test_a_failure_costs_the_live_conversation_alone():
    talk = Talk()
    one, two = of(2, 60), of(3, 9)
    talk.ask(one)
    talk.ask(two)
    talk.session.cells.rows[:] = 49
    talk.conversation.forget()
    assert talk.ask([*two, 5]) == 0
    assert talk.ask([*one, 5]) == 60


@pytest.mark.parametrize("ram_bytes", [0, 1 << 20])
def test_without_memory_nothing_is_parked(ram_bytes: int):
    talk = Talk(ram_bytes=ram_bytes)
    talk.ask(of(2, 40))
    talk.ask(of(3, 40))
    assert talk.ask(of(2, 41)) == (40 if ram_bytes else 0)
    assert (talk.session.cells.num_saved > 0) == (ram_bytes > 0)


# The store alone.


def a_history(token: int, num: int, *, stamp: int, root: Checkpoint | None = None) -> History:
    def state(position: int, kind: PointKind) -> Checkpoint:
        return Checkpoint(Snapshot(position, (np.zeros(25, np.float32),)), kind, 0)

    first = [] if root is None else [root]
    shared = 0 if root is None else root.position
    return History(
        key=new_key(),
        tokens=np.array([*of(1, shared), *of(token, num - shared)], np.int32),
        checkpoints=[*first, state(num, TURN_KIND)],
        pages=[Page(0, num, (np.zeros(num, np.int8),), is_whole=False)],
        stamp=stamp,
    )


def test_the_least_recently_used_goes():
    parked = Parked(350)  # each is 100 bytes of state and 50 of cells
    histories = [a_history(token, 50, stamp=token) for token in (2, 3)]
    for history in histories:
        parked.add(history)
    histories[0].stamp = 10
    parked.add(a_history(4, 50, stamp=4))
    assert histories[0] in list(parked)
    assert histories[1] not in list(parked)
    assert parked.num_bytes == 300
    assert parked.num_evicted == 1


def test_an_older_turn_goes_before_anything_else():
    parked = Parked(500)
    other, older = a_history(2, 50, stamp=1), a_history(3, 50, stamp=5)
    parked.add(other)
    parked.add(older)
    newer = a_history(3, 70, stamp=6)
    parked.add(newer)
    assert list(parked) == [other, newer]


def test_of_an_evicted_conversation_the_root_stays():
    root = Checkpoint(Snapshot(20, (np.zeros(25, np.float32),)), ROOT, 0)
    parked = Parked(350)
    parked.add(a_history(2, 50, stamp=1, root=root))
    parked.add(a_history(3, 50, stamp=2))
    assert sorted(len(item.tokens) for item in parked) == [20, 50]
    parked.add(a_history(4, 50, stamp=3))  # now the other one goes, and the root stays
    assert sorted(item.tokens[-1] for item in parked) == [1, 4]
    parked.add(a_history(5, 150, stamp=4))
    assert parked.num_bytes <= 350
    # One that is larger than everything there may be takes nothing with it but room.
    parked.add(a_history(6, 500, stamp=5))
    assert parked.num_bytes <= 350


def test_what_two_share_counts_once():
    root = Checkpoint(Snapshot(20, (np.zeros(25, np.float32),)), ROOT, 0)
    parked = Parked(1000)
    parked.add(a_history(2, 50, stamp=1, root=root))
    alone = parked.num_bytes
    parked.add(a_history(3, 50, stamp=2, root=root))
    assert parked.num_bytes == alone + 150


# Where states are kept.


@pytest.mark.parametrize(
    ("prompt", "start", "grid", "expected"),
    [
        (of(2, 30), 0, 1, {30: END}),
        (of(2, 30), 0, 8, {24: END}),
        (of(2, 30), 24, 8, {}),
        (of(2, 5), 0, 8, {}),
        ([TURN, *of(2, 20), TURN, 5], 0, 1, {21: TURN_KIND}),
        ([TURN, *of(2, 20), TURN, *of(5, 70)], 0, 1, {21: TURN_KIND, 50: STEP, 92: END}),
        ([TURN, *of(2, 45), TURN, 3, TURN, 5], 0, 1, {46: ROOT, 48: TURN_KIND}),
        ([TURN, *of(2, 45), TURN, 3, TURN, 5], 0, 8, {40: ROOT, 48: TURN_KIND}),
        ([TURN, *of(2, 45), TURN, 3], 0, 1, {46: ROOT}),
        ([TURN, *of(2, 45), TURN, 3, TURN, 5], 46, 1, {48: TURN_KIND}),
        ([TURN, *of(2, 130)], 0, 1, {50: STEP, 100: STEP, 131: END}),
        ([TURN, *of(2, 99), TURN], 0, 1, {50: STEP, 100: ROOT}),
    ],
)
def test_points_of_a_prompt(prompt, start, grid, expected):
    keeping = Keeping(turn_id=TURN, root_tokens=40, step_tokens=50)
    points = points_of(np.array(prompt, np.int32), start, grid, keeping)
    assert points == expected
    assert list(points) == sorted(points)


def test_without_a_turn_token_or_a_root_there_are_none():
    prompt = np.array([TURN, *of(2, 60), TURN, 3], np.int32)
    assert points_of(prompt, 0, 1, Keeping()) == {63: END}
    assert points_of(prompt, 0, 1, Keeping(turn_id=TURN, root_tokens=0)) == {61: TURN_KIND}


@pytest.mark.parametrize(
    ("kinds", "stamps", "most", "expected"),
    [
        ([], [], 0, None),
        ([TURN_KIND], [1], 1, None),
        ([TURN_KIND], [1], 0, 0),
        ([TURN_KIND, TURN_KIND, TURN_KIND], [1, 3, 2], 2, 2),
        ([TURN_KIND, TURN_KIND, TURN_KIND], [1, 2, 3], 2, 1),  # never the first
        ([TURN_KIND, TURN_KIND], [1, 2], 1, 0),  # but where only one may stay
        ([TURN_KIND, ROOT, TURN_KIND], [1, 0, 2], 2, 0),  # nor the root
        ([TURN_KIND, END, TURN_KIND, END], [1, 9, 2, 9], 3, 1),  # an end that was passed
    ],
)
def test_which_state_goes(kinds, stamps, most, expected):
    assert least_needed(kinds, stamps, most) == expected
