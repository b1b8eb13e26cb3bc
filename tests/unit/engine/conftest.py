"""Engines over the fake session, without a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.fakes import FakeModel, FakeText

from strata.engine.engine import Engine
from strata.engine.parts import Parts
from strata.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

VOCAB_SIZE = 97
END_ID = 0


class World:
    """An engine and the fakes inside it."""

    def __init__(
        self, *, context_len: int = 200, cut_tokens: int = 8, checkpoints: int = 2
    ) -> None:
        self.model = FakeModel(VOCAB_SIZE, cut_tokens)
        parts = Parts(
            model=self.model,
            text=FakeText(END_ID),
            vocab_size=VOCAB_SIZE,
            context_len=context_len,
            close=self.model.close,
        )
        self.engine = Engine(parts, Settings(checkpoints=checkpoints))
        self.session = self.model.sessions[0]


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.engine.close()
