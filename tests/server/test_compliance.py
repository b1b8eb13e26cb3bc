"""llm-comply's cases, all of them, against a live server; none may fail, warn or be skipped.

The tool skips the cases of reasoning unless the model's name is one of its vendors' reasoning
models, so the server answers to such names too. Its cases with a picture want an answer, which a
model without image input gives when it is told that a picture was there.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.server.conftest import Served

NAMES = {"openai-chat": "o3-mini", "anthropic": "claude-opus-4", "open-responses": "o3-mini"}


@pytest.fixture(scope="module")
def told():
    aliases = [item for name in sorted(set(NAMES.values())) for item in ("--alias", name)]
    served = Served("--threads", 1, "--images", "describe-as-missing", *aliases)
    yield served
    assert served.end() == 0


@pytest.mark.parametrize(
    ("api", "num_cases"), [("openai-chat", 9), ("anthropic", 9), ("open-responses", 13)]
)
def test_all_cases_pass(told: Served, api: str, num_cases: int):
    command = [sys.executable, "-m", "llm_comply.cli", "run", "--json", "--format", api]
    command += ["-u", f"{told.address}/v1", "-k", "none", "-m", NAMES[api]]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    results = json.loads(ran.stdout)["results"]
    found = [
        (item["id"], item["status"], item.get("errors"), item.get("warnings")) for item in results
    ]
    assert [item for item in found if item[1:] != ("passed", None, None)] == []
    assert (ran.returncode, len(results)) == (0, num_cases)
