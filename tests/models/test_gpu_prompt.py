"""Prompts on a card: their logits against the processor's, and their cuts bit for bit.

Runs on a card, or in Triton's interpreter where there is none. There a row costs a third of a
second and a window several, so the delta net's groups, and with them the cuts, are 16 tokens here.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.models.bits import same_bits
from tests.models.model_files import cpu_model, write_model
from tests.models.on_card import gpu_model
from tests.models.smallest_model import formats_of, smallest_model
from tests.models.tiny_models import VOCAB_SIZE, TinyModel

from strata.errors import StrataError
from strata.gpu import prompt, prompt_layout
from strata.gpu import session as session_module
from strata.gpu.kernels import delta_scan

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from strata.gpu.model import GpuModel

CUT, NUM_TOKENS, CAPACITY = 16, 33, 64
# The delta net's rounding is the largest part of it.
TOLERANCE = 2e-5


@pytest.fixture(scope="module", autouse=True)
def _small_groups():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta_scan, "CHUNK", CUT)
        patch.setattr(prompt_layout, "CUT_TOKENS", CUT)
        patch.setattr(prompt, "CUT_TOKENS", CUT)
        patch.setattr(session_module, "CUT_TOKENS", CUT)
        yield


def small_model() -> TinyModel:
    """With reads of either kind: those whose matrices are all BF16 are fused."""
    return smallest_model(hc_lowrank=32)


def formats_with_fused_reads(weights) -> dict[str, str]:
    fused = ("blk.0.hc_ffn_", "blk.1.hc_attn_")
    names = [name for name in weights if name.startswith(fused) and "norm" not in name]
    assert len(names) == 6
    return formats_of(weights) | dict.fromkeys(names, "BF16")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = small_model()
    file = tmp_path_factory.mktemp("prompt") / "model.gguf"
    return write_model(file, model, formats_with_fused_reads(model.weights))


@pytest.fixture(scope="module")
def tokens() -> np.ndarray:
    return np.random.default_rng(3).integers(0, VOCAB_SIZE, CAPACITY).astype(np.int32)


def load(path: Path, chunk: int) -> GpuModel:
    return gpu_model(path, small_model().spec, chunk_tokens=chunk)


@pytest.fixture(scope="module")
def model(path: Path) -> GpuModel:
    """Chunks of one cut each."""
    return load(path, CUT)


@pytest.fixture(scope="module")
def whole(path: Path, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logits of a prompt: one chunk and a window; and of a token after it."""
    session = load(path, 3 * CUT).new_session(CAPACITY)
    return session.prefill(tokens[:NUM_TOKENS]), session.decode(tokens[NUM_TOKENS:][:1])


def processor_logits(path: Path, tokens: np.ndarray) -> np.ndarray:
    session = cpu_model(path, small_model(), threads=1, kv_format="f16").new_session(CAPACITY)
    return session.prefill(tokens)


@pytest.mark.slow
def test_a_prompt_has_the_processor_s_logits(whole, path: Path, tokens: np.ndarray) -> None:
    last, after = whole
    expected = processor_logits(path, tokens[:NUM_TOKENS])
    np.testing.assert_allclose(last, expected, rtol=0, atol=TOLERANCE)
    assert expected.std() > 0.3  # logits that are all alike would compare little
    expected = processor_logits(path, tokens[: NUM_TOKENS + 1])
    np.testing.assert_allclose(after[0], expected, rtol=0, atol=TOLERANCE)


@pytest.mark.slow
def test_cuts_leave_no_trace(whole, path: Path, tokens: np.ndarray) -> None:
    """Neither those of chunks nor those between calls; nor do passes over some of the experts.

    The launches of the second chunk are those that were kept of the first.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompt, "experts_at_a_time", lambda *_: 3)
        session = load(path, CUT).new_session(CAPACITY)
    assert session.cut_tokens == CUT
    seen: list[tuple[int, int]] = []
    session.prefill(tokens[:CUT])
    last = session.prefill(tokens[CUT:NUM_TOKENS], on_progress=lambda *read: seen.append(read))
    assert seen == [(16, 17), (17, 17)]
    assert same_bits(last, whole[0])
    assert len(session._reader._prompt._tapes) == 1
    assert same_bits(session.decode(tokens[NUM_TOKENS:][:1]), whole[1])


@pytest.mark.slow
def test_reading_and_decoding_follow_one_another(
    model: GpuModel, path: Path, tokens: np.ndarray
) -> None:
    session = model.new_session(CAPACITY)
    stopped = session.prefill(tokens[:NUM_TOKENS], should_stop=lambda: True)
    assert session.position == CUT
    np.testing.assert_allclose(
        stopped, processor_logits(path, tokens[:CUT]), rtol=0, atol=TOLERANCE
    )
    window = tokens[CUT : CUT + 2].copy()
    window[1] = 0  # a wrong draft
    session.decode(window)
    session.commit(1)
    last = session.prefill(tokens[17:18])
    expected = processor_logits(path, tokens[:18])
    np.testing.assert_allclose(last, expected, rtol=0, atol=TOLERANCE)
    kept = session.snapshot()
    after = session.decode(tokens[18:19])
    elsewhere = model.new_session(CAPACITY)
    elsewhere.restore(kept)
    assert same_bits(elsewhere.decode(tokens[18:19]), after)


@pytest.mark.slow
def test_a_chunk_is_launched_before_the_one_ahead_ends(
    model: GpuModel, whole, tokens: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the caller's meanwhile leaves the session behind the chunk that is under way."""
    session, steps = model.new_session(CAPACITY), []

    def noted(name: str, step: Callable[..., object], *args: object) -> object:
        steps.append(name)
        return step(*args)

    for name in ("gather", "ready", "launch", "approach", "wait"):
        step = getattr(session._reader, name)
        monkeypatch.setattr(session._reader, name, functools.partial(noted, name, step))

    def gone(_read: int, _total: int) -> None:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        session.prefill(tokens[:NUM_TOKENS], on_progress=gone)
    assert " ".join(steps) == "gather ready launch gather approach ready launch wait wait"
    assert session.position == 2 * CUT
    assert same_bits(session.prefill(tokens[2 * CUT : NUM_TOKENS]), whole[0])


@pytest.mark.slow
def test_a_chunk_takes_in_the_row_that_is_pending(
    model: GpuModel, path: Path, tokens: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Usually it takes seven windows to come to the end of a group.
    monkeypatch.setattr(session_module, "pieces_of", lambda *_: [(1, True), (CUT - 1, False)])
    last = model.new_session(CAPACITY).prefill(tokens[:CUT])
    expected = processor_logits(path, tokens[:CUT])
    np.testing.assert_allclose(last, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, in the interpreter
def test_huge_weights_end_the_reading_with_the_layer_s_name(tmp_path: Path) -> None:
    tiny = small_model()
    weights = dict(tiny.weights)
    name = "blk.1.ffn_gate_inp.weight"
    weights[name] = np.full_like(weights[name], np.float32(3e38))
    broken = TinyModel(tiny.hf, tiny.spec, weights)
    file = write_model(tmp_path / "huge.gguf", broken, formats_of(weights))
    session = load(file, CUT).new_session(2 * CUT)
    prompt = np.arange(2 * CUT, dtype=np.int32)  # the second chunk is under way by then
    with pytest.raises(StrataError, match="layer 1 gave NaN or infinity"):
        session.prefill(prompt)
    # The layers' memories have moved on, the position has not.
    with pytest.raises(StrataError, match="state is incomplete"):
        session.prefill(prompt)
    session.reset()
    assert session.position == 0
