"""A transformers state dict by GGUF name and in GGUF conventions, for tests.

Written apart from the converter in ``strata.formats``, so that each checks the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig

_PER_LAYER = {
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "ple.key_proj.weight": "ple_key.weight",
    "ple.value_proj.weight": "ple_value.weight",
}
_PLUS_ONE = {
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "self_attn.indexer.q_layernorm.weight": "indexer.q_norm.weight",
    "self_attn.indexer.k_layernorm.weight": "indexer.k_norm.weight",
    "ple.norm_key.weight": "ple_norm_key.weight",
    "ple.norm_query.weight": "ple_norm_query.weight",
    "ple.norm_conv.weight": "ple_norm_conv.weight",
}


def rename(state: dict[str, np.ndarray], config: Qwen4ExpTextConfig) -> dict[str, np.ndarray]:
    """Every tensor of ``state``; dtypes are kept, views may be shared."""
    out = {"token_embd.weight": state["model.embed_tokens.weight"]}
    if not config.tie_word_embeddings:
        out["output.weight"] = state["lm_head.weight"]
    _add_hyper_connection(out, state, "model.hyper_connection_mixer", "output_hc")
    for layer in range(config.num_hidden_layers):
        source, target = f"model.layers.{layer}.", f"blk.{layer}."
        _add_hyper_connection(out, state, f"{source}attn_hyper_connection", f"{target}hc_attn")
        _add_hyper_connection(out, state, f"{source}mlp_hyper_connection", f"{target}hc_ffn")
        part = {k.removeprefix(source): v for k, v in state.items() if k.startswith(source)}
        out |= {target + b: part[a] for a, b in _PER_LAYER.items() if a in part}
        out |= {target + b: part[a] + 1 for a, b in _PLUS_ONE.items() if a in part}
        gate, up = np.split(part["mlp.experts.gate_up_proj"], 2, axis=1)
        out[f"{target}ffn_gate_exps.weight"] = gate
        out[f"{target}ffn_up_exps.weight"] = up
        out[f"{target}ffn_gate_inp_shexp.weight"] = part["mlp.shared_expert_gate.weight"][0]
        if "self_attn.q_proj.weight" in part:
            fused = part["self_attn.indexer.index_qk_proj.weight"]
            split = config.indexer_n_heads * config.indexer_head_dim
            out[f"{target}indexer.q_proj.weight"] = fused[:split]
            out[f"{target}indexer.k_proj.weight"] = fused[split:]
        else:
            _add_gdn(out, part, target, config)
        if "ple.conv1d.weight" in part:
            out[f"{target}ple_conv1d.weight"] = part["ple.conv1d.weight"][:, 0]
            out["per_layer_token_embd.weight"] = part["ple.ple_embedding.ngram_embedding.weight"]
    return out


def _add_hyper_connection(
    out: dict[str, np.ndarray], state: dict[str, np.ndarray], source: str, target: str
) -> None:
    out[f"{target}_norm.weight"] = state[f"{source}.hc_norm.weight"] + 1
    out[f"{target}_down.weight"] = state[f"{source}.input_mix_weight_down.weight"]
    out[f"{target}_up.weight"] = state[f"{source}.input_mix_weight_up.weight"]
    inject = state.get(f"{source}.block_inject_weight.weight")
    if inject is not None:
        out[f"{target}_inject.weight"] = inject


def _add_gdn(
    out: dict[str, np.ndarray], part: dict[str, np.ndarray], target: str, config: Any
) -> None:
    key_heads, value_heads = config.linear_num_key_heads, config.linear_num_value_heads
    width = config.linear_value_head_dim
    # Grouped [key head][repeat] becomes tiled [repeat][key head].
    heads = np.arange(value_heads).reshape(key_heads, -1).T.reshape(-1)
    rows = (heads[:, None] * width + np.arange(width)).reshape(-1)
    keys = 2 * key_heads * config.linear_key_head_dim
    channels = np.concatenate([np.arange(keys), keys + rows])
    gdn = {k.removeprefix("linear_attn."): v for k, v in part.items()}
    out[f"{target}attn_qkv.weight"] = gdn["in_proj_qkv.weight"][channels]
    out[f"{target}attn_gate.weight"] = gdn["in_proj_z.weight"][rows]
    out[f"{target}ssm_conv1d.weight"] = gdn["conv1d.weight"][channels, 0]
    out[f"{target}ssm_alpha.weight"] = gdn["in_proj_a.weight"][heads]
    out[f"{target}ssm_beta.weight"] = gdn["in_proj_b.weight"][heads]
    out[f"{target}ssm_dt.bias"] = gdn["dt_bias"][heads]
    out[f"{target}ssm_a"] = -np.exp(gdn["A_log"][heads])
    out[f"{target}ssm_out.weight"] = gdn["out_proj.weight"][:, rows]
