"""The CPU session against transformers and the float64 reference, and against itself bit for bit.

Values: ``HfRun`` (transformers, float32) and ``ReferenceDecoder`` in float64, on float32 files.
Bits: clauses C2, C3 and C5 of docs/numerics.md, instruction sets, threads, cuts of a prompt; the
yardstick is always the same tokens decoded one by one.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.models.hf_oracle import HfRun
from tests.models.model_files import cpu_model, write_model
from tests.models.tiny_models import EOS_ID, TINY, VOCAB_SIZE, tiny_model

from strata import _native
from strata.cpu.state import RowHistory
from strata.errors import CheckpointError, ContextTooLong, RequestError, StrataError
from strata.formats.block_formats import FORMATS
from strata.formats.gguf_writer import GgufWriter, TensorPlan
from strata.formats.tensor_index import open_model
from strata.reference.decoder import ReferenceDecoder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from strata.cpu.model import CpuModel
    from strata.cpu.session import CpuSession

NAMES = [*TINY, *(f"random-{seed}" for seed in range(6))]
NUM_TOKENS = 150
ISAS = [isa for isa in ("scalar", "avx2", "avx512", "amx") if _native.is_isa_supported(isa)]

LoadModel = "Callable[..., CpuModel]"


def some_tokens(seed: int, num: int = NUM_TOKENS) -> np.ndarray:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, VOCAB_SIZE, num)
    tokens[rng.choice(num, num // 12, replace=False)] = EOS_ID
    return tokens.astype(np.int32)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and np.array_equal(a.view(np.uint32), b.view(np.uint32))


@functools.cache
def expected_logits(name: str, seed: int) -> np.ndarray:
    """[NUM_TOKENS, V] of the float64 reference."""
    model = tiny_model(name, "float64")
    decoder = ReferenceDecoder(model.spec, model.weights, np.float64)
    return decoder.forward(some_tokens(seed), decoder.initial_state())


def one_by_one(session: CpuSession, tokens: np.ndarray) -> np.ndarray:
    """Logits of all tokens, each decoded alone and committed."""
    rows = []
    for i in range(len(tokens)):
        rows.append(session.decode(tokens[i : i + 1])[0])
        session.commit(1)
    return np.array(rows)


@pytest.fixture
def load(tmp_path: Path) -> Iterator[LoadModel]:
    """Loads a tiny model: ``load("plain", threads=1)``; closed at the end."""
    models = []

    def load_one(name: str, *, formats=None, **settings) -> CpuModel:
        path = tmp_path / f"{name}.gguf"
        if not path.exists():
            write_model(path, tiny_model(name), formats)
        models.append(cpu_model(path, tiny_model(name), **settings))
        return models[-1]

    yield load_one
    for model in models:
        model.close()


@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_the_reference_and_transformers(name: str, load: LoadModel) -> None:
    # From the first token to far beyond the index budget, with cuts at odd places.
    assert tiny_model(name).spec.index_budget * 4 < NUM_TOKENS
    tokens = some_tokens(1)
    session = load(name).new_session(NUM_TOKENS)
    ends = [1, 3, 38, 40, 71, 90]
    starts = [0, *ends[:-1]]
    ours = [session.prefill(tokens[a:b]) for a, b in zip(starts, ends, strict=True)]
    ours.extend(one_by_one(session, tokens[90:]))
    rows = [end - 1 for end in ends] + list(range(90, NUM_TOKENS))
    np.testing.assert_allclose(ours, expected_logits(name, 1)[rows], rtol=0, atol=5e-5)
    theirs = HfRun(tiny_model(name).hf).forward(tokens)
    np.testing.assert_allclose(ours, theirs[rows], rtol=0, atol=2e-4)
    assert session.position == NUM_TOKENS


# The greedy answers of two models soon repeat two or three tokens, which would compare little.
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("many-qsa", "random-0")])
def test_greedy_answer_token_for_token(name: str, load: LoadModel) -> None:
    session, run = load(name).new_session(256), HfRun(tiny_model(name).hf)
    prompt = some_tokens(3, 23)
    ours, theirs = session.prefill(prompt), run.forward(prompt)[-1]
    answer = []
    for _ in range(200):
        token = int(theirs.argmax())
        assert int(ours.argmax()) == token, f"after {len(answer)} tokens"
        answer.append(token)
        ours = session.decode(np.array([token], np.int32))[0]
        session.commit(1)
        theirs = run.forward(np.array([token]))[-1]
    assert len(set(answer)) > 20  # an answer that repeats itself would compare little


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_has_the_bits_of_its_tokens_one_by_one(name: str, load: LoadModel) -> None:
    model = load(name, kv_format="f16")
    tokens = some_tokens(4, 100)
    expected = one_by_one(model.new_session(100), tokens)
    for cuts in ([100], [1, 2, 31, 33, 64, 100], [37, 100]):
        session = model.new_session(100)
        for a, b in zip([0, *cuts[:-1]], cuts, strict=True):
            assert same_bits(session.prefill(tokens[a:b]), expected[b - 1]), (a, b)


@pytest.mark.parametrize("name", NAMES)
def test_windows_have_the_bits_of_single_rows(name: str, load: LoadModel) -> None:
    # Every number of rows with every number of them kept; the rest are wrong drafts.
    pairs = [(rows, kept) for rows in range(1, 9) for kept in range(rows + 1)]
    tokens = some_tokens(5, 8 + sum(kept for _, kept in pairs))
    model = load(name)
    expected = one_by_one(model.new_session(len(tokens)), tokens)
    session = model.new_session(len(tokens) + 8)
    session.prefill(tokens[:5])
    rng = np.random.default_rng(6)
    for rows, kept in rng.permutation(pairs):
        at = session.position
        window = rng.integers(0, VOCAB_SIZE, rows).astype(np.int32)
        window[:kept] = tokens[at : at + kept]
        logits = session.decode(window)
        assert logits.shape == (rows, VOCAB_SIZE)
        assert same_bits(logits[:kept], expected[at : at + kept]), (rows, kept, at)
        session.commit(kept)
    at = session.position
    assert same_bits(one_by_one(session, tokens[at:]), expected[at:])


def test_a_window_is_replaced_by_the_next(load: LoadModel) -> None:
    model = load("plain")
    tokens = some_tokens(7, 40)
    expected = one_by_one(model.new_session(40), tokens)
    session = model.new_session(40)
    session.prefill(tokens[:20])
    session.decode(some_tokens(8, 8))
    assert same_bits(session.decode(tokens[20:23]), expected[20:23])
    session.commit(3)
    # A prompt after a window that nobody committed.
    session.decode(some_tokens(9, 8))
    assert same_bits(session.prefill(tokens[23:31]), expected[30])


@pytest.mark.parametrize("name", ["plain", "many-qsa", "no-memory", "long-ngram", "random-2"])
def test_every_instruction_set_and_thread_count_has_the_same_bits(
    name: str, load: LoadModel
) -> None:
    tokens = some_tokens(10, 90)
    expected = None
    for isa in ISAS:
        for threads in (1, 2, 3):
            session = load(name, isa=isa, threads=threads, kv_format="f16").new_session(90)
            found = [session.prefill(tokens[:60])]
            for at in range(60, 90, 5):
                found.extend(session.decode(tokens[at : at + 5]))
                session.commit(5)
            expected = found if expected is None else expected
            assert same_bits(np.array(found), np.array(expected)), (isa, threads)


@pytest.mark.parametrize("name", NAMES)
def test_a_restored_state_goes_on_with_the_same_bits(name: str, load: LoadModel) -> None:
    model = load(name)
    tokens = some_tokens(11, 110)
    expected = one_by_one(model.new_session(110), tokens)
    session = model.new_session(110)
    session.prefill(tokens[:50])
    # Mid-block, with committed rows that the recurrent state has not taken in yet.
    session.decode(np.concatenate([tokens[50:53], some_tokens(12, 5)]))
    session.commit(3)
    kept = session.snapshot()
    assert kept.position == 53
    assert kept.num_bytes > 0
    live = one_by_one(session, tokens[53:])
    assert same_bits(live, expected[53:])
    elsewhere = model.new_session(120)
    elsewhere.prefill(some_tokens(13, 120))
    for again in (session, elsewhere, elsewhere):  # a snapshot stays usable
        again.restore(kept)
        assert again.position == 53
        assert same_bits(again.prefill(tokens[53:90]), expected[89])
        assert same_bits(one_by_one(again, tokens[90:]), expected[90:])


def test_a_reset_session_is_a_new_one(load: LoadModel) -> None:
    model = load("many-qsa")
    session = model.new_session(64)
    session.prefill(some_tokens(14, 64))
    session.reset()
    assert session.position == 0
    tokens = some_tokens(15, 30)
    fresh = model.new_session(64)
    assert same_bits(session.prefill(tokens), fresh.prefill(tokens))


def test_repeated_runs_have_the_same_bits(load: LoadModel) -> None:
    tokens = some_tokens(16, 80)
    first = load("plain", threads=2).new_session(80).prefill(tokens)
    for _ in range(5):
        assert same_bits(load("plain", threads=2).new_session(80).prefill(tokens), first)


@pytest.mark.parametrize("fmt", ["BF16", "F16", "Q8_0", "Q4_0", "IQ4_NL"])
def test_quantised_files_keep_every_clause(fmt: str, load: LoadModel) -> None:
    spec, weights = tiny_model("plain").spec, tiny_model("plain").weights
    matrices = {
        name: fmt
        for name, w in weights.items()
        if w.ndim > 1 and w.shape[-1] % 32 == 0 and "norm" not in name
    }
    matrices["per_layer_token_embd.weight"] = "F16"
    assert len(matrices) > 8 * spec.num_layers
    model = load("plain", formats=matrices)
    tokens = some_tokens(17, 60)
    expected = one_by_one(model.new_session(60), tokens)
    session = model.new_session(60)
    assert same_bits(session.prefill(tokens[:41]), expected[40])
    assert same_bits(session.decode(tokens[41:49]), expected[41:49])
    for isa in ISAS:
        other = load("plain", isa=isa, threads=1).new_session(60)
        assert same_bits(other.prefill(tokens[:41]), expected[40]), isa


def test_a_prompt_can_be_stopped_and_reports_its_progress(load: LoadModel) -> None:
    session = load("plain", chunk_tokens=16).new_session(100)
    tokens = some_tokens(18, 60)
    session.prefill(tokens[:5])
    seen: list[tuple[int, int]] = []
    logits = session.prefill(
        tokens[5:],
        on_progress=lambda read, total: seen.append((read, total)),
        should_stop=lambda: len(seen) == 2,
    )
    # Cuts lie at multiples of 16 of the conversation, not of the call.
    assert seen == [(11, 55), (27, 55)]
    assert session.position == 32
    np.testing.assert_allclose(
        session.decode(tokens[32:33])[0], _continued(tokens[:33]), rtol=0, atol=5e-5
    )
    np.testing.assert_allclose(logits, _continued(tokens[:32]), rtol=0, atol=5e-5)


def _continued(tokens: np.ndarray) -> np.ndarray:
    model = tiny_model("plain", "float64")
    decoder = ReferenceDecoder(model.spec, model.weights, np.float64)
    return decoder.forward(tokens, decoder.initial_state())[-1]


def test_what_a_session_refuses(load: LoadModel) -> None:
    session = load("plain").new_session(20)
    with pytest.raises(ContextTooLong, match="21 tokens do not fit a context of 20"):
        session.prefill(some_tokens(19, 21))
    with pytest.raises(RequestError, match="no tokens"):
        session.prefill(np.zeros(0, np.int32))
    with pytest.raises(RequestError, match="token ids must be 0 to 96"):
        session.decode(np.array([VOCAB_SIZE], np.int32))
    with pytest.raises(RequestError, match="1 to 8 rows, not 9"):
        session.decode(some_tokens(20, 9))
    with pytest.raises(ValueError, match="no window"):
        session.commit(1)
    assert session.position == 0
    session.prefill(some_tokens(21, 20))
    with pytest.raises(ContextTooLong):
        session.decode(some_tokens(22, 1))


def test_a_broken_off_prompt_must_be_reset(load: LoadModel) -> None:
    model = load("plain")
    session = model.new_session(64)
    session.prefill(some_tokens(23, 10))
    kept = session.snapshot()
    assert model.ngram_table is not None
    request, model.ngram_table.request = model.ngram_table.request, _fails
    with pytest.raises(CheckpointError):
        session.prefill(some_tokens(24, 10))
    assert session.position == 10  # the rows were asked for before anything was computed
    model.ngram_table.request = lambda rows: _Late()
    with pytest.raises(CheckpointError):
        session.prefill(some_tokens(24, 10))
    model.ngram_table.request = request
    with pytest.raises(StrataError, match="reset it, or restore"):
        session.decode(some_tokens(24, 1))
    session.restore(kept)
    assert np.isfinite(session.decode(some_tokens(24, 1))).all()


@pytest.mark.parametrize("step", ["decode", "commit", "snapshot", "restore", "reset"])
def test_an_interrupt_inside_a_step_is_not_gone_on_from(
    step: str, load: LoadModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Python raises KeyboardInterrupt as soon as a kernel returns: what it did is not noted yet.
    session = load("plain").new_session(64)
    session.prefill(some_tokens(27, 10))
    kept = session.snapshot()
    session.decode(some_tokens(28, 3))
    if step != "commit":
        session.commit(2)
    names = {"decode": "window", "commit": "commit", "snapshot": "newest"}
    steps = {
        "decode": lambda: session.decode(some_tokens(29, 1)),
        "commit": lambda: session.commit(2),
        "snapshot": session.snapshot,
        "restore": lambda: session.restore(kept),
        "reset": session.reset,
    }

    def interrupt(*_args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RowHistory, names.get(step, "replace"), interrupt)
        with pytest.raises(KeyboardInterrupt):
            steps[step]()
    for refused in ("decode", "commit", "snapshot"):
        with pytest.raises(StrataError, match="reset it, or restore"):
            steps[refused]()
    session.restore(kept)
    assert np.isfinite(session.decode(some_tokens(29, 1))).all()


def test_a_stopped_prompt_leaves_no_read_behind(load: LoadModel) -> None:
    model = load("plain", chunk_tokens=8)
    assert model.ngram_table is not None
    requests = []
    request = model.ngram_table.request

    def recorded(rows: np.ndarray) -> object:
        requests.append(request(rows))
        return requests[-1]

    model.ngram_table.request = recorded
    session = model.new_session(40)
    session.prefill(some_tokens(30, 40), should_stop=lambda: True)
    assert session.position == 8
    assert len(requests) == 2  # the second chunk's rows were on their way
    assert requests[1].is_done


def _fails(rows: np.ndarray) -> None:
    raise CheckpointError("the disk is gone")


class _Late:
    def wait(self) -> None:
        raise CheckpointError("the disk is gone")


def test_a_weight_that_is_no_number_is_named(tmp_path: Path) -> None:
    model = tiny_model("no-memory")
    for name in ("blk.1.ffn_up_exps.weight", "blk.2.attn_q_norm.weight", "output.weight"):
        weights = dict(model.weights)
        damaged = weights[name].copy()
        damaged.reshape(-1)[3] = np.nan
        weights[name] = damaged
        path = tmp_path / "damaged.gguf"
        broken = type(model)(model.hf, model.spec, weights)
        _write_unchecked(path, broken)
        with pytest.raises(CheckpointError, match=rf"{name} holds NaN"):
            cpu_model(path, broken)


def _write_unchecked(path: Path, model) -> None:
    """As ``write_model``, but values are not looked at: the quantiser refuses NaN."""
    plans = [TensorPlan(name, w.shape, FORMATS["F32"]) for name, w in model.weights.items()]
    with GgufWriter(path, {"general.architecture": "qwen4exp"}, plans) as writer:
        for name, weight in model.weights.items():
            writer.write(name, weight.astype(np.float32))


def test_huge_weights_give_an_error_that_names_the_layer(load: LoadModel, tmp_path: Path) -> None:
    model = tiny_model("no-memory")
    weights = dict(model.weights)
    weights["blk.1.ffn_gate_inp.weight"] = np.full_like(
        weights["blk.1.ffn_gate_inp.weight"], np.float32(3e38)
    )
    broken = type(model)(model.hf, model.spec, weights)
    path = write_model(tmp_path / "huge.gguf", broken)
    loaded = cpu_model(path, broken)
    with pytest.raises(StrataError, match="router of layer 1 gave NaN or infinity for row 0"):
        loaded.new_session(20).prefill(some_tokens(25, 9))


def test_a_last_layer_without_a_number_is_told_by_the_head(tmp_path: Path) -> None:
    # Nothing quantised lies between the last layer's outputs and the streams' last read.
    model = tiny_model("no-memory")
    name = f"blk.{model.spec.num_layers - 1}.ffn_down_shexp.weight"
    weights = dict(model.weights)
    weights[name] = np.full_like(weights[name], np.float32(3e38))
    broken = type(model)(model.hf, model.spec, weights)
    path = write_model(tmp_path / "last.gguf", broken, {"output_hc_down.weight": "Q8_0"})
    session = cpu_model(path, broken).new_session(20)
    with pytest.raises(StrataError, match="NaN or infinite in the output head, near position 9"):
        session.prefill(some_tokens(31, 9))


def test_a_damaged_scale_gives_an_error_that_names_the_layer(tmp_path: Path) -> None:
    model = tiny_model("plain")
    name = "blk.2.hc_ffn_down.weight"
    path = write_model(tmp_path / "scale.gguf", model, {name: "Q8_0"})
    with open_model(path) as index:
        entry = index[name]
    with path.open("r+b") as stream:
        stream.seek(entry.offset)
        stream.write(np.array([np.nan], np.float16).tobytes())
    session = cpu_model(path, model).new_session(20)
    with pytest.raises(StrataError, match="layer 2 gave NaN or infinity"):
        session.prefill(some_tokens(26, 9))
