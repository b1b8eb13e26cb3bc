"""The shipped model on a card: its tasks as on the processor, its logits, its text by row count.

Only a card runs this: the interpreter takes minutes for a token. What an answer must reach is what
``test_demo`` asks of the processor's engine.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
from tests.models.test_demo import (  # noqa: E402
    MOST_WRONG,
    NUM_CASES,
    SHARDS,
    TASKS,
)
from training.eval_answers import run_task  # noqa: E402
from training.eval_checks import JSON_TASKS  # noqa: E402
from training.eval_long import LENGTHS, code_word_cells  # noqa: E402
from training.evaluate import ask_sanity, chosen_tasks  # noqa: E402

from strata import Engine, SamplingParams  # noqa: E402
from strata.engine.build import open_parts  # noqa: E402
from strata.formats.tensor_index import open_model  # noqa: E402
from strata.settings import Settings  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from strata.engine.parts import Parts

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a graphics card"),
    pytest.mark.skipif(not SHARDS, reason="the demo is not in src/strata/demo"),
]

QUESTIONS = ("What is 12*12?", "Count from one to ten.", "def add(a, b):", "What is 17 + 25?")
NUM_ANSWER = 48
CAPACITY = 1024


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.open(device="cuda", draft_tokens=2) as engine:
        yield engine


@pytest.fixture(scope="module")
def on_card() -> Iterator[Parts]:
    parts = open_parts(Settings(device="cuda", context_len=CAPACITY))
    yield parts
    parts.close()


@pytest.fixture(scope="module")
def on_processor() -> Iterator[Parts]:
    parts = open_parts(Settings(device="cpu", context_len=CAPACITY))
    yield parts
    parts.close()


@pytest.fixture(scope="module")
def moved_a_little(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    """The shipped model with one early norm's weights moved by a part in a million."""
    folder = tmp_path_factory.mktemp("moved")
    first, *_ = (shutil.copy(shard, folder / shard.name) for shard in SHARDS)
    entry = open_model(first)["blk.0.hc_attn_norm.weight"]
    assert entry.format.name == "F32"
    data = np.memmap(entry.path, np.uint8, "r+", entry.offset, (entry.num_bytes,))
    weights = data.view(np.float32)
    weights *= np.float32(1 + 1e-6)
    data.flush()
    parts = open_parts(Settings(device="cpu", context_len=CAPACITY, model=first))
    yield parts
    parts.close()


def greedy(session, prompt: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Logits [NUM_ANSWER, V] of a greedy answer, token by token, and its tokens."""
    session.reset()
    rows = [session.prefill(np.array(prompt, np.int32))]
    tokens = [int(rows[0].argmax())]
    while len(tokens) < NUM_ANSWER:
        rows.append(session.decode(np.array(tokens[-1:], np.int32))[0])
        session.commit(1)
        tokens.append(int(rows[-1].argmax()))
    return np.array(rows), np.array(tokens, np.int32)


def along(session, prompt: list[int], tokens: np.ndarray) -> np.ndarray:
    """Logits [NUM_ANSWER, V] where an answer of these tokens is given."""
    session.reset()
    rows = [session.prefill(np.array(prompt, np.int32))]
    for token in tokens[:-1]:
        rows.append(session.decode(np.array([token], np.int32))[0])
        session.commit(1)
    return np.array(rows)


def prompts_of(parts: Parts) -> list[list[int]]:
    texts = [parts.text.encode(text) for text in QUESTIONS]
    chats = [parts.text.encode_chat([{"role": "user", "content": text}], {}) for text in QUESTIONS]
    return [*texts, *chats]


def test_it_computes_on_the_card(on_card: Parts, on_processor: Parts) -> None:
    assert (on_card.device, on_processor.device) == ("cuda", "cpu")


def test_twelve_times_twelve(engine: Engine) -> None:
    assert ask_sanity(engine)["is_right"]


@pytest.mark.parametrize("name", TASKS)
def test_answers(engine: Engine, name: str) -> None:
    (task,) = chosen_tasks((name,))
    tally = run_task(engine, task, NUM_CASES)
    assert tally.num_cases == NUM_CASES
    assert tally.num_cases - tally.num_right <= MOST_WRONG, tally.wrong
    if name in JSON_TASKS:
        assert tally.num_json == NUM_CASES, tally.wrong


def test_code_words_in_long_texts(engine: Engine) -> None:
    cells, tally = code_word_cells(engine, 1)
    assert {cell.num_tokens for cell in cells} == set(LENGTHS)
    assert tally.num_cases - tally.num_right <= MOST_WRONG, tally.wrong


def test_logits_are_as_near_as_rounding_allows(
    on_card: Parts, on_processor: Parts, moved_a_little: Parts
) -> None:
    """Against what a part in a million in one norm does to the processor's own logits.

    Sums of floats differ between card and processor in their last bits. Every layer rounds to eight
    bits and picks experts, so in a trained model some of those bits become tenths of a logit, as
    they do when one weight moves that little. Models without such steps hold to 1e-3
    (``test_gpu_session``). All go along the processor's answer, so that a tie cannot part them.
    """
    reference = on_processor.model.new_session(CAPACITY)
    others = [parts.model.new_session(CAPACITY) for parts in (on_card, moved_a_little)]
    distances: tuple[list[float], list[float]] = ([], [])
    agreed = []
    for prompt in prompts_of(on_processor):
        expected, tokens = greedy(reference, prompt)
        for session, found in zip(others, distances, strict=True):
            logits = along(session, prompt, tokens)
            found.extend(np.abs(logits - expected).max(1))
            agreed.extend(logits.argmax(1) == expected.argmax(1))
    of_card, of_moved = (np.quantile(found, (0.5, 0.9)) for found in distances)
    assert (of_card <= 1.5 * of_moved).all(), (of_card, of_moved)
    assert np.mean(agreed) >= 0.97


@pytest.mark.parametrize("num_rows", range(2, 9))
def test_text_is_the_same_for_every_row_count(on_card: Parts, num_rows: int) -> None:
    """Windows hold right drafts up to some row and wrong ones behind it, as they happen to."""
    session = on_card.model.new_session(CAPACITY)
    rng = np.random.default_rng(num_rows)
    for prompt in prompts_of(on_card)[::2]:
        logits, tokens = greedy(session, prompt)
        session.reset()
        first = session.prefill(np.array(prompt, np.int32))
        assert np.array_equal(first.view(np.uint32), logits[0].view(np.uint32))
        done = 1
        while done < NUM_ANSWER:
            right = min(int(rng.integers(1, num_rows + 1)), NUM_ANSWER - done)
            window = rng.integers(0, on_card.vocab_size, num_rows).astype(np.int32)
            window[:right] = tokens[done - 1 : done - 1 + right]
            found = session.decode(window)[:right]
            expected = logits[done : done + right]
            assert np.array_equal(found.view(np.uint32), expected.view(np.uint32)), done
            assert found.argmax(1).tolist() == tokens[done : done + right].tolist()
            session.commit(right)
            done += right


def test_drafts_do_not_change_the_text(engine: Engine) -> None:
    options = SamplingParams(temperature=0.0, max_tokens=64)
    with Engine.open(device="cuda") as plain:
        for text in QUESTIONS:
            drafted = engine.generate(text, options).complete()
            assert drafted.token_ids == plain.generate(text, options).complete().token_ids
