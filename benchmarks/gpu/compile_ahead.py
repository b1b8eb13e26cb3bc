"""Fills Triton's cache with all that a run launches: gathered unrun, compiled side by side.

    python benchmarks/gpu/compile_ahead.py [--geometry coder] [--mix iq3_s] [--kv f16]
        [--rows 1,4] [--contexts 4096] [--prompts 512,8192] [--layers 0] [--workers 0] [--list]
        [--tiers]

Walks through the launches with tensors that have no memory; Triton binds the arguments itself, so
its key of a kernel is that of the real launch. No kernel is compiled twice. Needs no card, and then
compiles for sm_90. Launchers, which bind C to Python, are compiled too. ``--list`` prints each
kernel's seconds.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import triton
from absent_host import AbsentHost
from model_options import add_model_options
from synthetic_index import SyntheticIndex
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaLauncher
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from strata.formats.synth import GEOMETRIES
from strata.gpu.expert_cache import CacheOptions
from strata.gpu.model import GpuModel
from strata.gpu.prompt_layout import pieces_of
from strata.tiers.slots import shared_slots

# Those that take longest to compile begin first: by hand, from ``--list``.
SLOW = ("_bundle_", "_read_float", "_gate_up_kernel", "._product_", "_expand_", "_float_kernel",
        "delta_scan", "_down_kernel", "_prompt")  # fmt: skip


def target() -> GPUTarget:
    """The card's, or a Hopper's where there is none."""
    if not torch.cuda.is_available():
        return GPUTarget("cuda", 90, 32)
    major, minor = torch.cuda.get_device_capability()
    return GPUTarget("cuda", 10 * major + minor, 32)


@dataclass(frozen=True)
class Request:
    """A kernel to compile, and how often it was launched."""

    kernel: JITFunction
    signature: dict[str, Any]
    constants: dict[tuple, Any]
    attrs: dict[tuple, Any]
    options: dict[str, Any]

    def compile(self, wanted: GPUTarget):
        """The compiled kernel."""
        source = ASTSource(self.kernel, self.signature, self.constants, self.attrs)
        return triton.compile(source, target=wanted, options=self.options)

    @property
    def name(self) -> str:
        """Module and function."""
        return f"{self.kernel.fn.__module__.split('.')[-1]}.{self.kernel.fn.__name__}"

    @property
    def rank(self) -> int:
        """Less for kernels that take longer to compile."""
        return next((at for at, part in enumerate(SLOW) if part in self.name), len(SLOW))


class Recorder:
    """While entered, launches are kept instead of done, in the order of first use."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.counts: dict[int, int] = {}

    def __enter__(self) -> Recorder:
        self._kept = JITFunction._do_compile, triton.runtime.driver._active
        recorder = self

        def keep(self, key, signature, device, constexprs, options, attrs, warmup):  # noqa: ARG001
            kernel = _Kept(recorder, len(recorder.requests))
            recorder.requests.append(
                Request(self, signature, constexprs, attrs, dict(options.__dict__))
            )
            self.device_caches[device][0][key] = kernel
            return kernel

        JITFunction._do_compile = keep
        triton.runtime.driver.set_active(_NoCard())
        return self

    def __exit__(self, *error: object) -> None:
        JITFunction._do_compile, triton.runtime.driver._active = self._kept
        for request in self.requests:
            request.kernel.device_caches.clear()  # of what stands in for kernels

    @property
    def total(self) -> int:
        """Launches."""
        return sum(self.counts.values())


class _Kept:
    """Stands in for a compiled kernel."""

    function = packed_metadata = None

    def __init__(self, recorder: Recorder, place: int) -> None:
        self._counts, self._place = recorder.counts, place

    def launch_metadata(self, *_args: object) -> None:
        return None

    def run(self, *_args: object) -> None:
        self._counts[self._place] = self._counts.get(self._place, 0) + 1


class _NoCard:
    """As much of a driver as binding arguments needs."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return target()


def record_session(
    index,
    *,
    kv_format: str,
    capacity: int,
    rows=(),
    contexts=None,
    prompts=(),
    start=0,
    has_tiers=False,
) -> Recorder:
    """Launches of windows of ``rows`` at ``contexts``, and of whole prompts of those lengths.

    Prompts, and windows without contexts, begin at ``start``.
    """
    device = torch.device("meta")
    tiers = {}
    if has_tiers:
        none = shared_slots(index.spec.num_layers, index.spec.num_experts, 0)
        tiers = {"host": AbsentHost(index), "slots": none,
                 "cache_options": CacheOptions(staged_share=0.5, keeps_copied=True)}  # fmt: skip
    model = GpuModel(index, index.spec, device, kv_format=kv_format, direct_io=False, **tiers)
    session = model.new_session(capacity)
    window, reader = session._runner._window, session._reader
    with Recorder() as recorder:
        for context, num_rows in itertools.product(contexts or [start], rows):
            session._position = context
            window.launch(session._shape(num_rows, has_head=True))
            if model.experts is not None:
                _launch_otherwise(model.experts, window, session._shape(num_rows, has_head=True))
        for length in prompts:
            position = start
            for num_rows, is_window in pieces_of(start, length, session._chunk):
                session._position = position
                if is_window:
                    window.launch(session._shape(num_rows, has_head=True))
                else:
                    host_rows = reader._host_rows[0][:num_rows]
                    window.head(reader._prompt.launch(host_rows, position))
                position += num_rows
    model.close()
    return recorder


def _launch_otherwise(cache, window, shape) -> None:
    """The same where what a window copies does not stay, and where it copies nothing."""
    for tier in cache.layers:
        tier.keeps = False
    window.launch(shape)
    cache.set_share(0.0)
    window.launch(shape)
    cache.set_share(0.5)
    for tier in cache.layers:
        tier.keeps = True


@dataclass
class _Job:
    """What the processes that compile inherit, which asks nothing of what it holds."""

    requests: list[Request]
    target: GPUTarget
    has_card: bool

    def compile(self, place: int) -> float:
        """Seconds of one request: kernel, and launcher where it can be launched."""
        begin = time.perf_counter()
        compiled = self.requests[place].compile(self.target)
        if self.has_card:
            CudaLauncher(compiled.src, compiled.metadata)
        return time.perf_counter() - begin


_jobs: list[_Job] = []


def _compile(place: int) -> float:
    return _jobs[-1].compile(place)


def compile_all(requests: list[Request], workers: int, *, has_list: bool = False) -> None:
    """Compiles them side by side. What fails is told and compiled again when it is used."""
    requests = sorted(requests, key=lambda request: request.rank)
    _jobs.append(_Job(requests, target(), torch.cuda.is_available()))
    begin = time.perf_counter()
    context = multiprocessing.get_context("fork")
    seconds = {}
    with concurrent.futures.ProcessPoolExecutor(workers, context) as pool:
        waiting = {pool.submit(_compile, place): place for place in range(len(requests))}
        for done in concurrent.futures.as_completed(waiting):
            place = waiting[done]
            if done.exception() is not None:
                print(f"{requests[place].name} failed: {done.exception()}", flush=True)
            else:
                seconds[place] = done.result()
                if has_list:
                    print(f"  {seconds[place]:6.2f} s {requests[place].name}", flush=True)
    print(f"{len(seconds)} kernels compiled or found in {time.perf_counter() - begin:.1f} s by "
          f"{workers} processes, {sum(seconds.values()):.0f} s of work, longest "
          f"{max(seconds.values(), default=0):.1f} s", flush=True)  # fmt: skip


def add_case(parser: argparse.ArgumentParser) -> None:
    """Options that name what is launched."""
    add_model_options(parser, num_layers=0)


def start(args: argparse.Namespace, *, rows="", contexts="4096", prompts="", has_tiers=False):
    """``main`` in a process of its own, while the caller does something else; wait for it.

    Four layers have the kernels of all: the formats of a mix and the kinds of layers repeat.
    """
    own = [sys.executable, str(Path(__file__).resolve()), "--geometry", args.geometry,
           "--mix", args.mix, "--kv", args.kv, "--rows", rows, "--contexts", contexts,
           "--prompts", prompts, "--layers", str(args.layers or 4),
           *(["--tiers"] if has_tiers else [])]  # fmt: skip
    return subprocess.Popen(own)


def numbers(text: str) -> list[int]:
    """Of a list with commas."""
    return [int(part) for part in text.split(",") if part]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_case(parser)
    parser.add_argument("--rows", default="1,4")
    parser.add_argument("--contexts", default="4096")
    parser.add_argument("--prompts", default="512,8192")
    parser.add_argument("--workers", type=int, default=0, help="0: one for each core")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--tiers", action="store_true", help="experts that are in no slot")
    args = parser.parse_args()
    begin = time.perf_counter()
    geometry = GEOMETRIES[args.geometry]
    geometry = replace(geometry, num_layers=args.layers or geometry.num_layers)
    contexts, prompts = numbers(args.contexts), numbers(args.prompts)
    with tempfile.TemporaryDirectory() as folder:
        index = SyntheticIndex(geometry, args.mix, Path(folder))
        recorder = record_session(
            index, kv_format=args.kv, capacity=max([*contexts, *prompts]) + 512,
            rows=numbers(args.rows), contexts=contexts, prompts=prompts, has_tiers=args.tiers,
        )  # fmt: skip
    print(f"{recorder.total} launches of {len(recorder.requests)} kernels gathered in "
          f"{time.perf_counter() - begin:.1f} s", flush=True)  # fmt: skip
    compile_all(recorder.requests, args.workers or os.cpu_count() or 1, has_list=args.list)


if __name__ == "__main__":
    main()
