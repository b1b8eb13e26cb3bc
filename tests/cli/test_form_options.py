"""``--json-schema`` and ``--grammar``, checked by ``jsonschema`` and ``re``."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from tests.form_schemas import PERSON, check

if TYPE_CHECKING:
    from pathlib import Path


def test_an_answer_has_the_form_of_the_file(strata, tmp_path: Path):
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(PERSON))
    result = strata("run", "Who?", "--json-schema", schema, "-n", 300)
    assert result.exit_code == 0, result.stderr
    check(result.stdout, PERSON)
    result = strata("run", "Who?", "--json-schema", schema, "-n", 900, "--thinking", "--json")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["reasoning"]
    check(told["text"], PERSON)
    grammar = tmp_path / "form.lark"
    for text in ('start: "é" | "日本"', 'root ::= "é" | "日本"\n'):
        grammar.write_text(text, encoding="utf-8")
        for flags in ((), ("--raw",)):
            result = strata("run", "x", "--grammar", grammar, "-n", 20, *flags)
            assert re.fullmatch("(é|日本)\n", result.stdout), result.stderr


@pytest.mark.parametrize(
    ("option", "text", "word"),
    [
        ("--json-schema", "{", "no JSON"),
        ("--json-schema", "3", "object"),
        ("--json-schema", '{"not": {}}', '"not"'),
        ("--grammar", "start: missing", "missing"),
        ("--grammar", "root ::= missing", "missing"),
    ],
)
def test_bad_files_are_told(strata, tmp_path: Path, option, text, word):
    path = tmp_path / "form"
    path.write_text(text)
    result = strata("run", "x", option, path)
    assert result.exit_code == 2
    assert word in result.stderr
    assert str(path) in result.stderr
    assert "Traceback" not in result.stderr


def test_missing_files_and_two_forms_are_told(strata, tmp_path: Path):
    path = tmp_path / "none"
    assert str(path) in strata("run", "x", "--grammar", path).stderr
    result = strata("run", "x", "--grammar", path, "--json-schema", path)
    assert "both" in result.stderr
