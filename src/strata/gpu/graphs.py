"""Runs windows: as CUDA graphs, each captured once, or launch by launch where there is no card."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch

from strata.gpu.buffers import input_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from strata.gpu.buffers import WindowBuffers
    from strata.gpu.window import Window, WindowShape
    from strata.model_spec import ModelSpec


class WindowRunner:
    """One conversation's windows.

    Args:
        window: its launches.
        buffers: whose host sides a run reads and writes.
        spec: geometry.
    """

    def __init__(self, window: Window, buffers: WindowBuffers, spec: ModelSpec) -> None:
        self._window = window
        self._buffers = buffers
        self._spec = spec
        self._graphs: dict[tuple[WindowShape, object], torch.cuda.CUDAGraph] = {}
        self._is_card = buffers.rows.is_cuda

    def run(self, shape: WindowShape, meanwhile: Callable[[], None]) -> None:
        """From ``host_inputs`` to ``host_flags`` and logits or picks, if wanted; waits.

        What is to be done ``meanwhile`` launches nothing. If it raises, the window is waited for
        all the same: it reads the host's rows, and may still ask the host for experts.
        """
        self.launch(shape)
        try:
            meanwhile()
        finally:
            if self._is_card:
                torch.cuda.current_stream().synchronize()

    def launch(self, shape: WindowShape) -> None:
        """The same without waiting."""
        if not self._is_card:
            self._launch(shape)
            return
        self._graph(shape).replay()

    def prepare(self, shape: WindowShape) -> None:
        """Captures a graph ahead of its first use; rows behind the position are overwritten."""
        if self._is_card:
            self._graph(shape)

    def step_pending(self) -> None:
        """Takes pending rows into the recurrent memories; the header in ``host_inputs`` counts."""
        self._buffers.tensors["inputs"][:16].copy_(self._buffers.host_inputs[:16])
        self._window.step_pending()
        if self._is_card:
            torch.cuda.current_stream().synchronize()

    def _graph(self, shape: WindowShape) -> torch.cuda.CUDAGraph:
        key = shape, self._window.variant
        if key not in self._graphs:
            self._graphs[key] = self._capture(shape)
        return self._graphs[key]

    def _launch(self, shape: WindowShape) -> None:
        buffers, size = self._buffers, input_bytes(self._spec, shape.num_rows)
        inputs = buffers.tensors["inputs"]
        inputs[:size].copy_(buffers.host_inputs[:size], non_blocking=True)
        self._window.launch(shape)
        buffers.host_flags.copy_(buffers.tensors["flags"], non_blocking=True)
        if shape.has_head and shape.choice is None:
            rows = slice(shape.num_rows)
            buffers.host_logits[rows].copy_(buffers.tensors["logits"][rows], non_blocking=True)

    def _capture(self, shape: WindowShape) -> torch.cuda.CUDAGraph:
        # The run before the capture writes what the window will write anyway, and leaves the
        # memories alone, because no row is pending for it.
        header = self._buffers.host_inputs[8:12]
        kept = header.clone()
        header.zero_()
        graph = captured(partial(self._launch, shape))
        header.copy_(kept)
        return graph


def captured(launch: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Launches as a graph. They are run once before, since kernels are compiled and loaded then."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        try:
            launch()
        finally:
            stream.synchronize()  # also of what was launched before something was raised
    graph = torch.cuda.CUDAGraph()
    # What other threads ask of the card meanwhile does not end the capture.
    mode = "thread_local"
    with uncollected(), torch.cuda.graph(graph, stream=stream, capture_error_mode=mode):
        launch()
    return graph


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage is collected: a graph of a conversation that is over would be freed in the middle
    of a capture, which the card then refuses."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
