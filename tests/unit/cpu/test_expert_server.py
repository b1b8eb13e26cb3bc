"""The thread that answers a card from RAM: what it answers, refuses and survives.

A request is written into a mailbox by hand, as a card would write it. Answers are compared with
those to requests for one expert alone; what one expert's output is, is test_expert_numerics.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from strata import _native
from strata.cpu import native as _tables  # noqa: F401 - the grids must be known to the extension
from strata.formats.block_formats import FORMATS
from strata.tiers.hand_off import FIELDS, SERVED, MailboxLayout

if TYPE_CHECKING:
    from collections.abc import Iterator

NUM_EXPERTS, SIZE, TOP_K, MAX_ROWS = 4, 32, 2, 2
GOOD, NOT_FINITE, REFUSED = 0, 1, 2
UNWRITTEN = -7.0
ANSWER_SECONDS = 5.0


class Card:
    """The other side of a mailbox, and a server of one layer."""

    def __init__(self, ctx: _native.Context, hidden: int = SIZE, size: int = SIZE) -> None:
        self.hidden = hidden
        self.layout = MailboxLayout(1, MAX_ROWS, TOP_K, hidden)
        self.box = np.zeros(self.layout.num_bytes, np.uint8)
        self.number = 0
        ggml_id = FORMATS["Q8_0"].ggml_id
        layer = _native.ExpertLayer(ggml_id, ggml_id, ggml_id, NUM_EXPERTS, hidden, size)
        blobs = np.zeros((NUM_EXPERTS, layer.expert_bytes + 64), np.uint8)
        for expert in range(NUM_EXPERTS):
            shapes = ((size, hidden), (size, hidden), (hidden, size))
            rows = (rows_of(10 * expert + role, *shape) for role, shape in enumerate(shapes))
            layer.pack(ctx, *rows, blobs[expert])
        self.factors = np.ones((NUM_EXPERTS, 3), np.float32)
        layer.set_memory(blobs.ctypes.data, blobs.shape[1], self.factors.ctypes.data)
        self.blobs, self.layer = blobs, layer
        self.addresses = [
            self.box.ctypes.data + offset for offset in self.layout.offsets[: len(FIELDS) - 1]
        ]
        owners = (blobs, self.factors, self.box)
        self.server = _native.ExpertServer(ctx, [layer], self.addresses, MAX_ROWS, TOP_K, owners)
        rng = np.random.default_rng(1)
        codes = rng.integers(-127, 128, (MAX_ROWS, hidden))
        self.field("codes", np.int8)[: codes.size] = codes.reshape(-1)
        self.field("scales", np.float32)[: MAX_ROWS * hidden // 32] = 0.01
        sums = codes.reshape(-1, 16).sum(axis=1)
        self.field("sums", np.int32)[: sums.size] = sums

    def field(self, name: str, dtype: type) -> np.ndarray:
        number = FIELDS.index(name)
        first, size = self.layout.offsets[number], self.layout.sizes[number]
        return self.box[first : first + size].view(dtype)

    def start(self) -> None:
        self.server.start(self.number)
        self.server.begin()

    def ask(self, *ids: int, layer: int = 0) -> tuple[int, np.ndarray]:
        """Status, and [entries, hidden] outputs; an entry nobody wrote is UNWRITTEN."""
        outputs = self.field("outputs", np.float32)[: len(ids) * self.hidden].reshape(
            -1, self.hidden
        )
        outputs[:] = UNWRITTEN
        self.field("ids", np.int32)[: len(ids)] = ids
        request, answer = self.field("request", np.int32), self.field("answer", np.int32)
        self.number += 1
        request[1], request[2] = layer, len(ids) // TOP_K
        request[0] = self.number
        end = time.monotonic() + ANSWER_SECONDS
        while answer[0] != self.number and time.monotonic() < end:
            time.sleep(1e-4)
        assert answer[0] == self.number, "no answer"
        return int(answer[1]), outputs.copy()

    def alone(self, expert: int, row: int) -> np.ndarray:
        """Output of one expert for one row, asked for by itself."""
        ids = [-1] * (TOP_K * MAX_ROWS)
        ids[row * TOP_K] = expert
        status, outputs = self.ask(*ids)
        assert status == GOOD
        return outputs[row * TOP_K]


def rows_of(seed: int, num: int, inner: int) -> np.ndarray:
    """[num, bytes] rows of Q8_0: a factor of 0.5 and codes of one sign, so no output is 0."""
    raw = np.zeros((num, FORMATS["Q8_0"].row_bytes(inner)), np.uint8)
    blocks = raw.reshape(num, -1, 34)
    blocks[..., :2] = np.frombuffer(np.float16(0.5).tobytes(), np.uint8)
    codes = np.random.default_rng(seed).integers(1, 100, (num, inner))
    blocks[..., 2:] = codes.reshape(num, -1, 32)
    return raw


@pytest.fixture
def card() -> Iterator[Card]:
    one = Card(_native.Context(2, "scalar"))
    one.start()
    yield one
    assert one.server.stop(ANSWER_SECONDS)


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_threads_that_share_an_expert_change_no_bit(num_threads: int) -> None:
    """Large enough that each expert is many threads' work; five threads have two processors."""
    one = Card(_native.Context(1, _native.best_isa()), 2048, 1024)
    many = Card(_native.Context(num_threads, _native.best_isa()), 2048, 1024)
    for card in (one, many):
        card.start()
    for ids in [(0, 1, 1, 2), (3, -1, -1, 3), (2, 0, 0, 2), (-1, -1, 1, -1)] * 5:
        status, expected = one.ask(*ids)
        assert status == GOOD
        again = many.ask(*ids)
        assert again[0] == GOOD
        assert again[1].tobytes() == expected.tobytes()
    for card in (one, many):
        assert card.server.stop(ANSWER_SECONDS)


def test_an_expert_has_the_same_output_in_any_company(card: Card) -> None:
    alone = {(expert, row): card.alone(expert, row) for expert in range(4) for row in range(2)}
    assert not np.array_equal(alone[0, 0], alone[1, 0])
    assert not np.array_equal(alone[0, 0], alone[0, 1])
    # Expert 1 is wanted by both rows, expert 3 and one entry by none.
    for ids in [(0, 1, 1, 2), (1, -1, 2, 1), (2, 0, 0, 2)]:
        status, outputs = card.ask(*ids)
        assert status == GOOD
        for entry, expert in enumerate(ids):
            if expert < 0:
                assert (outputs[entry] == UNWRITTEN).all()
            else:
                assert np.array_equal(outputs[entry], alone[expert, entry // TOP_K]), (ids, entry)


@pytest.mark.parametrize("bad", [(0, NUM_EXPERTS), (1, -2), (0, 99)])
def test_a_refused_request_leaves_nothing_for_the_next(card: Card, bad: tuple[int, int]) -> None:
    expected = [card.alone(expert, 0) for expert in range(NUM_EXPERTS)]
    assert card.ask(*bad)[0] == REFUSED
    # As after a fault: the same server, started anew.
    assert card.server.stop(ANSWER_SECONDS)
    card.start()
    for ids in [(0, 1), (0, -1), (2, 3)]:
        status, outputs = card.ask(*ids)
        assert status == GOOD
        for entry, expert in enumerate(ids):
            if expert >= 0:
                assert np.array_equal(outputs[entry], expected[expert]), (ids, entry)


@pytest.mark.parametrize("layer", [-1, 1])
def test_a_layer_there_is_not_is_refused(card: Card, layer: int) -> None:
    assert card.ask(0, 1, layer=layer)[0] == REFUSED
    assert card.ask(0, 1)[0] == GOOD


def test_more_rows_than_there_is_room_for_are_refused(card: Card) -> None:
    ids = [0] * (TOP_K * MAX_ROWS)
    request, answer = card.field("request", np.int32), card.field("answer", np.int32)
    card.field("ids", np.int32)[: len(ids)] = ids
    card.number += 1
    request[1], request[2] = 0, MAX_ROWS + 1
    request[0] = card.number
    end = time.monotonic() + ANSWER_SECONDS
    while answer[0] != card.number and time.monotonic() < end:
        time.sleep(1e-4)
    assert answer.tolist()[:2] == [card.number, REFUSED]


def test_a_value_that_is_not_finite_is_told(card: Card) -> None:
    card.factors[1, 0] = np.inf
    assert card.ask(0, 1)[0] == NOT_FINITE
    assert card.ask(0, 2)[0] == GOOD


def test_numbers_may_wrap(card: Card) -> None:
    expected = card.alone(0, 0)
    assert card.server.stop(ANSWER_SECONDS)
    card.number = 2**31 - 2
    card.field("request", np.int32)[0] = card.number
    card.start()
    for _ in range(2):
        status, outputs = card.ask(0, -1)
        assert status == GOOD
        assert np.array_equal(outputs[0], expected)
        if card.number == 2**31 - 1:
            card.number = -(2**31) - 1


def test_what_was_done_is_counted(card: Card) -> None:
    card.ask(0, 1, 1, -1)
    counts = np.zeros((1, len(SERVED)), np.int64)
    card.server.read_counts(counts)
    requests, entries, experts, num_bytes, nanoseconds, *from_file = counts[0].tolist()
    assert from_file == [0, 0]
    assert (requests, entries, experts) == (1, 3, 2)
    assert num_bytes == 2 * 3 * SIZE * (SIZE + 2)
    assert nanoseconds > 0
