"""The card's draft layer against the processor's, and against one that has read the tokens anew.

Values: ``CpuDrafter`` on the same file. Bits: a session that reads the same tokens in other steps
(docs/numerics.md, C3). Runs on a card, or in Triton's interpreter where there is none.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from tests.fakes import FakeText
from tests.models.draft_oracle import with_draft
from tests.models.model_files import cpu_model, write_model
from tests.models.on_card import DEVICE, gpu_model
from tests.models.smallest_model import SMALLEST, formats_of, smallest_model
from tests.models.tiny_models import VOCAB_SIZE, TinyModel

from strata import Engine, SamplingParams
from strata.engine.parts import Parts
from strata.formats.tensor_index import open_model
from strata.gpu.memory_plan import Wishes, plan_memory
from strata.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from strata.gpu.model import GpuModel
    from strata.gpu.session import GpuSession

CAPACITY = 20
CODED = {"eh_proj": "Q8_0", "attn_q": "Q8_0"}
WORDS = np.random.default_rng(7).integers(0, VOCAB_SIZE, 16).astype(np.int32)


@functools.cache
def drafting_model() -> TinyModel:
    return with_draft(smallest_model(), SMALLEST, "smallest").tiny


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    tiny = drafting_model()
    formats = formats_of(tiny.weights)
    for name in tiny.weights:
        stem = name.removesuffix(".weight").split(".")[-1]
        if name.startswith("blk.2.") and stem in CODED:
            formats[name] = CODED[stem]
    formats["token_embd.weight"] = "Q4_0"
    return write_model(tmp_path_factory.mktemp("drafts") / "model.gguf", tiny, formats)


def loaded(path: Path, kv_format: str = "f16") -> GpuModel:
    spec = drafting_model().spec
    return gpu_model(path, spec, kv_format=kv_format, chunk_tokens=64, has_draft=True)


@pytest.fixture(scope="module")
def model(path: Path) -> GpuModel:
    return loaded(path)


def read(session: GpuSession, tokens: np.ndarray, step: int) -> None:
    """Commits tokens through windows of ``step`` rows."""
    for first in range(0, len(tokens), step):
        window = tokens[first : first + step]
        session.decode(window)
        session.commit(len(window))


def test_drafts_are_the_processor_s(model: GpuModel, path: Path) -> None:
    ours = model.new_session(CAPACITY)
    theirs = cpu_model(
        path, drafting_model(), threads=1, kv_format="f16", has_draft=True
    ).new_session(CAPACITY)
    assert ours.drafter.propose(1, 3) == ([], [])  # nothing to go on from
    # A first token alone; a guess that came true, then rows behind it; one that did not.
    at = 0
    for rows, kept in [(1, 1), (3, 2), (8, 7)]:
        for session in (ours, theirs):
            session.decode(WORDS[at : at + rows])
            session.commit(kept)
        at += kept
        for token in (int(WORDS[at]), int(WORDS[at]) ^ 1):
            ids, probs = ours.drafter.propose(token, 3)
            wanted_ids, wanted_probs = theirs.drafter.propose(token, 3)
            assert ids == wanted_ids
            np.testing.assert_allclose(probs, wanted_probs, rtol=0, atol=1e-3)
    assert len(set(ids)) > 1
    kept = ours.snapshot()
    ours.reset()
    assert ours.drafter.propose(token, 3) == ([], [])
    ours.restore(kept)
    assert ours.drafter.propose(token, 3) == (ids, probs)


def test_how_tokens_were_read_does_not_matter(model: GpuModel) -> None:
    # Streams are given, so that no window has to be computed for them.
    wide = drafting_model().spec.hyper_size
    rng = np.random.default_rng(1)
    streams = torch.from_numpy(rng.standard_normal((11, wide)).astype(np.float32)).to(DEVICE)
    last = int(WORDS[11])
    whole = model.new_session(CAPACITY).drafter
    whole.follow(WORDS[:11], streams)
    expected = whole.propose(last, 2)

    def window(at: int, rows: int, kept: int) -> None:
        places = torch.arange(at, at + rows, device=DEVICE) % len(drafter.ring)
        drafter.ring[places] = torch.full((rows, wide), torch.nan, device=DEVICE)
        drafter.ring[places[:kept]] = streams[at : at + kept]
        drafter.commit(WORDS[at : at + kept])

    drafter = model.new_session(CAPACITY).drafter
    window(0, 8, 8)
    drafter.propose(int(WORDS[8]) ^ 1, 1)  # another token will come
    window(8, 3, 1)
    kept = drafter.save()
    drafter.propose(int(WORDS[9]), 1)  # this one
    window(9, 4, 2)
    assert drafter.propose(last, 2) == expected
    drafter.load(kept, 9)
    window(9, 2, 2)
    assert drafter.propose(last, 2) == expected
    drafter.reset()
    assert drafter.propose(last, 2) == ([], [])
    streams[4] += 1
    drafter.follow(WORDS[:11], streams)
    assert drafter.propose(last, 2)[1] != expected[1]


def test_drafts_at_the_ends_of_the_context(path: Path) -> None:
    session = loaded(path, "int8").new_session(3)
    read(session, WORDS[:2], 2)
    assert len(session.drafter.propose(1, 3)[0]) == 2
    read(session, WORDS[2:3], 1)
    # The last token of an answer has no cell; its draft would be for a place beyond the context.
    assert len(session.drafter.propose(1, 3)[0]) == 1
    assert session.drafter.propose(1, 0) == ([], [])


def test_what_was_planned_is_what_is_taken(path: Path) -> None:
    spec = drafting_model().spec
    for kv_format in ("f16", "int8"):
        with open_model(path) as index:
            wishes = Wishes(300, kv_format, 64)
            plan = plan_memory(index, spec, wishes, has_draft=True)
            without = plan_memory(index, spec, wishes)
        made = loaded(path, kv_format)
        assert dict(made.memory_report()) == dict(plan.weights)
        session = made.new_session(300)
        assert session.num_bytes == sum(plan.session.values())
        for name in ("draft layer", "draft cells"):
            assert {**plan.weights, **plan.session}[name] > 0
            assert name not in {**without.weights, **without.session}


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, pytest.param(1.5, marks=pytest.mark.long)])
def test_text_is_the_same(model: GpuModel, temperature: float) -> None:
    sampling = SamplingParams(temperature=temperature, seed=4, max_tokens=6)

    def answer(num_drafts: int) -> tuple[int, ...]:
        parts = Parts(
            model=model,
            text=FakeText(end_id=-1),
            vocab_size=VOCAB_SIZE,
            context_len=CAPACITY,
            close=lambda: None,
        )
        engine = Engine(parts, Settings(draft_tokens=num_drafts))
        completion = engine.generate(WORDS[:3].tolist(), sampling).complete()
        assert len(completion.timings.drafts_proposed) == num_drafts
        return completion.token_ids

    assert answer(2) == answer(0)
