"""The card's limit, changed while a server runs, with stand-in tiers in a real process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import TYPE_CHECKING

import pytest
from tests.fakes import FakeModel, FakeText
from tests.server.conftest import Served, fetch
from tests.server.engines import CONTEXT_LEN, VOCAB_SIZE, Spec, open_scripted
from tests.server.test_engine_process import PROMPT, expected, run, submit, tokens_of
from typer.testing import CliRunner

from strata.cli.app import app
from strata.engine.engine import Engine
from strata.engine.parts import Parts
from strata.errors import DeviceError, PlanError
from strata.server import protocol
from strata.server.faults import Fault
from strata.server.limits_api import LimitsRequest, _mib_of
from strata.settings import Settings
from strata.units import MiB

if TYPE_CHECKING:
    from pathlib import Path

    from strata.server.engine_process import EngineProcess

STEP_S = 0.02


class Tiers:
    """Writes down which limits were carried out, a line each; 7 MiB the card refuses."""

    def __init__(self, book: Path) -> None:
        self.book = book
        self.wanted: list[int | None] = []

    def tier_counts(self):
        return _NoCounts()

    def tier_rates(self) -> None:
        return None

    def limit_bytes(self, num_bytes: int | None) -> None:
        if num_bytes is not None and num_bytes < 5 * MiB:
            raise PlanError("what is not slots takes 5 MiB.\n  Try: --vram-limit 5")
        self.wanted.append(num_bytes)

    def carry_out_limit(self) -> None:
        wanted, self.wanted = self.wanted, []
        if 7 * MiB in wanted:
            raise DeviceError("the card refused memory for slots.\n  Try: later.")
        with self.book.open("a") as file:
            file.writelines(f"{num_bytes}\n" for num_bytes in wanted)


class _NoCounts:
    def __sub__(self, other: _NoCounts) -> _NoCounts:
        return self

    __add__ = __sub__

    def total(self, name: str) -> int:
        return 0


class OpenWithTiers:
    """A scripted engine with experts in two places; a window in the middle of an answer obeys."""

    def __init__(self, book: Path) -> None:
        self.book = book

    def __call__(self, *, on_progress: object) -> Engine:
        model = FakeModel(VOCAB_SIZE, cut_tokens=1)
        model.spec = Spec()
        tiers = Tiers(self.book)
        parts = Parts(
            model, FakeText(96), VOCAB_SIZE, CONTEXT_LEN, model.close, "cuda", tiers=tiers
        )
        engine = Engine(parts, Settings(checkpoints=0))

        def before_step() -> None:
            if tiers.wanted:
                tiers.carry_out_limit()

        model.sessions[0].before_step = before_step
        return engine


def lines(book: Path) -> list[str]:
    return book.read_text().split() if book.exists() else []


def test_a_limit_is_carried_out_and_told_to_the_next_process_too(tmp_path: Path):
    book = tmp_path / "book"

    async def scenario(process: EngineProcess) -> None:
        assert await process.set_vram_limit(64)
        assert lines(book) == [str(64 * MiB)]
        assert process.questions.vram_mib == 64
        os.kill(process.pid, signal.SIGKILL)
        while len(lines(book)) < 2:
            await asyncio.sleep(0.02)
        assert lines(book) == [str(64 * MiB)] * 2
        assert await process.set_vram_limit(None)
        assert lines(book)[-1] == "None"
        assert process.questions.vram_mib is None
        assert await tokens_of(process, PROMPT, max_tokens=3) == expected(PROMPT, max_tokens=3)

    run(OpenWithTiers(book), scenario)


def test_a_limit_set_in_the_middle_of_an_answer_changes_nothing_else(tmp_path: Path):
    book = tmp_path / "book"

    async def scenario(process: EngineProcess) -> None:
        ids: list[int] = []
        is_done: bool | None = None
        async with process.answer(submit(PROMPT, max_tokens=200)) as messages:
            async for message in messages:
                if isinstance(message, protocol.Tokens):
                    ids += message.token_ids
                    if is_done is None:
                        is_done = await process.set_vram_limit(32)
        assert ids == expected(PROMPT, max_tokens=200)
        # If the answer was over before the question came, it was carried out at once.
        assert is_done is not None
        assert lines(book) == [str(32 * MiB)]

    run(OpenWithTiers(book), scenario)


@pytest.mark.parametrize(
    ("mib", "status", "text"),
    [(4, 400, "what is not slots takes 5 MiB"), (7, 503, "the card refused memory")],
)
def test_what_the_engine_refuses_is_told_and_nothing_is_changed(
    tmp_path: Path, mib: int, status: int, text: str
):
    async def scenario(process: EngineProcess) -> None:
        await process.set_vram_limit(16)
        with pytest.raises(Fault, match=text) as caught:
            await process.set_vram_limit(mib)
        assert caught.value.status == status
        assert process.questions.vram_mib == 16
        assert await tokens_of(process, PROMPT, max_tokens=3) == expected(PROMPT, max_tokens=3)

    run(OpenWithTiers(tmp_path / "book"), scenario)


def test_where_there_is_no_card_it_is_a_conflict():
    async def scenario(process: EngineProcess) -> None:
        with pytest.raises(Fault, match="no experts that could leave the card") as caught:
            await process.set_vram_limit(4096)
        assert caught.value.status == 409

    run(open_scripted, scenario)


def test_a_question_to_a_process_that_dies_is_answered():
    async def scenario(process: EngineProcess) -> None:
        await process.wait_loaded()
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)  # a signal takes its time
        asked = asyncio.create_task(process.set_vram_limit(4096))
        await asyncio.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(Fault, match="does not answer") as caught:
            await asyncio.wait_for(asked, 5)
        assert caught.value.status == 503

    run(open_scripted, scenario)


@pytest.mark.parametrize(
    ("fields", "mib"),
    [
        ({"vram": "10G"}, 10240),
        ({"vram": "512M"}, 512),
        ({"vram": "4096"}, 4096),
        ({"vram": 4096}, 4096),
        ({"vram_bytes": 3 << 30}, 3072),
        ({"vram": None}, None),
        ({"vram_bytes": None}, None),
    ],
)
def test_sizes_are_read_as_flags_are(fields: dict[str, object], mib: int | None):
    assert _mib_of(LimitsRequest(**fields)) == mib


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({}, 400, "vram"),
        ({"vram": "10G", "vram_bytes": 1}, 400, "vram"),
        ({"vram": "much"}, 400, "vram"),
        ({"vram": 0}, 400, "vram"),
        ({"vram": -5}, 400, "vram"),
        ({"vram": True}, 400, "vram"),
        ({"vram": 1.5}, 400, "vram"),
        ({"vram_bytes": 1000}, 400, "vram_bytes"),
        ({"vram_bytes": 1 << 70}, 400, "vram_bytes"),
        ({"ram": "10G"}, 400, "ram"),
        ({"vram": "10G"}, 409, None),
    ],
)
def test_the_route_refuses_by_name(demo: Served, body, status: int, field: str | None):
    found, content, _ = fetch(demo.address, "/v1/limits", json.dumps(body).encode())
    assert found == status
    assert json.loads(content)["error"]["param"] == field
    assert json.loads(fetch(demo.address, "/v1/limits")[1]) == {"vram_bytes": None}


def test_the_command_asks_the_server(demo: Served):
    def strata(*args: str):
        return CliRunner().invoke(app, ["limits", "--server", demo.address, *args])

    shown = strata()
    assert (shown.exit_code, shown.stdout) == (
        0,
        "the card's limit is what was planned at the start.\n",
    )
    refused = strata("--vram", "10G")
    assert refused.exit_code == 1
    assert "no experts that could leave the card" in refused.stderr
    wrong = strata("--vram", "lots")
    assert "MiB or a size such as 8G" in wrong.stderr
    for address in ("http://127.0.0.1:9", "ftp://x", "127.0.0.1"):
        nobody = CliRunner().invoke(app, ["limits", "--server", address])
        assert nobody.exit_code in (1, 2)
        assert "Try: " in nobody.stderr
        assert "Errno" not in nobody.stderr
