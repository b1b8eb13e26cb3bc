"""A chunk of a prompt is committed before the next one may land; the card is a stand-in."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")
from strata.gpu.session import GpuSession


def test_a_chunk_that_was_not_committed_lets_no_later_one_land() -> None:
    session = object.__new__(GpuSession)
    first, second = (SimpleNamespace(flags=None, tokens=np.arange(64)) for _ in range(2))
    session._flights = [first, second]
    session._is_broken = True
    session._reader = SimpleNamespace(wait=lambda _: None)
    session._refuse_bad_flags = lambda _: None

    def interrupted(_tokens) -> None:
        raise KeyboardInterrupt

    session._advance = interrupted
    with pytest.raises(KeyboardInterrupt):
        session._land()
    # What a reading that fails does with what is under way.
    session._advance = lambda _: None
    while session._flights:
        session._land()
    assert session._is_broken
