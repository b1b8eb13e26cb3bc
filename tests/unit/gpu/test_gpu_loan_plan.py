"""What a prompt borrows of the slots: rules 2.5.2 of the algorithms, sums done by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.gpu.loan_plan import (
    LADDER,
    LEAST_PERCENT,
    Loan,
    LoanRules,
    best_loan,
    chunks_to_try,
    lend_percent,
)


def test_rows_are_those_of_the_prompt_at_most() -> None:
    assert chunks_to_try(20000, None) == list(LADDER)
    assert chunks_to_try(2100, None) == [2304, 2048, 1024, 512, 256]
    assert chunks_to_try(1, None) == [256]
    # A wish is halved, not below 256 rows.
    assert chunks_to_try(20000, 3072) == [3072, 1536, 768, 384]
    assert chunks_to_try(300, 4096) == [512, 256]


def hundred_rows_a_slot(chunk: int) -> int:
    return -(-chunk // 100)


def offer(num_rows: int, num_slots: int, wished: int | None = None, **rest: int) -> Loan | None:
    return best_loan(
        num_rows, LoanRules(wished, rest.get("slots_left", 128)), hundred_rows_a_slot,
        num_slots=num_slots, num_pairs=1000, percent=rest.get("percent", 90),
    )  # fmt: skip


def test_the_fewest_bytes_over_the_link() -> None:
    # Two chunks of 8192 bring 2 * (1000 - 500 + 82) + 82, three of 6144 3 * (500 + 62) + 62.
    assert offer(16384, 500) == Loan(8192, 82)
    # Two of 6144 are as many as two of 8192, and need fewer slots.
    assert offer(12288, 500) == Loan(6144, 62)
    assert offer(300, 500) == Loan(512, 6)


@pytest.mark.parametrize(("num_slots", "chunk"), [(210, 8192), (209, 6144), (134, 512), (130, 0)])
def test_slots_are_left(num_slots: int, chunk: int) -> None:
    found = offer(16384, num_slots)
    assert found == (Loan(chunk, hundred_rows_a_slot(chunk)) if chunk else None)


def test_no_more_than_its_percent_is_lent() -> None:
    # Of 91 slots 82 are more than 90 percent, and two chunks of 4096 are as good as two of 6144.
    assert offer(8192, 91, slots_left=0) == Loan(4096, 41)
    assert offer(8192, 92, slots_left=0) == Loan(8192, 82)
    assert lend_percent(90, 100) == 90
    assert lend_percent(89, 100) == LEAST_PERCENT == 85


def test_a_wish_is_halved_until_it_fits() -> None:
    assert offer(16384, 500, 4096) == Loan(4096, 41)
    assert offer(16384, 160, 4096) == Loan(2048, 21)
    assert offer(16384, 130, 4096) is None


@given(st.integers(1, 40000), st.integers(0, 1000), st.integers(0, 300))
def test_a_loan_keeps_the_rules(num_rows: int, num_slots: int, slots_left: int) -> None:
    loan = offer(num_rows, num_slots, slots_left=slots_left)
    if loan is None:
        smallest = hundred_rows_a_slot(256)
        assert smallest + slots_left > num_slots or 100 * smallest > 90 * num_slots
        return
    assert loan.num_slots == hundred_rows_a_slot(loan.chunk)
    assert loan.num_slots + slots_left <= num_slots
    assert 100 * loan.num_slots <= 90 * num_slots
    assert loan.chunk <= -(-num_rows // 256) * 256
