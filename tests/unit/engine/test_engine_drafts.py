"""Drafts of a model's own draft layer change the speed and never the text.

The yardstick is an engine of the same file without drafts, opened anew where state matters. The
synthetic draft layer passes embeddings on, so that many drafts are right and some are not.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pytest

from strata import Engine, FinishReason, SamplingParams
from strata.engine.bench import measure
from strata.engine.build import open_parts
from strata.errors import SettingsError
from strata.formats.convert_types import TypePlan
from strata.formats.synth import GEOMETRIES, synthesize
from strata.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

GREEDY = SamplingParams(temperature=0.0, max_tokens=80, ignore_eos=True)
SAMPLED = SamplingParams(temperature=1.0, seed=5, max_tokens=80, ignore_eos=True)
PENALISED = dataclasses.replace(SAMPLED, repeat_penalty=1.3, presence_penalty=0.5, penalty_last_n=9)
PROMPT = list(range(40))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    geometry = dataclasses.replace(GEOMETRIES["tiny"], num_draft_layers=1)
    synthesize(path, geometry, TypePlan.preset("q4_k"))
    return path


def opened(tiny: Path, draft_tokens: int, **settings: object) -> Engine:
    options = {"context_len": 600, "threads": 1} | settings
    return Engine.open(tiny, draft_tokens=draft_tokens, **options)


def plain(tiny: Path, prompt: list[int], sampling: SamplingParams) -> tuple[int, ...]:
    with opened(tiny, 0) as engine:
        return engine.generate_text(prompt, sampling).token_ids


@pytest.mark.parametrize("draft_tokens", [1, 2, 3])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, PENALISED], ids=["greedy", "drawn", "pen"])
def test_text_is_the_same(tiny: Path, sampling: SamplingParams, draft_tokens: int):
    with opened(tiny, draft_tokens, chunk_tokens=16) as engine:
        completion = engine.generate_text(PROMPT, sampling)
    assert completion.token_ids == plain(tiny, PROMPT, sampling)
    proposed, accepted = completion.timings.drafts_proposed, completion.timings.drafts_accepted
    assert len(proposed) == len(accepted) == draft_tokens
    for place in range(draft_tokens):
        # Both outcomes in every place, or little was compared.
        assert 0 < accepted[place] < proposed[place]
    assert list(accepted) == sorted(accepted, reverse=True)
    # Every window gives one token of its own and those it kept; the first comes from the prompt.
    num_windows = proposed[0]
    assert 79 <= num_windows + sum(accepted) <= 79 + draft_tokens


def test_without_the_wish_nothing_is_drafted(tiny: Path):
    with opened(tiny, 0) as engine:
        timings = engine.generate_text(PROMPT, GREEDY).timings
        assert timings.drafts_proposed == timings.drafts_accepted == ()
        assert "draft layer" not in engine.memory_report()
    with opened(tiny, 1) as engine:
        assert engine.memory_report()["draft layer"] > 0


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "drawn"])
@pytest.mark.parametrize("checkpoints", [0, 2])
def test_turns_are_as_if_read_anew(tiny: Path, sampling: SamplingParams, checkpoints: int):
    sampling = dataclasses.replace(sampling, max_tokens=20)
    rng = np.random.default_rng(3)
    said: list[int] = []
    with opened(tiny, 3, checkpoints=checkpoints, chunk_tokens=48) as engine:
        for num_new in (10, 30, 9, 70):
            said += rng.integers(0, 512, num_new).tolist()
            completion = engine.generate_text(said, sampling)
            with opened(tiny, 3) as other:
                anew = other.generate_text(said, sampling)
            assert completion.token_ids == anew.token_ids == plain(tiny, said, sampling)
            # The drafter's state, too, is that of a fresh read: it makes the same guesses.
            assert completion.timings.drafts_proposed == anew.timings.drafts_proposed
            assert completion.timings.drafts_accepted == anew.timings.drafts_accepted
            said += completion.token_ids
        edited = [*said[:40], 7, 8, 9]
        assert engine.generate_text(edited, sampling).token_ids == plain(tiny, edited, sampling)


def test_after_cancelling_anywhere_the_next_answer_is_right(tiny: Path):
    expected = plain(tiny, PROMPT, GREEDY)
    with opened(tiny, 3, chunk_tokens=16) as engine:
        for num_events in (1, 2, 5, 9):
            generation = engine.generate(PROMPT, GREEDY)
            for _ in range(num_events):
                next(generation)
            generation.cancel()
            assert list(generation)[-1].finish_reason is FinishReason.CANCELLED
            assert engine.generate_text(PROMPT, GREEDY).token_ids == expected
        holder = []
        generation = engine.generate(
            [*PROMPT, 3], GREEDY, on_progress=lambda *_: holder[0].cancel()
        )
        holder.append(generation)
        assert list(generation)[-1].finish_reason is FinishReason.CANCELLED
        assert engine.generate_text(PROMPT, GREEDY).token_ids == expected


def test_answers_that_end_inside_a_window(tiny: Path):
    tokens = plain(tiny, PROMPT, GREEDY)
    with opened(tiny, 3) as engine:
        for max_tokens in range(1, 9):
            short = dataclasses.replace(GREEDY, max_tokens=max_tokens)
            assert engine.generate_text(PROMPT, short).token_ids == tokens[:max_tokens]
    with opened(tiny, 3, context_len=50) as engine:
        full = engine.generate_text(PROMPT, dataclasses.replace(GREEDY, max_tokens=None))
        assert full.token_ids == tokens[:11]  # 50 - 40, and the last one, which is never read


def test_a_model_without_a_draft_layer_says_so(tmp_path: Path):
    path = tmp_path / "plain.gguf"
    synthesize(path, GEOMETRIES["tiny"], TypePlan.preset("q4_k"))
    expected = plain(path, PROMPT, GREEDY)
    with opened(path, 3) as engine:
        completion = engine.generate_text(PROMPT, GREEDY)
    assert completion.token_ids == expected
    assert completion.timings.drafts_proposed == ()


def test_more_drafts_than_were_ever_trained_are_refused():
    with pytest.raises(SettingsError, match="draft_tokens must be at most 3"):
        Settings.from_options({"draft_tokens": 4})


def test_measuring_counts_drafts(tiny: Path):
    parts = open_parts(Settings.from_options({"model": tiny, "threads": 1, "draft_tokens": 2}))
    session = parts.model.new_session(70)
    prompt = np.array(PROMPT, np.int32)
    undrafted = measure(session, prompt, 30)
    assert undrafted.drafts_proposed == ()
    end = session.drafter.propose(1, 3)  # the state after 70 tokens
    drafted = measure(session, prompt, 30, draft_tokens=2)
    assert session.position == 70
    assert session.drafter.propose(1, 3) == end
    assert drafted.decode_tokens == 30
    assert 0 < drafted.drafts_accepted[0] <= drafted.drafts_proposed[0] < 30
    parts.close()
