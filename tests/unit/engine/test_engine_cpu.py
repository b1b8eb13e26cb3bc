"""The engine on the real CPU session and a tiny file.

A continued conversation is checked against an engine opened anew for every turn, tokens must be
equal; a drafted answer against the plain one.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from strata import Engine, FinishReason, SamplingParams
from strata.errors import CheckpointError, ContextTooLong, RequestError
from strata.formats.convert_types import TypePlan
from strata.formats.gguf import read_gguf
from strata.formats.synth import GEOMETRIES, synthesize

if TYPE_CHECKING:
    from pathlib import Path

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
SAMPLED = SamplingParams(temperature=1.0, seed=5, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    synthesize(path, GEOMETRIES["tiny"], TypePlan.preset("q4_k"))
    return path


def fresh(tiny: Path, prompt: list[int], sampling: SamplingParams) -> tuple[int, ...]:
    with Engine.open(tiny, context_len=600, threads=1) as engine:
        return engine.generate_text(prompt, sampling).token_ids


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
@pytest.mark.parametrize("checkpoints", [0, 2])
def test_turns_are_as_if_read_anew(tiny: Path, sampling: SamplingParams, checkpoints: int):
    # Lengths below, at and beyond the indexer budget of 64.
    rng = np.random.default_rng(3)
    said: list[int] = []
    with Engine.open(
        tiny, context_len=600, threads=1, chunk_tokens=48, checkpoints=checkpoints
    ) as engine:
        for num_new in (10, 30, 9, 70):
            said += rng.integers(0, 512, num_new).tolist()
            completion = engine.generate_text(said, sampling)
            assert completion.token_ids == fresh(tiny, said, sampling)
            if num_new != 10:
                assert completion.timings.reused_tokens > 0
            said += completion.token_ids
        # An earlier question again, changed at its end, as after an edit.
        edited = [*said[:40], 7, 8, 9]
        assert engine.generate_text(edited, sampling).token_ids == fresh(tiny, edited, sampling)


def test_the_same_prompt_again_reads_nothing(tiny: Path):
    prompt = list(range(100, 150))
    with Engine.open(tiny, context_len=600, threads=1) as engine:
        first = engine.generate_text(prompt, GREEDY)
        second = engine.generate_text(prompt, GREEDY)
    assert second.token_ids == first.token_ids
    assert second.timings.reused_tokens == 50


def test_drafts_change_nothing(tiny: Path):
    prompt = list(range(40))
    sampling = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    plain = fresh(tiny, prompt, sampling)
    answer = [*prompt, *plain]

    def propose(tokens: list[int], num: int) -> list[int]:
        drafts = answer[len(tokens) : len(tokens) + num]
        # Every third window has a wrong draft, at another place each time.
        if len(tokens) % 3 == 0 and drafts:
            drafts[len(tokens) % len(drafts)] ^= 1
        return drafts

    with Engine.open(tiny, context_len=600, threads=1) as engine:
        drafted = engine.generate(prompt, sampling, propose=propose).complete()
        again = engine.generate_text([*prompt, *plain, 5], GREEDY)
    assert drafted.token_ids == plain
    assert again.token_ids == fresh(tiny, [*prompt, *plain, 5], GREEDY)


def test_after_cancelling_anywhere_the_next_answer_is_right(tiny: Path):
    prompt = list(range(200))
    expected = fresh(tiny, prompt, GREEDY)
    with Engine.open(tiny, context_len=600, threads=1, chunk_tokens=16) as engine:
        for stop_at in (16, 96, 200):
            holder: list[object] = []

            def report(done: int, _total: int, stop_at: int = stop_at) -> None:
                if done >= stop_at:
                    holder[0].cancel()  # noqa: B023 - called before the next turn of the loop

            generation = engine.generate(prompt, GREEDY, on_progress=report)
            holder.append(generation)
            last = list(generation)[-1]
            assert last.finish_reason is FinishReason.CANCELLED
        assert engine.generate_text(prompt, GREEDY).token_ids == expected


def test_cancel_from_another_thread(tiny: Path):
    with Engine.open(tiny, context_len=4000, threads=1) as engine:
        sampling = SamplingParams(temperature=0.0, max_tokens=3500, ignore_eos=True)
        generation = engine.generate([1, 2, 3], sampling)
        next(generation)
        threading.Timer(0.1, generation.cancel).start()
        completion = generation.complete()
        assert completion.finish_reason is FinishReason.CANCELLED
        assert len(completion.token_ids) < 3499
        assert engine.generate_text([1], GREEDY).token_ids == fresh(tiny, [1], GREEDY)


def test_text_and_ids_agree(tiny: Path):
    with Engine.open(tiny, threads=1) as engine:
        completion = engine.generate_text("hello", GREEDY)
        by_ids = engine.generate_text(engine.tokenize("hello"), GREEDY)
        assert completion.text == by_ids.text
        assert engine.context_len == 4096  # the model's own
        assert engine.memory_report()["checkpoints"] > 0
        with pytest.raises(ContextTooLong, match="holds 4096"):
            engine.generate([1] * 5000)
        with pytest.raises(RequestError, match="lone surrogate"):
            engine.generate("a\udcff")


def test_nan_weights_are_an_error_and_not_a_token(tiny: Path, tmp_path: Path):
    path = tmp_path / "nan.gguf"
    data = bytearray(tiny.read_bytes())
    entry = next(item for item in read_gguf(tiny).tensors if item.name == "output_hc_norm.weight")
    data[entry.offset : entry.offset + 4] = np.float32(np.nan).tobytes()
    path.write_bytes(data)
    with pytest.raises((RequestError, CheckpointError), match=r"(?i)nan|not a number"):  # noqa: SIM117
        with Engine.open(path, threads=1) as engine:
            engine.generate_text([1, 2, 3], GREEDY)
