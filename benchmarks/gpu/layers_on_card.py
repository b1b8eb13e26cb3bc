"""Microseconds of every operation of a window's layers on a card, products and experts apart.

    python benchmarks/gpu/layers_on_card.py [--rows 1,4,8] [--cells 2000,4096,131072] [--only gdn]

Each operation is captured a few hundred times in a row into a graph, so that the figure is that of
a launch inside a window. "floor" is its bytes from memory at 4.27 TB/s, the card's copy speed.
"""

from __future__ import annotations

import argparse

import torch
from layer_launches import launches
from triton_cache import add_options, carried

REPEATS = 240
COPY_BYTES_PER_S = 4.27e12


def microseconds(copies) -> float:
    """Mean time of one launch inside a graph, the best of five replays."""
    for copy in copies:
        copy()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(REPEATS):
            copies[index % len(copies)]()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(5):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / REPEATS)
    return min(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="1,4,8")
    parser.add_argument("--cells", default="2000,4096,131072")
    parser.add_argument("--only", default="")
    add_options(parser)
    args = parser.parse_args()
    with carried(args):
        measured(args)


def measured(args):
    print(torch.cuda.get_device_name(), torch.__version__)
    for cells in map(int, args.cells.split(",")):
        for rows in map(int, args.rows.split(",")):
            print(f"cells {cells}, rows {rows}")
            # 36 layers of memory, 113 MB, do not stay in the second level cache.
            for launch in launches("cuda", rows, cells, -(-cells // 256) * 256 + 256, 36):
                if args.only in launch.name:
                    time = microseconds(launch.copies)
                    floor = launch.num_bytes / COPY_BYTES_PER_S * 1e6
                    print(f"  {launch.name:24} {time:8.2f} us   floor {floor:6.2f}", flush=True)


if __name__ == "__main__":
    main()
