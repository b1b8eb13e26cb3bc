"""llama.cpp built for CUDA, and measured on a card beside this engine with the same file.

Nothing of llama.cpp is part of this project, and the machine that builds it needs no network.

    # anywhere with an index of packages: an archive of what the build needs, 1.2 MB
    pip download --no-deps --no-binary :all: --no-build-isolation -d sdist llama-cpp-python==0.3.36
    python benchmarks/gpu/llama_cpp_on_card.py pack sdist/llama_cpp_python-0.3.36.tar.gz \
        llama.tar.xz

    # where the card is; needs cmake, ninja and nvcc
    python benchmarks/gpu/llama_cpp_on_card.py build llama.tar.xz /tmp/llama --jobs 16
    strata synth /tmp/coder.gguf --geometry coder --mix iq3_s
    PYTHONPATH=/tmp/llama:src python benchmarks/gpu/llama_cpp_on_card.py measure /tmp/coder.gguf
    ... measure /tmp/coder.gguf --vram 12288 --cpu-expert-layers 37

The second has less VRAM than experts: of llama.cpp the experts of the first layers are then in RAM,
as many as --cpu-expert-layers says; what each engine took of the card is printed beside its speed.

Where a static libstdc++ is linked into the CUDA library, loading a model ends in a segmentation
fault, since the other libraries find parts of it there first; LD_PRELOAD=libstdc++.so.6 helps.

A build can also be made elsewhere with the same CUDA (``--define GGML_NATIVE=OFF``) and packed by
``bundle /tmp/llama OUT.tar.xz``; unpacked, its libraries need those of CUDA on LD_LIBRARY_PATH.

The bindings are used for their C functions alone, so the archive leaves the rest of them out, and
the build is llama.cpp's own: the library with CUDA, for one architecture, no tools. The engines are
measured one after the other, each alone on the card; of the rival the faster of flash attention on
and off counts. "decode" is one row behind the first prompt, "prompt" the second.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path, PurePosixPath

from strata.engine.agreement import Agreement
from strata.engine.bench import Measurement, Medians, random_prompt
from strata.engine.bench_worker import LLAMA_CPP, STRATA, Worker
from strata.engine.model_file import open_file
from strata.engine.provenance import provenance
from strata.engine.rival_source import ALL_LAYERS, LLAMA_CPP_PYTHON
from strata.errors import StrataError
from strata.units import MiB, format_bytes

SEED = 20261129
CHECK_TOKENS = 64
SOURCES = "vendor/llama.cpp"
# Folders of the source distribution that the library is built from.
KEPT = (
    f"{SOURCES}/CMakeLists.txt", f"{SOURCES}/LICENSE", f"{SOURCES}/cmake/", f"{SOURCES}/include/",
    f"{SOURCES}/src/", f"{SOURCES}/ggml/CMakeLists.txt", f"{SOURCES}/ggml/cmake/",
    f"{SOURCES}/ggml/include/", f"{SOURCES}/ggml/src/ggml-cpu/", f"{SOURCES}/ggml/src/ggml-cuda/",
    "LICENSE.md",
)  # fmt: skip
BINDINGS = ("llama_cpp.py", "_ctypes_extensions.py", "_ggml.py")
# Files of the distribution that a small one takes the place of.
WRITTEN = {
    "llama_cpp/__init__.py": "from llama_cpp.llama_cpp import *\n\n__version__ = {version!r}\n",
    f"{SOURCES}/vendor/CMakeLists.txt": "",
}
DEFINITIONS = {
    "CMAKE_BUILD_TYPE": "Release", "BUILD_SHARED_LIBS": "ON", "CMAKE_CUDA_ARCHITECTURES": "90-real",
    "GGML_CUDA": "ON", "GGML_CUDA_FA": "ON", "GGML_CUDA_FA_QUANTS": "f16-f16",
    "GGML_CUDA_NCCL": "OFF", "GGML_CCACHE": "OFF", "GGML_NATIVE": "ON", "GGML_OPENMP": "ON",
    "LLAMA_BUILD_COMMON": "OFF", "LLAMA_BUILD_TESTS": "OFF", "LLAMA_BUILD_TOOLS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF", "LLAMA_BUILD_SERVER": "OFF", "LLAMA_BUILD_APP": "OFF",
    "LLAMA_CURL": "OFF", "LLAMA_OPENSSL": "OFF",
}  # fmt: skip

DRIVER_FOLDERS = (
    "/usr/local/cuda/lib64/stubs", "/usr/lib/x86_64-linux-gnu", "/usr/lib64",
    "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib",
)  # fmt: skip


def pack(args: argparse.Namespace) -> None:
    """The source distribution without what the library does not need."""
    with tarfile.open(args.sdist) as source, tarfile.open(args.out, "w:xz", preset=9) as target:
        top = source.next().name.split("/")[0]
        version = top.rsplit("-", 1)[1]
        for member in source.getmembers():
            name = member.name.partition("/")[2]
            if member.isfile() and is_kept(name):
                add(target, name, source.extractfile(member).read())
        for name, text in WRITTEN.items():
            add(target, name, text.format(version=version).encode())
    print(f"{args.out}: {Path(args.out).stat().st_size / 1e6:.1f} MB of llama-cpp-python {version}")


def add(target: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    target.addfile(info, io.BytesIO(data))


def is_kept(name: str) -> bool:
    path = PurePosixPath(name)
    in_core = str(path.parent) == f"{SOURCES}/ggml/src"
    is_binding = str(path.parent) == "llama_cpp" and path.name in BINDINGS
    return in_core or is_binding or any(name.startswith(kept) for kept in KEPT)


def build(args: argparse.Namespace) -> None:
    """The library, where the bindings look for it."""
    begin = time.perf_counter()
    shutil.rmtree(args.folder, ignore_errors=True)
    args.folder.mkdir(parents=True)
    with tarfile.open(args.archive) as archive:
        archive.extractall(args.folder, filter="data")
    target = args.folder / "build"
    definitions = DEFINITIONS | cublas_definitions() | driver_definitions()
    definitions |= dict(item.split("=", 1) for item in args.define)
    flags = [f"-D{name}={value}" for name, value in definitions.items()]
    configure = ["cmake", "-G", "Ninja", "-S", args.folder / SOURCES, "-B", target, *flags]
    subprocess.run(configure, check=True)
    if args.configure_only:
        return
    # Ninja's progress would be thousands of lines in a log.
    with (args.folder / "build.log").open("w") as log:
        command = ["cmake", "--build", target, "--target", "llama", "--parallel", str(args.jobs)]
        done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        print("".join((args.folder / "build.log").read_text().splitlines(keepends=True)[-40:]))
        raise SystemExit("llama_cpp_on_card: the build failed.")
    (args.folder / "llama_cpp" / "lib").symlink_to(target / "bin")
    print(f"built in {time.perf_counter() - begin:.0f} s with {args.jobs} jobs: {args.folder}")


def bundle(args: argparse.Namespace) -> None:
    """Bindings and libraries of a build, without its sources."""
    with tarfile.open(args.out, "w:xz", preset=6) as target:
        for name in (*BINDINGS, "__init__.py"):
            target.add(args.folder / "llama_cpp" / name, f"llama_cpp/{name}")
        for library in sorted((args.folder / "build" / "bin").glob("lib*.so*")):
            target.add(library, f"llama_cpp/lib/{library.name}")  # links stay links
    print(f"{args.out}: {args.out.stat().st_size / 1e6:.1f} MB")


def cublas_definitions() -> dict[str, str]:
    """Where cuBLAS is, if CUDA's own folder lacks it: Python's package has it under other names."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise SystemExit("llama_cpp_on_card: there is no nvcc on the PATH.")
    folders = [Path(nvcc).resolve().parents[1], Path("/usr/local/cuda")]
    if any((folder / "include" / "cublas_v2.h").exists() for folder in folders):
        return {}
    for root in map(Path, sys.path):
        for header in root.glob("nvidia/*/include/cublas_v2.h"):
            libraries = header.parents[1] / "lib"
            found = {
                f"CUDA_{name}_LIBRARY": str(next(libraries.glob(f"lib{name}.so*"), ""))
                for name in ("cublas", "cublasLt")
            }
            flags = f"-isystem {header.parent}"
            rpath = {"CMAKE_BUILD_RPATH": str(libraries)}
            return found | rpath | {"CMAKE_CUDA_FLAGS": flags, "CMAKE_CXX_FLAGS": flags}
    return {}


def driver_definitions() -> dict[str, str]:
    """The driver's library, which an image without its own stub of it has where the driver is."""
    for folder in DRIVER_FOLDERS:
        for library in sorted(Path(folder).glob("libcuda.so*")):
            return {"CUDA_cuda_driver_LIBRARY": str(library)}
    # Only its pool of memory needs the driver itself.
    return {"GGML_CUDA_NO_VMM": "ON"}


def measure(args: argparse.Namespace) -> None:
    """Both engines on one file; prints figures and ratios."""
    with open_file(args.model) as model_file:
        path, vocab_size = model_file.index.paths[0], model_file.spec.vocab_size
    context_len = max(args.context + args.decode, args.prompt + 1) + 8
    prompts = [
        random_prompt(vocab_size, size, SEED).tolist() for size in (args.context, args.prompt)
    ]
    report: dict[str, object] = {"model": str(path), **provenance()}
    theirs: dict[str, dict[str, float]] = {}
    logits = None
    used_before = used_vram(args.card)
    for flash in args.flash.split(","):
        with Worker(
            LLAMA_CPP, library=LLAMA_CPP_PYTHON, model=str(path), vocab_size=vocab_size,
            threads=args.threads, context_len=context_len, has_flash_attention=flash == "on",
            kv_format="f16", gpu_layers=ALL_LAYERS, cpu_expert_layers=args.cpu_expert_layers,
            step_tokens=args.ubatch,
        ) as worker:  # fmt: skip
            print(f"{worker.description}, flash attention {flash}, n_ubatch {args.ubatch}")
            theirs[flash] = rounds_of(worker, prompts, args)
            logits = worker.next_logits(prompts[0][:CHECK_TOKENS])
            print(f"  VRAM {format_bytes(used_vram(args.card) - used_before)}")
    report["llama.cpp"] = theirs
    settings = {"model": str(path), "device": "cuda", "context_len": context_len,
                "vram_limit": args.vram, "threads": args.threads}  # fmt: skip
    settings = {name: value for name, value in settings.items() if value is not None}
    with Worker(STRATA, settings=settings) as worker:
        print("strata")
        ours = rounds_of(worker, prompts, args)
        own_logits = worker.next_logits(prompts[0][:CHECK_TOKENS])
        print(f"  VRAM {format_bytes(used_vram(args.card) - used_before)}")
    report["strata"] = ours
    agreement = Agreement.of(logits[None], own_logits[None])
    report["kl"] = agreement.mean_kl
    print(f"KL of the two behind {CHECK_TOKENS} tokens: {agreement.mean_kl:.1e}")
    report["ratios"] = {}
    for name in ("decode", "prompt"):
        best = max(found[name] for found in theirs.values())
        ratio = report["ratios"][name] = ours[name] / best
        print(f"{name:6}: strata {ours[name]:9.1f} tokens/s, llama.cpp {best:9.1f}, {ratio:.2f}x")
    if args.out:
        Path(args.out).write_text(json.dumps(report, indent=1) + "\n")


def used_vram(card: str) -> int:
    """Bytes taken of a card, by anyone."""
    query = ["nvidia-smi", f"--id={card}", "--query-gpu=memory.used", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    return int(answer.split()[0]) * MiB


def rounds_of(
    worker: Worker, prompts: list[list[int]], args: argparse.Namespace
) -> dict[str, float]:
    """Medians after a warm-up: decode behind the first prompt, speed of the second."""
    found: dict[str, float] = {}
    for name, prompt, decode in (("decode", prompts[0], args.decode), ("prompt", prompts[1], 1)):
        rounds: list[Measurement] = []
        for _ in range(args.rounds + 1):
            rounds.append(worker.measure(prompt, decode)[0])
        medians = Medians.of(rounds[1:])
        speed = medians.decode_tokens_per_s if name == "decode" else medians.prompt_tokens_per_s
        found[name] = speed
        print(f"  {name} {len(prompt)} tokens: {speed:.1f} tokens/s; prompt "
              f"{medians.prompt_tokens_per_s:.0f} tokens/s, first token {medians.ttft_s:.2f} s",
              flush=True)  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    modes = parser.add_subparsers(required=True)
    one = modes.add_parser("pack")
    one.add_argument("sdist", type=Path)
    one.add_argument("out", type=Path)
    one.set_defaults(run=pack)
    two = modes.add_parser("build")
    two.add_argument("archive", type=Path)
    two.add_argument("folder", type=Path)
    two.add_argument("--jobs", type=int, default=os.cpu_count())
    two.add_argument("--define", action="append", default=[], help="NAME=VALUE for cmake")
    two.add_argument("--configure-only", action="store_true")
    two.set_defaults(run=build)
    four = modes.add_parser("bundle")
    four.add_argument("folder", type=Path)
    four.add_argument("out", type=Path)
    four.set_defaults(run=bundle)
    three = modes.add_parser("measure")
    three.add_argument("model", type=Path)
    three.add_argument("--context", type=int, default=4096)
    three.add_argument("--prompt", type=int, default=16384)
    three.add_argument("--decode", type=int, default=64)
    three.add_argument("--ubatch", type=int, default=2048)
    three.add_argument("--flash", default="off,on")
    three.add_argument("--rounds", type=int, default=2)
    three.add_argument("--threads", type=int, default=8)
    three.add_argument("--card", default="0", help="of which the taken VRAM is told")
    three.add_argument("--vram", type=int, help="MiB that strata may take")
    three.add_argument("--cpu-expert-layers", type=int, default=0)
    three.add_argument("--out")
    three.set_defaults(run=measure)
    args = parser.parse_args()
    try:
        args.run(args)
    except StrataError as error:
        raise SystemExit(f"llama_cpp_on_card: {error}") from None


if __name__ == "__main__":
    main()
