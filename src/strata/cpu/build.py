"""Settings into a model on the CPU: number of threads, instruction set, loading."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from strata import _native
from strata.cpu.expert_build import open_tier
from strata.cpu.model import CHUNK_TOKENS, CpuModel
from strata.cpu.native import set_up
from strata.errors import DeviceError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from strata._native import Context
    from strata.formats.tensor_index import TensorIndex
    from strata.model_spec import ModelSpec
    from strata.settings import Settings

_TOPOLOGY = Path("/sys/devices/system/cpu")
_PROBE_BYTES = 1 << 29  # larger than the last-level caches this is likely to meet


def load_model(
    index: TensorIndex,
    spec: ModelSpec,
    settings: Settings,
    *,
    on_progress: Callable[[int, int], None] | None = None,
) -> CpuModel:
    """The model of ``index``, packed for this processor.

    Args:
        index: an open model whose layout has been checked; may be closed afterwards.
        spec: its geometry.
        settings: threads, isa, kv_format, chunk_tokens, direct_io, draft_tokens and those of the
            file tier are used.
        on_progress: called with (bytes read, bytes to read).

    Raises:
        CheckpointError: a tensor cannot be used; names it.
        DeviceError: this processor lacks the instruction set asked for.
        SettingsError: a format of keys and values that only a card has.
        PlanError: the memory this may take is too small even with experts on the disk.
    """
    if settings.kv_format == "int8":
        raise SettingsError(
            "the processor keeps keys and values as f16 or f32, not as int8 (setting kv_format).\n"
            "  Try: --kv f16"
        )
    ctx = open_context(settings.threads, settings.isa)
    return CpuModel(
        ctx,
        index,
        spec,
        kv_format=settings.kv_format,
        chunk_tokens=settings.chunk_tokens or CHUNK_TOKENS,
        direct_io=settings.direct_io,
        has_draft=settings.draft_tokens > 0 and spec.num_draft_layers > 0,
        tier=open_tier(ctx, index, spec, settings, on_progress),
        on_progress=on_progress,
    )


def open_context(threads: int | None, isa: str | None) -> Context:
    """Worker threads (None: one for each physical core) with an instruction set (None: the best).

    Raises:
        DeviceError: this processor lacks the instruction set, or the system refuses the threads.
    """
    set_up()
    chosen = _native.best_isa() if isa is None else isa
    if not _native.is_isa_supported(chosen):
        raise DeviceError(
            f"this processor cannot run {chosen} kernels; its best is {_native.best_isa()}.\n"
            f"  Try: --isa {_native.best_isa()}, or leave it out."
        )
    num_threads = physical_cores() if threads is None else threads
    try:
        return _native.Context(num_threads, chosen)
    except (RuntimeError, MemoryError) as error:
        raise DeviceError(
            f"the system refuses {num_threads} worker threads: {error}.\n"
            f"  Try: --threads {physical_cores()}, or raise the limit of threads or memory."
        ) from error


def measure_bandwidth(threads: int | None) -> float:
    """Bytes per second these worker threads read from memory, measured now."""
    return float(_native.measure_bandwidth(open_context(threads, None), _PROBE_BYTES))


def physical_cores() -> int:
    """Cores this process may run on, two hardware threads of one core counted once."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cores = set()
    for cpu in os.sched_getaffinity(0):
        siblings = _TOPOLOGY / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        # Containers may hide the topology; then every hardware thread counts.
        cores.add(siblings.read_text().strip() if siblings.is_file() else str(cpu))
    return len(cores)
