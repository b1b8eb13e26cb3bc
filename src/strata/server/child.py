"""The engine's own process: loads a model, answers requests in turns.

Owns the thread that listens and the one that works. Knows no HTTP; the other side of the socket is
``engine_process``. Ends when told to, when the socket closes, and when the engine's loop dies.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import queue
import resource
import signal
import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
import numpy as np

from strata import telemetry
from strata.engine.engine import Engine
from strata.engine.sampling_params import SamplingParams
from strata.errors import EngineStopped, RequestError, SettingsError, StrataError
from strata.server import protocol
from strata.server.rota import Rota
from strata.server.think_budget import ThinkBudget
from strata.text.form import Form

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from strata.engine.generation import Generation
    from strata.engine.request import FinishReason, Timings, TokenEvent
    from strata.engine.session import OnProgress
    from strata.settings import Settings

EXIT_FAILED: Final = 70
# Ctrl-C reaches the whole group, and the end of a service each of its processes; the HTTP process
# ends this one when its answers are out. They are blocked when it starts.
ENDINGS: Final = (signal.SIGINT, signal.SIGTERM)
# Of ``tiers.counters``: what a server's users look at.
_TOLD_COUNTS: Final = ("lookups", "hits", "computed", "copied", "from_file", "file_bytes")
_RECV_BYTES: Final = 1 << 16
# Bytes loaded are told at most this often.
_TELL_EVERY_S: Final = 0.1
# Answers under way at a time; of each but one the state lies in memory.
MOST_BEGUN: Final = 8
# A turn takes this many times what changing requests costs, so that little is lost to it.
_TURN_PER_CHANGE: Final = 8


class OpenEngine(Protocol):
    """Makes the engine of this process; importable by name, so that a new process finds it."""

    def __call__(self, *, on_progress: OnProgress) -> Engine:
        """The engine, loaded."""


class OpenModel:
    """Opens the model of some settings."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def __call__(self, *, on_progress: OnProgress) -> Engine:
        """See ``OpenEngine``."""
        engine = Engine.from_settings(self._settings, on_progress=on_progress)
        engine.prepare_forms()
        return engine


def main(connection: socket.socket, open_engine: OpenEngine) -> None:
    """What the process runs; returns when it is to end."""
    for number in ENDINGS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDINGS)
    faulthandler.enable()
    _Child(connection).run(open_engine)


class _Child:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._waiting: queue.SimpleQueue[protocol.Submit | None] = queue.SimpleQueue()
        self._rota: Rota[tuple[int, Generation]] = Rota(MOST_BEGUN)
        self._turn_began_s = 0.0
        self._step_s = 0.0  # the longest step of late: a chunk, where prompts are read
        self._has_ended = False
        self._is_busy = True  # it loads
        self._num_beats = 0
        self._lock = threading.Lock()  # of what follows
        self._cancelled: set[int] = set()
        self._open: set[int] = set()
        self._generations: dict[int, Generation] = {}
        self._current_id: int | None = None
        self._is_ending = False
        self._num_answered = 0
        self._memory: Callable[[], Mapping[str, int]] = dict
        self._conversations: Callable[[], Mapping[str, int]] = dict
        self._set_vram: Callable[[int | None], bool] = _refuse_limit

    def run(self, open_engine: OpenEngine) -> None:
        self._send(protocol.Hello(protocol.PROTOCOL_VERSION, os.getpid()))
        telemetry.listen(lambda event: self._send(protocol.Notice(event.key, event.message)))
        threading.Thread(target=self._listen, daemon=True).start()
        try:
            engine = open_engine(on_progress=_Seldom(self._tell_loading))
        except (StrataError, OSError, MemoryError) as error:
            self._fail(error, is_loading=True)
        with engine:
            self._memory = engine.memory_report
            self._conversations = engine.conversation_report
            self._set_vram = engine.set_vram_limit
            self._send(
                protocol.Ready(
                    context_len=engine.context_len,
                    vocab_size=engine.spec.vocab_size,
                    memory_bytes=dict(engine.memory_report()),
                )
            )
            self._turn = engine.share()
            try:
                while self._take_in(engine):
                    self._give_turn(engine, self._rota.next())
            except StrataError as error:
                # Not this request's fault: the loop has died, or the device has.
                self._fail(error, is_loading=False)

    def _take_in(self, engine: Engine) -> bool:
        """Moves what has come to the rota, waiting while there is nothing; false at the end."""
        while not self._has_ended and (len(self._rota) == 0 or not self._waiting.empty()):
            self._is_busy = len(self._rota) > 0 or not self._waiting.empty()
            submit = self._waiting.get()
            self._is_busy = True
            if submit is None:
                self._has_ended = True
            else:
                self._begin(engine, submit)
        return len(self._rota) > 0

    def _begin(self, engine: Engine, submit: protocol.Submit) -> None:
        request_id = submit.request_id
        try:
            generation = self._generation(engine, submit)
        except (RequestError, SettingsError) as error:
            self._refuse(request_id, error)
            return
        with self._lock:
            self._generations[request_id] = generation
            if request_id in self._cancelled or self._is_ending:
                generation.cancel()
        self._rota.add(submit.caller, (request_id, generation))

    def _give_turn(self, engine: Engine, whose: tuple[int, Generation]) -> None:
        """Events of one request, until it ends or others have waited as long as is worth it."""
        request_id, generation = whose
        self._turn_began_s = event_began_s = time.monotonic()
        self._current_id = request_id
        self._step_s /= 2
        try:
            for event in generation:
                now_s = time.monotonic()
                self._step_s = max(self._step_s, now_s - event_began_s)
                event_began_s = now_s
                self._num_beats += 1
                self._send_event(request_id, event)
                if event.finish_reason is None and self._should_yield():
                    return
        except (RequestError, SettingsError) as error:
            self._refuse(request_id, error)
        else:
            self._forget(request_id)
        self._rota.remove(whose)
        engine.settle()

    def _should_yield(self) -> bool:
        """Whether another request is to have the next turn."""
        if self._rota.has_new or not self._waiting.empty():
            return True
        if not self._rota.has_others:
            return False
        # As long as a chunk that another reads: time is divided, not the number of steps.
        least_s = max(_TURN_PER_CHANGE * self._turn.change_s, self._step_s)
        return time.monotonic() - self._turn_began_s >= least_s

    def _refuse(self, request_id: int, error: StrataError) -> None:
        self._send(protocol.Refused(request_id, type(error).__name__, str(error)))
        self._forget(request_id)

    def _forget(self, request_id: int) -> None:
        """A request has ended."""
        with self._lock:
            self._current_id = None
            self._generations.pop(request_id, None)
            self._cancelled.discard(request_id)
            self._open.discard(request_id)
            self._num_answered += 1

    def _fail(self, error: Exception, *, is_loading: bool) -> None:
        text = str(error) or "out of memory.\n  Try: a smaller --context, or a smaller model."
        self._send(protocol.Failed(type(error).__name__, text, is_loading))
        # Native threads may be in any state; nothing is waited for.
        os._exit(EXIT_FAILED)

    def _generation(self, engine: Engine, submit: protocol.Submit) -> Generation:
        prompt = np.frombuffer(submit.prompt, dtype="<i4").astype(np.int32)
        sampling = SamplingParams.from_options(submit.options)
        allow = None
        if (bound := submit.think_bound) is not None:
            allow = ThinkBudget(
                len(prompt), bound.budget, bound.end_ids, bound.mark_id, engine.spec.vocab_size
            )
        request_id = submit.request_id
        return engine.generate(
            prompt,
            sampling,
            allow=allow,
            form=None if submit.form is None else Form(submit.form.grammar),
            form_after="" if submit.form is None else submit.form.begins_after,
            on_progress=lambda read, total: self._tell_read(request_id, read, total),
            should_yield=self._should_yield,
        )

    def _tell_read(self, request_id: int, num_read: int, num_total: int) -> None:
        self._num_beats += 1
        self._send(protocol.Progress(request_id, num_read, num_total))

    def _send_event(self, request_id: int, event: TokenEvent) -> None:
        if event.text or event.token_ids:
            logprobs = tuple(
                protocol.TokenLogprob(item.id, item.logprob, item.top)
                for item in event.logprobs
                if item.logprob is not None
            )
            made_s = time.monotonic()
            self._send(protocol.Tokens(request_id, event.text, event.token_ids, logprobs, made_s))
        if event.finish_reason is not None and event.timings is not None:
            reason: FinishReason = event.finish_reason
            costs = _costs(event.timings)
            self._send(protocol.Ended(request_id, str(reason), costs, event.stop_text))

    def _listen(self) -> None:
        """Takes messages until the socket closes; then this process ends."""
        with contextlib.suppress(EOFError, OSError, msgspec.MsgspecError):
            frames = protocol.Frames()
            while data := self._connection.recv(_RECV_BYTES):
                for frame in frames.feed(data):
                    message = protocol.decode_down(frame)
                    if isinstance(message, protocol.Shutdown):
                        self._end()
                    else:
                        self._take(message)
        # Whoever asked is gone, or speaks another language: no one reads what is made here.
        os._exit(0 if self._is_ending else EXIT_FAILED)

    def _take(
        self,
        message: (
            protocol.Submit
            | protocol.Cancel
            | protocol.AskStatus
            | protocol.SetLimit
            | protocol.AskAlive
        ),
    ) -> None:
        match message:
            case protocol.Submit():
                with self._lock:
                    self._open.add(message.request_id)
                self._waiting.put(message)
            case protocol.Cancel(request_id=request_id):
                with self._lock:
                    if request_id in self._open:
                        self._cancelled.add(request_id)
                    if request_id in self._generations:
                        self._generations[request_id].cancel()
            case protocol.AskStatus():
                with self._lock:
                    status = protocol.Status(
                        current_id=self._current_id,
                        num_waiting=len(self._open) - (self._current_id is not None),
                        num_answered=self._num_answered,
                        memory_bytes=dict(self._memory()),
                        conversations=dict(self._conversations()),
                    )
                self._send(status)
            case protocol.SetLimit():
                self._send(self._limit_set(message))
            case protocol.AskAlive():
                self._send(self._alive())

    def _limit_set(self, asked: protocol.SetLimit) -> protocol.LimitSet:
        try:
            is_done = self._set_vram(asked.vram_mib)
        except StrataError as error:
            kind = type(error).__name__
            return protocol.LimitSet(asked.question_id, kind=kind, text=str(error))
        return protocol.LimitSet(asked.question_id, is_done)

    def _alive(self) -> protocol.Alive:
        """What tells a long step from one that never ends."""
        own = resource.getrusage(resource.RUSAGE_SELF)
        others = resource.getrusage(resource.RUSAGE_CHILDREN)  # compilers
        return protocol.Alive(
            is_busy=self._is_busy,
            num_beats=self._num_beats,
            cpu_s=sum(item.ru_utime + item.ru_stime for item in (own, others)),
            num_blocks=sum(item.ru_inblock + item.ru_oublock for item in (own, others)),
        )

    def _end(self) -> None:
        with self._lock:
            self._is_ending = True
            for generation in self._generations.values():
                generation.cancel()
        self._waiting.put(None)

    def _tell_loading(self, num_done: int, num_total: int) -> None:
        self._num_beats += 1
        self._send(protocol.Loading(num_done, num_total))

    def _send(self, message: protocol.Up) -> None:
        frame = protocol.encode(message)
        with self._sending:
            try:
                self._connection.sendall(frame)
            except OSError:
                os._exit(EXIT_FAILED)


def _refuse_limit(_: int | None) -> bool:
    raise EngineStopped("the model is being loaded.\n  Try: again when it is ready.")


class _Seldom:
    """Passes progress on, but not more often than people can read it."""

    def __init__(self, tell: OnProgress) -> None:
        self._tell = tell
        self._told_s = -1.0

    def __call__(self, num_done: int, num_total: int) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s >= _TELL_EVERY_S or num_done >= num_total:
            self._told_s = now_s
            self._tell(num_done, num_total)


def _costs(timings: Timings) -> protocol.Costs:
    counts = timings.experts
    return protocol.Costs(
        prompt_tokens=timings.prompt_tokens,
        reused_tokens=timings.reused_tokens,
        generated_tokens=timings.generated_tokens,
        prompt_s=timings.prompt_s,
        decode_s=timings.decode_s,
        ttft_s=timings.ttft_s,
        drafts_proposed=sum(timings.drafts_proposed),
        drafts_accepted=sum(timings.drafts_accepted),
        experts={} if counts is None else {name: counts.total(name) for name in _TOLD_COUNTS},
    )
