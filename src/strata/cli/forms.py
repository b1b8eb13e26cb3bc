"""The form an answer must have, from a file that the command line names.

Owns the two options and the reading of their files.
"""

import json
from pathlib import Path
from typing import Annotated

import typer

from strata.errors import RequestError, SettingsError
from strata.text.form import Form

JsonSchema = Annotated[
    Path | None,
    typer.Option("--json-schema", help="Answer with JSON that the schema in this file allows."),
]
Grammar = Annotated[
    Path | None,
    typer.Option(
        "--grammar",
        help="Answer with text of the grammar in this file, in Lark's or GBNF notation.",
    ),
]


def form_of(json_schema: Path | None, grammar: Path | None) -> Form | None:
    """The form that the options ask for.

    Raises:
        SettingsError: a file cannot be read or does not compile, or both are given.
    """
    if json_schema is not None and grammar is not None:
        raise SettingsError("--json-schema and --grammar both say what an answer is.\n  Try: one.")
    path = json_schema or grammar
    if path is None:
        return None
    try:
        text = path.read_text(encoding="utf-8")
        if grammar is not None:
            return Form.of_grammar(text)
        schema = json.loads(text)
        if not isinstance(schema, dict):
            raise RequestError("a schema must be a JSON object.")
        return Form.json_schema(schema)
    except OSError as error:
        raise SettingsError(
            f"{path} cannot be read: {error.strerror}.\n  Try: the path of a file that is there."
        ) from None
    except (ValueError, RecursionError):
        what = "JSON" if grammar is None else "text"
        raise SettingsError(
            f"{path} is no {what} in UTF-8.\n  Try: look at the file; it may be another."
        ) from None
    except RequestError as error:
        raise SettingsError(
            f"{path}: {error}\n  Try: docs/forms.md lists what can be asked for."
        ) from None
