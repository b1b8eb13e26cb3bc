"""Real agents fix a typo in a file through the server; the engine follows a script.

The settings here are those of docs/clients.md. Where an agent is not installed its test is skipped.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from tests.agents.conftest import StandIn, client, run_client

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TASK = "Fix the typo in greeting.py"
WRONG = 'def greet(name):\n    return f"Hello, wrold: {name}"\n'
RIGHT = WRONG.replace("wrold", "world")
Rules = list[dict[str, object]]


def call(name: str, **arguments: str) -> str:
    """A tool call in the family's form."""
    values = "".join(
        f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in arguments.items()
    )
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


def read_and_edit(read: str, edit: str) -> Rules:
    return [
        {"when": TASK, "results": 0, "say": f"I read the file first.\n{read}"},
        {"when": TASK, "results": 1, "say": edit},
        {"when": TASK, "say": "The typo is fixed."},
    ]


def qwen_rules(path: str) -> Rules:
    change = {"old_string": "wrold", "new_string": "world"}
    return read_and_edit(call("read_file", file_path=path), call("edit", file_path=path, **change))


def claude_rules(path: str) -> Rules:
    change = {"old_string": "wrold", "new_string": "world"}
    return read_and_edit(call("Read", file_path=path), call("Edit", file_path=path, **change))


def opencode_rules(path: str) -> Rules:
    change = {"oldString": "wrold", "newString": "world"}
    return read_and_edit(call("read", filePath=path), call("edit", filePath=path, **change))


def codex_rules(path: str) -> Rules:
    change = f"sed -i s/wrold/world/ {path}"
    return read_and_edit(call("exec_command", cmd=f"cat {path}"), call("exec_command", cmd=change))


def aider_rules(path: str) -> Rules:
    del path
    lines = [WRONG.splitlines()[1], "=======", RIGHT.splitlines()[1]]
    block = "\n".join(["<<<<<<< SEARCH", *lines, ">>>>>>> REPLACE"])
    return [{"when": TASK, "say": f"I fix it.\n\ngreeting.py\n```python\n{block}\n```\n"}]


def opencode_settings(address: str) -> str:
    model = {"name": "Strata", "limit": {"context": 200_000, "output": 4096}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Strata",
        "options": {"baseURL": f"{address}/v1", "apiKey": "none"},
        "models": {"strata-demo": model},
    }
    return json.dumps({"autoupdate": False, "provider": {"strata": provider}})


CODEX_PROVIDER = 'model_providers.strata={{name="strata",base_url="{}/v1",wire_api="responses"}}'


@dataclass(frozen=True)
class Agent:
    """How one is started, and what the engine says to it."""

    program: str
    rules: Callable[[str], Rules]
    args: Callable[[str], list[str]]
    variables: Callable[[str], dict[str, str]] = lambda _address: {}
    files: Callable[[str], dict[str, str]] = lambda _address: {}


AGENTS = [
    Agent(
        "qwen",
        qwen_rules,
        lambda _: ["--auth-type", "openai", "--yolo", "-p", TASK],
        lambda address: {
            "OPENAI_API_KEY": "none",
            "OPENAI_BASE_URL": f"{address}/v1",
            "OPENAI_MODEL": "strata-demo",
        },
    ),
    Agent(
        "opencode",
        opencode_rules,
        lambda _: ["run", "-m", "strata/strata-demo", TASK],
        files=lambda address: {"opencode.json": opencode_settings(address)},
    ),
    Agent(
        "claude",
        claude_rules,
        lambda _: ["-p", TASK, "--permission-mode", "acceptEdits"],
        lambda address: {
            "ANTHROPIC_BASE_URL": address,
            "ANTHROPIC_AUTH_TOKEN": "none",
            "ANTHROPIC_MODEL": "strata-demo",
            "ANTHROPIC_SMALL_FAST_MODEL": "strata-demo",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        },
    ),
    Agent(
        "codex",
        codex_rules,
        lambda address: [
            *("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
            *("-c", "model=strata-demo", "-c", "model_provider=strata", "-c"),
            *(CODEX_PROVIDER.format(address), "-c", "web_search=disabled", TASK),
        ],
    ),
    Agent(
        "aider",
        aider_rules,
        lambda _: [
            *("--model", "openai/strata-demo", "--edit-format", "diff", "--no-show-model-warnings"),
            *("--no-check-update", "--no-analytics", "--yes-always", "--no-pretty"),
            *("--no-gitignore", "--no-auto-commits", "--message", TASK, "greeting.py"),
        ],
        lambda address: {"OPENAI_API_KEY": "none", "OPENAI_API_BASE": f"{address}/v1"},
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.program)
def test_an_agent_edits_a_file(tmp_path: Path, agent: Agent):
    program = client(agent.program)
    project, home = tmp_path / "project", tmp_path / "home"
    project.mkdir()
    home.mkdir()
    file = project / "greeting.py"
    file.write_text(WRONG, encoding="utf-8")
    subprocess.run(["git", "init", "--quiet", str(project)], check=True)
    script = tmp_path / "script.json"
    script.write_text(json.dumps(agent.rules(str(file))), encoding="utf-8")
    served = StandIn(script)
    try:
        for name, text in agent.files(served.address).items():
            (project / name).write_text(text, encoding="utf-8")
        command = [program, *agent.args(served.address)]
        ran = run_client(command, project, home, **agent.variables(served.address))
    finally:
        assert served.end() == 0
    assert ran.returncode == 0, ran.stdout
    assert file.read_text(encoding="utf-8") == RIGHT, ran.stdout[-2000:]


@pytest.mark.slow
def test_llm_answers_from_the_command_line(tmp_path: Path):
    program = client("llm")
    script = tmp_path / "script.json"
    script.write_text(json.dumps([{"when": "sky", "say": "It is blue."}]), encoding="utf-8")
    served = StandIn(script)
    settings = tmp_path / "extra-openai-models.yaml"
    settings.write_text(
        "- model_id: strata\n  model_name: strata-demo\n"
        f"  api_base: {served.address}/v1\n  supports_tools: true\n  supports_schema: true\n",
        encoding="utf-8",
    )
    variables = {"LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}
    try:
        command = [program, "-m", "strata", "What colour has the sky?"]
        ran = run_client(command, tmp_path, tmp_path, **variables)
    finally:
        assert served.end() == 0
    assert (ran.returncode, ran.stdout) == (0, "It is blue.\n")
