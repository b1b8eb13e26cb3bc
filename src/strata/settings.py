"""What the user may wish for, each wish written once.

Owns the ``Settings`` fields, their checks, and every read of the environment. Flags
(``cli.options``), environment names and the table in the docs are generated from the fields.
Does not decide anything: ``None`` means the engine decides. Nothing edits settings afterwards.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strata.errors import SettingsError
from strata.wishes import Wish, check, parse, unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

KV_FORMATS = ("f16", "f32", "int8")
DEVICES = ("cpu", "cuda", "auto")
ISAS = ("scalar", "avx2", "avx512", "amx")
EXPERT_POLICIES = ("lru", "lfu", "swaps", "ema", "stale", "lru-filter")


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
            "Most VRAM taken, in MiB or as 12G. Default: what is free.",
            env="STRATA_VRAM_LIMIT",
            minimum=1,
            maximum=1 << 24,
            is_mib=True,
        ),
    )
    ram_limit: int | None = field(
        default=None,
        metadata=_wish(
            int,
            "--ram-limit",
            "Most RAM taken, in MiB or as 8G: experts that have no room in it "
            "are read from the disk when they are wanted. Default: what is free, less an eighth "
            "of it or 4 GiB.",
            env="STRATA_RAM_LIMIT",
            minimum=1,
            maximum=1 << 24,
            is_mib=True,
        ),
    )
    resident_experts: bool = field(
        default=False,
        metadata=_wish(
            bool,
            "--resident-experts/--all-experts-in-memory",
            "Keep in RAM only experts that are not in VRAM; the others are in the expert store.",
        ),
    )
    expert_store: Path | None = field(
        default=None,
        metadata=_wish(
            Path,
            "--expert-store",
            "Folder of the expert store, a file that is made once for a model whose experts do not "
            "all fit in RAM. Default: the model's folder.",
            env="STRATA_EXPERT_STORE",
        ),
    )
    mmap_experts: bool = field(
        default=False,
        metadata=_wish(
            bool,
            "--mmap-experts/--no-mmap-experts",
            "Make no expert store: read experts from the model's own file, which takes longer for "
            "each.",
        ),
    )
    look_ahead: bool = field(
        default=True,
        metadata=_wish(
            bool,
            "--look-ahead/--no-look-ahead",
            "Where experts are read from a disk: read beforehand those that the next layer is "
            "likely to want. Texts are the same without.",
            env="STRATA_LOOK_AHEAD",
        ),
    )
    vram_reserve: int = field(
        default=256,
        metadata=_wish(
            int,
            "--vram-reserve-mib",
            "VRAM that slots for experts leave free, in MiB.",
            env="STRATA_VRAM_RESERVE",
            minimum=0,
            maximum=1 << 24,
        ),
    )
    expert_cache: int | None = field(
        default=None,
        metadata=_wish(
            int,
            "--expert-cache",
            "Experts kept in VRAM, of all layers together; the processor computes the others. "
            "Default: all, or as many as there is room for.",
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
            "Which experts stay in VRAM; strata replay compares them.",
            choices=EXPERT_POLICIES,
        ),
    )
    expert_profile: Path | None = field(
        default=None,
        metadata=_wish(
            Path,
            "--expert-profile",
            "Ranking of experts, as strata replay --save-profile writes it: the best are in VRAM "
            "from the start, and what is learned of them is written back at the end.",
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
            "Compare every expert in VRAM with the copy in RAM before the first token, not "
            "only one.",
        ),
    )
    pcie_frac: float | None = field(
        default=None,
        metadata=_wish(
            float,
            "--pcie-frac",
            "Part of the experts missing in VRAM that is copied there instead of computed by "
            "the processor. Default: what ends both at the same time.",
            env="STRATA_PCIE_FRAC",
            minimum=0,
            maximum=1,
        ),
    )
    keep_copied: bool = field(
        default=False,
        metadata=_wish(
            bool,
            "--keep-copied/--forget-copied",
            "Experts that are copied to a card for one token stay there, in the slots of those "
            "that are worth least.",
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
            "--chunk --prefill",
            "Prompt tokens read in one step; cuts lie at multiples of it. Default: 512, on a card "
            "8192 or what its VRAM has room for, or what its slots for experts can lend.",
            env="STRATA_CHUNK",
            minimum=1,
            maximum=1 << 16,
        ),
    )
    prefill_borrow: bool = field(
        default=True,
        metadata=_wish(
            bool,
            "--prefill-borrow/--no-prefill-borrow",
            "While a prompt is read, its buffers take the memory of slots for experts, which come "
            "back afterwards; without, they have memory of their own, and there are fewer slots.",
        ),
    )
    direct_io: bool | None = field(
        default=None,
        metadata=_wish(
            bool,
            "--direct-io/--no-direct-io",
            "Read n-gram rows past the page cache, so that they do not push weights out of RAM. "
            "Default: where the table is larger than half of the RAM that is free.",
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
            "RAM for conversations besides the current one, in MiB; 0 keeps none. Default: a "
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
            check(item, getattr(self, item.name))

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
                raise SettingsError(unknown(name, tuple(names)))
        if environ is None:
            environ = os.environ
        values: dict[str, Any] = {}
        for name, item in names.items():
            wish: Wish = item.metadata["wish"]
            if options.get(name) is not None:
                values[name] = parse(name, wish, options[name])
            elif wish.env is not None and environ.get(wish.env):
                values[name] = parse(wish.env, wish, environ[wish.env])
        return cls(**values)


def wish_of(name: str) -> Wish:
    """Metadata of one field."""
    wish: Wish = Settings.__dataclass_fields__[name].metadata["wish"]
    return wish


def default_of(name: str) -> object:
    """Default of one field."""
    return Settings.__dataclass_fields__[name].default


def is_debug() -> bool:
    """``STRATA_DEBUG=1``: an error keeps its traceback. Default off; for reports of bugs."""
    return os.environ.get("STRATA_DEBUG", "") not in ("", "0")


def api_key_of_environment() -> str | None:
    """``STRATA_API_KEY``: the key of ``strata serve``, for those who keep it off command lines."""
    return os.environ.get("STRATA_API_KEY") or None
