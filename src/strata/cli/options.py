"""Command-line flags made from the fields of ``Settings``, so that a wish is written once."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strata.settings import Settings, default_of, wish_of

if TYPE_CHECKING:
    from collections.abc import Callable

ENGINE_SETTINGS = (
    "model",
    "context_len",
    "device",
    "vram_limit",
    "ram_limit",
    "resident_experts",
    "expert_store",
    "mmap_experts",
    "look_ahead",
    "vram_reserve",
    "expert_cache",
    "expert_cache_per_layer",
    "expert_policy",
    "expert_profile",
    "profile_dir",
    "verify_slots",
    "pcie_frac",
    "keep_copied",
    "threads",
    "isa",
    "kv_format",
    "chunk_tokens",
    "prefill_borrow",
    "direct_io",
    "draft_tokens",
)


def with_settings(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds the flags of these settings to a command whose first parameter is ``settings``."""

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
        flags = [_parameter(name) for name in names]

        def run(**values: object) -> None:
            options = {name: values.pop(name) for name in names}
            command(Settings.from_options(options), **values)

        run.__doc__ = command.__doc__
        run.__name__ = command.__name__
        run.__signature__ = inspect.Signature(own + flags)  # type: ignore[attr-defined]
        run.__annotations__ = {item.name: item.annotation for item in own + flags}
        return run

    return wrap


def _parameter(name: str) -> inspect.Parameter:
    wish = wish_of(name)
    default = default_of(name)
    text = wish.help
    if wish.choices:
        text += f" One of {', '.join(wish.choices)}."
    if default is not None and wish.kind is not bool:
        text += f" Default: {default}."
    # Always None when not given: Settings knows the default, and the environment comes between.
    kind: Any = (str if wish.is_mib else wish.kind) | None
    option = typer.Option(*wish.flags, help=text, show_default=False)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
    )
