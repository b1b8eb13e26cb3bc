"""Requests that take turns on one session give the answers they give alone."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.engine.conftest import VOCAB_SIZE, World

from strata.engine import generation as generation_module
from strata.engine.request import FinishReason, Timings
from strata.engine.sampling_params import SamplingParams
from strata.errors import DeviceError, EngineStopped, RequestError, StrataError
from strata.tiers.counters import COUNTED, TierCounts


def greedy(num: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=num, ignore_eos=True)


prompts = st.lists(st.integers(1, VOCAB_SIZE - 1), min_size=1, max_size=60)


def alone(prompt: list[int], num: int, cut_tokens: int) -> tuple[int, ...]:
    world = World(cut_tokens=cut_tokens)
    made = world.engine.generate_text(prompt, greedy(num))
    return made.token_ids


@settings(max_examples=60, deadline=None)
@given(
    asked=st.lists(st.tuples(prompts, st.integers(1, 12)), min_size=1, max_size=4),
    order=st.lists(st.integers(0, 3), max_size=120),
    cut_tokens=st.sampled_from([1, 8]),
    is_alike=st.booleans(),
)
def test_any_order_of_turns_gives_the_answers_of_each_alone(asked, order, cut_tokens, is_alike):
    if is_alike:
        asked = [([*asked[0][0], *prompt], num) for prompt, num in asked]
    world = World(cut_tokens=cut_tokens)
    world.engine.share()
    generations = [
        world.engine.generate(prompt, greedy(num), should_yield=lambda: True)
        for prompt, num in asked
    ]
    found: list[list[int]] = [[] for _ in asked]
    left = list(range(len(asked)))
    turns = iter(order)
    while left:
        which = left[next(turns, 0) % len(left)]
        event = next(generations[which])
        found[which] += event.token_ids
        if event.finish_reason is not None:
            assert event.finish_reason is FinishReason.LENGTH
            left.remove(which)
    for tokens, (prompt, num) in zip(found, asked, strict=True):
        assert tuple(tokens) == alone(prompt, num, cut_tokens)


def test_a_long_prompt_is_left_between_chunks_and_gone_on_with():
    world = World()
    world.engine.share()
    long = world.engine.generate([5] * 100, greedy(2), should_yield=lambda: True)
    next(long)
    assert world.session.position == 8
    short = world.engine.generate([6, 7], greedy(3))
    assert short.complete().token_ids == alone([6, 7], 3, 8)
    before = world.session.num_prefilled
    assert long.complete().token_ids == alone([5] * 100, 2, 8)
    assert world.session.num_prefilled == before + 92  # nothing is read twice


def test_equal_prompts_are_read_once():
    world = World(cut_tokens=1, context_len=400)
    world.engine.share()
    made = [world.engine.generate([5] * 300, greedy(4)) for _ in range(3)]
    answers = [[], [], []]
    for _ in range(4):
        for generation, answer in zip(made, answers, strict=True):
            answer += next(generation).token_ids
    assert answers[0] == answers[1] == answers[2]
    assert world.session.num_prefilled == 300


def test_cancelled_before_its_turn_nothing_is_read():
    world = World()
    world.engine.share()
    generation = world.engine.generate([5] * 20)
    generation.cancel()
    assert next(generation).finish_reason is FinishReason.CANCELLED
    assert world.session.num_prefilled == 0


def test_one_that_is_dropped_leaves_the_others():
    world = World()
    world.engine.share()
    one, two = (world.engine.generate([token] * 20, greedy(6)) for token in (5, 6))
    next(one)
    first = next(two).token_ids
    one.close()
    rest = two.complete().token_ids
    assert first + rest == alone([6] * 20, 6, 8)


def test_a_fault_in_one_leaves_the_others():
    world = World()
    world.engine.share()
    good, bad = (world.engine.generate([token] * 20, greedy(6)) for token in (5, 6))
    first = next(good).token_ids
    world.session.poison_at = 20
    with pytest.raises(StrataError):
        next(bad)
    world.session.poison_at = None
    assert first + good.complete().token_ids == alone([5] * 20, 6, 8)


class CountedSteps:
    """A window for each step that the session has decoded."""

    def __init__(self, session) -> None:
        self.session = session

    def tier_counts(self) -> TierCounts:
        return TierCounts(len(self.session.decode_rows), np.zeros((1, len(COUNTED))), np.ones(1))


def test_experts_are_counted_for_the_request_that_asks():
    world = World()
    world.engine._turn.tiers = CountedSteps(world.session)
    world.engine.share()
    nums = (6, 9, 1)
    left = [world.engine.generate([5, num], greedy(num)) for num in nums]
    windows = []
    while left:
        generation = left.pop(0)
        event = next(generation)
        if event.timings is None:
            left.append(generation)
        else:
            windows.append((event.timings.generated_tokens, event.timings.experts.windows))
    assert sorted(windows) == [(num, num - 1) for num in sorted(nums)]
    cancelled = world.engine.generate([5])
    cancelled.cancel()
    assert next(cancelled).timings.experts.windows == 0


def test_one_that_cannot_be_put_aside_ends_and_never_goes_on_wrongly(monkeypatch):
    world = World()
    world.engine.share()
    one, two, three = (world.engine.generate([token] * 20, greedy(6)) for token in (5, 6, 7))
    next(one)

    def refuses() -> None:
        raise DeviceError("the driver refused a copy.")

    with monkeypatch.context() as patched:
        patched.setattr(world.engine._turn.conversation, "suspend", refuses)
        with pytest.raises(DeviceError):
            next(two)
    first = next(three).token_ids
    with pytest.raises(RequestError, match="could not be put aside"):
        next(one)
    assert first + three.complete().token_ids == alone([7] * 20, 6, 8)


def test_closing_ends_what_is_under_way():
    world = World()
    world.engine.share()
    made = [world.engine.generate([token] * 20, greedy(6)) for token in (5, 6, 7)]
    for generation in made[:2]:
        next(generation)
    world.engine.close()
    assert [item.finish_reason for item in made] == [FinishReason.CANCELLED] * 2 + [None]
    for generation in made[:2]:
        with pytest.raises(StopIteration):
            next(generation)
    with pytest.raises(EngineStopped):
        next(made[2])


def test_a_closed_engine_takes_nothing():
    world = World()
    world.engine.share()
    world.engine.close()
    with pytest.raises(EngineStopped):
        world.engine.generate([5])


def test_seconds_of_an_answer_are_those_of_its_own_turns(monkeypatch: pytest.MonkeyPatch):
    now_s = 0.0

    def step() -> None:
        nonlocal now_s
        now_s += 1.0

    def timings(*prompts: list[int]) -> list[Timings]:
        """Of answers whose events are asked for in turns; every step takes a second."""
        world = World()
        world.session.before_step = step
        world.engine.share()
        generations = [
            world.engine.generate(prompt, greedy(5), should_yield=lambda: True)
            for prompt in prompts
        ]
        ended: dict[int, Timings] = {}
        while len(ended) < len(generations):
            for number, generation in enumerate(generations):
                if number not in ended and (event := next(generation)).timings is not None:
                    ended[number] = event.timings
        return [ended[number] for number in range(len(generations))]

    monkeypatch.setattr(generation_module, "time", SimpleNamespace(perf_counter=lambda: now_s))
    (one,), (other,) = timings([5] * 40), timings([6] * 20)
    assert (one.prompt_s, one.decode_s, one.ttft_s) == (5.0, 4.0, 5.0)
    assert (other.prompt_s, other.decode_s, other.ttft_s) == (3.0, 4.0, 3.0)
    both = timings([5] * 40, [6] * 20)
    assert [(item.prompt_s, item.decode_s) for item in both] == [(5.0, 4.0), (3.0, 4.0)]
    assert both[0].ttft_s > 7.0  # whoever waits, waits for the other's turns too
    assert both[0].decode_tokens_per_s == 1.0


def test_one_cancelled_in_anothers_turn_took_what_it_took(monkeypatch: pytest.MonkeyPatch):
    now_s = 0.0
    monkeypatch.setattr(generation_module, "time", SimpleNamespace(perf_counter=lambda: now_s))
    world = World()
    world.engine.share()
    first = world.engine.generate([5] * 9, greedy(20))
    next(first)
    now_s += 1.0
    next(first)
    second = world.engine.generate([6] * 9, greedy(20))
    next(second)
    now_s += 100.0
    first.cancel()
    timings = next(first).timings
    assert timings is not None
    assert (timings.decode_s, timings.generated_tokens) == (1.0, 2)
    second.close()
