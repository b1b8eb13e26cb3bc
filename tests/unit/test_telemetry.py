"""Telemetry: told to every listener, once."""

from __future__ import annotations

import logging

import pytest

from strata import telemetry


@pytest.fixture(autouse=True)
def _forget() -> None:
    telemetry.forget()


def test_told_once_to_every_listener():
    first: list[telemetry.Event] = []
    second: list[telemetry.Event] = []
    stops = [telemetry.listen(first.append), telemetry.listen(second.append)]
    telemetry.notice("kind", "something happened")
    telemetry.notice("kind", "something happened")
    telemetry.notice("kind", "something else")
    for stop in stops:
        stop()
    telemetry.notice("kind", "nobody hears this")
    assert [event.message for event in first] == ["something happened", "something else"]
    assert first == second


def test_what_happens_again_is_told_again():
    heard: list[telemetry.Event] = []
    stop = telemetry.listen(heard.append)
    for _ in range(2):
        telemetry.notice_each("kind", "it died")
    stop()
    assert [event.message for event in heard] == ["it died", "it died"]


def test_without_a_listener_it_is_logged(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, logger="strata"):
        telemetry.notice("kind", "a fall-back")
    assert "kind: a fall-back" in caplog.text
