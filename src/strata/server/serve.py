"""A server from its start to its end: port, engine, HTTP.

Owns the order: rules and port are checked before anything is loaded, the engine loads while
/health already answers, and a model that cannot be loaded ends the server with its message.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import signal
import socket
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import uvicorn

from strata.errors import EngineStopped, SettingsError
from strata.server.app import build_app
from strata.server.child import OpenModel
from strata.server.connections import BoundedConnection
from strata.server.engine_process import EngineProcess
from strata.server.engine_state import Limits
from strata.server.faults import Fault
from strata.server.first_use import begin_first_use
from strata.server.garbage import collect_between_answers
from strata.server.model_side import ModelSide
from strata.server.monitor import Monitor
from strata.server.pictures import Pictures
from strata.server.security import Rules, check_bind
from strata.server.serving import Serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.types import ASGIApp, Receive, Scope, Send

    from strata.server.child import OpenEngine
    from strata.settings import Settings

# Answers that still stream at the end get this long, then they end with an error.
_GRACE_S: Final = 5.0
# What does not end by then either, a body that trickles in, is cut off.
_LAST_S: Final = 2
_LOOK_S: Final = 0.2
_BACKLOG: Final = 256
# A token must not wait for the threads that read other requests' texts: by Python's own measure
# (5 ms) one of them may keep the interpreter that long.
_THREAD_TURN_S: Final = 0.0003


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Where and for whom is served."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0 takes any free one."""
    name: str | None = None
    aliases: tuple[str, ...] = ()
    fit_max_tokens: bool = False
    pictures: Pictures = Pictures.REFUSE
    rules: Rules = field(default_factory=Rules)
    limits: Limits = field(default_factory=Limits)


def serve(
    settings: Settings,
    options: ServeOptions,
    *,
    on_listening: Callable[[str], None],
    on_ready: Callable[[str], None],
    open_engine: OpenEngine | None = None,
) -> None:
    """Serves until it is told to end.

    Args:
        settings: of the engine.
        options: of the server.
        on_listening: called with the address once the port is taken.
        on_ready: called with the model's name once requests are served.
        open_engine: stands in for the model of ``settings``.

    Raises:
        SettingsError: the port is taken, or other machines were let in without a key.
        CheckpointError: the model file is damaged or has no tokenizer.
        EngineStopped: the model could not be loaded.
    """
    check_bind(options.host, options.rules.api_key)
    with listen(options.host, options.port) as listener:
        on_listening(address_of(listener))
        model = ModelSide.open(settings, options.name)
        engine = EngineProcess(open_engine or OpenModel(settings), options.limits)
        serving = Serving(engine, model, options.aliases, options.fit_max_tokens, options.pictures)
        monitor = Monitor(engine, model.name)
        app = build_app(serving, options.rules, monitor)
        with _short_thread_turns():
            asyncio.run(_run(app, serving, monitor, listener, on_ready))


@contextlib.contextmanager
def _short_thread_turns() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(_THREAD_TURN_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        SettingsError: the port is taken or not allowed, or there is no such host.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise SettingsError(
            f"there is no host {host!r} here: {error}.\n  Try: --host 127.0.0.1"
        ) from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        is_taken = error.errno == errno.EADDRINUSE
        reason = "is taken by another program" if is_taken else f"cannot be used: {error.strerror}"
        raise SettingsError(
            f"port {port} of {host} {reason}.\n  Try: --port {port + 1 if port < 65535 else 8000}"
        ) from None
    return listener


def address_of(listener: socket.socket) -> str:
    """The URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """Leaves signals alone: raised again after the end, they would cut the engine's own end off."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing to do."""
        yield


class _Quiet:
    """The application; what the end of the server cuts off is no error of it to be logged."""

    def __init__(self, app: ASGIApp, server: uvicorn.Server) -> None:
        self._app = app
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ``ASGIApp``."""
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            if not self._server.should_exit:
                raise


def _end_on_signals(server: uvicorn.Server) -> None:
    """The first signal ends the server when its answers are out, the second at once."""

    def end(*_: object) -> None:
        server.force_exit = server.should_exit
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(ValueError):  # not in the main thread
            signal.signal(number, end)


async def _run(
    app: ASGIApp,
    serving: Serving,
    monitor: Monitor,
    listener: socket.socket,
    on_ready: Callable[[str], None],
) -> None:
    config = uvicorn.Config(
        app,
        http=BoundedConnection,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=math.ceil(_GRACE_S) + _LAST_S,
    )
    server = _Server(config)
    config.app = _Quiet(app, server)
    _end_on_signals(server)
    serving.engine.start()
    monitor.start()
    begin_first_use(serving.model)
    watch = asyncio.ensure_future(_watch_loading(serving, server, on_ready))
    beside = [
        asyncio.ensure_future(work)
        for work in (
            _end_answers(serving, server),
            collect_between_answers(lambda: serving.engine.num_open == 0),
        )
    ]
    try:
        await server.serve(sockets=[listener])
    finally:
        for task in (watch, *beside):
            task.cancel()
        try:
            with contextlib.suppress(asyncio.CancelledError):
                failure = await watch
        finally:
            monitor.close()
            await serving.engine.close()  # it does not heed the signal Python would send
    if watch.done() and not watch.cancelled() and failure is not None:
        raise EngineStopped(failure.text)


async def _end_answers(serving: Serving, server: uvicorn.Server) -> None:
    """After the grace answers end with a message, which their clients would not get otherwise."""
    while not server.should_exit:
        await asyncio.sleep(_LOOK_S)
    await asyncio.sleep(_GRACE_S)
    await serving.engine.close()


async def _watch_loading(
    serving: Serving, server: uvicorn.Server, on_ready: Callable[[str], None]
) -> Fault | None:
    """Tells when the model is loaded, or ends the server with what went wrong."""
    try:
        await serving.engine.wait_loaded()
    except Fault as fault:
        server.should_exit = True
        return fault
    on_ready(serving.model.name)
    return None
