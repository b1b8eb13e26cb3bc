"""What a card is and how fast it is at the plainest things: names, versions, measured rates."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

import torch
import triton

from strata.gpu.kernels.rate_probe import WORDS, many_dots
from strata.gpu.profile import card_seconds
from strata.units import GiB, MiB

_COPY_BYTES = 2 * GiB
_REPEATS = 7
_ROUNDS = 4096  # dot products of each sum
_SIDE = 8192  # of the matrices that tensor cores multiply


@dataclass(frozen=True, slots=True)
class Rates:
    """Measured ceilings.

    Attributes:
        copy_bytes_per_s: of a copy within the card; bytes read and bytes written both count.
        dot_products_per_s: multiplications of 8-bit integers by dot product instructions.
        tensor_products_per_s: the same by tensor cores, in a large matrix product.
    """

    copy_bytes_per_s: float
    dot_products_per_s: float
    tensor_products_per_s: float


def card_facts(device: torch.device) -> dict[str, object]:
    """Name, memory, driver and versions of the packages."""
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "driver": driver_version(),
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "triton": triton.__version__,
    }


def driver_version() -> str | None:
    """Of NVIDIA's driver; None where its tool is not there or says nothing."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.split()
    return lines[0] if done.returncode == 0 and lines else None


def measure_rates(device: torch.device) -> Rates:
    """The ceilings, measured now; takes a second, and memory that it gives back."""
    rates = Rates(_copy_rate(device), _dot_rate(device), _tensor_rate(device))
    torch.cuda.empty_cache()
    return rates


def _copy_rate(device: torch.device) -> float:
    free, _ = torch.cuda.mem_get_info(device)
    # Well beyond the second level cache, or the rate would be that cache's.
    size = max(256 * MiB, min(_COPY_BYTES, free // 4))
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / card_seconds(lambda: target.copy_(source), _REPEATS)


def _dot_rate(device: torch.device) -> float:
    programs = 16 * torch.cuda.get_device_properties(device).multi_processor_count
    words = torch.arange(WORDS, dtype=torch.int32, device=device)
    out = torch.empty(programs, WORDS, dtype=torch.int32, device=device)

    def run() -> int:
        return many_dots(words, out, programs, _ROUNDS)

    return run() / card_seconds(run, _REPEATS)


def _tensor_rate(device: torch.device) -> float:
    a, b = (
        torch.randint(-128, 128, (_SIDE, _SIDE), dtype=torch.int8, device=device) for _ in range(2)
    )
    # Columns of the second one lie together, as the library wants them.
    return _SIDE**3 / card_seconds(lambda: torch._int_mm(a, b.t()), _REPEATS)
