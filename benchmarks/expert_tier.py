"""A model whose experts do not fit in memory: what the disk gives, and tokens a second of it.

    python benchmarks/expert_tier.py MODEL [--store FOLDER] [--share 1,0.5,0.25,0.1] [--tokens 64]
                                           [--prompt 256] [--trace FILE] [--json OUT]

Measures, with the page cache passed by: reads of whole layers' experts at depth, and of a window's
misses; then a prompt and single tokens by the processor, with a cache for these shares of all
experts, from an empty cache. --mapped reads the model's own file instead of a store. Experts are
chosen by the model's own router; synthetic weights choose evenly, the worst case of a cache.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

from strata.cpu.build import open_context, physical_cores
from strata.cpu.expert_build import experts_on_disk
from strata.cpu.expert_layers import layer_shapes
from strata.cpu.expert_tier import ExpertTier
from strata.cpu.model import CpuModel
from strata.engine.model_file import open_file
from strata.settings import Settings
from strata.units import format_bytes, format_rate

READ_SECONDS = 3.0


def read_rate(tier, shapes, experts_at_once):
    """Bytes a second of so many experts at a time, everywhere in the file, none of them cached."""
    rng = np.random.default_rng(0)
    room = np.zeros((experts_at_once, tier.place_bytes + 4096), np.uint8)
    places = [int(row.ctypes.data) + -int(row.ctypes.data) % 4096 for row in room]
    num_bytes, times = 0, []
    begin = time.perf_counter()
    while time.perf_counter() - begin < READ_SECONDS:
        layer = int(rng.integers(len(shapes)))
        experts = rng.permutation(shapes[layer].num_experts)[:experts_at_once].tolist()
        before = tier.counts().file_bytes
        first = time.perf_counter()
        tier.read(layer, experts, places[: len(experts)])
        times.append(time.perf_counter() - first)
        num_bytes += tier.counts().file_bytes - before
    return num_bytes / sum(times), float(np.median(times))


def measure(model, tier, num_prompt, num_tokens, vocab_size):
    """Rates of a prompt and of single tokens, and what became of their experts."""
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, vocab_size, num_prompt + num_tokens).astype(np.int32)
    session = model.new_session(num_prompt + num_tokens + 8)
    found = {}
    for name, part in (("prompt", tokens[:num_prompt]), ("decode", tokens[num_prompt:])):
        before = tier.counts() if tier else None
        begin = time.perf_counter()
        if name == "prompt":
            session.prefill(part)
        else:
            for token in part:
                session.decode(np.array([token], np.int32))
                session.commit(1)
        seconds = time.perf_counter() - begin
        found[name] = {"tokens_per_s": len(part) / seconds}
        if tier:
            after = tier.counts()
            reads = after.file_reads - before.file_reads
            asked = reads + after.cached - before.cached
            num_bytes = after.file_bytes - before.file_bytes
            found[name] |= {
                "hit_rate": 1 - reads / max(1, asked),
                "file_reads_per_token": reads / len(part),
                "read_bytes_per_s": num_bytes / seconds,
                "waited_share": (after.wait_seconds - before.wait_seconds) / seconds,
            }
    return found


def line(name, found):
    parts = [f"{name:10}"]
    for part in ("prompt", "decode"):
        one = found[part]
        parts.append(f"{part} {one['tokens_per_s']:8.1f} tokens/s")
        if "hit_rate" in one:
            parts.append(
                f"({100 * one['hit_rate']:4.1f} % cached, {format_rate(one['read_bytes_per_s'])}, "
                f"waits {100 * one['waited_share']:3.0f} %)"
            )
    return " ".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--mapped", action="store_true")
    parser.add_argument("--share", default="1,0.5,0.25,0.1")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--threads", type=int, default=physical_cores())
    parser.add_argument("--whole", action="store_true", help="Measure all in memory too.")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    settings = Settings(expert_store=arguments.store, mmap_experts=arguments.mapped)
    report = {}
    with open_file(arguments.model) as file:
        index, spec = file.index, file.spec
        ctx = open_context(arguments.threads, None)
        shapes = layer_shapes(index, spec)
        disk = experts_on_disk(ctx, index, spec, shapes, settings)
        num = spec.num_layers * spec.num_experts
        whole = sum(shape.num_experts * shape.blob_bytes for shape in shapes)
        print(f"{num} experts, {format_bytes(whole)}; {arguments.threads} threads")
        none = [np.zeros(0, np.int64)] * len(shapes)
        tier = ExpertTier(ctx, shapes, disk, none, 1)
        for at_once in (1, spec.top_k, min(spec.num_experts, 64)):
            rate, seconds = read_rate(tier, shapes, at_once)
            report[f"read {at_once}"] = {"bytes_per_s": rate, "seconds": seconds}
            print(f"{at_once:4} experts at once: {format_rate(rate)}, {1e3 * seconds:.2f} ms")
        tier.close()
        sizes = (arguments.prompt, arguments.tokens, spec.vocab_size)
        for share in map(float, arguments.share.split(",")):
            tier = ExpertTier(ctx, shapes, disk, none, max(spec.top_k, round(share * num)))
            model = CpuModel(ctx, index, spec, tier=tier)
            report[f"share {share:g}"] = found = measure(model, tier, *sizes)
            print(line(f"{share:6.0%}", found), flush=True)
            model.close()
        if arguments.whole:
            model = CpuModel(ctx, index, spec)
            report["whole"] = found = measure(model, None, *sizes)
            print(line("in memory", found))
            model.close()
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
