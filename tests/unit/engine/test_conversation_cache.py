"""The cache of conversations against a model that remembers everything.

Random clients ask, continue, go back, break off and come again after a restart. Logits are compared
with a fresh session that reads the prompt at once; the number of reused tokens with the longest
state there is, found by comparing token by token; what may be lost with what was promised.
"""

from __future__ import annotations

import itertools
import secrets
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.fakes import FakeSession

from strata.engine.conversation import Conversation
from strata.engine.conversation_disk import ConversationFiles
from strata.engine.conversation_file import read_history
from strata.engine.conversation_history import bytes_of
from strata.engine.conversation_points import Keeping
from strata.errors import CheckpointError

VOCAB, CAPACITY, TURN = 50, 500, 1
PLENTY = 1 << 30
NUM_CLIENTS = 4

messages = st.lists(st.integers(2, 5), min_size=6, max_size=40)


def begins(tokens: list[int], prompt: list[int]) -> bool:
    return len(tokens) <= len(prompt) and all(a == b for a, b in zip(tokens, prompt, strict=False))


def can_be_read(path: Path, num_tokens: int) -> bool:
    try:
        read_history(path, num_tokens)
    except CheckpointError:
        return False
    return True


class Cache(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder: Path | None = None
        keys = itertools.count(1)
        self.patch = pytest.MonkeyPatch()  # names of files decide an order
        self.patch.setattr(secrets, "token_hex", lambda _: f"{next(keys):016x}")

    @initialize(
        cut_tokens=st.sampled_from([1, 8]),
        max_checkpoints=st.sampled_from([50, 50, 3, 2, 1, 0]),
        ram_bytes=st.sampled_from([PLENTY, PLENTY, 6000, 1500, 0]),
        has_folder=st.booleans(),
        disk_bytes=st.sampled_from([PLENTY, 4000]),
        system=st.integers(0, 40),
        worth=st.sampled_from([1, 8]),
    )
    def begin(self, cut_tokens, max_checkpoints, ram_bytes, has_folder, disk_bytes, system, worth):
        self.cut_tokens = cut_tokens
        self.keeping = Keeping(
            max_checkpoints, ram_bytes, TURN, root_tokens=24, step_tokens=32, worth_tokens=worth
        )
        self.disk_bytes = disk_bytes
        self.folder = Path(tempfile.mkdtemp()) if has_folder else None
        self.system = [TURN, *([3] * system)]
        self.talks: list[list[int]] = [[] for _ in range(NUM_CLIENTS)]
        self.promised = [0] * NUM_CLIENTS
        self.open()

    def open(self) -> None:
        self.files = None
        if self.folder is not None:
            self.files = ConversationFiles(self.folder, "model", self.disk_bytes, 1 << 20)
        self.session = FakeSession(VOCAB, CAPACITY, self.cut_tokens)
        self.conversation = Conversation(self.session, self.keeping, self.files)

    def teardown(self) -> None:
        self.patch.undo()
        if self.folder is not None:
            self.conversation.close()
            shutil.rmtree(self.folder)

    # What there is, token by token.

    def longest(self, prompt: list[int]) -> int:
        """Of every state in session, memory and files the longest that begins the prompt."""
        conversation, lengths = self.conversation, [0]
        live = conversation._live
        is_fresh = self.cut_tokens == 1 or (
            live.num_read_as_prompt == len(live.tokens) and len(live.tokens) % self.cut_tokens == 0
        )
        if is_fresh and len(live.tokens) < len(prompt) and begins(live.tokens, prompt):
            lengths.append(len(live.tokens))
        everything = [(live.tokens, live.checkpoints)]
        everything += [(kept.tokens.tolist(), kept.checkpoints) for kept in conversation._parked]
        for tokens, checkpoints in everything:
            lengths += [
                item.position
                for item in checkpoints
                if begins(tokens[: item.position], prompt)
                and (item.position < len(prompt) or item.logits is not None)
            ]
        if self.files is not None:
            for entry in self.files._entries.values():
                tokens = entry.contents.tokens.tolist()
                if not can_be_read(entry.path, len(tokens)):
                    continue  # damaged, and not asked for since: nobody has found out yet
                lengths += [
                    position
                    for position, _, _ in entry.contents.checkpoints
                    if position < len(prompt) and begins(tokens[:position], prompt)
                ]
        return max(lengths)

    # What clients do.

    def ask(self, client: int, prompt: list[int], num_decoded: int) -> None:
        if len(prompt) + num_decoded > CAPACITY:
            prompt = prompt[: CAPACITY - num_decoded]
        tokens = np.array(prompt, np.int32)
        expected = self.longest(prompt)
        num_reused = self.conversation.resume(tokens)
        assert num_reused == expected
        assert num_reused % self.cut_tokens == 0 or self.cut_tokens == 1
        logits = self.conversation.read(tokens)
        fresh = FakeSession(VOCAB, CAPACITY, self.cut_tokens)
        assert np.array_equal(logits, fresh.prefill(tokens))
        said = list(prompt)
        for step in range(num_decoded):
            window = np.array([2 + step % 7], np.int32)
            row = self.conversation.decode(window)
            assert np.array_equal(row, fresh.decode(window))
            fresh.commit(1)
            self.conversation.commit(window, 1)
            said.append(int(window[0]))
        assert self.session.history == said
        if self.is_everything_kept and begins(self.talks[client], prompt):
            assert num_reused >= self.promised[client]
        self.talks[client] = said
        turn = max((at for at, token in enumerate(prompt) if token == TURN), default=0)
        turn = turn // self.cut_tokens * self.cut_tokens
        self.promised[client] = turn if turn >= self.keeping.worth_tokens else 0
        self.settle()

    def settle(self) -> None:
        self.conversation.settle()
        if self.files is not None:
            assert self.files.flush(10)

    @property
    def is_everything_kept(self) -> bool:
        is_all = self.keeping.worth_tokens == 1 and self.keeping.max_checkpoints == 50
        return is_all and self.keeping.ram_bytes == PLENTY

    @rule(client=st.integers(0, NUM_CLIENTS - 1), message=messages, decoded=st.integers(0, 12))
    def goes_on(self, client: int, message: list[int], decoded: int) -> None:
        """A chat template ends with the turn of the answer."""
        before = self.talks[client] or self.system
        self.ask(client, [*before, TURN, *message, TURN, 9], decoded)

    @rule(order=st.permutations(range(NUM_CLIENTS)), message=messages)
    def take_turns(self, order: list[int], message: list[int]) -> None:
        for client in order:
            self.goes_on(client, [2 + client, *message], 2)

    @rule(
        client=st.integers(0, NUM_CLIENTS - 1),
        kept=st.integers(0, 80),
        message=messages,
        decoded=st.integers(0, 12),
    )
    def goes_back(self, client: int, kept: int, message: list[int], decoded: int) -> None:
        self.talks[client] = self.talks[client][:kept]
        self.promised[client] = 0
        self.ask(client, [*self.talks[client], *message], decoded)

    @rule(client=st.integers(0, NUM_CLIENTS - 1), other=st.integers(0, NUM_CLIENTS - 1))
    def copies(self, client: int, other: int) -> None:
        """Another client says the same as one before it."""
        if self.talks[other]:
            self.promised[client] = 0
            self.ask(client, list(self.talks[other]), 3)

    @rule(client=st.integers(0, NUM_CLIENTS - 1), message=messages, steps=st.integers(1, 4))
    def breaks_off(self, client: int, message: list[int], steps: int) -> None:
        prompt = [*self.talks[client], *message][: CAPACITY - 1]
        tokens = np.array(prompt, np.int32)
        assert self.longest(prompt) == self.conversation.resume(tokens)
        seen: list[int] = []
        self.conversation.read(
            tokens,
            on_progress=lambda read, _: seen.append(read),
            should_stop=lambda: len(seen) >= steps,
        )
        assert self.session.history == prompt[: self.session.position]
        self.settle()

    @rule()
    def fails(self) -> None:
        self.session.cells.rows[:] = 48  # nothing in the session can be trusted
        self.conversation.forget()
        self.promised = [0] * NUM_CLIENTS

    # What happens to the process and to its files.

    @precondition(lambda self: self.folder is not None)
    @rule(is_orderly=st.booleans())
    def starts_again(self, is_orderly: bool) -> None:  # noqa: FBT001
        assert self.files.flush(10)
        if is_orderly:
            self.conversation.close()
        else:
            self.files.close()
        self.open()
        self.promised = [0] * NUM_CLIENTS

    @precondition(lambda self: self.folder is not None)
    @rule(place=st.floats(0, 0.999), which=st.integers(0, 9))
    def is_damaged(self, place: float, which: int) -> None:
        assert self.files.flush(10)
        paths = sorted(self.folder.iterdir())
        if not paths:
            return
        path = paths[which % len(paths)]
        content = bytearray(path.read_bytes())
        content[int(place * len(content))] ^= 0x10
        self.files.close()
        path.write_bytes(content)
        self.open()  # such damage is found while looking, or while reading
        for entry in list(self.files._entries.values()):
            try:
                whole = self.files.find(entry.contents.tokens.repeat(1), -1)
            except Exception as error:  # noqa: BLE001 - none may come out
                pytest.fail(f"{error}")
            assert whole is None or whole.key in self.files._entries
        if all(entry.path != path for entry in self.files._entries.values()):
            path.unlink()  # another process would count on it, until it reads it too
        self.promised = [0] * NUM_CLIENTS

    # What is always true.

    @invariant()
    def bounds_are_kept(self) -> None:
        if self.folder is None and not hasattr(self, "conversation"):
            return
        conversation, most = self.conversation, self.keeping.max_checkpoints
        assert len(conversation._live.checkpoints) <= most
        parked = list(conversation._parked)
        assert bytes_of(parked) == conversation._parked.num_bytes <= self.keeping.ram_bytes
        for history in parked:
            positions = [item.position for item in history.checkpoints]
            assert positions == sorted(set(positions))
            assert positions[-1] == len(history.tokens)
            assert history.pages[0].start == 0
            stops = [page.stop for page in history.pages]
            assert [page.start for page in history.pages[1:]] == stops[:-1]
            assert stops[-1] >= len(history.tokens)
            for item in history.checkpoints:
                assert item.position % self.cut_tokens == 0


TestCache = Cache.TestCase
TestCache.settings = settings(max_examples=40, stateful_step_count=15, deadline=None)
