"""The results as pages: ``training/REPORT.md`` with its plots, and the model card's figures.

``python -m training.report``. Owns the wording around the figures; every figure comes from the JSON
files that ``training.evaluate``, ``training.perplexity`` and the training loop wrote.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from strata.charts import Line, line_chart
from training.quantize import DEMO_FOLDER

FOLDER = Path(__file__).resolve().parent
RESULTS = FOLDER / "results"
CARD = FOLDER / "MODEL_CARD.md"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
CHARTS = (
    ("loss.svg", "Loss per token (nats)",
     {"text_loss": "text", "answer_loss": "answers", "draft_loss_1": "first draft",
      "draft_loss_2": "second draft"}),
    ("auxiliary.svg", "Auxiliary losses",
     {"index_loss": "block selection", "balance_loss": "balance of experts"}),
)  # fmt: skip

Results = Mapping[str, Any]


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; the first column is text, the others numbers."""
    lines = [
        "| " + " | ".join(heads) + " |",
        "| --- |" + " ---: |" * (len(heads) - 1),
        *("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


def percent(share: float | None) -> str:
    """A share as text."""
    return "not measured" if share is None else f"{100 * share:.1f} %"


def checks_table(results: Results) -> str:
    """Every threshold with what was reached."""
    verdicts = {True: "yes", False: "**no**", None: ""}
    return table(
        ("", "reached", "wanted", "met"),
        (
            (c["name"], percent(c["value"]), percent(c["threshold"]), verdicts[c["is_met"]])
            for c in results["checks"]
        ),
    )


def kept(tally: Results, place: int) -> str:
    """Share of a task's drafts at this place that were kept."""
    proposed, accepted = tally["drafts"]["proposed"], tally["drafts"]["accepted"]
    return percent(accepted[place] / proposed[place]) if place < len(proposed) else ""


def tasks_table(results: Results) -> str:
    """Right answers of every task."""
    return table(
        ("task", "cases", "right", "first draft kept", "second draft kept"),
        (
            (t["name"], t["num_cases"], percent(t["share"]), kept(t, 0), kept(t, 1))
            for t in results.get("tasks", [])
        ),
    )


def code_words_table(results: Results) -> str:
    """Words found, lengths down and depths across."""
    cells = {(c["num_tokens"], c["depth"]): c for c in results.get("code_words", [])}
    lengths = sorted({length for length, _ in cells})
    depths = sorted({depth for _, depth in cells})
    return table(
        ("tokens", *(f"at {100 * depth:.0f} %" for depth in depths)),
        (
            (f"{length:,}", *(percent(cells[length, depth]["share"]) for depth in depths))
            for length in lengths
        ),
    )


def drafts_table(results: Results) -> str:
    """Drafts kept, by place in the window."""
    return table(
        ("draft token", "proposed", "accepted", "share"),
        (
            (
                number,
                f"{place['proposed']:,}",
                f"{place['accepted']:,}",
                percent(place["accepted"] / place["proposed"] if place["proposed"] else None),
            )
            for number, place in enumerate(results["drafts"]["positions"], 1)
        ),
    )


def routing_tables(results: Results) -> str:
    """Cache hits and shares of use by layer."""
    layers = results["text"]["routing"]
    shares = list(layers[0]["hit_shares"])
    heads = (
        "layer",
        *(f"hits, {share} held" for share in shares),
        *(f"uses of the top {share}" for share in shares),
        "most used",
        "unused",
    )
    rows = [
        (
            layer["layer"],
            *(percent(layer["hit_shares"][share]) for share in shares),
            *(percent(layer["use_shares"][share]) for share in shares),
            percent(layer["most_used"]),
            layer["num_unused"],
        )
        for layer in layers
    ]
    return table(heads, rows)


def perplexity_table(rows: Sequence[Results]) -> str:
    """Size and perplexity of every format, and how far it is from the first."""
    base = rows[0]["perplexity"]
    return table(
        ("experts", "MiB", "perplexity", f"against {rows[0]['format']}"),
        (
            (
                row["format"],
                f"{row['num_bytes'] / 2**20:.1f}",
                f"{row['perplexity']:.3f}",
                f"{100 * (row['perplexity'] / base - 1):+.2f} %",
            )
            for row in rows
        ),
    )


def same_text(pairs: Sequence[Results]) -> str:
    """How far transformers and the engine agree."""
    num_same = sum(pair["is_same"] for pair in pairs)
    num_tokens = sum(len(pair["theirs"]) for pair in pairs)
    return (
        f"{num_same} of {len(pairs)} greedy answers are the same, token for token "
        f"({num_tokens:,} tokens; both in float32, from the same token ids).\n"
    )


def stories_text(results: Results) -> str:
    """The stories, each under its request."""
    parts = []
    for number, story in enumerate(results.get("stories", []), 1):
        quoted = "\n".join(f"> {line}".rstrip() for line in story["story"].splitlines())
        parts.append(f"{number}. *{story['request']}*\n\n{quoted}\n")
    return "\n".join(parts)


def wrong_text(results: Results) -> str:
    """A few wrong answers of every task that has some."""
    parts = []
    for tally in results.get("tasks", []):
        for case in tally["wrong"][:2]:
            found, expected, question = (
                " ".join(str(case[name]).split())[:300].replace("`", "'")
                for name in ("found", "expected", "question")
            )
            parts.append(f"- {tally['name']}: `{question}` expected `{expected}`, got `{found}`")
    return "\n".join(parts) + ("\n" if parts else "")


def wall_seconds(log: Sequence[Results]) -> float:
    """Seconds of training; the clock of the log begins anew where a run was resumed."""
    total, before = 0.0, 0.0
    for record in log:
        if record["seconds"] < before:
            total += before
        before = record["seconds"]
    return total + before


def charts(log: Sequence[Results], folder: Path) -> list[str]:
    """Writes the plots whose figures the log has; their file names."""
    written = []
    for name, title, keys in CHARTS:
        lines = []
        for key, label in keys.items():
            found = [record for record in log if key in record]
            xs = [record["tokens"] / 1e6 for record in found]
            lines.append(Line(label, xs, [float(record[key]) for record in found]))
        if any(len(line.xs) > 1 for line in lines):
            (folder / name).write_text(line_chart(lines, title, "million tokens"))
            written.append(name)
    return written


def training_text(log: Sequence[Results], plots: Sequence[str]) -> str:
    """What the training was, in one paragraph, and its plots."""
    last = log[-1]
    text = (
        f"{last['step']:,} steps, {last['tokens'] / 1e6:,.0f} million tokens, "
        f"{wall_seconds(log) / 60:.0f} minutes of training; rows of "
        + " and ".join(f"{length:,}" for length in sorted({r["context"] for r in log}))
        + " tokens.\n"
    )
    return text + "".join(f"\n![{name.removesuffix('.svg')}]({name})\n" for name in plots)


def report_text(
    results: Results,
    perplexities: Sequence[Results] = (),
    pairs: Sequence[Results] = (),
    log: Sequence[Results] = (),
    plots: Sequence[str] = (),
) -> str:
    """The whole report."""
    model = results["model"]
    sizes = ", ".join(f"`{name}` {size / 2**20:.2f} MiB" for name, size in model["files"].items())
    sections = [
        ("Thresholds", checks_table(results)),
        ("Training", training_text(log, plots) if log else ""),
        ("Tasks, held-out instances", tasks_table(results)),
        ("Code words in long texts", code_words_table(results)),
        ("Drafts", drafts_table(results) if results["drafts"]["positions"] else ""),
        ("Routing on held-out text", routing_tables(results) if "text" in results else ""),
        ("Perplexity by block format", perplexity_table(perplexities) if perplexities else ""),
        ("The BF16 export in transformers and in the engine", same_text(pairs) if pairs else ""),
        ("Some wrong answers", wrong_text(results)),
        ("Stories", stories_text(results)),
    ]
    head = (
        "# What the demo model can do\n\n"
        "Written by `python -m training.report` from the results of `python -m training.evaluate` "
        "and `python -m training.perplexity`; "
        f"{results['cases']} cases of each task, greedy, seed {results['seed']}.\n\n"
        f"Files: {sizes}.\n"
    )
    return head + "".join(f"\n## {title}\n\n{body}" for title, body in sections if body.strip())


def card_text(card: str, results: Results) -> str:
    """The model card with its figures replaced.

    Raises:
        ValueError: the card has no place for them.
    """
    before, begin, rest = card.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the model card needs a line {BEGIN} and a line {END}")
    return f"{before}{BEGIN}\n\n{checks_table(results)}\n{END}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.report", description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON files")
    parser.add_argument("--out", type=Path, default=FOLDER / "REPORT.md")
    parser.add_argument("--card", type=Path, default=CARD)
    parser.add_argument("--demo", type=Path, default=DEMO_FOLDER, help="gets a copy of the card")
    options = parser.parse_args(arguments)
    results = json.loads((options.results / "evaluation.json").read_text(encoding="utf-8"))
    perplexities = _read_optional(options.results / "perplexity.json")
    pairs = _read_optional(options.results / "same_text.json")
    log_path = options.results / "log.jsonl"
    lines = log_path.read_text(encoding="utf-8").splitlines() if log_path.is_file() else []
    log = [json.loads(line) for line in lines]
    plots = charts(log, options.out.parent)
    options.out.write_text(report_text(results, perplexities, pairs, log, plots), encoding="utf-8")
    card = card_text(options.card.read_text(encoding="utf-8"), results)
    options.card.write_text(card, encoding="utf-8")
    if options.demo.is_dir():
        (options.demo / "README.md").write_text(card, encoding="utf-8")
    print(f"wrote {options.out}")
    return 0


def _read_optional(path: Path) -> list[Results]:
    if not path.is_file():
        return []
    rows: list[Results] = json.loads(path.read_text(encoding="utf-8"))
    return rows


if __name__ == "__main__":
    sys.exit(main())
