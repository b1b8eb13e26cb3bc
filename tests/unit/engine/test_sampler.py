"""Checked against a sampler written here from the definitions: full sorts, float64, no shortcuts.

Distributions are checked with a chi-square test on a fixed seed.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from strata.engine.philox import uniform
from strata.engine.sampler import Sampled, SamplingParams, sample, select_top
from strata.errors import RequestError, SettingsError

GREEDY = SamplingParams(temperature=0)
OPEN = SamplingParams(top_k=0, top_p=1.0, seed=1)


def reference(
    logits: np.ndarray,
    params: SamplingParams,
    history: list[int],
    position: int,
    mask: np.ndarray | None = None,
) -> tuple[int, dict[int, float]]:
    """The picked id, and the probability each candidate had."""
    scores = {i: float(x) for i, x in enumerate(logits) if (mask is None or mask[i])}
    scores = {i: x for i, x in scores.items() if x > -math.inf}
    recent = history[len(history) - params.penalty_last_n :] if params.penalty_last_n else []
    if len(history) < params.penalty_last_n:
        recent = history
    for token in set(recent) & set(scores):
        x = scores[token]
        x = x / params.repeat_penalty if x > 0 else x * params.repeat_penalty
        x -= recent.count(token) * params.frequency_penalty + params.presence_penalty
        scores[token] = float(np.float32(x))
    ranked = sorted(scores, key=lambda i: (-scores[i], i))
    if params.temperature == 0:
        return ranked[0], {ranked[0]: 1.0}
    ranked = ranked[: params.top_k if 0 < params.top_k <= 64 else 64]

    def probabilities(temperature: float) -> list[float]:
        weights = [math.exp((scores[i] - scores[ranked[0]]) / temperature) for i in ranked]
        return [weight / math.fsum(weights) for weight in weights]

    probs = probabilities(1.0)
    keep = 0
    while keep < len(ranked):
        keep += 1
        if math.fsum(probs[:keep]) >= params.top_p and params.top_p < 1:
            break
    keep = max(1, sum(prob >= params.min_p * probs[0] for prob in probs[:keep]))
    ranked = ranked[:keep]
    probs = probabilities(params.temperature)
    point = uniform(params.seed or 0, position)
    passed = [token for i, token in enumerate(ranked) if sum(probs[: i + 1]) > point]
    return [*passed, ranked[-1]][0], dict(zip(ranked, probs, strict=True))


# Halves and few values, so that ties are common and borders of top_p are not decided by rounding.
rows = hnp.arrays(
    np.float32,
    st.integers(1, 300),
    elements=st.sampled_from([-np.inf, -3.5, -1.0, -0.0, 0.0, 0.5, 2.0, 4.25]) | st.integers(-9, 9),
)


@settings(max_examples=500, deadline=None)
@given(data=st.data(), row=rows)
def test_picks_equal_the_reference(data: st.DataObject, row: np.ndarray) -> None:
    params = SamplingParams(
        temperature=data.draw(st.sampled_from([0, 0.25, 0.7, 1.0, 2.5])),
        top_k=data.draw(st.sampled_from([0, 1, 2, 5, 20, 64, 65, 1000])),
        top_p=data.draw(st.sampled_from([0.0, 0.3171, 0.7713, 0.9537, 1.0])),
        min_p=data.draw(st.sampled_from([0.0, 0.0517, 0.3331, 1.0])),
        repeat_penalty=data.draw(st.sampled_from([1.0, 1.25, 0.5])),
        frequency_penalty=data.draw(st.sampled_from([0.0, 0.5, -0.25])),
        presence_penalty=data.draw(st.sampled_from([0.0, 1.5, 100.0])),
        penalty_last_n=data.draw(st.sampled_from([0, 1, 4, 64])),
        seed=data.draw(st.integers(0, 2**64 - 1)),
    )
    history = data.draw(st.lists(st.integers(0, len(row) - 1), max_size=12))
    mask = data.draw(st.none() | hnp.arrays(np.bool_, len(row)))
    position = data.draw(st.integers(0, 2**40))
    if not np.isfinite(row if mask is None else np.where(mask, row, -np.inf)).any():
        with pytest.raises(RequestError, match=f"no token is allowed at position {position}"):
            sample(row, params, history, position, mask)
        return
    before = row.copy()
    picked = sample(row, params, history, position, mask)
    assert picked == Sampled(reference(row, params, history, position, mask)[0], None)
    assert np.array_equal(row, before)


def chi_square(params: SamplingParams, logits: np.ndarray, num_draws: int) -> tuple[float, int]:
    picks = [sample(logits, params, [], position).id for position in range(num_draws)]
    _, probs = reference(logits, params, [], 0)
    assert set(picks) <= set(probs)
    counts = {token: picks.count(token) for token in probs}
    expected = {token: num_draws * prob for token, prob in probs.items()}
    assert min(expected.values()) > 5
    statistic = sum((counts[t] - expected[t]) ** 2 / expected[t] for t in probs)
    return statistic, len(probs) - 1


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(seed=11, top_k=8, top_p=1.0),
        SamplingParams(seed=12, top_k=20, top_p=0.8, temperature=1.5),
        SamplingParams(seed=13, top_k=0, top_p=1.0, min_p=0.1, temperature=0.7),
    ],
)
def test_draws_follow_the_distribution(params: SamplingParams) -> None:
    logits = np.random.default_rng(3).normal(0, 1.0, 100).astype(np.float32)
    statistic, freedom = chi_square(params, logits, 6000)
    # Mean and deviation of chi-square; 4 deviations are passed about once in ten thousand seeds.
    assert statistic < freedom + 4 * math.sqrt(2 * freedom)


def test_a_draw_depends_on_seed_and_position_only() -> None:
    rng = np.random.default_rng(5)
    logits = rng.normal(0, 2, (64, 500)).astype(np.float32)
    params = SamplingParams(seed=99)
    forwards = [sample(logits[i], params, [], i).id for i in range(64)]
    backwards = [sample(logits[i], params, [], i).id for i in reversed(range(64))]
    assert forwards == backwards[::-1]
    other = dataclasses.replace(params, seed=100)
    assert forwards != [sample(logits[i], other, [], i).id for i in range(64)]


def test_drafted_rows_are_penalised_as_plain_decoding_would() -> None:
    # A strong presence penalty forbids every repeat; each row is given the drafts before it.
    logits = np.random.default_rng(6).normal(0, 1, 200).astype(np.float32)
    params = SamplingParams(temperature=0, presence_penalty=100.0, penalty_last_n=4096)
    tokens: list[int] = []
    for position in range(150):
        tokens.append(sample(logits, params, tokens, position).id)
    assert len(set(tokens)) == 150
    window = tokens[40:48]
    for row in range(len(window)):
        history = np.array([-1, -1, *tokens[:40], *window[:row]], dtype=np.int32)
        assert sample(logits, params, history, 40 + row).id == window[row]


def test_only_the_last_tokens_are_penalised() -> None:
    logits = np.array([1.0, 0.9, 0.0], dtype=np.float32)
    params = SamplingParams(temperature=0, presence_penalty=5, penalty_last_n=2)
    assert sample(logits, params, [0, 2, 2], 3).id == 0
    assert sample(logits, params, [2, 0, 2], 3).id == 1


@settings(max_examples=300, deadline=None)
@given(row=rows, num=st.integers(1, 64))
def test_top_ids_equal_a_full_sort(row: np.ndarray, num: int) -> None:
    ranked = sorted((i for i in range(len(row)) if row[i] > -np.inf), key=lambda i: (-row[i], i))
    assert select_top(row, num).tolist() == ranked[:num]


@pytest.mark.parametrize("spread", [0, 1, 3, 1000])
def test_top_ids_equal_a_full_sort_on_the_real_vocabulary(spread: int) -> None:
    # Few distinct values make thousands of ties, across blocks and in the rest after the last one.
    row = np.random.default_rng(spread).integers(0, spread + 1, 248_301).astype(np.float32)
    row[::3] = -np.inf
    row[-1] = row.max()
    expected = np.lexsort((np.arange(len(row)), -row))[:64]
    assert select_top(row, 64).tolist() == expected.tolist()


def test_greedy_ties_go_to_the_lower_id_and_zeros_are_equal() -> None:
    row = np.array([-1.0, -0.0, 0.0, -0.0], dtype=np.float32)
    assert sample(row, GREEDY, [], 0).id == 1
    assert sample(row[::-1].copy(), GREEDY, [], 0).id == 0
    assert select_top(row, 3).tolist() == [1, 2, 3]


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 1000])
def test_bit_masks_equal_bool_masks(vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    logits = rng.normal(0, 1, vocab_size).astype(np.float32)
    allowed = rng.random(vocab_size) < 0.3
    allowed[vocab_size // 2] = True
    words = np.zeros(-(-vocab_size // 32), dtype=np.uint32)
    for token in np.flatnonzero(allowed).tolist():
        words[token // 32] |= np.uint32(1 << token % 32)
    for position in range(20):
        picked = sample(logits, OPEN, [], position, allowed)
        assert allowed[picked.id]
        assert sample(logits, OPEN, [], position, words) == picked
        assert sample(logits, OPEN, [], position, words.view(np.int32)) == picked


@pytest.mark.parametrize(
    ("mask", "error"),
    [
        (np.ones(9, np.bool_), ValueError),
        (np.ones(2, np.uint32), ValueError),
        (np.ones(10, np.float32), TypeError),
    ],
)
def test_a_mask_of_another_shape_is_a_bug(mask: np.ndarray, error: type[Exception]) -> None:
    with pytest.raises(error):
        sample(np.zeros(10, np.float32), GREEDY, [], 0, mask)


@pytest.mark.parametrize("params", [GREEDY, OPEN])
@pytest.mark.parametrize(("bad", "word"), [(np.nan, "not a number"), (np.inf, "infinite")])
def test_broken_logits_name_position_and_token(
    params: SamplingParams, bad: float, word: str
) -> None:
    row = np.zeros(100, np.float32)
    row[70] = bad
    with pytest.raises(RequestError, match=f"{word} at position 12, first for token 70"):
        sample(row, params, [], 12)


def test_logprobs_are_of_masked_unpenalised_logits() -> None:
    rng = np.random.default_rng(8)
    logits = (rng.normal(0, 5, 5000)).astype(np.float32)
    mask = rng.random(5000) < 0.5
    params = SamplingParams(seed=4, logprobs=20, presence_penalty=3.0, temperature=1.7, top_k=64)
    exact = [float(x) for x, allowed in zip(logits, mask, strict=True) if allowed]
    norm = math.log(math.fsum(math.exp(x) for x in exact))
    picked = sample(logits, params, [int(np.argmax(logits))], 3, mask)
    assert picked.logprob == pytest.approx(float(logits[picked.id]) - norm, abs=1e-12)
    ranked = sorted(np.flatnonzero(mask).tolist(), key=lambda i: (-logits[i], i))[:20]
    assert [token for token, _ in picked.top] == ranked
    expected = [float(logits[token]) - norm for token in ranked]
    assert [logprob for _, logprob in picked.top] == pytest.approx(expected, abs=1e-12)
    # Asking for them changes nothing about the pick.
    silent = dataclasses.replace(params, logprobs=None)
    assert sample(logits, silent, [int(np.argmax(logits))], 3, mask) == Sampled(picked.id, None)
    assert sample(logits, dataclasses.replace(params, logprobs=0), [], 3, mask).top == ()


def test_extreme_values_stay_finite() -> None:
    row = np.array([3e38, -3e38, 1.0, -np.inf], dtype=np.float32)
    strong = SamplingParams(seed=1, repeat_penalty=0.01, presence_penalty=-1000, temperature=1e-300)
    picked = sample(row, dataclasses.replace(strong, logprobs=4), [0, 1, 2, 3], 0)
    assert picked.id == 0
    assert picked.logprob == 0.0
    assert [token for token, _ in picked.top] == [0, 2, 1]
    # A penalty makes a logit very small, not impossible.
    only = np.array([-3e38, -np.inf], dtype=np.float32)
    assert sample(only, SamplingParams(temperature=0, repeat_penalty=100), [0], 0).id == 0


def test_a_draw_needs_a_seed() -> None:
    row = np.zeros(4, np.float32)
    params = SamplingParams()
    with pytest.raises(SettingsError, match="needs a seed"):
        sample(row, params, [], 0)
    seeded = params.with_seed()
    assert seeded.seed is not None
    assert seeded.with_seed() is seeded
    assert sample(row, seeded, [], 0) == sample(row, seeded, [], 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.5}, "temperature is -0.5.*Try: temperature=0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": float("inf")}, "Try: temperature=100"),
        ({"temperature": "hot"}, "temperature is 'hot'; expected a number"),
        ({"temperature": True}, "temperature is True"),
        ({"top_p": 1.5}, "Try: top_p=1"),
        ({"min_p": -1}, "Try: min_p=0"),
        ({"top_k": -1}, "an integer from 0 upwards.*Try: top_k=0"),
        ({"top_k": 2.5}, "top_k is 2.5; expected an integer"),
        ({"top_k": None}, "top_k is None"),
        ({"repeat_penalty": 0}, "Try: repeat_penalty=0.01"),
        ({"penalty_last_n": 5000}, "Try: penalty_last_n=4096"),
        ({"seed": -1}, "Try: seed=0"),
        ({"seed": 2**64}, "Try: seed=18446744073709551615"),
        ({"max_tokens": 0}, "Try: max_tokens=1"),
        ({"logprobs": 21}, "Try: logprobs=20"),
        ({"stop": [""]}, "empty text"),
        ({"stop": 5}, "stop is 5; expected a list"),
        ({"stop": ["x"] * 17}, "17 texts"),
        ({"ignore_eos": 1}, "ignore_eos is 1; expected true or false"),
        ({"temprature": 1}, "no sampling option 'temprature'.*Try: 'temperature'"),
        ({"repetition_penalty": 1}, "Try: 'repeat_penalty'"),
    ],
)
def test_wrong_options_say_what_is_right(options: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=f"(?s){message}"):
        SamplingParams.from_options(options)


def test_options_become_parameters() -> None:
    params = SamplingParams.from_options({"stop": "END", "top_k": 0, "seed": 5})
    assert params == SamplingParams(stop=("END",), top_k=0, seed=5)
    assert SamplingParams.from_options({"stop": ["a", "b"]}).stop == ("a", "b")
    assert SamplingParams.from_options({}) == SamplingParams()


def test_a_bias_is_added_before_penalties_and_not_to_logprobs() -> None:
    row = np.array([2.0, 1.0, -1.0, 0.0], np.float32)
    plain = SamplingParams(temperature=0, logprobs=1, repeat_penalty=2.0)
    biased = dataclasses.replace(plain, logit_bias=((2, 9.0), (0, -100.0)))
    picked = sample(row, biased, [2], 1)
    assert picked.id == 2
    total = math.log(sum(math.exp(x) for x in row.tolist()))
    assert picked.logprob == pytest.approx(-1.0 - total)
    assert picked.top[0][0] == 0
    assert row.tolist() == [2.0, 1.0, -1.0, 0.0]
    # The penalty comes second: (-1 + 4.5) / 2 is less than 2, where -1 * 2 + 4.5 is more.
    weaker = dataclasses.replace(plain, logit_bias=((2, 4.5),))
    assert sample(row, weaker, [2], 1).id == 0
    mask = np.array([False, True, False, True])
    assert sample(row, biased, [], 0, mask).id == 1
    with pytest.raises(RequestError, match="names token 4"):
        sample(row, dataclasses.replace(plain, logit_bias=((4, 1.0),)), [], 0)


@pytest.mark.parametrize(
    "bias",
    [((0, 101.0),), ((-1, 1.0),), ((0, True),), ((0,),), (("a", 1.0),), ((0, math.nan),), 3],
)
def test_wrong_biases_are_refused(bias: object) -> None:
    with pytest.raises(SettingsError, match="logit_bias"):
        SamplingParams(logit_bias=bias)  # type: ignore[arg-type]
