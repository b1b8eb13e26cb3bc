"""Many clients at once on the demo model, some of them rude: does each get its own answer?

    python -m benchmarks.server.load [--clients 32] [--seconds 120] [--kills 6] [--seed 1]

Each client asks for code words of its own through all three chat APIs, whole and streamed, and now
and then leaves in the middle, sends half a body or nonsense. Meanwhile the engine's process is
killed. It fails if an answer lacks its word, if a request is neither answered nor refused in time,
if nonsense gets anything but a 4xx, or if the server keeps files, threads or memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil
from benchmarks.server.clients import Client, Outcome, Tally
from benchmarks.server.served import Served


async def kill_engines(served: Served, tally: Tally, end_s: float, num_kills: int) -> None:
    """Ends the engine's process that often, evenly spread over the time."""
    pause_s = (end_s - time.monotonic()) / (num_kills + 1)
    for _ in range(num_kills):
        await asyncio.sleep(pause_s)
        if await served.kill_engine():
            tally.count[Outcome.KILL] += 1


async def run(served: Served, args: argparse.Namespace) -> Tally:
    tally = Tally()
    rng = random.Random(args.seed)
    clients = [
        Client(served.address, index, random.Random(rng.random()), tally)
        for index in range(args.clients)
    ]
    await asyncio.gather(*(client.learn() for client in clients))  # also warm, for what is kept
    before = served.held()
    end_s = time.monotonic() + args.seconds
    killer = asyncio.ensure_future(kill_engines(served, tally, end_s, args.kills))
    await asyncio.gather(*(client.run(end_s) for client in clients))
    await killer
    await served.wait_idle()
    tally.held = (before, served.held())
    return tally


def complaints(tally: Tally, args: argparse.Namespace) -> list[str]:
    """What was not as it should be."""
    wrong = list(tally.wrong)
    (files, threads, memory), (files_after, threads_after, memory_after) = tally.held
    # A killed engine's successor has a pipe of its own; sockets of clients are gone by now.
    if files_after > files + 4:
        wrong.append(f"open files grew from {files} to {files_after}")
    # Work outside the event loop starts threads one by one, up to this number, and keeps them.
    pool = min(32, 4 + (psutil.cpu_count() or 1))
    if threads_after > threads + pool + 2:
        wrong.append(f"threads grew from {threads} to {threads_after}")
    if memory_after > memory + args.memory_mib * 2**20:
        wrong.append(f"memory grew from {memory / 2**20:.1f} to {memory_after / 2**20:.1f} MiB")
    if tally.count[Outcome.ANSWERED] < args.clients:
        wrong.append(f"only {tally.count[Outcome.ANSWERED]} answers")
    if args.kills and not tally.count[Outcome.KILL]:
        wrong.append("no engine was killed")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--memory-mib", type=float, default=24.0, help="Growth that is allowed.")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "overhead.json"
        served = Served(report, "--threads", "1", "--max-waiting", str(2 * args.clients))
        try:
            tally = asyncio.run(run(served, args))
        finally:
            served.end()
        overhead = json.loads(report.read_text(encoding="utf-8"))
    (files, threads, memory), after = tally.held
    print(json.dumps({str(name): number for name, number in Counter(tally.count).items()}))
    print(f"files {files} -> {after[0]}, threads {threads} -> {after[1]}, ", end="")
    print(f"memory {memory / 2**20:.1f} -> {after[2] / 2**20:.1f} MiB")
    print("a token's way through the server:", json.dumps(overhead))
    print("of the machine:", f"{psutil.cpu_count()} processors, load {psutil.getloadavg()[0]:.1f}")
    wrong = complaints(tally, args)
    for text in wrong[:20]:
        print("WRONG:", text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
