"""The time of a hand-off: what a layer pays for asking the processor, of almost no work.

Part of ``tiers_on_card.py hand_off``. The graph, the mailbox and the thread are the real ones; the
experts are one block wide.
"""

from __future__ import annotations

import numpy as np
import torch

from strata import _native
from strata.cpu.build import open_context
from strata.formats.block_formats import FORMATS
from strata.gpu.graphs import captured
from strata.gpu.kernels.hand_off import HandOff, post, wait
from strata.gpu.kernels.quantize import empty_codes, quantize
from strata.gpu.profile import card_seconds
from strata.tiers.hand_off import SERVED, MailboxLayout

DEVICE = torch.device("cuda")


def hand_off(args) -> None:
    """Microseconds of a layer's round trip; the expert is one block wide, so it costs little."""
    layers, top_k, hidden, size, num = 48, 10, 2560, 32, 16
    layout = MailboxLayout(layers, 8, top_k, hidden)
    ctx = open_context(args.threads, None)
    formats = [FORMATS[name].ggml_id for name in ("Q8_0", "Q8_0", "Q8_0")]
    layer = _native.ExpertLayer(*formats, num, hidden, size)
    stride = -(-layer.expert_bytes // 4096) * 4096
    blobs, factors = np.zeros(num * stride + 64, np.uint8), np.ones((num, 3), np.float32)
    layer.set_memory(blobs.ctypes.data, stride, factors.ctypes.data)
    box = torch.zeros(layout.num_bytes, dtype=torch.uint8, pin_memory=True)
    addresses = [box.data_ptr() + offset for offset in layout.offsets[:7]]
    server = _native.ExpertServer(ctx, [layer] * layers, addresses, 8, top_k, (blobs, factors, box))
    server.start(0)
    server.begin()

    def ints(n, dtype=torch.int32):
        return torch.zeros(n, dtype=dtype, device=DEVICE)

    state = HandOff(
        box.data_ptr(), layout, ints(1), ints(2), ints(1), ints(80), ints(81),
        ints(4, torch.int64), ints(4, torch.int64), int(2e9),
    )  # fmt: skip
    slot_of = ints(num)
    stage_of, reachable = ints(num), ints(num, torch.int64)
    factors_there = torch.ones((num, 3), device=DEVICE)
    codes, bad = empty_codes(1, hidden, DEVICE), ints(1)
    quantize(torch.randn((1, hidden), device=DEVICE), codes, bad)
    ids = torch.arange(top_k, dtype=torch.int32, device=DEVICE)[None]
    y = torch.zeros((80, hidden), device=DEVICE)

    def window() -> None:
        for number in range(layers):
            post(state, number, ids, slot_of, reachable, stage_of, factors_there, codes,
                 has_staging=False)  # fmt: skip
            wait(state, y, top_k, bad)

    counts = np.zeros((layers, len(SERVED)), np.int64)
    for misses in (0, 1, 2, 5, 10):
        slot_of[:] = 0
        slot_of[:misses] = -1
        graph = captured(window)
        server.read_counts(counts)
        before = counts.sum(axis=0)
        micros = card_seconds(graph.replay, 100) * 1e6 / layers
        torch.cuda.synchronize()
        server.read_counts(counts)
        served = dict(zip(SERVED, (counts.sum(axis=0) - before).tolist(), strict=True))
        busy = served["nanoseconds"] / max(1, served["requests"])
        fault = int(state.fault.item())
        print(f"{misses:2} of {top_k} entries asked for: {micros:6.2f} us a layer, of which the "
              f"processor at work {busy / 1e3:6.2f}"
              + (f"; FAULT {fault}" if fault else ""), flush=True)  # fmt: skip
    server.end()
    server.stop(5.0)
