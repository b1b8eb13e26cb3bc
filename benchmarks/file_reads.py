"""Reads of a file: the few rows of one token, blobs of weights, and how often rows come again.

    python benchmarks/file_reads.py [--file SCRATCH] [--gib 1] [--text TEXT]

Makes a scratch file of random bytes (kept if --file names it). Times are medians by the caller's
clock, everything in Python included. *disk*: one such read by the system call alone. With --text
the text is read by the demo model's tokenizer, one token after another, and the share of rows that
were in memory is counted, for tables of the public models' size (20 million rows a head).
"""

import argparse
import dataclasses
import mmap
import os
import tempfile
import time
from pathlib import Path

import numpy as np

from strata import _native
from strata.engine.build import model_path, open_file, text_of
from strata.file_reads import ReadFile
from strata.formats.block_formats import FORMATS
from strata.formats.model_tensors import Embedding
from strata.formats.ngram_table import CACHE_BYTES, NgramTable
from strata.formats.tensor_index import TensorEntry
from strata.reference.ngram_memory import ngram_rows
from strata.settings import Settings

PAGE = 4096
TABLE = FORMATS["IQ4_NL"]
ROW_SIZE, HEADS, HIDDEN = 160, 16, 2560
BLOB_BYTES, NUM_BLOBS = 3 << 19, 48
PUBLIC_ROWS = 20_000_003


def medians(call, passes=400):
    """Microseconds: median and the tenth fastest of a hundred."""
    times = []
    for _ in range(passes):
        begin = time.perf_counter()
        call()
        times.append(1e6 * (time.perf_counter() - begin))
    median, fast = np.median(times), np.percentile(times, 10)
    return f"{median:7.1f} us (fast: {fast:.1f})"


def scratch(path, num_bytes):
    if path.exists() and path.stat().st_size >= num_bytes:
        return
    with path.open("wb") as file:
        for seed in range(num_bytes >> 26):
            file.write(np.random.default_rng(seed).bytes(1 << 26))
        os.fsync(file.fileno())


def time_rows(path, num_bytes):
    num_rows = num_bytes // TABLE.row_bytes(ROW_SIZE) - 1
    entry = TensorEntry("table", (num_rows, ROW_SIZE), TABLE, path, 32, num_bytes - PAGE)
    rng = np.random.default_rng()
    with path.open("rb") as file:  # into the page cache
        while file.read(1 << 24):
            pass
    for is_direct in (False, True):
        table = NgramTable(entry, is_direct=is_direct)

        def read(rows, table=table):
            table.request(rows).wait()

        for num_tokens in (1, 8):
            name = f"{num_tokens * HEADS} rows, {'direct' if is_direct else 'page cache'}"
            draw = iter(rng.integers(0, num_rows, (400, num_tokens, HEADS)))
            print(f"{name:24}", medians(lambda read=read, draw=draw: read(next(draw))))
        kept = rng.integers(0, num_rows, (1, HEADS))
        print(f"{'16 rows, kept':24}", medians(lambda read=read, kept=kept: read(kept)))
        table.close()
    page = mmap.mmap(-1, PAGE)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    places = iter(rng.integers(0, num_bytes // PAGE, 400).tolist())
    print(
        f"{'disk, 1 page':24}", medians(lambda: os.preadv(descriptor, [page], next(places) * PAGE))
    )
    os.close(descriptor)


def time_blobs(path, num_bytes):
    room = np.frombuffer(mmap.mmap(-1, NUM_BLOBS * (BLOB_BYTES + PAGE)), np.uint8)
    room[:] = 0
    rng = np.random.default_rng()
    file = ReadFile(path, is_direct=True)
    sizes = np.full(NUM_BLOBS, BLOB_BYTES)
    cases = {"whole pages": (0, 0), "as far into a page": (1000, 1000), "anywhere": (1000, 0)}
    for name, (into_file, into_memory) in cases.items():
        rates = []
        for _ in range(6):
            first = rng.integers(0, (num_bytes - BLOB_BYTES) // PAGE - 1, NUM_BLOBS)
            places = np.arange(NUM_BLOBS) * (BLOB_BYTES + PAGE) + into_memory
            begin = time.perf_counter()
            file.start(first * PAGE + into_file, sizes, places, room).wait()
            rates.append(sizes.sum() / (time.perf_counter() - begin) / 1e9)
        print(f"{NUM_BLOBS} blobs, {name:20} {np.median(rates):5.2f} GB/s")
    file.close()


def time_embedding():
    for name in ("Q4_K", "Q5_K", "Q6_K", "Q8_0", "IQ4_NL", "BF16"):
        fmt = FORMATS[name]
        raw = np.random.default_rng(1).integers(0, 60, (1000, fmt.row_bytes(HIDDEN)), np.uint8)
        embedding, token = Embedding(fmt, raw), np.array([5], np.int32)
        print(f"embedding row, {name:9}", medians(lambda e=embedding, t=token: e.rows(t)))


def count_hits(path):
    with open_file(model_path(Settings())) as model_file:
        ngram, text = model_file.spec.ngram, text_of(model_file)
    heads = ngram.num_heads
    ngram = dataclasses.replace(
        ngram,
        head_vocab_sizes=(PUBLIC_ROWS,) * heads,
        head_offsets=tuple(PUBLIC_ROWS * i for i in range(heads)),
    )
    ids = np.array(text.encode(path.read_text()), np.int64)
    rows = ngram_rows(ngram, ids, np.full(ngram.ngram_size - 1, ngram.eos_id))
    cache = _native.RowCache(TABLE.row_bytes(ROW_SIZE), CACHE_BYTES)
    out = np.zeros((heads, TABLE.row_bytes(ROW_SIZE)), np.uint8)
    mark = 1000
    for num, wanted in enumerate(rows, 1):
        unknown = cache.take(wanted, heads * PUBLIC_ROWS, 0, out)
        if unknown is not None:
            cache.put(wanted, out, unknown[0])
        if num == mark or num == len(rows):
            print(f"{num:8} tokens: {100 * cache.num_found / cache.num_asked:.0f} % of rows kept")
            mark *= 4


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--file", type=Path)
    parser.add_argument("--gib", type=int, default=1)
    parser.add_argument("--text", type=Path)
    arguments = parser.parse_args()
    num_bytes = arguments.gib << 30
    with tempfile.TemporaryDirectory(dir=".") as folder:
        path = arguments.file or Path(folder) / "scratch"
        scratch(path, num_bytes)
        time_rows(path, num_bytes)
        time_blobs(path, num_bytes)
    time_embedding()
    if arguments.text:
        count_hits(arguments.text)


if __name__ == "__main__":
    main()
