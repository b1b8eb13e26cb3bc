"""What this machine is: the cores we may use, and how fast they read memory. The only probe."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

_TOPOLOGY = Path("/sys/devices/system/cpu")
_PROBE_BYTES = 1 << 28  # larger than the last-level caches this is likely to meet
_PROBE_ROUNDS = 5


def physical_cores(topology: Path = _TOPOLOGY) -> int:
    """Cores this process may run on, two hardware threads of one core counted once; at least 1."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    allowed = os.sched_getaffinity(0)
    cores = set()
    for cpu in allowed:
        siblings = topology / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        try:
            cores.add(siblings.read_text().strip())
        except OSError:
            # Containers may hide the topology; then every hardware thread counts.
            cores.add(str(cpu))
    return max(1, len(cores))


def estimate_bandwidth(num_threads: int) -> float:
    """Bytes per second that ``num_threads`` threads read by OR-ing arrays; a lower bound."""
    size = _PROBE_BYTES // num_threads // 8
    parts = [np.ones(size, dtype=np.int64) for _ in range(num_threads)]
    num_bytes = sum(part.nbytes for part in parts)
    best_s = float("inf")
    with ThreadPoolExecutor(num_threads) as pool:
        for _ in range(_PROBE_ROUNDS):
            started_s = time.perf_counter()
            # The cheapest reduction numpy vectorises; it releases the interpreter lock.
            list(pool.map(np.bitwise_or.reduce, parts))
            best_s = min(best_s, time.perf_counter() - started_s)
    return num_bytes / best_s
