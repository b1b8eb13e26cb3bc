"""Answers whose tokens the card picks, against those the host picks from the same logits.

Runs on a card, or in Triton's interpreter where there is none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.fakes import FakeText
from tests.models.on_card import gpu_model
from tests.models.tiny_models import VOCAB_SIZE

from strata import Engine
from strata.engine.parts import Parts
from strata.engine.sampler import SamplingParams
from strata.errors import RequestError
from strata.gpu.session import GpuSession
from strata.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from strata.gpu.model import GpuModel

PARAMS = SamplingParams(temperature=1.5, seed=3, presence_penalty=1, penalty_last_n=6, max_tokens=4)


@pytest.fixture(scope="module")
def model(smallest_path: Path) -> GpuModel:
    return gpu_model(smallest_path)


def engine_of(model: GpuModel) -> Engine:
    parts = Parts(
        model=model,
        text=FakeText(end_id=-1),
        vocab_size=VOCAB_SIZE,
        context_len=24,
        close=lambda: None,
    )
    return Engine(parts, Settings())


def even_after_even(history) -> np.ndarray | None:
    """What a grammar may ask for: after an even number of tokens an even id."""
    if len(history) % 2:
        return None
    allowed = np.zeros(VOCAB_SIZE, bool)
    allowed[::2] = True
    return allowed


def guess(tokens, num: int) -> list[int]:
    """Some are wrong, and some not allowed."""
    return [tokens[0], 7][:num]


@pytest.mark.slow
def test_text_is_that_of_the_host_s_picks(model: GpuModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def text(**more) -> tuple[int, ...]:
        return engine_of(model).generate([5, 9, 5], PARAMS, **more).complete().token_ids

    on_card = text(propose=guess, allow=even_after_even)
    monkeypatch.setattr(GpuSession, "picker", None)
    assert text(allow=even_after_even) == on_card


@pytest.mark.slow
def test_log_probabilities_still_come(model: GpuModel) -> None:
    params = replace(PARAMS, max_tokens=2, logprobs=2)
    completion = engine_of(model).generate([1], params).complete()
    assert [len(token.top) for token in completion.logprobs] == [2, 2]


def test_a_mask_of_nothing_is_an_error(model: GpuModel) -> None:
    nothing = np.zeros(VOCAB_SIZE, bool)
    generation = engine_of(model).generate(
        [1], PARAMS, allow=lambda history: nothing if len(history) > 1 else None
    )
    with pytest.raises(RequestError, match="no token is allowed at position 2"):
        generation.complete()
