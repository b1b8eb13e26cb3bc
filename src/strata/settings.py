"""What the user may wish for, each wish written once.

Owns the ``Settings`` fields, their checks, and every read of the environment. Flags
(``cli.options``), environment names and the table in the docs are generated from the fields.
Does not decide anything: ``None`` means the engine decides. Nothing edits settings afterwards.
"""

from __future__ import annotations

import difflib
import os
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strata.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

KV_FORMATS = ("f16", "f32", "int8")
DEVICES = ("cpu", "cuda", "auto")
ISAS = ("scalar", "avx2", "avx512", "amx")
EXPERT_POLICIES = ("lru", "lfu", "swaps", "ema", "stale", "lru-filter")


@dataclass(frozen=True, slots=True)
class Wish:
    """What is known of one settings field besides its name and type.

    ``kind`` is the type of a value that is present: ``int``, ``float``, ``str``, ``bool`` or
    ``Path``.
    """

    kind: type
    help: str
    flags: tuple[str, ...]
    env: str | None = None
    choices: tuple[str, ...] | None = None
    minimum: float | None = None
    maximum: float | None = None


def _wish(kind: type, flags: str, text: str, **rest: Any) -> dict[str, Wish]:
    """Field metadata: a plain ``dataclasses.field`` takes the default, this takes the rest."""
    return {"wish": Wish(kind=kind, help=text, flags=tuple(flags.split()), **rest)}


@dataclass(frozen=True, slots=True)
class Settings:
    """Every wish. Build it with ``Settings.from_options``, which also reads the environment."""

    model: Path | None = field(
        default=None,
        metadata=_wish(
            Path, "--model -m", "Model file (GGUF; any shard). Default: the shipped demo."
        ),
    )
    context_len: int | None = field(
        default=None,
        metadata=_wish(
            int,
            "--context -c",
            "Tokens a conversation can hold. Default: the model's own, at most 8192.",
            minimum=1,
            maximum=1 << 24,
        ),
    )
    device: str = field(
        default="cpu",
        metadata=_wish(
            str,
            "--device",
            "What computes: the processor, a graphics card, or a card where one can be used.",
            env="STRATA_DEVICE",
            choices=DEVICES,
        ),
    )
    vram_limit: int | None = field(
        default=None,
        metadata=_wish(
            int,
            "--vram-limit",
            "Most memory taken on a graphics card, in MiB. Default: what is free.",
            env="STRATA_VRAM_LIMIT",
            minimum=1,
            maximum=1 << 24,
        ),
    )
    expert_cache: int | None = field(
        default=None,
        metadata=_wish(
            int,
            "--expert-cache",
            "Experts kept on a graphics card, of all layers together; the processor computes the "
            "others. Default: all, or as many as its memory has room for.",
            env="STRATA_EXPERT_CACHE",
            minimum=0,
            maximum=1 << 24,
        ),
    )
    expert_cache_per_layer: bool = field(
        default=False,
        metadata=_wish(
            bool,
            "--expert-cache-per-layer/--expert-cache-shared",
            "Divide that room by layer, as is always done where experts differ in size.",
        ),
    )
    expert_policy: str = field(
        default="ema",
        metadata=_wish(
            str,
            "--expert-policy",
            "Which experts stay on the card; strata replay compares them.",
            choices=EXPERT_POLICIES,
        ),
    )
    expert_profile: Path | None = field(
        default=None,
        metadata=_wish(
            Path,
            "--expert-profile",
            "Ranking of experts, as strata replay --save-profile writes it: the best are on the "
            "card from the start, and what is learned of them is written back at the end.",
        ),
    )
    profile_dir: Path | None = field(
        default=None,
        metadata=_wish(
            Path,
            "--profile-dir",
            "Keep a profile of each model's experts in this folder, for when none is named.",
            env="STRATA_PROFILE_DIR",
        ),
    )
    verify_slots: bool = field(
        default=False,
        metadata=_wish(
            bool,
            "--verify-slots/--no-verify-slots",
            "Compare every expert on the card with the copy in memory before the first token, not "
            "only one.",
        ),
    )
    pcie_frac: float | None = field(
        default=None,
        metadata=_wish(
            float,
            "--pcie-frac",
            "Part of the experts missing on the card that is copied there instead of computed by "
            "the processor. Default: what ends both at the same time.",
            env="STRATA_PCIE_FRAC",
            minimum=0,
            maximum=1,
        ),
    )
    threads: int | None = field(
        default=None,
        metadata=_wish(
            int,
            "--threads -t",
            "Worker threads. Default: one for each physical core.",
            env="STRATA_THREADS",
            minimum=1,
            maximum=1024,
        ),
    )
    isa: str | None = field(
        default=None,
        metadata=_wish(
            str,
            "--isa",
            "Force one instruction set, to compare results. Default: the best of this processor.",
            env="STRATA_ISA",
            choices=ISAS,
        ),
    )
    kv_format: str = field(
        default="f16",
        metadata=_wish(
            str,
            "--kv",
            "How keys and values are stored: f16 anywhere, f32 by the processor, int8 on a card.",
            choices=KV_FORMATS,
        ),
    )
    chunk_tokens: int | None = field(
        default=None,
        metadata=_wish(
            int,
            "--chunk",
            "Prompt tokens read in one step; cuts lie at multiples of it. Default: 512, on a card "
            "8192 or what its memory has room for.",
            env="STRATA_CHUNK",
            minimum=1,
            maximum=1 << 16,
        ),
    )
    direct_io: bool | None = field(
        default=None,
        metadata=_wish(
            bool,
            "--direct-io/--no-direct-io",
            "Read n-gram rows past the page cache, so that they do not push weights out of memory. "
            "Default: where the table is larger than half of the memory that is free.",
            env="STRATA_DIRECT_IO",
        ),
    )
    draft_tokens: int = field(
        default=0,
        metadata=_wish(
            int,
            "--draft",
            "Tokens guessed ahead in each step by the model's draft layer. They change the speed, "
            "never the text.",
            env="STRATA_DRAFT",
            minimum=0,
            maximum=3,
        ),
    )
    checkpoints: int = field(
        default=6,
        metadata=_wish(
            int,
            "--checkpoints",
            "Earlier states kept of each conversation, to continue a chat without reading it "
            "again.",
            minimum=0,
            maximum=64,
        ),
    )
    conversation_ram: int | None = field(
        default=None,
        metadata=_wish(
            int,
            "--conversation-ram",
            "Memory for conversations besides the current one, in MiB; 0 keeps none. Default: a "
            "quarter of what is free, at most 8192.",
            env="STRATA_CONVERSATION_RAM",
            minimum=0,
            maximum=1 << 24,
        ),
    )
    conversation_dir: Path | None = field(
        default=None,
        metadata=_wish(
            Path,
            "--conversation-dir",
            "Save conversations in this folder, so that a server started again continues them.",
            env="STRATA_CONVERSATION_DIR",
        ),
    )
    conversation_disk: int = field(
        default=8192,
        metadata=_wish(
            int,
            "--conversation-disk",
            "Most that saved conversations take on disk, in MiB; the oldest go first.",
            env="STRATA_CONVERSATION_DISK",
            minimum=1,
            maximum=1 << 30,
        ),
    )
    routing_trace: Path | None = field(
        default=None,
        metadata=_wish(
            Path,
            "--routing-trace",
            "Write which experts every token asked for to this file; for strata replay.",
        ),
    )

    def __post_init__(self) -> None:
        for item in fields(self):
            _check(item, getattr(self, item.name))

    @classmethod
    def from_options(
        cls, options: Mapping[str, object], *, environ: Mapping[str, str] | None = None
    ) -> Settings:
        """Settings of ``options`` over the environment over the defaults.

        Args:
            options: field name to value; ``None`` means not given. Text is parsed.
            environ: stands in for the process environment, for tests.

        Raises:
            SettingsError: unknown name (with the nearest one), malformed or out of range.
        """
        names = {item.name: item for item in fields(cls)}
        for name in options:
            if name not in names:
                raise SettingsError(_unknown(name, tuple(names)))
        if environ is None:
            environ = os.environ
        values: dict[str, Any] = {}
        for name, item in names.items():
            wish: Wish = item.metadata["wish"]
            if options.get(name) is not None:
                values[name] = _parse(name, wish, options[name])
            elif wish.env is not None and environ.get(wish.env):
                values[name] = _parse(wish.env, wish, environ[wish.env])
        return cls(**values)


def wish_of(name: str) -> Wish:
    """Metadata of one field."""
    wish: Wish = Settings.__dataclass_fields__[name].metadata["wish"]
    return wish


def default_of(name: str) -> object:
    """Default of one field."""
    return Settings.__dataclass_fields__[name].default


def settings_table() -> str:
    """The settings as a Markdown table, for docs/settings.md."""
    lines = ["| name | flag | environment | default | meaning |", "| --- | --- | --- | --- | --- |"]
    for item in fields(Settings):
        wish: Wish = item.metadata["wish"]
        flag = ", ".join(f"`{part}`" for part in wish.flags)
        env = f"`{wish.env}`" if wish.env else ""
        choices = f" One of {', '.join(wish.choices)}." if wish.choices else ""
        default = "" if item.default is None else f"`{item.default}`"
        lines.append(f"| `{item.name}` | {flag} | {env} | {default} | {wish.help}{choices} |")
    return "\n".join(lines) + "\n"


def is_debug() -> bool:
    """``STRATA_DEBUG=1``: an error keeps its traceback. Default off; for reports of bugs."""
    return os.environ.get("STRATA_DEBUG", "") not in ("", "0")


def api_key_of_environment() -> str | None:
    """``STRATA_API_KEY``: the key of ``strata serve``, for those who keep it off command lines."""
    return os.environ.get("STRATA_API_KEY") or None


def nearest(name: str, known: tuple[str, ...]) -> str | None:
    """The known name that looks most like ``name``, if one does."""
    found = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return found[0] if found else None


def _unknown(name: str, known: tuple[str, ...]) -> str:
    guess = nearest(name, known)
    hint = f"did you mean {guess}?" if guess else f"one of {', '.join(known)}."
    return f"there is no setting {name!r}.\n  Try: {hint}"


def _parse(name: str, wish: Wish, value: object) -> object:
    if not isinstance(value, str):
        return Path(value) if wish.kind is Path and isinstance(value, os.PathLike) else value
    if wish.kind is int:
        try:
            return int(value)
        except ValueError:
            raise SettingsError(
                f"{name} must be a whole number, not {value!r}.\n  Try: {name}=1"
            ) from None
    if wish.kind is float:
        try:
            return float(value)
        except ValueError:
            raise SettingsError(
                f"{name} must be a number, not {value!r}.\n  Try: {name}=0.5"
            ) from None
    if wish.kind is bool:
        known = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
        if value.lower() not in known:
            raise SettingsError(f"{name} must be 0 or 1, not {value!r}.\n  Try: {name}=1")
        return known[value.lower()]
    return Path(value) if wish.kind is Path else value


def _check(item: Field[Any], value: object) -> None:
    wish: Wish = item.metadata["wish"]
    if value is None and item.default is None:
        return
    is_wrong_number = wish.kind in (int, float) and isinstance(value, bool)
    kinds = (int, float) if wish.kind is float else wish.kind
    if not isinstance(value, kinds) or is_wrong_number:
        raise SettingsError(
            f"setting {item.name} must be {wish.kind.__name__}, not {type(value).__name__} "
            f"({value!r}).\n  Try: {wish.flags[0]}"
        )
    if wish.choices is not None and value not in wish.choices:
        guess = nearest(str(value), wish.choices)
        hint = guess if guess else " or ".join(wish.choices)
        raise SettingsError(
            f"setting {item.name} must be one of {', '.join(wish.choices)}, not {value!r}.\n"
            f"  Try: {hint}"
        )
    if isinstance(value, int | float):
        if wish.minimum is not None and value < wish.minimum:
            raise SettingsError(
                f"setting {item.name} must be at least {wish.minimum}, not {value}.\n"
                f"  Try: {wish.flags[0]} {wish.minimum}"
            )
        if wish.maximum is not None and value > wish.maximum:
            raise SettingsError(
                f"setting {item.name} must be at most {wish.maximum}, not {value}.\n"
                f"  Try: {wish.flags[0]} {wish.maximum}"
            )
