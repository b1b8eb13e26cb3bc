"""The launches of a layer's entries that are in no slot: their order, their branch, what is read.

Streams are stand-ins that note what is launched on them and who waits for whom.
"""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
from strata.gpu import layer_tier  # noqa: E402
from strata.gpu.layer_tier import LayerTier  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

IDS = SimpleNamespace(numel=lambda: 1)
ROWS = SimpleNamespace(y=None)


class Streams:
    """Two of them, and what was noted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.noted: list[str] = []
        self.main, self.aside = self._stream("main"), self._stream("aside")
        self._current = [self.main]
        cuda = SimpleNamespace(current_stream=lambda: self._current[-1], stream=self._on)
        monkeypatch.setattr(layer_tier, "torch", SimpleNamespace(cuda=cuda))
        for name in ("post", "wait"):
            monkeypatch.setattr(layer_tier, name, self.launch(name))
        products = {name: self.launch(name) for name in ("gate_up", "gate", "down")}
        monkeypatch.setattr(layer_tier, "experts", SimpleNamespace(**products))

    def launch(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: self.noted.append(f"{name} on {self._current[-1].name}")

    def _stream(self, name: str) -> SimpleNamespace:
        def wait_stream(other: SimpleNamespace) -> None:
            self.noted.append(f"{name} waits for {other.name}")

        return SimpleNamespace(name=name, wait_stream=wait_stream)

    @contextmanager
    def _on(self, stream: SimpleNamespace) -> Iterator[None]:
        self._current.append(stream)
        try:
            yield
        finally:
            self._current.pop()


def tier_on(streams: Streams, *, has_staging: bool, has_branch: bool = True) -> LayerTier:
    tier = object.__new__(LayerTier)
    tier.slots = tier.staged = SimpleNamespace(slot_of=None)
    tier.factors, tier.has_staging, tier.keeps = None, has_staging, False
    tier._hand_off = SimpleNamespace(aside=streams.aside if has_branch else None)
    tier._number, tier._reachable, tier._jobs = 0, None, None
    tier._fetch = streams.launch("fetch")
    return tier


@pytest.mark.parametrize("has_staging", [True, False])
def test_entries_set_out_beside_the_hits(
    monkeypatch: pytest.MonkeyPatch, *, has_staging: bool
) -> None:
    streams = Streams(monkeypatch)
    tier = tier_on(streams, has_staging=has_staging)
    with tier.beside(IDS, None):
        streams.launch("hits")()
    tier.finish(IDS, None, ROWS, None)
    copies = ["fetch on aside"] if has_staging else []
    products = ["gate_up on main", "gate on main", "down on main"] if has_staging else []
    assert streams.noted == [
        "aside waits for main", "post on aside", *copies, "hits on main", "main waits for aside",
        *products, "wait on main",
    ]  # fmt: skip


def test_without_a_branch_they_set_out_before(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams(monkeypatch)
    tier = tier_on(streams, has_staging=True, has_branch=False)
    with tier.beside(IDS, None):
        streams.launch("hits")()
    assert streams.noted == ["post on main", "fetch on main", "hits on main"]


@pytest.mark.parametrize("where", ["hits", "fetch"])
def test_the_branch_joins_whatever_is_raised(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    streams = Streams(monkeypatch)
    tier = tier_on(streams, has_staging=True)

    def broken(*_: object) -> None:
        raise KeyboardInterrupt

    if where == "fetch":
        tier._fetch = broken
    with pytest.raises(KeyboardInterrupt), tier.beside(IDS, None):
        broken()
    assert streams.noted[-1] == "main waits for aside"


def test_prompts_read_no_expert_that_is_in_a_slot() -> None:
    sent: list[bool] = []
    wanted: list[tuple[int, int]] = []

    def bounced(some: list[tuple[int, int]], *_: object, **__: object) -> np.ndarray:
        wanted.extend(some)
        return np.arange(1, len(some) + 1)

    tier = object.__new__(LayerTier)
    tier._number, tier.reachable = 1, np.array([7, 0, 0, 0, 0])
    tier._reachable = torch.from_numpy(tier.reachable.copy())
    tier._memory = SimpleNamespace(bounced=bounced)
    on_host = np.array([[-1] * 5, [-1, 3, -1, -1, -1]], np.int32)
    tier.table = SimpleNamespace(send=lambda: sent.append(True), on_host=on_host)
    addresses = tier._with_bounced(0, 4)
    assert sent
    assert wanted == [(1, 2), (1, 3)]
    assert addresses.tolist() == [7, 0, 1, 2, 0]
