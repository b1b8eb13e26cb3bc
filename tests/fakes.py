"""Fakes for the engine's tests: a session whose logits are a function of the tokens alone.

The next token after a history is ``(a * hash(history) + b) mod V``, so any mistake in what was
committed, restored or read twice changes the text that follows.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

from strata.session_rules import Snapshot, have_forms

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from strata.engine.request import Message
    from strata.engine.session import Drafter, Logits, OnProgress, Picker, ShouldStop, Tokens
    from strata.session_rules import Arrays

MODULUS = 1_000_003
STEP_TOKENS = 8  # of the prompt path
PAGE_TOKENS = 8
START = 17
DECODED, AS_PROMPT, AFTER_ODD_CUT = range(3)


class FakeCells:
    """Token and way of each position. Those behind the session's position may be anything."""

    page_tokens = PAGE_TOKENS

    def __init__(self, capacity: int) -> None:
        self.rows = np.zeros((capacity, 2), np.int32)
        self.num_loaded = 0  # tokens copied in, in all
        self.num_saved = 0

    def save(self, start: int, stop: int) -> Arrays:
        assert start % PAGE_TOKENS == 0
        self.num_saved += stop - start
        return (self.rows[start:stop].copy(),)

    def load(self, start: int, stop: int, cells: Arrays) -> None:
        (self.rows[start:stop],) = cells
        self.num_loaded += stop - start

    def fit(self, start: int, stop: int, cells: Arrays) -> bool:
        return have_forms(cells, [((stop - start, 2), np.dtype(np.int32))])


class FakeSession:
    """Remembers tokens and how each was read: decoded, as prompt, or as prompt after a cut that is
    not on the grid. Each way gives other logits, unless ``cut_tokens`` is 1.
    """

    def __init__(self, vocab_size: int, capacity: int, cut_tokens: int = 8) -> None:
        self.vocab_size = vocab_size
        self.capacity = capacity
        self.cut_tokens = cut_tokens
        self.cells = FakeCells(capacity)
        self.position = 0
        self.running = START  # what the tokens so far come to, as a recurrent memory would
        self.window: list[int] | None = None
        self.num_prefilled = 0  # tokens read as prompt in all
        self.decode_rows: list[int] = []
        self.poison_at: int | None = None  # position whose logits are NaN
        self.before_step: Callable[[], None] = lambda: None
        self.drafter: Drafter | None = None
        self.picker: Picker | None = None

    @property
    def history(self) -> list[int]:
        """Tokens committed, as the cells tell it."""
        return self.cells.rows[: self.position, 0].tolist()

    def state_after(self, tokens: Sequence[int], ways: Sequence[int], at: int, state: int) -> int:
        for index, (token, way) in enumerate(zip(tokens, ways, strict=True), at):
            trace = 0 if self.cut_tokens == 1 else way
            state = (state * 31 + token * 7 + index + trace) % MODULUS
        return state

    def window_state(self, tokens: Sequence[int], way: int) -> int:
        return self.state_after(tokens, [way] * len(tokens), self.position, self.running)

    def append(self, tokens: Sequence[int], way: int) -> None:
        self.running = self.window_state(tokens, way)
        end = self.position + len(tokens)
        self.cells.rows[self.position : end, 0] = tokens
        self.cells.rows[self.position : end, 1] = way
        self.position = end

    def logits_after(self, history: Sequence[int], ways: Sequence[int]) -> Logits:
        return self.logits_of(history, self.state_after(history, ways, 0, START))

    def logits_of(self, history: Sequence[int], state: int) -> Logits:
        # Of the cells and of the running state: both have to be right.
        mixed = zlib.crc32(np.array([*history, state], np.int64).tobytes())
        rng = np.random.default_rng(mixed)
        logits = rng.standard_normal(self.vocab_size).astype(np.float32)
        if self.poison_at is not None and len(history) == self.poison_at:
            logits[3] = np.nan
        return logits

    def prefill(
        self,
        tokens: Tokens,
        *,
        on_progress: OnProgress | None = None,
        should_stop: ShouldStop | None = None,
    ) -> Logits:
        assert tokens.dtype == np.int32
        assert tokens.ndim == 1
        assert len(tokens) > 0
        assert self.position + len(tokens) <= self.capacity
        end = self.position + len(tokens)
        start = self.position
        way = AS_PROMPT if start % self.cut_tokens == 0 else AFTER_ODD_CUT
        while self.position < end:
            self.before_step()
            cut = min((self.position // STEP_TOKENS + 1) * STEP_TOKENS, end)
            piece = tokens[self.position - start : cut - start].tolist()
            self.append(piece, way)
            self.num_prefilled += len(piece)
            if on_progress is not None:
                on_progress(self.position - start, len(tokens))
            if self.position < end and should_stop is not None and should_stop():
                break
        return self.logits_of(self.history, self.running)

    def decode(self, tokens: Tokens) -> Logits:
        assert tokens.dtype == np.int32
        assert 1 <= len(tokens) <= 8
        assert self.position + len(tokens) <= self.capacity
        self.before_step()
        self.window = tokens.tolist()
        self.decode_rows.append(len(tokens))
        rows = []
        for row in range(len(self.window)):
            kept = self.window[: row + 1]
            rows.append(self.logits_of(self.history + kept, self.window_state(kept, DECODED)))
        return np.stack(rows)

    def commit(self, num_rows: int) -> None:
        assert self.window is not None
        assert 0 <= num_rows <= len(self.window)
        self.append(self.window[:num_rows], DECODED)
        self.window = None

    def snapshot(self, *, with_cells: bool = True) -> Snapshot:
        assert self.window is None
        running = (np.array([self.running], np.int64),)
        cells = self.cells.save(0, self.position) if with_cells else ()
        return Snapshot(self.position, running, cells)

    def restore(self, snapshot: Snapshot) -> None:
        if snapshot.cells:
            self.cells.load(0, snapshot.position, snapshot.cells)
        self.position = snapshot.position
        self.running = int(snapshot.running[0][0])
        self.window = None

    def fits(self, snapshot: Snapshot) -> bool:
        forms = [((1,), np.dtype(np.int64))]
        return snapshot.position <= self.capacity and have_forms(snapshot.running, forms)

    def reset(self) -> None:
        self.position = 0
        self.running = START
        self.window = None


class FakeModel:
    """A model of ``vocab_size`` tokens whose sessions are ``FakeSession``."""

    def __init__(self, vocab_size: int, cut_tokens: int = 8) -> None:
        self.vocab_size = vocab_size
        self.cut_tokens = cut_tokens
        self.sessions: list[FakeSession] = []
        self.is_closed = False

    def new_session(self, capacity: int) -> FakeSession:
        session = FakeSession(self.vocab_size, capacity, self.cut_tokens)
        self.sessions.append(session)
        return session

    def memory_report(self) -> Mapping[str, int]:
        return {"dense weights": 1}

    def close(self) -> None:
        self.is_closed = True


class FakeAnswer:
    """Writes id 12 as ``<12>`` and looks for stop texts in the simplest way there is."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = stops
        self.text = ""
        self.num_sent = 0
        self.stop_text: str | None = None

    def push(self, token_id: int) -> tuple[str, bool]:
        self.text += f"<{token_id}>"
        for stop in self.stops:
            if stop in self.text:
                self.text = self.text[: self.text.index(stop)]
                self.stop_text = stop
                return self.finish(), True
        return ("", False) if self.stops else (self.finish(), False)

    def finish(self) -> str:
        rest = self.text[self.num_sent :]
        self.num_sent = len(self.text)
        return rest


class FakeText:
    """A letter is its code modulo 97; a chat is its contents, with 1 before each message."""

    has_chat_template = True
    has_thinking = False

    def __init__(self, end_id: int) -> None:
        self.end_ids = frozenset({end_id})

    def encode(self, text: str) -> list[int]:
        return [ord(letter) % 97 for letter in text]

    def encode_chat(self, messages: Sequence[Message], values: Mapping[str, object]) -> list[int]:
        return [
            token for message in messages for token in (1, *self.encode(str(message["content"])))
        ] + [2]

    def new_answer(self, stops: Sequence[str]) -> FakeAnswer:
        return FakeAnswer(stops)
