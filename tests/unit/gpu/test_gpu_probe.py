"""A measurement of windows whose experts did not come is none; card and model are stand-ins."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")
from strata.errors import DeviceError
from strata.gpu import probe


class Model:
    """One whose host answers nothing."""

    is_serving = False

    @contextmanager
    def serving_experts(self):
        self.is_serving = True
        yield
        self.is_serving = False

    def check_experts(self) -> None:
        raise DeviceError("no answer")


def test_windows_without_their_experts_are_no_result(monkeypatch) -> None:
    model = Model()

    def measured(launch, _repeats: int) -> float:
        assert model.is_serving
        launch()
        return 1.0

    monkeypatch.setattr(probe, "card_seconds", measured)
    session = SimpleNamespace(relaunch=lambda *_: lambda: None)
    with pytest.raises(DeviceError, match="no answer"):
        probe.CardProbe(model).window_seconds(session, 1)
    assert not model.is_serving
