"""Table rows against transformers' n-gram embedding and against Python's unbounded integers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpTextNGramEmbedding

from strata.model_spec import NgramSpec
from strata.reference.ngram_memory import ngram_rows

EOS = 3
VOCAB = 50


def module_and_spec(ngram_size: int, heads: int) -> tuple[Qwen4ExpTextNGramEmbedding, NgramSpec]:
    config = Qwen4ExpTextConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        ngram_size=ngram_size,
        heads_per_ngram=heads,
        ngram_vocab_size_base=200,
        eos_token_id=EOS,
        ple_layer_ids=[1],
        ple_embed_dim=(ngram_size - 1) * heads,
    )
    module = Qwen4ExpTextNGramEmbedding(config, config.ple_embed_dim, layer_idx=0)
    # One value a row, the row's own number: the embedding then answers with row numbers.
    rows = len(module.ngram_embedding.weight)
    module.ngram_embedding.weight.data = torch.arange(rows, dtype=torch.float64)[:, None]
    spec = NgramSpec(
        layer=0,
        ngram_size=ngram_size,
        heads_per_ngram=heads,
        row_size=1,
        conv_kernel=4,
        eos_id=EOS,
        image_id=None,
        multipliers=tuple(module.layer_multipliers.tolist()),
        head_vocab_sizes=tuple(module.head_vocab_sizes),
        head_offsets=tuple(module.head_offsets),
    )
    return module, spec


def hf_rows(module: Qwen4ExpTextNGramEmbedding, tokens: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return module(torch.from_numpy(tokens)[None], None)[0].numpy().astype(np.int64)


@pytest.mark.parametrize("ngram_size", [2, 3, 4])
def test_rows_with_end_of_sequence_anywhere(ngram_size: int) -> None:
    module, spec = module_and_spec(ngram_size, 5)
    rng = np.random.default_rng(ngram_size)
    empty = np.full(ngram_size - 1, EOS)
    for share in (0.0, 0.2, 0.6, 1.0):
        tokens = np.where(rng.random(60) < share, EOS, rng.integers(0, VOCAB, 60))
        found = ngram_rows(spec, tokens, empty)
        assert found.shape == (60, spec.num_heads)
        assert found.dtype == np.int64
        np.testing.assert_array_equal(found, hf_rows(module, tokens))


def test_rows_do_not_depend_on_where_the_text_is_cut() -> None:
    module, spec = module_and_spec(3, 4)
    tokens = np.random.default_rng(9).integers(0, 6, 40)  # one in six ends a sequence
    whole = hf_rows(module, tokens)
    for cut in range(1, 40):
        history = np.concatenate([[EOS, EOS], tokens[:cut]])[-2:]
        np.testing.assert_array_equal(ngram_rows(spec, tokens[cut:], history), whole[cut:])


def test_products_wrap_at_64_bits() -> None:
    """Multipliers of a file may exceed what transformers draws; Python integers are the truth."""
    m = (0xFFFF_FFFF_FFFF_FFC5, 0x9E37_79B9_7F4A_7C15)
    spec = NgramSpec(0, 2, 2, 1, 4, EOS, None, m, (20_000_003, 20_000_023), (0, 20_000_003))
    tokens = np.array([248_043, 17, 248_055])
    found = ngram_rows(spec, tokens, np.array([11]))
    before = 11
    for token, row in zip(tokens.tolist(), found.tolist(), strict=True):
        mix = (token * m[0] % 2**64) ^ (before * m[1] % 2**64)
        assert row == [mix % 20_000_003, mix % 20_000_023 + 20_000_003]
        before = token
