"""The CPU drafter against the float64 reference, and its state against sessions made anew.

Values: ``ReferenceDraftLayer`` on ``ReferenceDecoder``'s streams. Bits: a session that has read the
same tokens as one prompt and proposes for the first time.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.models.draft_oracle import draft_model
from tests.models.model_files import cpu_model, write_model
from tests.models.tiny_models import TINY, VOCAB_SIZE

from strata import _native
from strata.cpu import layers
from strata.cpu.draft import CpuDrafter
from strata.errors import StrataError
from strata.reference.decoder import ReferenceDecoder
from strata.reference.draft_layer import ReferenceDraftLayer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from strata.cpu.model import CpuModel
    from strata.cpu.session import CpuSession

NAMES = [*TINY, *(f"random-{seed}" for seed in range(6))]
NUM_TOKENS = 120
ISAS = [isa for isa in ("scalar", "avx2", "avx512", "amx") if _native.is_isa_supported(isa)]

LoadModel = "Callable[..., CpuModel]"


def some_tokens(seed: int, num: int = NUM_TOKENS) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCAB_SIZE, num).astype(np.int32)


@pytest.fixture
def load(tmp_path: Path) -> Iterator[LoadModel]:
    """Loads a tiny model with its draft layer: ``load("plain", threads=1)``."""
    models = []

    def load_one(name: str, *, formats=None, has_own_ends=False, **options) -> CpuModel:
        path = tmp_path / f"{name}{has_own_ends}.gguf"
        tiny = draft_model(name, has_own_ends=has_own_ends).tiny
        if not path.exists():
            write_model(path, tiny, formats)
        models.append(cpu_model(path, tiny, **({"has_draft": True} | options)))
        return models[-1]

    yield load_one
    for model in models:
        model.close()


@functools.cache
def reference(name: str, seed: int) -> tuple[ReferenceDraftLayer, np.ndarray]:
    """The layer in float64, and the trunk's streams [NUM_TOKENS, c, D] over ``some_tokens``."""
    tiny = draft_model(name, "float64").tiny
    decoder = ReferenceDecoder(tiny.spec, tiny.weights, np.float64)
    streams, _ = decoder.forward_streams(some_tokens(seed), decoder.initial_state())
    return ReferenceDraftLayer(tiny.spec, tiny.weights, np.float64), streams


@pytest.mark.parametrize("name", NAMES)
def test_drafts_equal_the_reference(
    name: str, load: LoadModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, (layer, streams) = some_tokens(1), reference(name, 1)
    found: list[np.ndarray] = []
    step = CpuDrafter._step

    def recorded(self: CpuDrafter, *args: Any) -> Any:
        logits, out = step(self, *args)
        found.append(logits)
        return logits, out

    monkeypatch.setattr(CpuDrafter, "_step", recorded)
    session = load(name).new_session(NUM_TOKENS)
    state = layer.initial_state()
    # From the first token to beyond the trunk's index budget, by prompts and windows.
    ends = [1, 2, 3, 20, 21, 25, 60, 95, 101]
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        if end - start <= 8:
            session.decode(tokens[start:end])
            session.commit(end - start)
        else:
            session.prefill(tokens[start:end])
        layer.read(streams[state.num_cells : end], tokens[state.num_cells + 1 : end + 1], state)
        expected, drafted = [state.logits], state.copy()
        for _ in range(2):
            pick = np.array([expected[-1].argmax()])
            expected.append(layer.read(drafted.streams[None], pick, drafted)[1][0])
        found.clear()
        ids, probs = session.drafter.propose(int(tokens[end]), 3)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
        wanted_ids, wanted_probs = layer.propose(3, state)
        assert ids == wanted_ids
        np.testing.assert_allclose(probs, wanted_probs, rtol=0, atol=1e-4)


def test_own_embedding_and_head(load: LoadModel) -> None:
    tiny = draft_model("plain", "float64", has_own_ends=True).tiny
    decoder = ReferenceDecoder(tiny.spec, tiny.weights, np.float64)
    tokens = some_tokens(2, 30)
    streams, _ = decoder.forward_streams(tokens, decoder.initial_state())
    layer = ReferenceDraftLayer(tiny.spec, tiny.weights, np.float64)
    state = layer.initial_state()
    layer.read(streams[:-1], tokens[1:], state)
    session = load("plain", has_own_ends=True).new_session(40)
    session.prefill(tokens[:-1])
    ids, probs = session.drafter.propose(int(tokens[-1]), 3)
    wanted_ids, wanted_probs = layer.propose(3, state)
    assert ids == wanted_ids
    np.testing.assert_allclose(probs, wanted_probs, rtol=0, atol=1e-4)


def fresh(model: CpuModel, tokens: np.ndarray, token: int, num: int) -> Any:
    """What a session that has read ``tokens`` as one prompt proposes."""
    session = model.new_session(NUM_TOKENS)
    if len(tokens):
        session.prefill(tokens)
    return session.drafter.propose(token, num)


class Driver:
    """A session put through operations, with the tokens it must hold."""

    def __init__(self, model: CpuModel, seed: int) -> None:
        self.model = model
        self.session: CpuSession = model.new_session(NUM_TOKENS)
        self.tokens = np.zeros(0, np.int32)
        self.kept = [(self.session.snapshot(), self.tokens)]
        self._rng = np.random.default_rng(seed)

    def some(self, num: int) -> np.ndarray:
        room = NUM_TOKENS - len(self.tokens)
        return self._rng.integers(0, VOCAB_SIZE, min(num, room)).astype(np.int32)

    def prompt(self, num: int) -> None:
        tokens = self.some(num)
        if len(tokens):
            self.session.prefill(tokens)
            self.tokens = np.concatenate([self.tokens, tokens])

    def window(self, num: int, kept: int) -> None:
        tokens = self.some(num)
        if len(tokens):
            self.session.decode(tokens)
            kept = min(kept, len(tokens))
            self.session.commit(kept)
            self.tokens = np.concatenate([self.tokens, tokens[:kept]])

    def cancelled(self, num: int) -> None:
        tokens = self.some(num)
        if len(tokens):
            self.session.decode(tokens)
            self.session.restore(self.kept[-1][0])
            self.tokens = self.kept[-1][1]

    def propose(self, num: int) -> None:
        self.session.drafter.propose(int(self._rng.integers(0, VOCAB_SIZE)), num)

    def keep(self, _num: int) -> None:
        self.kept.append((self.session.snapshot(), self.tokens))

    def restore(self, which: int) -> None:
        snapshot, self.tokens = self.kept[which % len(self.kept)]
        self.session.restore(snapshot)

    def elsewhere(self, which: int) -> None:
        """The state goes on in another session."""
        self.session = self.model.new_session(NUM_TOKENS)
        self.restore(which)

    def reset(self, _num: int) -> None:
        self.session.reset()
        self.tokens = np.zeros(0, np.int32)


_NUMS = st.integers(1, 8)
_STEP = st.one_of(
    st.tuples(st.just("prompt"), st.integers(1, 40)),
    st.tuples(st.just("window"), _NUMS, st.integers(0, 8)),
    st.tuples(st.sampled_from(["cancelled", "propose", "keep"]), _NUMS),
    st.tuples(st.sampled_from(["restore", "elsewhere", "reset"]), _NUMS),
)


@pytest.mark.parametrize("name", ["plain", "many-qsa", "random-3"])
def test_any_history_drafts_as_a_session_made_anew(name: str, load: LoadModel) -> None:
    model = load(name, kv_format="f16", chunk_tokens=16, threads=1)
    used = model.new_session(NUM_TOKENS)

    @settings(
        max_examples=40, deadline=None, derandomize=True,
        suppress_health_check=[HealthCheck.too_slow],
    )  # fmt: skip
    @given(st.lists(_STEP, min_size=1, max_size=12), st.integers(0, 99))
    def check(steps: list[tuple[Any, ...]], seed: int) -> None:
        driver = Driver(model, seed)
        for step, *arguments in steps:
            getattr(driver, step)(*arguments)
            assert driver.session.position == len(driver.tokens)
        # Before any proposal here: it would tidy up what waits.
        used.restore(driver.session.snapshot())
        found = driver.session.drafter.propose(5, 3)
        assert found == fresh(model, driver.tokens, 5, 3)
        assert used.drafter.propose(5, 3) == found

    check()


def test_drafting_changes_no_logits(load: LoadModel) -> None:
    model = load("plain")
    plain, drafting = model.new_session(NUM_TOKENS), model.new_session(NUM_TOKENS)
    undrafted = load("plain", has_draft=False).new_session(NUM_TOKENS)
    assert undrafted.drafter is None
    tokens = some_tokens(3)
    rng = np.random.default_rng(4)
    logits = [s.prefill(tokens[:30]) for s in (plain, drafting, undrafted)]
    while plain.position < NUM_TOKENS - 8:
        assert np.array_equal(logits[0], logits[1])
        assert np.array_equal(logits[0], logits[2])
        at, num = plain.position, int(rng.integers(1, 8))
        drafting.drafter.propose(int(tokens[at]), 3)
        logits = [s.decode(tokens[at : at + num]) for s in (plain, drafting, undrafted)]
        for session in (plain, drafting, undrafted):
            session.commit(min(num, 3))


def test_every_instruction_set_and_thread_count_drafts_the_same(load: LoadModel) -> None:
    tokens = some_tokens(5, 70)
    expected = None
    for isa in ISAS:
        for threads in (1, 3):
            session = load("plain", isa=isa, threads=threads, kv_format="f16").new_session(80)
            session.prefill(tokens)
            found = session.drafter.propose(9, 4)
            expected = found if expected is None else expected
            assert found == expected, (isa, threads)


def test_long_prompts_draft_the_same_however_cut(load: LoadModel) -> None:
    # Beyond the rows that are made at a time, and beyond one span of the rotary tables.
    tokens = some_tokens(9, 1100)
    found = []
    for chunk_tokens in (512, 16, 7):
        session = load("many-qsa", chunk_tokens=chunk_tokens).new_session(1110)
        session.prefill(tokens)
        found.append(session.drafter.propose(3, 4))
    session.reset()
    for at in range(0, 1100, 4):
        session.decode(tokens[at : at + 4])
        session.commit(4)
        if at % 40 == 0:
            session.drafter.propose(int(tokens[at + 4]), 3)
    found.append(session.drafter.propose(3, 4))
    assert found[1:] == found[:-1]
    assert len(found[0][0]) == 4


def test_an_interrupted_proposal_can_be_made_again(
    load: LoadModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = load("plain").new_session(40)
    session.prefill(some_tokens(10, 20))
    session.decode(some_tokens(11, 5))
    session.commit(5)
    expected = session.drafter.propose(4, 3)
    session.decode(some_tokens(12, 6))
    session.commit(6)
    calls = []

    def interrupt(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return moe(*arguments)

    moe = layers.moe
    with monkeypatch.context() as patch:
        patch.setattr(layers, "moe", interrupt)
        with pytest.raises(KeyboardInterrupt):
            session.drafter.propose(4, 3)
    found = session.drafter.propose(4, 3)
    other = load("plain").new_session(40)
    other.prefill(np.concatenate([some_tokens(10, 20), some_tokens(11, 5), some_tokens(12, 6)]))
    assert found == other.drafter.propose(4, 3)
    assert found != expected


def test_drafts_at_the_ends_of_the_context(load: LoadModel) -> None:
    session = load("plain").new_session(10)
    assert session.drafter.propose(1, 3) == ([], [])  # nothing to go on from
    session.prefill(some_tokens(6, 9))
    assert len(session.drafter.propose(1, 3)[0]) == 2
    session.decode(some_tokens(7, 1))
    session.commit(1)
    # The last token of an answer has no cell; its draft would be for a place beyond the context.
    assert len(session.drafter.propose(1, 3)[0]) == 1
    assert session.drafter.propose(1, 0) == ([], [])


def test_memory_is_paid_only_with_drafts(load: LoadModel) -> None:
    plain = load("plain", has_draft=False).memory_report()
    drafting = load("plain").memory_report()
    assert "draft layer" not in plain
    spec = draft_model("plain").tiny.spec
    assert drafting.pop("draft layer") > 4 * 3 * spec.num_experts * spec.expert_size
    assert drafting == plain


def test_loading_is_reported_to_its_end(tmp_path: Path) -> None:
    tiny = draft_model("plain", has_own_ends=True).tiny
    path = write_model(tmp_path / "model.gguf", tiny)
    seen: list[tuple[int, int]] = []
    for has_draft in (False, True):
        options = {"has_draft": has_draft, "on_progress": lambda *done: seen.append(done)}
        cpu_model(path, tiny, **options).close()
        assert seen[-1][0] == seen[-1][1]


def test_damaged_weights_are_named(load: LoadModel, tmp_path: Path) -> None:
    tiny = draft_model("plain").tiny
    weights = dict(tiny.weights)
    # Finite, so that loading has nothing to say; what it multiplies is not.
    gamma = "blk.4.nextn.hc_head_norm.weight"
    weights[gamma] = np.full_like(weights[gamma], 3e38)
    damaged = type(tiny)(tiny.hf, tiny.spec, weights)
    path = write_model(tmp_path / "damaged.gguf", damaged)
    session = cpu_model(path, damaged, has_draft=True).new_session(20)
    session.prefill(some_tokens(8, 4))
    with pytest.raises(StrataError, match=r"draft layer .*near position 0"):
        session.drafter.propose(1, 1)
