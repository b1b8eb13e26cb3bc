"""Times on a card of bringing experts: copies over the link, and repacking, by how many at a time.

    python benchmarks/gpu/fetch_on_card.py [--formats IQ3_S,IQ3_S,IQ4_NL] [--jobs 1,2,4,16,32]

Experts are random bytes of the Coder geometry's size; nothing is checked here, see
``tests/unit/gpu/test_gpu_fetch.py``.
"""

from __future__ import annotations

import argparse

import torch

from strata.cpu.build import open_context
from strata.cpu.expert_serving import panel_bits
from strata.gpu.expert_slots import BlobLayout, empty_slots
from strata.gpu.kernels.fetch import Jobs, copy_from_host, repack
from strata.gpu.profile import card_seconds
from strata.gpu.repack import make_repack

HIDDEN, SIZE = 2560, 640
DEVICE = torch.device("cuda")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--formats", default="IQ3_S,IQ3_S,IQ4_NL")
    parser.add_argument("--jobs", default="1,2,4,16,32")
    args = parser.parse_args()
    names = tuple(args.formats.split(","))
    ctx, layout = open_context(1, None), BlobLayout(names, HIDDEN, SIZE)
    made = {name: make_repack(name, panel_bits(ctx, name), DEVICE) for name in names}
    tables = tuple(made[name] for name in names)
    size = sum(table.host_bytes(*layout.shape_of(role)) for role, table in enumerate(tables))
    most = max(map(int, args.jobs.split(",")))
    host = torch.zeros((most, size), dtype=torch.uint8, pin_memory=True)
    raw = torch.randint(0, 256, (most, size), dtype=torch.uint8, device=DEVICE)
    slots = empty_slots(layout, most, most, DEVICE)
    scales = torch.ones((most, 3), device=DEVICE)

    def addresses(tensor: torch.Tensor) -> torch.Tensor:
        places = [tensor[row].data_ptr() for row in range(most)]
        return torch.tensor(places, dtype=torch.int64, device=DEVICE)

    jobs = Jobs(*(addresses(part) for part in (host, scales, slots.blobs, slots.scales)))
    for num in map(int, args.jobs.split(",")):
        some = jobs.first(num)
        copied = card_seconds(lambda: copy_from_host(some, raw, size), 20)  # noqa: B023
        engine = card_seconds(
            lambda: raw[:num].copy_(host[:num], non_blocking=True),  # noqa: B023
            20,
        )
        packed = card_seconds(lambda: repack(tables, layout, some, raw), 20)  # noqa: B023
        print(f"{num:3} experts of {size} bytes: copied by a kernel {1e6 * copied:7.1f} us, "
              f"{num * size / copied / 1e9:5.1f} GB/s; by the engine {1e6 * engine:7.1f} us, "
              f"{num * size / engine / 1e9:5.1f} GB/s; repacked {1e6 * packed:6.1f} us, "
              f"{1e6 * packed / num:5.1f} us each", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
