"""The npm SDKs of OpenAI and Anthropic against a live server; what they check is in sdks.mjs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.agents.conftest import MODULES, client, run_client
from tests.server.conftest import Served

CHECKS = 7


@pytest.mark.slow
def test_the_npm_sdks(tmp_path: Path):
    node = client("node")
    if not (MODULES / "openai").is_dir():
        pytest.skip("the npm SDKs are not installed; scripts/try_clients installs them")
    script = Path(__file__).with_name("sdks.mjs")
    served = Served("--threads", 1, STRATA_API_KEY="k3y")
    try:
        command = [node, str(script), served.address, "k3y", str(MODULES)]
        ran = run_client(command, tmp_path, tmp_path)
    finally:
        assert served.end() == 0
    assert ran.returncode == 0, ran.stdout
    assert ran.stdout.count(": good") == CHECKS
