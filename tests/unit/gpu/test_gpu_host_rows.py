"""Rows of a prompt chunk against the readers of windows: the embedding's, the n-gram table's."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from typing import TYPE_CHECKING

from strata.errors import CheckpointError
from strata.formats.block_formats import FORMATS
from strata.formats.model_tensors import Embedding
from strata.formats.ngram_table import NgramTable
from strata.formats.quantize import quantize
from strata.formats.tensor_index import TensorEntry
from strata.gpu.host_rows import HostRows, abandoned, finished

if TYPE_CHECKING:
    from pathlib import Path

NUM_ROWS, ROW_SIZE, HEADS, VOCAB, WIDTH = 50, 32, 3, 20, 64


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng()


@pytest.fixture
def entry(tmp_path: Path, rng: np.random.Generator) -> TensorEntry:
    """A table that begins in the middle of a page."""
    fmt, file = FORMATS["Q8_0"], tmp_path / "table.bin"
    raw = quantize(fmt, rng.normal(0, 1, (NUM_ROWS, ROW_SIZE)).astype(np.float32))
    file.write_bytes(bytes(4100) + raw.tobytes())
    return TensorEntry("table", (NUM_ROWS, ROW_SIZE), fmt, file, 4100, raw.nbytes)


@pytest.fixture
def embedding(rng: np.random.Generator) -> Embedding:
    raw = quantize(FORMATS["Q4_0"], rng.normal(0, 1, (VOCAB, WIDTH)).astype(np.float32))
    return Embedding(FORMATS["Q4_0"], raw, 0.5)


@pytest.mark.parametrize("num_tokens", [1, 300])
def test_rows_are_those_of_a_window(
    num_tokens: int, entry: TensorEntry, embedding: Embedding, rng: np.random.Generator
) -> None:
    tokens = rng.integers(0, VOCAB, num_tokens).astype(np.int32)
    ids = rng.integers(0, NUM_ROWS, (num_tokens, HEADS))
    rows = HostRows(embedding, entry)
    out = np.full((num_tokens, WIDTH + HEADS * ROW_SIZE), np.nan, np.float32)
    finished(rows.start(tokens, ids, out))
    rows.close()
    table = NgramTable(entry, is_direct=False)
    assert np.array_equal(out[:, :WIDTH], embedding.rows(tokens))
    assert np.array_equal(out[:, WIDTH:], table.request(ids).wait().reshape(num_tokens, -1))
    table.close()


def test_without_a_table_there_is_the_embedding(embedding: Embedding) -> None:
    rows, tokens = HostRows(embedding, None), np.arange(5, dtype=np.int32)
    out = np.full((5, WIDTH), np.nan, np.float32)
    finished(rows.start(tokens, None, out))
    assert np.array_equal(out, embedding.rows(tokens))
    abandoned(rows.start(tokens, None, out))
    rows.close()


def test_a_row_that_is_not_in_the_table_is_an_error(
    entry: TensorEntry, embedding: Embedding
) -> None:
    rows = HostRows(embedding, entry)
    out = np.empty((1, WIDTH + HEADS * ROW_SIZE), np.float32)
    ids = np.full((1, HEADS), NUM_ROWS)
    with pytest.raises(IndexError):
        finished(rows.start(np.zeros(1, np.int32), ids, out))
    rows.close()


def test_a_file_that_is_too_short_is_refused(entry: TensorEntry, embedding: Embedding) -> None:
    entry.path.write_bytes(bytes(100))
    with pytest.raises(CheckpointError, match="cannot read the n-gram table"):
        HostRows(embedding, entry)
