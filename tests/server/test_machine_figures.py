"""What machines and cards tell, with drivers that fail in every way they can."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import psutil
import pytest
from tests.server.conftest import wait_until

from strata.server import telemetry_host
from strata.server.telemetry_cards import CardReading, Cards, as_one
from strata.server.telemetry_host import Host, drives, facts_of_host
from strata.server.telemetry_sampler import Sampler


class FakeNvml:
    """NVML of some cards; ``broken`` names calls that raise, or (call, index) pairs."""

    NVML_TEMPERATURE_GPU = 0
    NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1

    def __init__(self, count: int = 1, broken: tuple = ()) -> None:
        self.count, self.broken, self.is_shut = count, broken, False

    def __getattr__(self, name: str):
        answers = {
            "nvmlInit": lambda: None,
            "nvmlShutdown": lambda: setattr(self, "is_shut", True),
            "nvmlDeviceGetCount": lambda: self.count,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetName": lambda at: f"Card {at}".encode(),
            "nvmlDeviceGetUtilizationRates": lambda at: SimpleNamespace(gpu=20 + 40 * at),
            "nvmlDeviceGetMemoryInfo": lambda at: SimpleNamespace(used=10 + at, total=100),
            "nvmlDeviceGetTemperature": lambda at, _kind: 50 + at,
            "nvmlDeviceGetPowerUsage": lambda at: 250_500,
            "nvmlDeviceGetEnforcedPowerLimit": lambda at: 600_000,
            "nvmlDeviceGetPcieThroughput": lambda at, counter: 3 + counter,
            "nvmlDeviceGetCurrPcieLinkGeneration": lambda at: 5,
            "nvmlDeviceGetCurrPcieLinkWidth": lambda at: 16,
        }
        answer = answers[name]

        def call(*args):
            if name in self.broken or (args and (name, args[0]) in self.broken):
                raise RuntimeError(f"{name} is not supported")
            return answer(*args)

        return call


READ = (
    "nvmlDeviceGetName",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetPcieThroughput",
    "nvmlDeviceGetCurrPcieLinkGeneration",
    "nvmlDeviceGetCurrPcieLinkWidth",
)


def test_one_card():
    cards = Cards(nvml := FakeNvml())
    assert cards.read() == [
        CardReading(0, "Card 0", 0.2, 10, 100, 50, 250.5, 600.0, 4096.0, 3072.0, 5, 16)
    ]
    cards.close()
    assert nvml.is_shut


def test_several_cards_are_told_as_one():
    """Sums of memory, power and traffic, mean load, the hottest, names joined."""
    cards = as_one(Cards(FakeNvml(2)).read())
    assert (cards.count, cards.name) == (2, "Card 0 + Card 1")
    assert cards.load == pytest.approx(0.4)
    assert (cards.mem_used, cards.mem_total) == (21, 200)
    assert cards.temperature_c == 51
    assert (cards.power_w, cards.power_limit_w) == (501.0, 1200.0)
    assert (cards.received_bytes_per_s, cards.sent_bytes_per_s) == (8192.0, 6144.0)


@pytest.mark.parametrize("broken", READ)
def test_what_a_card_does_not_tell_is_none_and_the_rest_is_told(broken: str):
    whole = Cards(FakeNvml(2)).read()
    part = Cards(FakeNvml(2, (broken,))).read()
    names = CardReading.__slots__
    missing = [name for name in names if getattr(part[1], name) != getattr(whole[1], name)]
    assert 1 <= len(missing) <= 2
    assert all(getattr(part[1], name) is None for name in missing)


def test_a_sum_needs_every_card_but_the_hottest_does_not():
    broken = (("nvmlDeviceGetPowerUsage", 1), ("nvmlDeviceGetTemperature", 1))
    cards = as_one(Cards(FakeNvml(2, broken)).read())
    assert cards.power_w is None
    assert cards.temperature_c == 50


def test_a_card_off_the_bus_keeps_its_number():
    cards = Cards(FakeNvml(2, (("nvmlDeviceGetHandleByIndex", 0),))).read()
    assert cards[0] == CardReading(0)
    assert cards[1].name == "Card 1"


@pytest.mark.parametrize("broken", ["nvmlInit", "nvmlDeviceGetCount"])
def test_no_driver_means_no_cards(broken: str):
    cards = Cards(FakeNvml(2, (broken,)))
    assert cards.read() == []
    assert as_one(cards.read()).count == 0
    assert as_one([]).power_w is None
    cards.close()


def test_this_machine_is_read():
    host = Host()
    host.read()
    reading = host.read(psutil.Process().pid)
    assert 0 <= reading.cpu_load <= 1
    assert 0 < reading.ram_used < reading.ram_total == psutil.virtual_memory().total
    assert reading.server_bytes > 1 << 20
    assert reading.engine_bytes == pytest.approx(reading.server_bytes, rel=0.2)
    assert facts_of_host().threads >= 1


def test_a_process_that_is_gone_has_no_memory():
    assert Host().read(0x7FFFFFF).engine_bytes is None


@pytest.mark.parametrize(
    "broken",
    ["cpu_percent", "virtual_memory", "swap_memory", "disk_io_counters", "Process", "cpu_count"],
)
def test_what_the_system_refuses_is_none(monkeypatch: pytest.MonkeyPatch, broken: str):
    def refuse(*_args, **_named):
        raise PermissionError(broken)

    monkeypatch.setattr(telemetry_host.psutil, broken, refuse)
    host = Host()
    host.read()
    reading = host.read(1)
    told = [getattr(reading, name) for name in type(reading).__slots__]
    assert None in told
    assert any(value is not None for value in told)
    facts_of_host()


def test_rates_of_drives_are_of_whole_drives(monkeypatch: pytest.MonkeyPatch, tmp_path):
    for name in ("nvme0n1", "sda", "loop0", "dm-0", "zram0", "md127", "sr0"):
        (tmp_path / name).mkdir()
    assert drives(tmp_path) == {"nvme0n1", "sda"}
    read = {"nvme0n1": 1000, "nvme0n1p1": 1000, "dm-0": 1000, "sda": 0}

    def counters(**_named):
        return {name: SimpleNamespace(read_bytes=n, write_bytes=2 * n) for name, n in read.items()}

    now = [10.0]
    monkeypatch.setattr(telemetry_host.psutil, "disk_io_counters", counters)
    monkeypatch.setattr(telemetry_host.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(telemetry_host, "drives", lambda: frozenset({"nvme0n1", "sda"}))
    host = Host()
    assert host.read().disk_read_bytes_per_s is None  # nothing to compare with yet
    now[0] = 12.0
    read.update({"nvme0n1": 5000, "nvme0n1p1": 5000, "dm-0": 9000, "sda": 2000})
    reading = host.read()
    assert reading.disk_read_bytes_per_s == 3000.0
    assert reading.disk_written_bytes_per_s == 6000.0


def test_history_is_filled_up_in_front_and_bounded():
    values = iter(range(5))
    sampler = Sampler(lambda: {"x": next(values), "y": None}, kept=3)
    assert sampler.history() == {}
    sampler.sample()
    assert sampler.history() == {"x": [None, None, 0], "y": [None, None, None]}
    for _ in range(4):
        sampler.sample()
    assert sampler.history()["x"] == [2, 3, 4]


def test_a_reading_that_fails_ends_nothing(caplog: pytest.LogCaptureFixture):
    count = [0]

    def read():
        count[0] += 1
        if count[0] % 2:
            raise OSError("the driver is being updated")
        return {"x": count[0]}

    sampler = Sampler(read, interval_s=0.005)
    sampler.start()
    wait_until(lambda: count[0] >= 8)
    sampler.close()
    assert len([value for value in sampler.history()["x"] if value is not None]) >= 3
    assert len(caplog.records) == 1  # said once, not every second


def test_a_driver_that_hangs_holds_nobody_up():
    is_in, release = threading.Event(), threading.Event()

    def read():
        is_in.set()
        release.wait(20)
        return {"x": 1}

    sampler = Sampler(read, interval_s=0.01)
    sampler.start()
    assert is_in.wait(5)
    began_s = time.monotonic()
    assert sampler.history() == {}
    sampler.close()
    assert time.monotonic() - began_s < 1
    release.set()
