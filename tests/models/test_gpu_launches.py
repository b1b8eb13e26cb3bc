"""Floors name the kernels that read what they count: against the arguments of a window's launches.

A floor that is given to the wrong kernel would be believed. So a window runs, and each launch is
noted with the memory it is given.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from tests.models.on_card import gpu_model
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from strata.gpu import kernel_work
from strata.gpu.kernel_work import window_work
from strata.model_spec import LayerKind

if TYPE_CHECKING:
    from pathlib import Path

    from strata.gpu.model import GpuModel

NUM_ROWS = 2


class Launches:
    """Names of kernels, and the memory each launch was given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, set[int]]] = []
        for kind in (JITFunction, InterpretedFunction):
            self._note_runs(kind, monkeypatch)

    def _note_runs(self, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
        run, calls = kind.run, self.calls

        def noting(kernel, *args, **options):
            tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
            calls.append((kernel.fn.__name__, {tensor.data_ptr() for tensor in tensors}))
            return run(kernel, *args, **options)

        monkeypatch.setattr(kind, "run", noting)

    def names_given(self, tensor: torch.Tensor) -> set[str]:
        return {name for name, given in self.calls if tensor.data_ptr() in given}


@pytest.fixture(scope="module")
def model(smallest_path: Path) -> GpuModel:
    return gpu_model(smallest_path)


@pytest.mark.slow
def test_floors_are_those_of_the_kernels_that_read(
    model: GpuModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = model.new_session(16)
    session.prefill(np.arange(8, dtype=np.int32))  # beyond the budget: blocks are chosen
    launches = Launches(monkeypatch)
    session.decode(np.array([1, 2], np.int32))
    spec, weights = model.spec, model.weights
    work = window_work(model.layout, spec, num_rows=NUM_ROWS, position=8, kv_format=model.kv_format)
    names = Counter(name for name, _ in launches.calls)
    assert set(work) <= set(names)
    # Every dense matrix is read by one kernel, and that kernel's floor has it.
    read: Counter[str] = Counter()
    for bundle in dense_bundles(weights):
        for matrix, _ in bundle.launches:
            (name,) = launches.names_given(matrix.panels)
            read[name] += matrix.panels.nbytes
    for name in (*kernel_work.PRODUCTS, *kernel_work.READS, kernel_work.BUNDLES):
        assert read[name] == (work[name].num_bytes if name in work else 0), name
    for layer, memory in zip(weights.layers, session._state.layers, strict=True):
        for slots in (layer.moe.experts, layer.moe.shared):
            down = slots.blobs.view(-1)[slots.layout.offset_of(2) :]
            assert launches.names_given(slots.blobs) == {kernel_work.GATE_UP}
            assert launches.names_given(down) == {kernel_work.DOWN}
        if spec.layer_kinds[layer.index] is LayerKind.GDN:
            assert launches.names_given(memory.memory) == {kernel_work.RECURRENCE}
        else:
            assert kernel_work.ATTENTION in launches.names_given(memory.cells.values)
            assert kernel_work.SCORES in launches.names_given(memory.index.pooled)


def dense_bundles(weights):
    for layer in weights.layers:
        for hc in (layer.hc_attn, layer.hc_ffn):
            yield from (hc.down_inject, hc.up)
        yield from (layer.mixer.projections, layer.mixer.out, layer.moe.routers)
        if layer.ple is not None:
            yield layer.ple.projections
    yield from (weights.final.down_inject, weights.final.up, weights.head)


@pytest.mark.slow
def test_a_window_launched_again_and_again_leaves_a_session_to_be_reset(model: GpuModel) -> None:
    session = model.new_session(16)
    tokens = np.array([3, 4], np.int32)
    first = session.prefill(tokens)
    launch = session.relaunch(1)
    launch()
    launch()
    with pytest.raises(Exception, match="reset"):
        session.decode(tokens)
    session.reset()
    assert np.array_equal(session.prefill(tokens), first)
