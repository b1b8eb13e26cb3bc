"""A model whose sessions tell a recorder which experts they ask for.

Owns the wrapping of a session, so that neither the engine nor a device knows of recording. What
becomes of the windows is ``tiers.recorder``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

from strata.result_files import unwritable
from strata.tiers.recorder import RoutingRecorder
from strata.tiers.routing_trace import WindowKind, write_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from strata.engine.session import (
        Cells,
        Drafter,
        Logits,
        Model,
        OnProgress,
        Picker,
        Session,
        ShouldStop,
        Tokens,
    )
    from strata.model_spec import ModelSpec
    from strata.session_rules import Snapshot


class TellingSession(Protocol):
    """The part of a session that tells of its routing; ``cpu.session`` has it."""

    on_routing: Callable[[int, Any], None] | None


class RecordingModel:
    """The model itself, whose sessions are recorded into one file when it is closed.

    Args:
        model: of the processor, whose sessions tell of their routing; owned from here on.
        path: where the trace is written.
    """

    def __init__(self, model: Model, path: Path) -> None:
        self._model = model
        self._path = path
        spec = model.spec
        self.recorder = RoutingRecorder(spec.num_layers, spec.num_experts, spec.top_k, spec.name)

    @property
    def spec(self) -> ModelSpec:
        """Geometry of the model."""
        return self._model.spec

    @property
    def numerics(self) -> str:
        """What the bits of a session's state depend on besides the weights."""
        return self._model.numerics

    def new_session(self, capacity: int) -> Session:
        """An empty conversation that is recorded."""
        session = self._model.new_session(capacity)
        return RecordedSession(session, self.recorder)

    def memory_report(self) -> Mapping[str, int]:
        """Bytes held, by what holds them."""
        return self._model.memory_report()

    def close(self) -> None:
        """Gives the model back, then writes the trace.

        Raises:
            SettingsError: the file cannot be written any more.
        """
        self._model.close()
        try:
            write_trace(self._path, self.recorder.trace())
        except OSError as error:
            raise unwritable("--routing-trace", self._path, error) from None


class RecordedSession:
    """A session that says to the recorder what each call is for. See ``engine.session.Session``."""

    def __init__(self, session: Session, recorder: RoutingRecorder) -> None:
        self._session = session
        self._recorder = recorder
        telling = cast("TellingSession", session)
        telling.on_routing = recorder.add

    @property
    def position(self) -> int:
        """Tokens committed so far."""
        return self._session.position

    @property
    def capacity(self) -> int:
        """Tokens the conversation can hold."""
        return self._session.capacity

    @property
    def cut_tokens(self) -> int:
        """Grid on which a prompt may be cut."""
        return self._session.cut_tokens

    @property
    def drafter(self) -> Drafter | None:
        """The draft layer; its own experts are not recorded."""
        return self._session.drafter

    @property
    def picker(self) -> Picker | None:
        """The session's own way of picking tokens."""
        return self._session.picker

    def prefill(
        self,
        tokens: Tokens,
        *,
        on_progress: OnProgress | None = None,
        should_stop: ShouldStop | None = None,
    ) -> Logits:
        """Reads a prompt; each chunk is a window."""
        self._recorder.begin(WindowKind.PROMPT, self._session.position)
        return self._session.prefill(tokens, on_progress=on_progress, should_stop=should_stop)

    def decode(self, tokens: Tokens) -> Logits:
        """Runs a window; none of its rows is kept until ``commit``."""
        self._recorder.begin(WindowKind.DECODE, self._session.position)
        return self._session.decode(tokens)

    def commit(self, num_rows: int) -> None:
        """Accepts rows of the last window."""
        self._session.commit(num_rows)
        self._recorder.keep(num_rows)

    @property
    def cells(self) -> Cells:
        """The cells of the session."""
        return self._session.cells

    def snapshot(self, *, with_cells: bool = True) -> Snapshot:
        """The exact state now."""
        return self._session.snapshot(with_cells=with_cells)

    def restore(self, snapshot: Snapshot) -> None:
        """Puts a state back; the next window's position tells of it."""
        self._session.restore(snapshot)

    def fits(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot has this session's sizes."""
        return self._session.fits(snapshot)

    def reset(self) -> None:
        """Back to position 0."""
        self._session.reset()
