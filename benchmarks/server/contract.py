"""schemathesis against the server: whatever is sent, no answer may be a 500.

    python -m benchmarks.server.contract [--examples 100] [--phases coverage,fuzzing]

The description it works from is made here, of the routes and of the structs their bodies are
checked with. The engine is a stand-in that answers at once. Loading and unloading are left out: an
unloaded model answers 503, which is right.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from tests.agents.conftest import StandIn

from strata.server.anthropic_models import CountRequest, MessagesRequest
from strata.server.app import ROUTES
from strata.server.limits_api import LimitsRequest
from strata.server.openai_models import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from strata.server.responses_models import CompactRequest, InputTokensRequest, ResponsesRequest

BODIES: dict[str, type[msgspec.Struct]] = {
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
    "/v1/limits": LimitsRequest,
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/messages": MessagesRequest,
    "/v1/messages/count_tokens": CountRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/responses/compact": CompactRequest,
    "/v1/responses/input_tokens": InputTokensRequest,
}
QUERIES = {"/v1/responses/{response_id}/input_items": ("limit", "order", "after")}


def schema() -> dict[str, Any]:
    """An OpenAPI description of the routes."""
    paths: dict[str, dict[str, Any]] = {}
    components: dict[str, Any] = {}
    for method, route, _ in ROUTES:
        if route.endswith(("/load", "/unload")):
            continue
        path = route.replace(":path", "")
        operation: dict[str, Any] = {"responses": {"default": {"description": "Any"}}}
        names = [part[1:-1] for part in path.split("/") if "{" in part]
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ] + [
            {"name": name, "in": "query", "schema": {"type": "string"}}
            for name in QUERIES.get(path, ())
        ]
        if (kind := BODIES.get(path)) is not None:
            template = "#/components/schemas/{name}"
            (body,), found = msgspec.json.schema_components([kind], ref_template=template)
            components.update(found)
            content = {"application/json": {"schema": body}}
            operation["requestBody"] = {"required": True, "content": content}
        paths.setdefault(path, {})[method.lower()] = operation
    info = {"title": "Strata", "version": "1"}
    parts = {"schemas": components}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": parts}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--phases", default="examples,coverage,fuzzing,stateful")
    parser.add_argument("--seconds", type=int, help="Ends after so long.")
    parser.add_argument("--schema-only", type=Path)
    args = parser.parse_args()
    text = json.dumps(schema(), indent=1)
    if args.schema_only is not None:
        args.schema_only.write_text(text, encoding="utf-8")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        file, script = Path(folder) / "schema.json", Path(folder) / "script.json"
        file.write_text(text, encoding="utf-8")
        script.write_text("[]", encoding="utf-8")
        served = StandIn(script)
        command = [sys.executable, "-m", "schemathesis.cli", "run", str(file)]
        command += ["--url", served.address, "--checks", "not_a_server_error"]
        command += ["--max-examples", str(args.examples), "--seed", str(args.seed), "--no-color"]
        command += ["--phases", args.phases, "--workers", "2"]
        command += [] if args.seconds is None else ["--max-time", str(args.seconds)]
        try:
            return subprocess.run(command, cwd=folder, check=False).returncode
        finally:
            served.end()


if __name__ == "__main__":
    sys.exit(main())
