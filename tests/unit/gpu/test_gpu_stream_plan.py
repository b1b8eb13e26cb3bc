"""Steps of a prompt's experts, against what is asked of them, for made-up slots."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from strata.gpu.stream_plan import RING_PARTS, StreamShape, cut_steps, even_steps


@given(
    st.lists(st.booleans(), min_size=1, max_size=300),
    st.integers(1, 300),
    st.integers(1, 64),
)
def test_steps_hold_every_expert_once_and_no_more_missing_than_there_are_places(
    missing: list[bool], limit: int, num_places: int
) -> None:
    steps = cut_steps(np.array(missing), limit, num_places)
    assert [e for first, count in steps for e in range(first, first + count)] == list(
        range(len(missing))
    )
    for number, (first, count) in enumerate(steps):
        assert 1 <= count <= limit
        assert sum(missing[first : first + count]) <= num_places
        if number + 1 < len(steps) and count > 3:
            assert (first + count) % 4 == 0


def test_a_layer_without_missing_experts_takes_as_few_steps_as_the_limit_allows() -> None:
    assert cut_steps(np.zeros(256, bool), 72, 1) == [(0, 72), (72, 72), (144, 72), (216, 40)]
    assert cut_steps(np.zeros(256, bool), 256, 1) == [(0, 256)]
    assert even_steps(5, 2) == [(0, 2), (2, 2), (4, 1)]


def test_the_room_is_whole_pages_for_each_part() -> None:
    shape = StreamShape(num_places=3, raw_bytes=8192, packed_bytes=5000)
    assert shape.sizes == (RING_PARTS * 3 * 8192, 16384, 4096)
    assert shape.num_bytes == sum(shape.sizes)
