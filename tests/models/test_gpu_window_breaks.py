"""A window that is broken off between its launches leaves slots and answers right.

What ``--keep-copied`` copies goes to slots whose former holders are still in the card's table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.models.bits import one_by_one, same_bits
from tests.models.on_card import per_layer, tiered_model

from strata.gpu import launches

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("broken", ["gate_up_codes", "down_outputs"])
def test_no_slot_holds_somebody_else(
    broken: str, smallest_path: Path, tokens, single, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = tiered_model(smallest_path, per_layer(2), staged_share=1.0, keeps_copied=True)
    session, launch = one.model.new_session(16), getattr(launches, broken)
    calls: list[int] = []

    def once(*args: object, **options: object) -> object:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return launch(*args, **options)

    monkeypatch.setattr(launches, broken, once)
    with pytest.raises(KeyboardInterrupt):
        session.decode(tokens[:1])
    # Those that hold nobody now are filled before they are found again.
    cache = one.model.experts
    held = np.flatnonzero(cache._table.held == cache.residency.key_in)
    cache.verify(held.tolist())
    session.reset()
    found = one_by_one(session, tokens[:6])
    assert all(same_bits(found[i], single[i]) for i in range(6))
    cache.verify(None)
    one.model.close()
