"""What is said when the processor did not answer a window's request for experts."""

from __future__ import annotations

from strata.errors import DeviceError

NO_ANSWER = 1
"""The fault of an answer that did not come in time; others were refused."""


def no_experts(fault: int, number: int, limit_seconds: float, *, is_well: bool) -> DeviceError:
    """The error of a window whose experts did not come.

    Args:
        fault: as the card told it.
        number: of the request.
        limit_seconds: how long an answer may take.
        is_well: whether the thread that answers has been started again.
    """
    is_late = fault == NO_ANSWER
    what = f"gave no answer within {limit_seconds:g} s" if is_late else "refused"
    todo = "ask again" if is_well else "start again"
    more = "fewer --threads" if is_late else "--device cpu"
    return DeviceError(
        f"the processor was asked for experts that are in no slot of the card, and {what} "
        f"(request {number}).\n  Try: {todo}; if it comes back, {more}."
    )
