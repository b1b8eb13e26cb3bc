"""Engine and Generation over the fake session.

Answers are checked against ``expected``: a loop over the fake's own logits with numpy's argmax,
which shares no code with the engine.
"""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.fakes import AS_PROMPT, DECODED, FakeSession
from tests.unit.engine.conftest import END_ID, VOCAB_SIZE, World

from strata.engine.request import FinishReason, Timings
from strata.engine.sampler import SamplingParams
from strata.errors import ContextTooLong, EngineStopped, RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)


def greedy(max_tokens: int | None = 20, **options: object) -> SamplingParams:
    return SamplingParams.from_options(
        {"temperature": 0.0, "max_tokens": max_tokens, "ignore_eos": True, **options}
    )


def expected(prompt: Sequence[int], num_tokens: int) -> list[int]:
    session = FakeSession(VOCAB_SIZE, 10_000)
    history, ways = list(prompt), [AS_PROMPT] * len(prompt)
    for _ in range(num_tokens):
        history.append(int(np.argmax(session.logits_after(history, ways))))
        ways.append(DECODED)
    return history[len(prompt) :]


def test_greedy_answer(world: World):
    completion = world.engine.generate_text([5, 6, 7], GREEDY)
    assert list(completion.token_ids) == expected([5, 6, 7], 20)
    assert completion.text == "".join(f"<{token}>" for token in completion.token_ids)
    assert completion.finish_reason is FinishReason.LENGTH
    assert completion.timings.prompt_tokens == 3
    assert completion.timings.generated_tokens == 20
    assert completion.timings.ttft_s > 0


def test_text_is_encoded_and_messages_go_through_the_template(world: World):
    assert world.engine.tokenize("ab") == [0, 1]
    messages = [{"role": "user", "content": "ab"}]
    assert world.engine.tokenize(messages) == [1, 0, 1, 2]
    by_chat = world.engine.chat(messages, GREEDY).complete()
    by_ids = world.engine.generate_text([1, 0, 1, 2], GREEDY)
    assert by_chat.token_ids == by_ids.token_ids


def test_events_join_to_the_answer_and_only_the_last_has_a_reason(world: World):
    events = list(world.engine.generate([5, 6, 7], GREEDY))
    assert [event.finish_reason for event in events[:-1]] == [None] * 19
    assert events[-1].finish_reason is FinishReason.LENGTH
    assert events[-1].timings is not None
    assert [event.timings for event in events[:-1]] == [None] * 19
    assert [token for event in events for token in event.token_ids] == expected([5, 6, 7], 20)


def test_end_token_stops_without_text(world: World):
    for start in range(1, 60):
        answer = expected([start], 150)
        if END_ID in answer[3:]:
            break
    end = answer.index(END_ID)
    completion = world.engine.generate_text([start], greedy(150, ignore_eos=False))
    assert completion.finish_reason is FinishReason.STOP
    assert list(completion.token_ids) == answer[: end + 1]
    assert completion.text == "".join(f"<{token}>" for token in answer[:end])


def test_stop_text_is_cut_off(world: World):
    answer = expected([5, 6], 10)
    stop = f"<{answer[4]}><{answer[5]}>"
    completion = world.engine.generate_text([5, 6], greedy(stop=(stop,)))
    assert completion.finish_reason is FinishReason.STOP
    assert completion.text == "".join(f"<{token}>" for token in answer[:4])
    assert list(completion.token_ids) == answer[:6]


def test_held_back_text_comes_at_the_end(world: World):
    completion = world.engine.generate_text([5, 6], greedy(5, stop=("never",)))
    assert completion.text == "".join(f"<{token}>" for token in expected([5, 6], 5))


def perfect(prompt: list[int], num_tokens: int):
    answer = [*prompt, *expected(prompt, num_tokens)]
    return lambda tokens, num: answer[len(tokens) : len(tokens) + num]


def half_wrong(prompt: list[int], num_tokens: int):
    answer = [*prompt, *expected(prompt, num_tokens)]

    def propose(tokens: Sequence[int], num: int) -> list[int]:
        drafts = answer[len(tokens) : len(tokens) + num]
        if len(drafts) > 2:
            drafts[2] = (drafts[2] + 1) % VOCAB_SIZE
        return drafts

    return propose


@pytest.mark.parametrize("proposer", [perfect, half_wrong])
@pytest.mark.parametrize("max_tokens", [1, 2, 9, 20, 23])
def test_drafts_change_the_windows_and_not_the_answer(world: World, proposer, max_tokens: int):
    propose = proposer([5, 6, 7], 60)
    completion = world.engine.generate([5, 6, 7], greedy(max_tokens), propose=propose).complete()
    assert list(completion.token_ids) == expected([5, 6, 7], max_tokens)
    if max_tokens > 2:
        assert max(world.session.decode_rows) == 8


def test_sampled_answer_is_the_same_with_drafts(world: World):
    sampling = SamplingParams(temperature=1.0, seed=3, max_tokens=30, ignore_eos=True)
    plain = world.engine.generate_text([5, 6, 7], sampling)
    answer = [5, 6, 7, *plain.token_ids]
    drafted = world.engine.generate(
        [5, 6, 7], sampling, propose=lambda tokens, num: answer[len(tokens) : len(tokens) + num]
    ).complete()
    assert drafted.token_ids == plain.token_ids
    assert plain.token_ids != world.engine.generate_text([5, 6, 7], greedy(30)).token_ids


def test_drafts_never_reach_past_the_context():
    world = World(context_len=12)
    propose = perfect([5, 6, 7], 30)
    completion = world.engine.generate([5, 6, 7], greedy(None), propose=propose).complete()
    assert list(completion.token_ids) == expected([5, 6, 7], 10)  # 12 - 3, and the unread last one


def test_logprobs_only_when_asked(world: World):
    assert world.engine.generate_text([5], GREEDY).logprobs == ()
    completion = world.engine.generate_text([5], greedy(4, logprobs=2))
    assert [item.id for item in completion.logprobs] == list(completion.token_ids)
    assert all(item.top[0][0] == item.id for item in completion.logprobs)


def test_mask_is_asked_for_every_token(world: World):
    even = np.arange(VOCAB_SIZE) % 2 == 0
    lengths: list[int] = []

    def allow(tokens: Sequence[int]) -> np.ndarray:
        lengths.append(len(tokens))
        return even

    completion = world.engine.generate([5], greedy(6), allow=allow).complete()
    assert all(token % 2 == 0 for token in completion.token_ids)
    assert lengths == [1, 2, 3, 4, 5, 6]


def test_second_turn_reuses_and_answers_as_if_it_had_not(world: World):
    first = world.engine.generate_text(list(range(20)), GREEDY)
    longer = [*range(20), *first.token_ids, 3, 4]
    again = world.engine.generate_text(longer, GREEDY)
    assert again.timings.reused_tokens == 16
    assert list(again.token_ids) == expected(longer, 20)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "the prompt is empty"),
        ([], "the prompt is empty"),
        ([1, VOCAB_SIZE], f"token id {VOCAB_SIZE} is not in the vocabulary of {VOCAB_SIZE}"),
        ([-1], "token id -1 is not in the vocabulary"),
        (["a", "b"], "must be text, chat messages, or whole numbers"),
        ([10**30], "must be text, chat messages, or whole numbers"),
        ([1.5], "must be text, chat messages, or whole numbers"),
        ([[1, 2], [3, 4]], "must be text, chat messages, or whole numbers"),
        ([[1, 2], [3]], "must be text, chat messages, or whole numbers"),
    ],
)
def test_bad_prompts(world: World, prompt: object, message: str):
    with pytest.raises(RequestError, match=message):
        world.engine.generate(prompt, GREEDY)
    assert world.engine.generate_text([5], GREEDY).token_ids  # the engine lives on


def test_context_too_long_says_the_figures(world: World):
    with pytest.raises(ContextTooLong, match=r"201 tokens and no room.*holds 200"):
        world.engine.generate([1] * 201)
    with pytest.raises(ContextTooLong, match=r"190 tokens and 12 to generate.*holds 200"):
        world.engine.generate([1] * 190, greedy(12))
    completion = world.engine.generate_text([1] * 190, greedy(11))
    assert list(completion.token_ids) == expected([1] * 190, 11)


def test_not_a_number_never_becomes_a_token(world: World):
    world.session.poison_at = 6
    generation = world.engine.generate([5, 6, 7], GREEDY)
    assert [next(generation).token_ids[0] for _ in range(3)] == expected([5, 6, 7], 3)
    with pytest.raises(RequestError, match="not a number at position 6"):
        next(generation)
    assert generation.finish_reason is FinishReason.ERROR
    world.session.poison_at = None
    after = world.engine.generate_text([5, 6, 7], GREEDY)
    assert list(after.token_ids) == expected([5, 6, 7], 20)
    assert after.timings.reused_tokens == 0  # nothing of a poisoned state is used again


def test_cancel_ends_after_the_token_and_the_engine_serves_the_next(world: World):
    generation = world.engine.generate([5, 6, 7], GREEDY)
    events = [next(generation) for _ in range(4)]
    generation.cancel()
    events += list(generation)
    assert [event.finish_reason for event in events] == [None] * 4 + [FinishReason.CANCELLED]
    assert events[-1].token_ids == ()
    assert world.engine.generate_text([9], GREEDY).token_ids == tuple(expected([9], 20))


def test_cancel_from_another_thread_inside_the_prompt(world: World):
    is_reading, may_go_on = threading.Event(), threading.Event()

    def wait() -> None:
        is_reading.set()
        assert may_go_on.wait(10)

    world.session.before_step = wait
    generation = world.engine.generate(list(range(90)), GREEDY)
    results: list[object] = []
    reader = threading.Thread(target=lambda: results.extend(generation))
    reader.start()
    assert is_reading.wait(10)
    generation.cancel()
    may_go_on.set()
    reader.join(10)
    [event] = results
    assert event.finish_reason is FinishReason.CANCELLED
    assert event.timings.generated_tokens == 0
    assert world.session.num_prefilled == 8  # one chunk, not ninety tokens


def test_one_request_at_a_time(world: World):
    first = world.engine.generate([5], GREEDY)
    next(first)
    second = world.engine.generate([6], GREEDY)
    with pytest.raises(RequestError, match="one request at a time"):
        next(second)
    first.close()
    assert world.engine.generate_text([6], GREEDY).token_ids == tuple(expected([6], 20))


def test_the_last_event_gives_the_engine_back(world: World):
    first = world.engine.generate([5], GREEDY)
    while next(first).finish_reason is None:
        pass
    # Still held, and nobody has asked it for more than its last event.
    assert first.finish_reason is FinishReason.LENGTH
    assert world.engine.generate_text([6], GREEDY).token_ids == tuple(expected([6], 20))
    assert list(first) == []
    assert first.finish_reason is FinishReason.LENGTH


def test_close_inside_a_callback_cancels(world: World):
    generation = world.engine.generate(
        list(range(40)), GREEDY, on_progress=lambda _done, _total: generation.close()
    )
    assert [event.finish_reason for event in generation] == [FinishReason.CANCELLED]
    assert world.engine.generate_text([6], GREEDY).token_ids == tuple(expected([6], 20))


def test_a_dropped_generation_gives_the_engine_back(world: World):
    for _event in world.engine.generate([5], GREEDY):
        break
    gc.collect()
    assert world.engine.generate_text([6], GREEDY).token_ids == tuple(expected([6], 20))


def test_a_failure_that_is_not_ours_stops_the_engine_and_keeps_the_cause(world: World):
    def fail() -> None:
        raise ZeroDivisionError("a bug")

    world.session.before_step = fail
    with pytest.raises(EngineStopped, match="ZeroDivisionError: a bug") as caught:
        world.engine.generate_text([5], GREEDY)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(EngineStopped, match="a bug"):
        world.engine.generate_text([5], GREEDY)


def test_ctrl_c_in_a_step_leaves_a_usable_engine(world: World):
    world.engine.generate_text(list(range(20)), GREEDY)

    def interrupt() -> None:
        world.session.before_step = lambda: None
        raise KeyboardInterrupt

    generation = world.engine.generate(list(range(20)), GREEDY)
    world.session.before_step = interrupt
    with pytest.raises(KeyboardInterrupt):
        next(generation)
    after = world.engine.generate_text(list(range(20)), GREEDY)
    assert list(after.token_ids) == expected(list(range(20)), 20)


def test_close_ends_a_generation_and_refuses_the_next(world: World):
    generation = world.engine.generate([5], GREEDY)
    next(generation)
    world.engine.close()
    world.engine.close()
    assert world.model.is_closed
    assert list(generation) == []
    with pytest.raises(EngineStopped, match="closed"):
        world.engine.generate([5], GREEDY)


def test_close_waits_for_the_thread_that_decodes(world: World):
    is_decoding, may_go_on = threading.Event(), threading.Event()

    def wait() -> None:
        if len(world.session.history) > 5:
            is_decoding.set()
            assert may_go_on.wait(10)
            assert not world.model.is_closed

    world.session.before_step = wait
    reasons: list[FinishReason | None] = []

    def read() -> None:
        reasons.extend(event.finish_reason for event in world.engine.generate([5], GREEDY))

    reader = threading.Thread(target=read)
    reader.start()
    assert is_decoding.wait(10)
    closer = threading.Thread(target=world.engine.close)
    closer.start()
    may_go_on.set()
    closer.join(10)
    reader.join(10)
    assert world.model.is_closed
    assert reasons[-1] is FinishReason.CANCELLED


def test_speeds_of_timings():
    timings = Timings(
        prompt_tokens=110,
        reused_tokens=10,
        generated_tokens=21,
        prompt_s=2.0,
        decode_s=4.0,
        ttft_s=2.1,
    )
    assert timings.prompt_tokens_per_s == 50.0
    assert timings.decode_tokens_per_s == 5.0
