"""The log of requests: what it says of each way a request can end, and its bounds."""

from __future__ import annotations

import re

import pytest

from strata.server import protocol
from strata.server.faults import Fault
from strata.server.monitor import hit_rate_of, record_as_json, tiers_of
from strata.server.requests_log import Outcome, Phase, RequestsLog

COSTS = protocol.Costs(
    prompt_tokens=10,
    reused_tokens=4,
    generated_tokens=5,
    prompt_s=0.5,
    decode_s=2.0,
    ttft_s=0.6,
    drafts_proposed=7,
    drafts_accepted=3,
    experts={"lookups": 1000, "hits": 750, "from_file": 50},
)


def submit(request_id: int, num_prompt: int = 10) -> protocol.Submit:
    return protocol.Submit(request_id, b"\0" * (4 * num_prompt), {})


def write(log: RequestsLog, request_id: int, count: int) -> None:
    for _ in range(count):
        log.see(protocol.Tokens(request_id, "x", (1,)))


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        ("stop", Outcome.DONE),
        ("length", Outcome.LENGTH),
        ("cancelled", Outcome.STOPPED),
        ("error", Outcome.ERROR),
    ],
)
def test_a_request_from_its_beginning_to_its_end(reason: str, outcome: Outcome):
    log = RequestsLog()
    with log.watch(submit(1)):
        (record,) = log.open
        assert (record.phase, record.num_prompt) == (Phase.WAITING, 10)
        log.see(protocol.Progress(1, 8, 10))
        assert (record.phase, record.num_read) == (Phase.READING, 8)
        write(log, 1, 4)
        assert (record.phase, record.num_written) == (Phase.WRITING, 4)
        assert log.tokens_per_s() == 2.0  # four in the last two seconds
        log.see(protocol.Ended(1, reason, COSTS))
    assert log.open == []
    (ended,) = log.ended()
    told = record_as_json(ended)
    assert (told["phase"], told["outcome"]) == ("ended", outcome)
    assert (told["prompt_tokens"], told["reused_tokens"], told["output_tokens"]) == (10, 4, 5)
    assert told["tokens_per_s"] == 2.0  # four after the first in two seconds
    assert told["hit_rate"] == 0.75
    totals = log.totals
    assert totals.outcomes[outcome] == 1
    assert sum(totals.outcomes.values()) == 1
    assert (totals.prompt_tokens, totals.reused_tokens, totals.output_tokens) == (10, 4, 5)
    assert totals.experts == COSTS.experts
    assert sum(totals.duration_s.counts) == sum(totals.first_token_s.counts) == 1
    assert totals.token_s.total == 0.5


def test_a_client_that_leaves_is_told_apart_and_its_costs_still_count():
    log = RequestsLog()
    with log.watch(submit(1)):
        write(log, 1, 2)
    (record,) = log.ended()
    assert (record.outcome, record.costs) == (Outcome.STOPPED, None)
    log.see(protocol.Ended(1, "cancelled", COSTS))
    assert record.costs == COSTS
    assert log.totals.outcomes[Outcome.STOPPED] == 1
    assert log.totals.output_tokens == 5
    log.see(protocol.Ended(1, "cancelled", COSTS))  # nobody's any more
    assert log.totals.output_tokens == 5


@pytest.mark.parametrize(("status", "outcome"), [(400, Outcome.REFUSED), (503, Outcome.ERROR)])
def test_faults(status: int, outcome: Outcome):
    log = RequestsLog()
    with pytest.raises(Fault), log.watch(submit(1)):
        raise Fault(status, "no")
    assert log.ended()[0].outcome is outcome


def test_messages_of_unknown_requests_are_nothing():
    log = RequestsLog()
    write(log, 9, 3)
    log.see(protocol.Progress(9, 1, 2))
    log.see(protocol.Ended(9, "stop", COSTS))
    assert log.ended() == []
    assert log.totals.output_tokens == 0


def test_everything_is_bounded():
    log = RequestsLog(max_kept=20)
    for request_id in range(1000):
        with log.watch(submit(request_id)):
            write(log, request_id, 1)
    assert len(log.ended()) == 20
    assert [record.request_id for record in log.ended(2)] == [999, 998]
    assert len(log._left) <= 64
    assert log.totals.outcomes[Outcome.STOPPED] == 1000
    assert log.totals.output_tokens == 1000


def test_old_steps_do_not_count_for_the_speed(monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr("strata.server.requests_log.time.monotonic", lambda: now[0])
    log = RequestsLog()
    with log.watch(submit(1)):
        for _ in range(50):
            now[0] += 0.1
            write(log, 1, 1)
        assert log.tokens_per_s() == pytest.approx(10, abs=0.6)
        assert len(log._steps) <= 21
        now[0] += 3
        assert log.tokens_per_s() == 0


def test_a_record_holds_no_text():
    log = RequestsLog()
    with log.watch(protocol.Submit(1, b"\1\2\3\4", {"stop": ["secret"]})):
        log.see(protocol.Tokens(1, "secret", (1,)))
    assert "secret" not in repr(log.ended())


def test_a_line_for_the_log(caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", "strata.requests")
    log = RequestsLog()
    with log.watch(submit(7)):
        log.see(protocol.Ended(7, "length", COSTS))
    line = (
        r"request 7: length, 10 prompt tokens \(4 reused\), 5 written, 2\.0 tokens/s, "
        r"expert cache 75\.0% hit, \d\.\d\d s"
    )
    assert re.fullmatch(line, caplog.messages[0])
    with log.watch(submit(8)):
        pass
    assert re.fullmatch(
        r"request 8: stopped, 10 prompt tokens, 0 written, 0\.00 s", caplog.messages[1]
    )


def test_tiers_are_parts_of_a_whole():
    assert tiers_of({}) == {"vram": None, "ram": None, "disk": None}
    assert tiers_of(COSTS.experts) == {"vram": 750, "ram": 200, "disk": 50}
    assert hit_rate_of({}) is None
    assert hit_rate_of({"lookups": 3, "hits": 1}) == 0.333
