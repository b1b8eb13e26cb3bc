"""Compiled kernels carried from one machine to the next: Triton's cache folder as one file.

    python benchmarks/gpu/triton_cache.py pack FILE.tar.xz
    python benchmarks/gpu/triton_cache.py unpack FILE.tar.xz

Scripts that compile have ``--cache-in`` and ``--cache-out`` for the same. Kept is what a later
start reads: machine code, its description, launchers; the newest, as far as they take 100 MB, which
xz makes a tenth of. Everything lies in the folder that Triton's own key names, so a changed kernel,
compiler or option is compiled as ever.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import lzma
import os
import sys
import tarfile
import time
import uuid
from pathlib import Path

import triton

GROUP = "__grp__"
KEPT_ENDINGS = (".cubin", ".json", ".so")
MOST_BYTES = 100e6


def folder() -> Path:
    """Where Triton keeps compiled kernels."""
    return Path(triton.knobs.cache.dir)


def pack(file: Path) -> str:
    """Writes the cache; says what was written."""
    begin, count = time.perf_counter(), 0
    paths = sorted(
        newest_files(folder()),
        # Like beside like: xz finds what kernels of one name share.
        key=lambda path: (path.suffix, path.name, path.stat().st_size, path.parent.name),
    )
    packed = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    with lzma.open(packed, "wb", preset=6) as stream, tarfile.open(fileobj=stream, mode="w") as tar:
        for path in paths:
            data = path.read_bytes()
            if path.name.startswith(GROUP):
                data = _group_without_folder(data)
            info = tarfile.TarInfo(f"{path.parent.name}/{path.name}")
            info.size, info.mtime = len(data), int(path.stat().st_mtime)
            tar.addfile(info, io.BytesIO(data))
            count += 1
    packed.replace(file)
    return (f"cache packed: {count} files, {file.stat().st_size / 1e6:.1f} MB, "
            f"{time.perf_counter() - begin:.1f} s")  # fmt: skip


def newest_files(root: Path) -> list[Path]:
    """What is packed of a cache: whole folders, the newest first, until there is enough."""
    entries = []
    for entry in root.iterdir() if root.is_dir() else ():
        kept = [path for path in entry.glob("*") if path.name.endswith(KEPT_ENDINGS)]
        if kept:
            facts = [path.stat() for path in kept]
            entries.append((max(f.st_mtime for f in facts), sum(f.st_size for f in facts), kept))
    found, total = [], 0
    for _, num_bytes, kept in sorted(entries, key=lambda entry: -entry[0]):
        total += num_bytes
        if total > MOST_BYTES:
            break
        found.extend(kept)
    return found


def unpack(file: Path) -> str:
    """Adds what the file holds to the cache; says how much that was."""
    begin, count = time.perf_counter(), 0
    root = folder()
    with tarfile.open(file, mode="r:xz") as tar:
        for member in tar:
            parts = Path(member.name).parts
            stream = tar.extractfile(member)
            if len(parts) != 2 or ".." in parts or stream is None:
                raise SystemExit(f"{file}: not a packed cache, it holds {member.name}")
            path = root.joinpath(*parts)
            data = stream.read()
            if path.name.startswith(GROUP):
                data = _group_in(data, path.parent)
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
            fresh.write_bytes(data)
            os.utime(fresh, (member.mtime, member.mtime))
            fresh.replace(path)
            count += 1
    return f"cache unpacked: {count} files, {time.perf_counter() - begin:.1f} s"


def _group_without_folder(data: bytes) -> bytes:
    names = [n for n in json.loads(data)["child_paths"] if n.endswith(KEPT_ENDINGS)]
    return json.dumps(sorted(names)).encode()


def _group_in(data: bytes, where: Path) -> bytes:
    return json.dumps({"child_paths": {n: str(where / n) for n in json.loads(data)}}).encode()


def add_options(parser: argparse.ArgumentParser) -> None:
    """``--cache-in`` and ``--cache-out``."""
    parser.add_argument("--cache-in", type=Path, help="unpack compiled kernels of an earlier run")
    parser.add_argument("--cache-out", type=Path, help="pack all compiled kernels when done")


@contextlib.contextmanager
def carried(args: argparse.Namespace):
    """Unpacks before and packs after, as ``args`` say; afterwards also says what was compiled."""
    if args.cache_in:
        found = unpack(args.cache_in) if args.cache_in.is_file() else f"no {args.cache_in}"
        print(found, flush=True)
    compiled: list[str] = []

    def listen(*, src, metadata, metadata_group, times, cache_hit) -> None:  # noqa: ARG001
        if not cache_hit:
            compiled.append(src.name)

    triton.knobs.compilation.listener = listen
    try:
        yield compiled
    finally:
        triton.knobs.compilation.listener = None
        if compiled:
            names = ", ".join(sorted(set(compiled)))
            print(f"compiled in the main process: {len(compiled)} kernels: {names}", flush=True)
        if args.cache_out:
            print(pack(args.cache_out), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("pack", "unpack"))
    parser.add_argument("file", type=Path)
    args = parser.parse_args()
    print({"pack": pack, "unpack": unpack}[args.what](args.file))


if __name__ == "__main__":
    sys.exit(main())
