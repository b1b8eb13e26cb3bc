"""Memory that the first prompt would wait for is there before: counted by the system itself."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

import numpy as np
import pytest

from strata import _native
from strata.cpu.scratch import Scratch
from strata.cpu.state import CpuCells, QsaState
from strata.engine.default_model import default_model
from strata.engine.model_file import open_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from strata.model_spec import ModelSpec

pytestmark = pytest.mark.skipif(
    not hasattr(resource, "RUSAGE_THREAD"), reason="this system does not count for a thread"
)

CAPACITY = 8192
PAGE_BYTES = 4096


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    with open_file(default_model()) as model_file:
        return model_file.spec


def num_faults(action: Callable[[], object]) -> int:
    """Of this thread; one for each page that is first written, and now and then another."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    action()
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


def empty_cells(spec: ModelSpec) -> CpuCells:
    return CpuCells(spec, [QsaState(spec, CAPACITY, 64, np.float32)], None)


def test_the_first_cells_are_there(spec: ModelSpec):
    cells = empty_cells(spec)
    size = cells.page_tokens
    page = tuple(np.ones_like(part) for part in cells.save(0, size))
    num_bytes = sum(part.nbytes for part in page)
    num_pages = num_bytes // PAGE_BYTES
    assert num_pages > 40
    cells = empty_cells(spec)
    cells.touch(2 * num_bytes + 1)
    for start in (0, size):
        assert not any(part.any() for part in cells.save(start, start + size))
        assert num_faults(lambda at=start: cells.load(at, at + size, page)) < num_pages / 4


def test_no_more_is_taken_than_was_allowed(spec: ModelSpec):
    cells = empty_cells(spec)
    one = sum(part.nbytes for part in cells.save(0, cells.page_tokens))
    cells = empty_cells(spec)
    assert num_faults(lambda: cells.touch(one - 1)) < one // PAGE_BYTES / 4
    short = CpuCells(spec, [QsaState(spec, 10, 10, np.float32)], None)
    short.touch(1 << 30)  # more than there is


def test_rows_of_a_short_question_have_their_memory(spec: ModelSpec):
    rows = Scratch(spec, 2048, CAPACITY).rows(16)
    views = [rows.xn, rows.residual, rows.gate, rows.x, rows.out, rows.q_gate, rows.router_logits]
    num_pages = sum(view.nbytes for view in views) // PAGE_BYTES
    assert num_pages > 40
    assert num_faults(lambda: [view.fill(1) for view in views]) < num_pages / 4


def test_the_first_rows_of_a_table_find_the_index_there():
    # The last of several cannot lie where something else has been.
    caches = [_native.RowCache(18, 12 << 20) for _ in range(8)]
    cache = caches[-1]
    asked = np.random.default_rng(1).integers(0, 400_000, 400)
    raw = np.zeros((400, 18), np.uint8)

    def take_and_put() -> None:
        missing, *_ = cache.take(asked, 400_000, 0, raw)
        cache.put(asked, raw, missing)

    assert num_faults(take_and_put) < 60  # the rows themselves; 500 without
