"""Perplexity of held-out prose by block format: the BF16 export converted to each and read.

``python -m training.perplexity EXPORT --json training/results/perplexity.json``. Owns the list of
formats; reading is ``eval_text``, conversion ``strata convert``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from strata.cli.console import Bar, say
from strata.errors import StrataError
from strata.formats.convert import ConvertOptions, convert
from strata.formats.convert_types import TypePlan
from training.eval_text import read_text
from training.evaluate import TEXT_TOKENS
from training.held_out import HELD_OUT_TEXT, held_out_documents
from training.quantize import demo_types

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# What the experts have; the rest is as the presets of ``strata convert`` have it. Down matrices
# of 96 columns take the format's fall-back where its blocks do not fit.
FORMATS: Mapping[str, TypePlan] = {
    "BF16": TypePlan.preset("bf16"),
    "Q8_0": TypePlan.preset("q8_0"),
    "Q6_K": TypePlan.preset("q6_k"),
    "Q4_K": TypePlan.preset("q4_k"),
    "Q4_0": TypePlan.preset("q4_0"),
    "IQ4_NL": TypePlan.preset("iq4_nl"),
    "Q2_0": TypePlan.preset("q2_0"),
    "as shipped": demo_types(),
}


@dataclass(frozen=True, slots=True)
class FormatRow:
    """One format's file and what it does to the text."""

    format: str
    num_bytes: int
    num_tokens: int
    perplexity: float
    # Formats that were taken where a row does not fill the blocks.
    notices: tuple[str, ...]


def format_row(
    name: str,
    types: TypePlan,
    export: Path,
    work: Path,
    documents: Sequence[str],
    max_tokens: int,
) -> FormatRow:
    """Converts the export to one format and reads the documents with it."""
    path = work / "model.gguf"
    report = convert(export, path, ConvertOptions(types=types, has_draft=False))
    with Bar(f"reading with {name}") as bar:
        reading = read_text(path, documents, max_tokens, bar)
    size = path.stat().st_size
    path.unlink()
    return FormatRow(name, size, reading.num_predicted, reading.perplexity, report.notices)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.perplexity", description=__doc__)
    parser.add_argument("export", type=Path, help="folder that training.export wrote")
    parser.add_argument("--text", type=Path, default=HELD_OUT_TEXT, help="held-out prose")
    parser.add_argument("--tokens", type=int, default=TEXT_TOKENS, help="tokens of it read")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--json", type=Path, help="write the table to this file")
    options = parser.parse_args(arguments)
    try:
        documents = held_out_documents(options.text)
        rows = []
        with tempfile.TemporaryDirectory() as work:
            for name in options.formats:
                row = format_row(
                    name, FORMATS[name], options.export, Path(work), documents, options.tokens
                )
                rows.append(row)
                print(
                    f"{name:12} {row.num_bytes / 2**20:8.2f} MiB  {row.perplexity:9.4f}", flush=True
                )
    except StrataError as error:
        say(f"{type(error).__name__}: {error}")
        return 1
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
