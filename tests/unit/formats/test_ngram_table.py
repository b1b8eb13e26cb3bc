"""Rows read from disk against the same rows of the array that was written."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from strata import telemetry
from strata.errors import CheckpointError
from strata.formats.block_decode import dequantize
from strata.formats.block_formats import FORMATS
from strata.formats.gguf_writer import GgufWriter, TensorPlan
from strata.formats.ngram_table import NgramTable
from strata.formats.quantize import quantize
from strata.formats.tensor_index import TensorEntry, open_model

if TYPE_CHECKING:
    from pathlib import Path

NAME = "per_layer_token_embd.weight"


def write_table(path: Path, fmt: str, num_rows: int, width: int) -> tuple[TensorEntry, np.ndarray]:
    """A file with a table at an odd place; its entry and its decoded rows."""
    values = np.random.default_rng(3).standard_normal((num_rows, width)).astype(np.float32)
    stored = quantize(FORMATS[fmt], values)
    plans = [TensorPlan("a", (13,), FORMATS["F32"]), TensorPlan(NAME, values.shape, FORMATS[fmt])]
    with GgufWriter(path, {"general.architecture": "qwen4exp"}, plans) as writer:
        writer.write("a", np.zeros(13, np.float32))
        writer.write(NAME, stored)
    with open_model(path) as index:
        return index[NAME], dequantize(FORMATS[fmt], stored)


@pytest.mark.parametrize("is_direct", [True, False])
@pytest.mark.parametrize(
    ("fmt", "num_rows", "width"), [("IQ4_NL", 3000, 160), ("Q8_0", 700, 160), ("F32", 90, 1500)]
)
def test_rows_in_any_order_and_number(
    fmt: str, num_rows: int, width: int, *, is_direct: bool, tmp_path: Path
) -> None:
    entry, expected = write_table(tmp_path / "m.gguf", fmt, num_rows, width)
    table = NgramTable(entry, is_direct=is_direct)
    rng = np.random.default_rng(4)
    for shape in [(1, 1), (3, 16), (200, 7)]:
        rows = rng.integers(0, num_rows, shape)
        rows.flat[0], rows.flat[-1] = num_rows - 1, 0  # the end of the file is no whole page
        np.testing.assert_array_equal(table.request(rows).wait(), expected[rows])
    # Two requests on their way at once, taken in the other order.
    first, second = table.request(np.array([[5, 9]])), table.request(np.array([[9, 2]]))
    np.testing.assert_array_equal(second.wait(), expected[[[9, 2]]])
    np.testing.assert_array_equal(first.wait(), expected[[[5, 9]]])
    table.close()


def test_file_systems_without_direct_reads_fall_back_and_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry, expected = write_table(tmp_path / "m.gguf", "Q8_0", 300, 64)
    messages: list[str] = []
    real = os.open

    def refuse(name: Path, flags: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(name, flags)

    stop = telemetry.listen(lambda event: messages.append(event.message))
    try:
        monkeypatch.setattr(os, "open", refuse)
        table = NgramTable(entry, is_direct=True)
        rows = np.arange(300).reshape(30, 10)
        np.testing.assert_array_equal(table.request(rows).wait(), expected[rows])
        table.close()
    finally:
        stop()
    assert len(messages) == 1
    assert "past the page cache" in messages[0]


@pytest.mark.parametrize("is_direct", [True, False])
def test_a_file_cut_short_is_named_with_the_offset(*, is_direct: bool, tmp_path: Path) -> None:
    entry, expected = write_table(tmp_path / "m.gguf", "Q8_0", 300, 64)
    table = NgramTable(entry, is_direct=is_direct)
    os.truncate(entry.path, entry.offset + 200 * entry.row_bytes + 5)
    np.testing.assert_array_equal(table.request(np.array([199])).wait(), expected[[199]])
    offset = entry.offset + 200 * entry.row_bytes
    with pytest.raises(CheckpointError, match=rf"m\.gguf, offset {offset:#x}"):
        table.request(np.array([[3], [200]])).wait()
    # What was read before the file changed is still right.
    np.testing.assert_array_equal(table.request(np.array([199])).wait(), expected[[199]])
    with pytest.raises(CheckpointError, match="the file has become shorter"):
        table.request(np.array([199, 200])).wait()
    table.close()


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    entry, _ = write_table(tmp_path / "m.gguf", "Q8_0", 10, 64)
    entry.path.unlink()
    with pytest.raises(CheckpointError, match=r"No such file.*\n.*m\.gguf"):
        NgramTable(entry, is_direct=True)


def test_an_abandoned_request_leaves_no_read_behind(tmp_path: Path) -> None:
    entry, expected = write_table(tmp_path / "m.gguf", "Q8_0", 3000, 64)
    table = NgramTable(entry, is_direct=True)
    request = table.request(np.arange(3000))
    request.abandon()
    assert request.is_done
    # Its rows, read or not, are not kept.
    rows = np.arange(3000)
    np.testing.assert_array_equal(table.request(rows).wait(), expected[rows])
    assert table.num_found == 0
    table.close()


@pytest.mark.parametrize("cache_bytes", [0, 2000, 1 << 20])
def test_rows_kept_are_the_rows_of_the_file(cache_bytes: int, tmp_path: Path) -> None:
    entry, expected = write_table(tmp_path / "m.gguf", "IQ4_NL", 400, 160)
    table = NgramTable(entry, is_direct=False, cache_bytes=cache_bytes)
    assert table.cache_bytes <= cache_bytes
    rng = np.random.default_rng(8)
    for _ in range(60):
        rows = rng.integers(0, 400, (2, 16)) // rng.integers(1, 40)
        first, second = table.request(rows), table.request(rows[::-1])
        np.testing.assert_array_equal(second.wait(), expected[rows[::-1]])
        np.testing.assert_array_equal(first.wait(), expected[rows])
        np.testing.assert_array_equal(first.wait(), expected[rows])  # asked for again
    assert table.num_asked == 60 * 2 * 32
    assert (table.num_found > 0) == (cache_bytes > 0)
    table.close()


def test_rows_kept_are_not_read_again(tmp_path: Path) -> None:
    entry, expected = write_table(tmp_path / "m.gguf", "Q8_0", 300, 64)
    table = NgramTable(entry, is_direct=True)
    rows = np.arange(0, 300, 7)
    table.request(rows).wait()
    table.close()
    np.testing.assert_array_equal(table.request(rows).wait(), expected[rows])
    with pytest.raises(CheckpointError, match="Bad file descriptor"):
        table.request(np.array([1])).wait()


def test_a_request_is_finished_by_close(tmp_path: Path) -> None:
    entry, expected = write_table(tmp_path / "m.gguf", "Q8_0", 300, 64)
    for is_direct in (True, False):
        table = NgramTable(entry, is_direct=is_direct)
        request = table.request(np.arange(300))
        table.close()
        np.testing.assert_array_equal(request.wait(), expected)
