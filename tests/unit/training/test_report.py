"""The report's arithmetic and layout, on results written by hand; the plots as parsed SVG."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.unit.formats import checkpoints
from training.report import (
    BEGIN,
    CARD,
    END,
    card_text,
    charts,
    main,
    perplexity_table,
    report_text,
    same_text,
    table,
    wall_seconds,
)
from training.same_text import Pair, compare

from strata.charts import MAX_POINTS, Line, line_chart, thinned, ticks
from strata.formats.synth_text import special_ids

if TYPE_CHECKING:
    from pathlib import Path

SVG = "{http://www.w3.org/2000/svg}"


def _results() -> dict[str, Any]:
    layer = {
        "layer": 0,
        "hit_shares": {"12 %": 0.25, "50 %": 0.75},
        "use_shares": {"12 %": 0.2, "50 %": 0.6},
        "most_used": 0.125,
        "num_unused": 1,
    }
    return {
        "model": {"files": {"a.gguf": 3 << 20, "b.gguf": 1 << 20}},
        "cases": 40,
        "seed": 7,
        "checks": [
            {"name": "sums", "value": 0.975, "threshold": 0.97, "is_met": True},
            {"name": "words", "value": 0.5, "threshold": 0.95, "is_met": False},
            {"name": "drafts", "value": None, "threshold": 0.75, "is_met": None},
        ],
        "tasks": [
            {
                "name": "sums",
                "num_cases": 40,
                "share": 0.975,
                "drafts": {"proposed": [10, 8], "accepted": [9, 4]},
                "wrong": [{"question": "1+1", "expected": "2", "found": "3`\n4"}],
            }
        ],
        "code_words": [
            {"num_tokens": 512, "depth": depth, "share": share}
            for depth, share in ((0.5, 0.25), (0.1, 1.0))
        ],
        "drafts": {"positions": [{"proposed": 1000, "accepted": 800}]},
        "text": {"routing": [layer]},
        "stories": [{"request": "A story?", "story": "Once.\n\nTwice."}],
    }


def test_report_holds_every_figure():
    perplexities = [
        {"format": "BF16", "num_bytes": 2 << 20, "perplexity": 10.0},
        {"format": "Q2_0", "num_bytes": 1 << 20, "perplexity": 12.5},
    ]
    text = report_text(_results(), perplexities, [{"is_same": True, "theirs": [1, 2]}])
    for line in (
        "Files: `a.gguf` 3.00 MiB, `b.gguf` 1.00 MiB.",
        "| sums | 97.5 % | 97.0 % | yes |",
        "| words | 50.0 % | 95.0 % | **no** |",
        "| drafts | not measured | 75.0 % |  |",
        "| sums | 40 | 97.5 % | 90.0 % | 50.0 % |",
        "| tokens | at 10 % | at 50 % |",
        "| 512 | 100.0 % | 25.0 % |",
        "| 1 | 1,000 | 800 | 80.0 % |",
        "| 0 | 25.0 % | 75.0 % | 20.0 % | 60.0 % | 12.5 % | 1 |",
        "| Q2_0 | 1.0 | 12.500 | +25.00 % |",
        "1 of 1 greedy answers are the same, token for token (2 tokens; both in float32, from the "
        "same token ids).",
        "- sums: `1+1` expected `2`, got `3' 4`",
        "1. *A story?*",
        "> Once.",
        "> Twice.",
    ):
        assert line in text.splitlines(), line


def test_report_without_optional_parts():
    results = _results()
    del results["text"], results["stories"], results["code_words"]
    results["drafts"]["positions"] = []
    text = report_text(results)
    assert "## Routing" not in text
    assert "## Drafts" not in text
    assert "## Thresholds" in text


def test_tables_have_one_cell_for_each_head():
    lines = table(("a", "b"), [(1, 2), (3, 4)]).splitlines()
    assert lines == ["| a | b |", "| --- | ---: |", "| 1 | 2 |", "| 3 | 4 |"]


def test_perplexity_is_compared_with_the_first_row():
    rows = [{"format": "A", "num_bytes": 0, "perplexity": 8.0}]
    assert perplexity_table(rows).splitlines()[2] == "| A | 0.0 | 8.000 | +0.00 % |"


def test_seconds_of_resumed_runs_are_added():
    seconds = [5, 10, 20, 3, 9, 2]
    assert wall_seconds([{"seconds": s} for s in seconds]) == 20 + 9 + 2


def test_the_card_gets_the_figures_and_nothing_else():
    card = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    changed = card_text(card, _results())
    assert changed.startswith(f"before\n{BEGIN}\n\n|")
    assert changed.endswith(f"{END}\nafter\n")
    assert "old" not in changed
    assert card_text(changed, _results()) == changed
    with pytest.raises(ValueError, match="figures"):
        card_text("no place", _results())
    assert "| words |" in card_text(CARD.read_text(), _results())


def test_the_command_writes_all_pages(tmp_path: Path):
    results, demo = tmp_path / "results", tmp_path / "demo"
    results.mkdir()
    demo.mkdir()
    (results / "evaluation.json").write_text(json.dumps(_results()))
    records = [
        {"step": s, "tokens": s * 100, "context": 64, "seconds": s, "text_loss": 1 / s}
        for s in range(1, 9)
    ]
    (results / "log.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    card = tmp_path / "CARD.md"
    card.write_text(f"{BEGIN}\n{END}\n")
    arguments = ["--results", results, "--out", tmp_path / "R.md", "--card", card, "--demo", demo]
    assert main([str(word) for word in arguments]) == 0
    report = (tmp_path / "R.md").read_text()
    assert "8 steps, 0 million tokens, 0 minutes of training; rows of 64 tokens." in report
    assert "![loss](loss.svg)" in report
    assert (tmp_path / "loss.svg").is_file()
    assert not (tmp_path / "auxiliary.svg").exists()
    assert (demo / "README.md").read_text() == card.read_text()


def test_a_chart_puts_points_where_they_belong(tmp_path: Path):
    chart = line_chart([Line("a & b", [0, 5, 10], [0, 2, 4])], "t", "x")
    root = ET.fromstring(chart)
    [line] = root.iter(f"{SVG}polyline")
    points = [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
    (x0, y0), (x1, y1), (x2, y2) = points
    assert x1 == pytest.approx((x0 + x2) / 2, abs=0.1)
    assert y1 == pytest.approx((y0 + y2) / 2, abs=0.1)
    assert (y0 > y2, x0 < x2) == (True, True)  # up is a smaller y
    texts = {item.text: item for item in root.iter(f"{SVG}text")}
    assert "a & b" in texts
    assert float(texts["10"].attrib["x"]) == pytest.approx(x2, abs=0.1)
    log = [{"tokens": 1e6 * n, "text_loss": 1.0, "index_loss": 0.1} for n in range(5)]
    assert charts(log, tmp_path) == ["loss.svg", "auxiliary.svg"]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (0.0, 1.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]), (3, 560, None)],
)
def test_ticks_are_round(low: float, high: float, expected: list[float] | None):
    found = ticks(low, high)
    assert all(low <= tick <= high for tick in found)
    assert 3 <= len(found) <= 8
    if expected is not None:
        assert found == pytest.approx(expected)


def test_long_lines_are_averaged():
    line = Line("", list(range(1000)), [float(n % 2) for n in range(1000)])
    thin = thinned(line)
    assert len(thin.xs) == len(thin.ys) <= MAX_POINTS
    assert sum(thin.ys) / len(thin.ys) == pytest.approx(0.5, abs=0.2)
    assert thinned(Line("", [1, 2], [3, 4])) == Line("", [1, 2], [3, 4])
    with pytest.raises(ValueError, match="two points"):
        line_chart([Line("", [1], [1])], "", "")


def test_transformers_and_the_engine_give_the_same_text(tmp_path: Path):
    model = checkpoints.save_text_model(tmp_path, vocab_size=checkpoints.VOCAB_SIZE)
    # The tokenizer's own end tokens, so that both engines stop at the same.
    ids = special_ids()
    ends = [ids[literal] for literal in ("<|endoftext|>", "<|im_end|>")]
    model.config.eos_token_id = model.generation_config.eos_token_id = ends
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    checkpoints.add_tokenizer(tmp_path)
    pairs = compare(tmp_path, ["add_two_digits", "divide"], 3, 10)
    assert [pair.task for pair in pairs] == ["add_two_digits", "divide", "add_two_digits"]
    assert all(pair.is_same for pair in pairs)
    assert max(len(pair.ours) for pair in pairs) == 10
    assert not Pair("", 1, [1, 2], [1, 3], "").is_same
    assert same_text([{"is_same": False, "theirs": [1]}]).startswith("0 of 1 ")
