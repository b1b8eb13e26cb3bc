"""The text of /metrics, against the parser of Prometheus' own client."""

from __future__ import annotations

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from strata.server.metrics import Exposition
from strata.server.requests_log import Histogram


def read(out: Exposition) -> dict[str, list]:
    """Samples by name, as Prometheus sees them."""
    return {family.name: family.samples for family in text_string_to_metric_families(out.text())}


def test_values_labels_and_help_come_through():
    hostile = 'a "quoted" \\ name\nwith a line'
    out = Exposition()
    out.gauge("one_ratio", 'Back\\slash and\nline and "quote".', 0.1 + 0.2)
    out.gauge("two_bytes", "Bytes.", 1 << 62, {"holder": hostile, "other": "ß🥊"})
    out.counter("three_total", "Counts.", 0)
    families = {f.name: f for f in text_string_to_metric_families(out.text())}
    assert families["one_ratio"].documentation == 'Back\\slash and\nline and "quote".'
    assert families["one_ratio"].samples[0].value == 0.1 + 0.2
    assert families["two_bytes"].samples[0].labels == {"holder": hostile, "other": "ß🥊"}
    assert families["two_bytes"].samples[0].value == float(1 << 62)
    assert families["three"].type == "counter"
    assert families["three"].samples[0].value == 0


def test_one_head_for_all_labels_and_nothing_for_none():
    out = Exposition()
    out.gauges("memory_bytes", "Memory.", {"a": 1, "b": None, "c": 3}, "holder")
    out.gauge("absent", "Not told.", None)
    assert out.text().count("# TYPE") == 1
    found = read(out)
    assert [(s.labels["holder"], s.value) for s in found["memory_bytes"]] == [("a", 1), ("c", 3)]
    assert "absent" not in found


def test_numbers_without_end_and_without_value():
    out = Exposition()
    out.gauges("x", "X.", {"high": math.inf, "low": -math.inf, "none": math.nan}, "is")
    values = {sample.labels["is"]: sample.value for sample in read(out)["x"]}
    assert values["high"] == math.inf
    assert values["low"] == -math.inf
    assert math.isnan(values["none"])


@pytest.mark.parametrize("values", [[], [0.5], [1.0, 1.0], [0.1, 3.0, 99.0, 2.0]])
def test_histogram_is_cumulative(values):
    histogram = Histogram((1.0, 2.5))
    for value in values:
        histogram.add(value)
    out = Exposition()
    out.histogram("wait_seconds", "Waits.", histogram)
    samples = {(s.name, s.labels.get("le")): s.value for s in read(out)["wait_seconds"]}
    assert samples == {
        ("wait_seconds_bucket", "1.0"): sum(value <= 1.0 for value in values),
        ("wait_seconds_bucket", "2.5"): sum(value <= 2.5 for value in values),
        ("wait_seconds_bucket", "+Inf"): len(values),
        ("wait_seconds_sum", None): sum(values),
        ("wait_seconds_count", None): len(values),
    }


def test_nothing_is_an_empty_scrape():
    assert Exposition().text() == ""
