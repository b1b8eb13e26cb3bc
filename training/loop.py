"""The training run: ``python -m training.loop --corpus FILE --out FOLDER``; see training/README.md.

One process a GPU (``torchrun`` sets RANK and WORLD_SIZE), gradients averaged between them. The log
is JSON lines; a checkpoint is kept beside it and a run started again goes on from it.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from training.batches import Corpus, Rows, batches
from training.config import DEMO, TOY, Geometry
from training.network import Batch, Losses, Network
from training.optimizer import Optimizer
from training.schedule import Phase, Schedule, demo_schedule
from training.tasks.code_words import long_example
from training.tasks.example import Split
from training.weights import read_weights, write_weights

if TYPE_CHECKING:
    from collections.abc import Iterator

_TOKENIZER = Path(__file__).parent / "data" / "tokenizer.json"
_INDEX_WEIGHT = 0.2
_BALANCE_WEIGHT = 0.001
_DRAFT_WEIGHTS = (1.0, 0.7)
_LOG_EVERY = 20
_CHECKPOINT_SECONDS = 120.0
_MAX_GRAD_NORM = 1.0
_DRAFT_LAYER = "mtp."


class Run:
    """One training run on this process's device.

    Args:
        options: the command line.
        geometry: of the network.
        schedule: of the whole run.
    """

    def __init__(self, options: argparse.Namespace, geometry: Geometry, schedule: Schedule) -> None:
        self.rank = int(os.environ.get("RANK", "0"))  # noqa: TID251 - torchrun's way of telling
        self.world = int(os.environ.get("WORLD_SIZE", "1"))  # noqa: TID251
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        if self.world > 1:
            torch.cuda.set_device(self.rank)
            dist.init_process_group("nccl", device_id=torch.device("cuda", self.rank))
        torch.manual_seed(options.seed)
        self.options = options
        self.schedule = schedule
        self.network = Network(geometry.spec())
        if options.weights is not None:
            self.network.load_state_dict(read_weights(options.weights))
        self.network.to(self.device)
        if options.only_drafts:
            for name, parameter in self.network.named_parameters():
                parameter.requires_grad_(name.startswith(_DRAFT_LAYER))
        self.optimizer = Optimizer(self.network)
        self.step = 0
        # The indexer's queries are drawn apart on every process.
        torch.manual_seed(options.seed + 1 + self.rank)
        if options.compile:
            for layer in [*self.network.model.layers, *self.network.mtp.layers]:
                layer.compile(dynamic=False)

    def train_step(self, batch: Batch, phase: Phase) -> Losses:
        """One update."""
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            losses: Losses = self.network(
                batch, is_sparse=phase.is_sparse, num_drafts=phase.num_drafts
            )
        total = losses.weighted + _INDEX_WEIGHT * losses.index + _BALANCE_WEIGHT * losses.balance
        for weight, draft in zip(_DRAFT_WEIGHTS, losses.draft, strict=False):
            total = total + weight * draft
        total.backward()
        parameters = [p for p in self.network.parameters() if p.grad is not None]
        if self.world > 1:
            self._average(parameters)
        torch.nn.utils.clip_grad_norm_(parameters, _MAX_GRAD_NORM, foreach=True)
        self.optimizer.step(self.schedule.learning_rate_at(self.step))
        for parameter in parameters:
            parameter.grad = None
        return losses

    def _average(self, parameters: list[torch.nn.Parameter]) -> None:
        grads = [p.grad for p in parameters if p.grad is not None]
        flat = torch.cat([grad.flatten() for grad in grads])
        dist.all_reduce(flat, op=dist.ReduceOp.AVG)
        parts = flat.split([grad.numel() for grad in grads])
        torch._foreach_copy_(grads, [p.view_as(g) for p, g in zip(parts, grads, strict=True)])

    def measure(self, held_out: list[Batch], phase: Phase) -> dict[str, float]:
        """Mean losses over held-out batches.

        Gradients stay on: without them every compiled layer would be compiled once more.
        """
        totals: dict[str, float] = {}
        for batch in held_out:
            with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
                losses = self.network(batch, is_sparse=phase.is_sparse, num_drafts=phase.num_drafts)
            for name, value in _as_numbers(losses).items():
                totals[name] = totals.get(name, 0.0) + value / len(held_out)
        return totals

    def save(self) -> None:
        """Writes the checkpoint; the old one stays until the new one is whole."""
        if self.rank:
            return
        state: dict[str, Tensor] = {f"network.{n}": t for n, t in self.network.state_dict().items()}
        state |= {f"optimizer.{n}": t for n, t in self.optimizer.tensors().items()}
        state["step"] = torch.tensor(self.step)
        path = self.options.out / "checkpoint.safetensors"
        whole = path.with_suffix(".tmp")
        save_file({name: tensor.contiguous() for name, tensor in state.items()}, whole)
        whole.replace(path)

    def resume(self) -> None:
        """Goes on from the checkpoint, if there is one."""
        path = self.options.out / "checkpoint.safetensors"
        if not path.is_file():
            return
        state = load_file(path, self.device if self.world == 1 else f"cuda:{self.rank}")
        self.step = int(state.pop("step"))
        parts: dict[str, dict[str, Tensor]] = {"network": {}, "optimizer": {}}
        for name, tensor in state.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = tensor
        self.network.load_state_dict(parts["network"])
        self.optimizer.load_tensors(parts["optimizer"])


def _as_numbers(losses: Losses) -> dict[str, float]:
    named = {
        "loss": losses.weighted, "text_loss": losses.text, "answer_loss": losses.answer,
        "look_up_loss": losses.look_up, "index_loss": losses.index, "balance_loss": losses.balance,
    }  # fmt: skip
    for number, (draft, hits) in enumerate(zip(losses.draft, losses.draft_hits, strict=True), 1):
        named |= {f"draft_loss_{number}": draft, f"draft_hits_{number}": hits}
    return {name: round(float(value.detach()), 4) for name, value in named.items()}


class Data:
    """Makes the batches of any step.

    Args:
        run: whose rank and schedule decide which rows are made here.
        options: the command line.
    """

    def __init__(self, run: Run, options: argparse.Namespace) -> None:
        self._run = run
        self._options = options
        self._tokenizer = Tokenizer.from_file(str(_TOKENIZER))
        self._corpus = Corpus.read(options.corpus, self._tokenizer)
        self._held_out = Corpus.read(options.held_out, self._tokenizer)

    def _rows(self, phase: Phase, first: int, count: int, split: Split) -> Rows:
        corpus = self._corpus if split is Split.TRAIN else self._held_out
        return Rows(
            corpus, self._tokenizer, phase, seed=self._options.seed, first=first, count=count,
            long_task=lambda rng, paragraphs: long_example(rng, split, paragraphs), split=split,
            drill_factor=self._options.drill_factor,
        )  # fmt: skip

    def training(self) -> Iterator[tuple[Phase, Batch]]:
        """Batches from the run's step on, each with its phase."""
        run, done = self._run, 0
        for phase in run.schedule.phases:
            batch_rows = run.schedule.batch_tokens // phase.length // run.world
            start = max(0, run.step - done)
            done += phase.steps
            if start >= phase.steps:
                continue
            count = (phase.steps - start) * batch_rows
            # Ranks have rows far apart; phases differ by the length of their rows or the seed.
            first = (done + 100_000_000 * run.rank) + start * batch_rows
            rows = self._rows(phase, first, count, Split.TRAIN)
            made = batches(rows, batch_rows, num_workers=self._options.workers, device=run.device)
            for batch in made:
                yield phase, batch

    def held_out(self, phase: Phase, num_batches: int = 1) -> list[Batch]:
        """A few batches of held-out instances."""
        batch_rows = max(1, self._run.schedule.batch_tokens // phase.length // self._run.world)
        rows = self._rows(phase, 0, batch_rows * num_batches, Split.HELD_OUT)
        return list(batches(rows, batch_rows, num_workers=0, device=self._run.device))


def train(run: Run, data: Data, log: Path) -> None:
    """From the run's step to the schedule's end, or until the time is up."""
    began = saved = time.monotonic()
    held_out: dict[int, list[Batch]] = {}
    for phase, batch in data.training():
        losses = run.train_step(batch, phase)
        run.step += 1
        if run.step % _LOG_EVERY == 0 and run.rank == 0:
            numbers = _as_numbers(losses)
            record = {
                "step": run.step,
                "tokens": run.step * run.schedule.batch_tokens,
                "context": phase.length,
                "seconds": round(time.monotonic() - began, 1),
                "learning_rate": round(run.schedule.learning_rate_at(run.step - 1), 6),
                **numbers,
            }
            with log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
            print(" ".join(f"{k}={v}" for k, v in record.items()), flush=True)
        if run.options.measure and run.rank == 0 and run.step % (10 * _LOG_EVERY) == 0:
            if phase.length not in held_out:
                held_out = {phase.length: data.held_out(phase)}
            print("  held out:", run.measure(held_out[phase.length], phase), flush=True)
        if time.monotonic() - saved > _CHECKPOINT_SECONDS:
            run.save()
            saved = time.monotonic()
        if time.monotonic() - began > run.options.seconds:
            break
    run.save()
    if run.rank == 0:
        write_weights(run.network.state_dict(), run.options.out)


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--held-out", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--weights", type=Path, help="start from these (training.weights)")
    parser.add_argument("--short-steps", type=int, default=3000)
    parser.add_argument("--long-steps", type=int, default=1500)
    parser.add_argument("--batch-tokens", type=int, default=131_072)
    parser.add_argument("--learning-rate", type=float, default=5e-3)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this long")
    parser.add_argument(
        "--drill-factor", type=float, default=1.0, help="look-ups: times their weight"
    )
    parser.add_argument("--num-drafts", type=int, default=2, help="draft steps trained at the end")
    parser.add_argument(
        "--only-drafts", action="store_true", help="leave all but the draft layer as it is"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--measure", action="store_true", help="held-out losses now and then")
    parser.add_argument("--toy", action="store_true", help="a small geometry, for a processor")
    return parser.parse_args(arguments)


def main() -> None:
    """Trains, or goes on training."""
    options = parsed()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_float32_matmul_precision("high")
    schedule = demo_schedule(
        options.short_steps, options.long_steps,
        batch_tokens=options.batch_tokens, learning_rate=options.learning_rate,
        num_drafts=options.num_drafts,
    )  # fmt: skip
    run = Run(options, TOY if options.toy else DEMO, schedule)
    run.resume()
    train(run, Data(run, options), options.out / "log.jsonl")
    if run.world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
