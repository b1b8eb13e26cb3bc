"""A window that has been launched is waited for, whatever happens meanwhile."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
from strata.gpu import graphs  # noqa: E402
from strata.gpu.graphs import WindowRunner  # noqa: E402


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_window_is_waited_for_when_what_was_done_meanwhile_raised(
    monkeypatch, error: type[BaseException]
) -> None:
    events = []
    stream = SimpleNamespace(synchronize=lambda: events.append("waited"))
    cuda = SimpleNamespace(current_stream=lambda: stream)
    monkeypatch.setattr(graphs, "torch", SimpleNamespace(cuda=cuda))
    buffers = SimpleNamespace(rows=SimpleNamespace(is_cuda=True))
    runner = WindowRunner(None, buffers, None)
    monkeypatch.setattr(runner, "launch", lambda _: events.append("launched"))

    def meanwhile() -> None:
        events.append("meanwhile")
        raise error

    with pytest.raises(error):
        runner.run(None, meanwhile)
    assert events == ["launched", "meanwhile", "waited"]
