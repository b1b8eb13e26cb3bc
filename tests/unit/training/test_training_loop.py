"""What a training step changes, and what it leaves alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from training.config import TOY
from training.loop import Run, parsed
from training.network import ANSWER, Batch
from training.schedule import demo_schedule

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("flags", [[], ["--only-drafts"]])
def test_only_the_draft_layer_learns_where_it_is_told_to(tmp_path: Path, flags: list[str]):
    command = ["--corpus", "none", "--held-out", "none", "--out", str(tmp_path), "--toy"]
    options = parsed([*command, *flags])
    schedule = demo_schedule(0, 4, batch_tokens=64, learning_rate=1e-2)
    run = Run(options, TOY, schedule)
    before = {name: tensor.clone() for name, tensor in run.network.state_dict().items()}
    tokens = torch.arange(64)[None] % 7
    batch = Batch(tokens, torch.arange(64)[None], torch.full((1, 64), ANSWER))
    for _ in range(2):
        run.train_step(batch, schedule.phase_at(0))
        run.step += 1
    after = run.network.state_dict()
    changed = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
    assert {name for name in changed if name.startswith("mtp.")}
    assert any(not name.startswith("mtp.") for name in changed) != bool(flags)
