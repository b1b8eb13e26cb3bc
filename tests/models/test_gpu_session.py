"""The card's session against the processor's, and against itself bit for bit.

Runs on a card, or in Triton's interpreter where there is none; the model is as small as one with
every part can be. Values: ``CpuSession`` on the same file, within 1e-3. Bits: clauses C2, C3 and C5
of docs/numerics.md; the yardstick is the same tokens decoded one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.models.bits import one_by_one, same_bits
from tests.models.model_files import cpu_model, write_model
from tests.models.on_card import gpu_model
from tests.models.smallest_model import formats_of, smallest_model
from tests.models.tiny_models import VOCAB_SIZE, TinyModel

from strata.errors import ContextTooLong, RequestError, StrataError
from strata.formats.tensor_index import open_model
from strata.gpu.memory_plan import Wishes, plan_memory

if TYPE_CHECKING:
    from pathlib import Path

    from strata.gpu.model import GpuModel


@pytest.fixture(scope="module")
def model(smallest_path: Path) -> GpuModel:
    return gpu_model(smallest_path)


def test_logits_are_the_processor_s(
    single: np.ndarray, smallest_path: Path, tokens: np.ndarray
) -> None:
    session = cpu_model(smallest_path, smallest_model(), threads=1, kv_format="f16").new_session(32)
    expected = one_by_one(session, tokens)
    np.testing.assert_allclose(single, expected, rtol=0, atol=1e-3)
    assert np.array_equal(single.argmax(1), expected.argmax(1))
    assert expected.std() > 0.3  # logits that are all alike would compare little


@pytest.mark.slow
def test_windows_have_the_bits_of_single_rows(
    model: GpuModel, single: np.ndarray, tokens: np.ndarray
) -> None:
    # What is kept varies; the rest are wrong drafts. Products are tested at every number of rows.
    session = model.new_session(24)
    rng = np.random.default_rng(4)
    for rows, kept in [(8, 3), (5, 0), (3, 2), (2, 2)]:
        at = session.position
        window = rng.integers(0, VOCAB_SIZE, rows).astype(np.int32)
        window[:kept] = tokens[at : at + kept]
        logits = session.decode(window)
        assert logits.shape == (rows, VOCAB_SIZE)
        assert same_bits(logits[:kept], single[at : at + kept]), (rows, kept, at)
        session.commit(kept)
    assert session.position == 7


@pytest.mark.slow
def test_a_snapshot_and_a_reset_keep_the_bits(
    model: GpuModel, single: np.ndarray, tokens: np.ndarray
) -> None:
    session = model.new_session(20)
    for window in (tokens[:8], tokens[8:9]):
        logits = session.decode(window)
        session.commit(len(window))
    assert same_bits(logits[0], single[8])
    # A kept row and a wrong draft: the recurrent memory has not taken it in yet.
    window = np.array([tokens[9], 0], np.int32)
    assert same_bits(session.decode(window)[:1], single[9:10])
    with pytest.raises(ValueError, match="window is open"):
        session.snapshot()
    session.commit(1)
    kept = session.snapshot()
    assert kept.position == 10
    assert kept.num_bytes > 0
    assert same_bits(one_by_one(session, tokens[10:11]), single[10:11])
    elsewhere = model.new_session(24)
    elsewhere.restore(kept)
    assert same_bits(one_by_one(elsewhere, tokens[10:12]), single[10:12])
    elsewhere.reset()
    assert elsewhere.position == 0
    assert same_bits(one_by_one(elsewhere, tokens[:1]), single[:1])


@pytest.mark.slow
def test_int8_cells_keep_the_clauses(
    smallest_path: Path, single: np.ndarray, tokens: np.ndarray
) -> None:
    session = gpu_model(smallest_path, kv_format="int8").new_session(16)
    first = session.prefill(tokens[:3])
    np.testing.assert_allclose(first, single[2], rtol=0, atol=0.1)
    assert not same_bits(first, single[2])  # it is another format
    both = session.decode(tokens[3:5])
    kept_bits = session.decode(tokens[3:4])
    assert same_bits(both[:1], kept_bits)
    session.commit(1)
    kept = session.snapshot()
    assert same_bits(session.decode(tokens[4:5]), both[1:])
    session.restore(kept)
    assert same_bits(session.decode(tokens[4:5]), both[1:])


def test_what_was_planned_is_what_is_taken(smallest_path: Path) -> None:
    spec = smallest_model().spec
    for kv_format in ("f16", "int8"):
        with open_model(smallest_path) as index:
            plan = plan_memory(index, spec, Wishes(300, kv_format))
        loaded = gpu_model(smallest_path, kv_format=kv_format)
        assert dict(loaded.memory_report()) == dict(plan.weights)
        session = loaded.new_session(300)
        assert session.num_bytes == sum(plan.session.values())
        assert all(size > 0 for size in (*plan.weights.values(), *plan.session.values()))


def test_what_a_session_refuses(model: GpuModel, tokens: np.ndarray) -> None:
    session = model.new_session(20)
    with pytest.raises(ContextTooLong, match="21 tokens do not fit a context of 20"):
        session.prefill(np.zeros(21, np.int32))
    with pytest.raises(RequestError, match="1 to 8 rows, not 9"):
        session.decode(np.zeros(9, np.int32))
    with pytest.raises(RequestError, match="token ids must be 0 to 96"):
        session.decode(np.array([VOCAB_SIZE], np.int32))
    with pytest.raises(ValueError, match="no window"):
        session.commit(1)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, in the interpreter
def test_huge_weights_give_an_error_that_names_the_layer(tmp_path: Path) -> None:
    tiny = smallest_model()
    weights = dict(tiny.weights)
    name = "blk.1.ffn_gate_inp.weight"
    weights[name] = np.full_like(weights[name], np.float32(3e38))
    broken = TinyModel(tiny.hf, tiny.spec, weights)
    file = write_model(tmp_path / "huge.gguf", broken, formats_of(weights))
    session = gpu_model(file).new_session(8)
    with pytest.raises(StrataError, match="layer 1 gave NaN or infinity"):
        session.decode(np.array([1], np.int32))
    # Nothing was kept of it: the session stands where it stood.
    assert session.position == 0
