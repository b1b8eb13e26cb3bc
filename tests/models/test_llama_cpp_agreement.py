"""Quantised synthetic models against llama.cpp, token by token, below the indexer's budget.

llama.cpp answers each prompt greedily and gives the whole distribution at every token; this engine
goes along the same tokens. Both round activations, each in its own way, so they differ a little.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from strata.engine.agreement import Agreement, log_softmax, logits_along
from strata.engine.bench import random_prompt
from strata.engine.build import open_parts
from strata.engine.model_file import open_file
from strata.engine.rival import LlamaCpp, RivalOptions
from strata.formats.convert_types import TensorClass, TypePlan
from strata.formats.synth import GEOMETRIES, MIXES, synthesize, uniform_mix
from strata.settings import Settings
from strata.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from strata.engine.session import Logits, Tokens

MOST_KL = 2e-3
LEAST_ARGMAX = 0.98
GEOMETRY = GEOMETRIES["tiny"]
# Blocks are complete, partial and crossed; the longest text stays below the budget.
PROMPT_LENGTHS = (1, 4, 8, 13, 17, 22, 26, 31, 35, 39)
ANSWER_TOKENS = 20
CONTEXT = 64

MIX_NAMES = ("preset:q8_0", *MIXES)
SINGLE_NAMES = (
    "Q2_K", "Q3_K", "Q6_K", "Q4_0", "Q4_1", "Q5_0", "IQ4_XS", "MXFP4", "NVFP4", "IQ3_XXS", "IQ2_S",
    "IQ2_XXS", "IQ1_S", "IQ1_M",
)  # fmt: skip


def types_of(name: str) -> TypePlan:
    """A published mix, or one format for all but the head, which public files keep at six bits."""
    if name.startswith("preset:"):
        return TypePlan.preset(name.removeprefix("preset:"))
    if name in MIXES:
        return MIXES[name]
    plan = uniform_mix(name)
    return replace(plan, by_class={**plan.by_class, TensorClass.HEAD: "Q6_K"})


def prompts() -> list[Tokens]:
    return [random_prompt(GEOMETRY.vocab_size, size, seed=size) for size in PROMPT_LENGTHS]


def rival_answers(path: Path) -> tuple[list[Logits], list[Tokens]]:
    """llama.cpp's distributions and greedy answers, one of each per prompt."""
    with open_file(path) as model_file:
        tokenizer = Tokenizer.from_metadata(model_file.index.metadata)
        assert model_file.spec.index_budget >= CONTEXT
    ids = range(GEOMETRY.vocab_size)
    # llama.cpp's server gives no distribution for a token that is not a whole character.
    banned = [token for token in ids if "\ufffd" in tokenizer.decode([token])]
    rival = LlamaCpp(
        RivalOptions(
            model=path,
            vocab_size=GEOMETRY.vocab_size,
            threads=1,
            context_len=CONTEXT,
            has_flash_attention=False,
        )
    )
    pairs = [rival.greedy(ids.tolist(), ANSWER_TOKENS, banned=banned) for ids in prompts()]
    return [rows for rows, _ in pairs], [answer for _, answer in pairs]


def own_logits(path: Path, answers: list[Tokens]) -> Logits:
    settings = Settings.from_options({"model": path, "context_len": CONTEXT, "threads": 1})
    parts = open_parts(settings)
    try:
        session = parts.model.new_session(CONTEXT)
        rows = [logits_along(session, *pair) for pair in zip(prompts(), answers, strict=True)]
    finally:
        parts.close()
    return np.concatenate(rows)


@pytest.mark.parametrize("name", [*MIX_NAMES, *SINGLE_NAMES])
def test_agrees_with_llama_cpp(name: str, tmp_path: Path):
    path = tmp_path / "model.gguf"
    synthesize(path, GEOMETRY, types_of(name))
    distributions, answers = rival_answers(path)
    theirs = np.concatenate(distributions)
    result = Agreement.of(theirs, own_logits(path, answers))
    print(name, result)
    assert result.num_positions == len(PROMPT_LENGTHS) * ANSWER_TOKENS
    assert_tells_models_apart(theirs)
    assert result.mean_kl < MOST_KL
    assert result.argmax_share > LEAST_ARGMAX


def assert_tells_models_apart(logprobs: Logits) -> None:
    """Neither sure of everything, nor of nothing, nor always of the same token."""
    exact = log_softmax(logprobs)
    entropy = -np.sum(np.exp(exact) * np.maximum(exact, -1e4), axis=1)
    most = np.log(GEOMETRY.vocab_size)
    assert 0.2 * most < entropy.mean() < 0.8 * most
    assert len(np.unique(exact.argmax(axis=1))) > len(exact) / 4


@pytest.mark.parametrize(
    "part",
    ["blk.0.ssm_out", "blk.1.ple_value", "blk.2.ffn_down_exps", "blk.2.ffn_gate_inp",
     "blk.3.attn_v", "blk.3.attn_output", "blk.0.attn_qkv", "blk.3.hc_ffn_up"],
)  # fmt: skip
def test_one_wrong_tensor_is_seen(part: str, tmp_path: Path):
    """The measure can fail: llama.cpp's file differs in one tensor, half of its rows in reverse."""
    path, damaged = tmp_path / "model.gguf", tmp_path / "damaged.gguf"
    synthesize(path, GEOMETRY, MIXES["q4_k"])
    damaged.write_bytes(path.read_bytes())
    with open_file(path) as model_file:
        entry = model_file.index[f"{part}.weight"]
        rows = model_file.index.raw(entry.name).reshape(-1, entry.format.row_bytes(entry.shape[-1]))
        changed = rows.copy()
        changed[: len(rows) // 2] = rows[: len(rows) // 2][::-1]
    with damaged.open("r+b") as file:
        file.seek(entry.offset)
        file.write(changed.tobytes())
    distributions, answers = rival_answers(damaged)
    result = Agreement.of(np.concatenate(distributions), own_logits(path, answers))
    print(part, result)
    assert result.mean_kl > MOST_KL
