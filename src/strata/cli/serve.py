"""``strata serve``: the model behind HTTP, for editors, agents and browsers."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from strata.cli.console import notices_on_stderr, say
from strata.cli.options import ENGINE_SETTINGS, with_settings
from strata.errors import SettingsError
from strata.server.pictures import Pictures
from strata.settings import Settings, api_key_of_environment


@with_settings(
    *(name for name in ENGINE_SETTINGS if name != "model"),
    "model",
    "checkpoints",
    "conversation_ram",
    "conversation_dir",
    "conversation_disk",
)
def command(
    settings: Settings,
    file: Annotated[
        Path | None, typer.Argument(metavar="MODEL", help="Model file, as with --model.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(help="Ask every client for this key. STRATA_API_KEY does the same."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="What the model is called.")] = None,
    alias: Annotated[
        list[str] | None, typer.Option(help="Another name it answers to; * for any.")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A name this server is called by from elsewhere.")
    ] = None,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="Origin of a web page that may ask; * for any.")
    ] = None,
    max_body_mib: Annotated[int, typer.Option(min=1, help="Longest body of a request.")] = 32,
    max_waiting: Annotated[
        int, typer.Option(min=1, help="Requests under way or waiting; more are refused.")
    ] = 64,
    watchdog_s: Annotated[
        float,
        typer.Option(
            "--watchdog-s",
            min=0,
            help="Start the engine again after so many seconds without a sign of life; 0: never.",
        ),
    ] = 60.0,
    log_requests: Annotated[
        bool, typer.Option("--log-requests", help="A line on stderr for each request; no texts.")
    ] = False,
    fit_max_tokens: Annotated[
        bool, typer.Option("--fit-max-tokens", help="Shorten answers to the context's room.")
    ] = False,
    images: Annotated[
        Pictures, typer.Option(help="Refuse pictures, or tell the model that one was there.")
    ] = Pictures.REFUSE,
) -> None:
    """Serve the model over HTTP: a chat in the browser, OpenAI's and Anthropic's APIs."""
    try:
        from strata.server.engine_state import Limits
        from strata.server.security import Rules
        from strata.server.serve import ServeOptions, serve
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"the server needs a package that is not installed: {error.name}.\n"
            "  Try: pip install 'strata-engine[server]'"
        ) from None
    if file is not None:
        if settings.model is not None:
            raise SettingsError(
                f"two models are named: {file} and --model {settings.model}.\n  Try: one of them."
            )
        settings = replace(settings, model=file)
    options = ServeOptions(
        host=host,
        port=port,
        name=name,
        aliases=tuple(alias or ()),
        fit_max_tokens=fit_max_tokens,
        pictures=images,
        rules=Rules(
            api_key=api_key if api_key is not None else api_key_of_environment(),
            hosts=tuple(item.lower() for item in allow_host or ()),
            origins=tuple(cors_origin or ()),
            max_body_bytes=max_body_mib * 1024 * 1024,
        ),
        limits=Limits(max_open=max_waiting, watchdog_s=watchdog_s),
    )
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    if log_requests:
        logging.getLogger("strata.requests").setLevel(logging.INFO)
    with notices_on_stderr():
        serve(
            settings,
            options,
            on_listening=lambda address: say(
                f"listening on {address}; loading the model. A browser shows a chat there."
            ),
            on_ready=lambda model: say(f"ready: {model}"),
        )
