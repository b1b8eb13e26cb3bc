"""Agreement of Strata with llama.cpp on one file: mean KL and share of equal first choices.

    python benchmarks/agreement.py MODEL.gguf [--text FILE] [--prompts 16] [--answer 16]

llama.cpp answers each prompt greedily and gives the whole distribution at every token; Strata then
goes along the same tokens. The prompts are pieces of the text, or random ids without one. Stay
below the indexer budget: beyond it llama.cpp attends to other tokens than the model it copies.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from strata.engine.agreement import Agreement, logits_along
from strata.engine.build import num_threads, open_parts
from strata.engine.model_file import open_file
from strata.engine.rival import LlamaCpp, RivalOptions
from strata.errors import StrataError
from strata.settings import Settings
from strata.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping


def prompts_of(
    args: argparse.Namespace, vocab_size: int, text_ids: list[int] | None
) -> list[np.ndarray]:
    """Token ids of every prompt, lengths spread evenly up to ``--prompt-tokens``."""
    rng = np.random.default_rng(args.seed)
    lengths = np.linspace(1, args.prompt_tokens, args.prompts).round().astype(int)
    if text_ids is None:
        return [rng.integers(0, vocab_size, size, dtype=np.int32) for size in lengths]
    ids = np.array(text_ids, dtype=np.int32)
    starts = rng.integers(0, max(1, len(ids) - args.prompt_tokens), args.prompts)
    return [ids[start : start + size] for start, size in zip(starts, lengths, strict=True)]


def not_whole_characters(metadata: Mapping[str, object], vocab_size: int) -> list[int]:
    """Ids whose bytes are not text by themselves."""
    tokenizer = Tokenizer.from_metadata(metadata)
    return [
        token
        for token in range(min(vocab_size, tokenizer.vocab_size))
        if "\ufffd" in tokenizer.decode([token])
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=48)
    parser.add_argument("--answer", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kv", default="f32")
    args = parser.parse_args()
    try:
        print(compare(args))
    except StrataError as error:
        raise SystemExit(f"agreement: {error}") from None


def compare(args: argparse.Namespace) -> str:
    context_len = args.prompt_tokens + args.answer + 8
    settings = Settings.from_options(
        {"model": args.model, "context_len": context_len, "kv_format": args.kv}
    )
    with open_file(args.model) as model_file:
        first_file = model_file.index.paths[0]
        budget = model_file.spec.index_budget
        vocab_size = model_file.spec.vocab_size
        banned = not_whole_characters(model_file.index.metadata, vocab_size)
    if context_len > budget:
        print(f"note: {context_len} tokens are beyond the indexer budget of {budget}.")
    parts = open_parts(settings)
    text = None if args.text is None else args.text.read_text("utf-8")
    prompts = prompts_of(args, vocab_size, None if text is None else parts.text.encode(text))
    rival = LlamaCpp(
        RivalOptions(
            model=first_file,
            vocab_size=vocab_size,
            threads=num_threads(settings),
            context_len=context_len,
            has_flash_attention=False,
            kv_format=args.kv,
        )
    )
    session = parts.model.new_session(context_len)
    theirs, ours = [], []
    for prompt in prompts:
        logprobs, answer = rival.greedy(prompt.tolist(), args.answer, banned=banned)
        theirs.append(logprobs)
        ours.append(logits_along(session, prompt, answer))
    result = Agreement.of(np.concatenate(theirs), np.concatenate(ours))
    parts.close()
    return (
        f"{result.num_positions} positions: mean KL {result.mean_kl:.2e}, "
        f"largest {result.max_kl:.2e}, argmax {100 * result.argmax_share:.2f} % "
        f"({rival.description})"
    )


if __name__ == "__main__":
    main()
