"""Engines for child processes of tests: fast, scripted, and able to die on demand.

Imported by name in the child, so everything here is at module level.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from tests.fakes import FakeModel, FakeText

from strata.engine.engine import Engine
from strata.engine.parts import Parts
from strata.errors import CheckpointError, DeviceError, PlanError
from strata.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from strata.engine.session import OnProgress

VOCAB_SIZE = 97
CONTEXT_LEN = 400
# A prompt that holds this token kills the process while it is answered.
DEADLY = 13
STEP_S = 0.002


class Spec:
    vocab_size = VOCAB_SIZE


def scripted(step_s: float = STEP_S) -> Engine:
    """An engine whose next token is a function of the tokens before it."""
    model = FakeModel(VOCAB_SIZE, cut_tokens=1)
    model.spec = Spec()
    parts = Parts(model, FakeText(96), VOCAB_SIZE, CONTEXT_LEN, model.close)
    engine = Engine(parts, Settings(checkpoints=0))
    session = model.sessions[0]

    def before_step() -> None:
        time.sleep(step_s)

    session.before_step = before_step
    return engine


def open_scripted(*, on_progress: OnProgress) -> Engine:
    on_progress(1, 2)
    on_progress(2, 2)
    return scripted()


class DiesOnce:
    """Kills itself in the request that says so, if ``flag`` is not there yet; then makes it.

    With ``flag`` of None it dies every time.
    """

    def __init__(self, flag: Path | None, after_tokens: int = 0) -> None:
        self.flag = flag
        self.after_tokens = after_tokens

    def __call__(self, *, on_progress: OnProgress) -> Engine:
        engine = scripted()
        session = engine._parts.model.sessions[0]
        prefill, decode = session.prefill, session.decode

        def reads(tokens, **rest):
            if self.after_tokens == 0 and tokens[0] == DEADLY:
                self.die()
            return prefill(tokens, **rest)

        def decodes(tokens):
            if session.history[0] == DEADLY and len(session.decode_rows) == self.after_tokens:
                self.die()
            return decode(tokens)

        session.prefill = reads
        if self.after_tokens > 0:
            session.decode = decodes
        return engine

    def die(self) -> None:
        if self.flag is not None:
            if self.flag.exists():
                return
            self.flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)


class NeedsFile:
    """Loads while a file is there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, *, on_progress: OnProgress) -> Engine:
        if not self.path.exists():
            raise CheckpointError(f"there is no file {self.path}.\n  Try: another.")
        return scripted(0.0)


def loses_its_card(*, on_progress: OnProgress) -> Engine:
    """Fails in the fourth token of every answer."""
    engine = scripted()
    session = engine._parts.model.sessions[0]
    decode = session.decode

    def decodes(tokens):
        if len(session.decode_rows) == 3:
            raise DeviceError("the driver refused a copy.\n  Try: start again.")
        return decode(tokens)

    session.decode = decodes
    return engine


def dies_loading(*, on_progress: OnProgress) -> Engine:
    """As where there is too little memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def refuses(*, on_progress: OnProgress) -> Engine:
    raise PlanError("the plan needs 9 GiB, but 1 GiB is free.\n  Try: a smaller model.")
