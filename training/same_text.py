"""Whether transformers and the engine give the same greedy text on the BF16 export.

``python -m training.same_text EXPORT --json training/results/same_text.json``. Both read the same
token ids and compute in float32; exit code 1 if one answer differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import Qwen4ExpForCausalLM

from strata import Engine
from strata.cli.console import Bar
from strata.formats.convert import ConvertOptions, convert
from strata.formats.convert_types import TypePlan
from training.eval_answers import case_rng, greedy
from training.tasks import ALL_TASKS
from training.tasks.example import Split

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Pair:
    """Both answers to one prompt, as token ids, the end token included."""

    task: str
    prompt_tokens: int
    ours: list[int]
    theirs: list[int]
    text: str

    @property
    def is_same(self) -> bool:
        """Whether they are equal, token for token."""
        return self.ours == self.theirs


def compare(export: Path, tasks: Sequence[str], num_prompts: int, max_tokens: int) -> list[Pair]:
    """Answers to ``num_prompts`` held-out prompts, of the tasks in turn (all without names)."""
    chosen = [task for task in ALL_TASKS if not tasks or task.name in tasks]
    model = Qwen4ExpForCausalLM.from_pretrained(export, dtype=torch.float32).eval()
    pairs = []
    with tempfile.TemporaryDirectory() as work, Bar("both engines") as bar:
        path = Path(work) / "bf16.gguf"
        convert(export, path, ConvertOptions(types=TypePlan.preset("bf16"), has_draft=False))
        with Engine.open(path, kv_format="f32") as engine:
            for number in range(num_prompts):
                task = chosen[number % len(chosen)]
                example = task.generate(case_rng(task.name, number), Split.HELD_OUT)
                # Tools and thinking are left out: it is the arithmetic that is compared.
                prompt = engine.tokenize(example.prompt)
                completion = engine.generate_text(prompt, greedy(max_tokens))
                ours = list(completion.token_ids)
                theirs = _their_answer(model, prompt, max_tokens)
                pairs.append(Pair(task.name, len(prompt), ours, theirs, completion.text))
                bar(number + 1, num_prompts)
    return pairs


def _their_answer(model: Qwen4ExpForCausalLM, prompt: list[int], max_tokens: int) -> list[int]:
    ids = torch.tensor([prompt])
    with torch.no_grad():
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False
        )
    answer: list[int] = out[0, len(prompt) :].tolist()
    return answer


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.same_text", description=__doc__)
    parser.add_argument("export", type=Path, help="folder that training.export wrote")
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=MAX_TOKENS, help="longest answer")
    parser.add_argument("--tasks", nargs="+", default=[])
    parser.add_argument("--json", type=Path, help="write the answers to this file")
    options = parser.parse_args(arguments)
    pairs = compare(options.export, options.tasks, options.prompts, options.tokens)
    for pair in pairs:
        print(f"{'same' if pair.is_same else 'DIFFERENT':10} {pair.task:20} {pair.text[:80]!r}")
    num_same = sum(pair.is_same for pair in pairs)
    print(f"{num_same} of {len(pairs)} answers are the same, token for token")
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        rows = [{**asdict(pair), "is_same": pair.is_same} for pair in pairs]
        options.json.write_text(json.dumps(rows) + "\n", encoding="utf-8")
    return int(num_same < len(pairs))


if __name__ == "__main__":
    sys.exit(main())
