"""Parts of the training loop: expert products, optimizer, schedule, stored weights, packed rows."""

import random

import numpy as np
import pytest
import torch
from training.batches import _Row
from training.grouped_experts import mixture, places
from training.network import ANSWER
from training.optimizer import orthogonalised
from training.schedule import demo_schedule
from training.weights import read_weights, write_weights


def test_mixture_is_the_sum_over_experts():
    """Against one expert after another in float64, gradients too; one expert is never used."""
    torch.manual_seed(0)
    x = torch.randn(50, 16, requires_grad=True)
    gate_up = torch.randn(6, 16, 16, requires_grad=True)
    down = torch.randn(6, 16, 8, requires_grad=True)
    ids = torch.stack([torch.randperm(5)[:2] for _ in range(50)])
    weights = torch.rand(50, 2)
    ours = mixture(x, ids, weights, gate_up, down)
    ours.square().sum().backward()

    wide = [a.detach().double().requires_grad_() for a in (x, gate_up, down)]
    rows = []
    for n in range(50):
        total = 0
        for rank in range(2):
            both, out = wide[1][ids[n, rank]], wide[2][ids[n, rank]]
            gate, up = (both @ wide[0][n]).chunk(2)
            total = total + weights[n, rank].double() * (
                out @ (torch.nn.functional.silu(gate) * up)
            )
        rows.append(total)
    theirs = torch.stack(rows)
    theirs.square().sum().backward()
    assert (ours - theirs).abs().max() < 1e-4
    for mine, wanted in zip((x, gate_up, down), wide, strict=True):
        assert (mine.grad - wanted.grad).norm() < 1e-5 * wanted.grad.norm()


def test_places_are_disjoint_and_sorted_by_expert():
    ids = torch.randint(0, 7, (40, 3), generator=torch.Generator().manual_seed(1))
    place, ends = places(ids, 7)
    assert place.flatten().unique().numel() == ids.numel()
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), ends[:-1].long()])
    assert (place >= starts[ids]).all()
    assert (place < ends.long()[ids]).all()
    assert (ends % 8 == 0).all()


def test_orthogonalised_brings_singular_values_near_one():
    torch.manual_seed(0)
    for shape in ((3, 32, 96), (3, 96, 32)):
        values = torch.linalg.svdvals(orthogonalised(torch.randn(shape)).float())
        assert values.min() > 0.5
        assert values.max() < 1.3


def test_schedule_covers_every_step_and_falls_to_nothing():
    schedule = demo_schedule(101, 50, batch_tokens=4096, learning_rate=1e-2)
    lengths = [schedule.phase_at(step).length for step in range(schedule.num_steps)]
    assert lengths.count(1024) == 101
    assert lengths.count(8192) == 50
    rates = [schedule.learning_rate_at(step) for step in range(schedule.num_steps)]
    assert rates[0] < 1e-3
    assert max(rates) <= 1e-2
    assert rates[-1] < 5e-4
    with pytest.raises(ValueError, match="after the last phase"):
        schedule.phase_at(schedule.num_steps)


def test_stored_weights_come_back_bit_for_bit(tmp_path):
    torch.manual_seed(0)
    state = {"b": torch.randn(300, 70), "a": torch.randn(5), "c": torch.tensor(float("inf"))}
    write_weights(state, tmp_path)
    back = read_weights(tmp_path)
    assert back.keys() == state.keys()
    for name, tensor in state.items():
        assert torch.equal(back[name], tensor.bfloat16())


def test_a_broken_off_writing_is_not_taken_for_whole(tmp_path, monkeypatch):
    write_weights({"a": torch.zeros(4)}, tmp_path)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        write_weights({"a": torch.ones(4)}, tmp_path)
    with pytest.raises(FileNotFoundError):
        read_weights(tmp_path)


def test_rows_hold_documents_at_multiples_of_the_block():
    rng = random.Random(2)
    row = _Row(256)
    sizes = []
    while row.add(np.full(n := rng.randint(3, 60), 7, np.uint16), np.full(n, ANSWER, np.uint8)):
        sizes.append(n)
    arrays = row.arrays()
    starts = np.flatnonzero(arrays["offset"] == 0)
    assert (starts % 4 == 0).all()
    assert len(starts) >= len(sizes)
    assert int((arrays["kind"] == ANSWER).sum()) == sum(sizes)
    assert int((arrays["tokens"] == 7).sum()) == sum(sizes)
