"""Tiny Hugging Face folders as ``save_pretrained`` writes them, and llama.cpp as a reader."""

from __future__ import annotations

import json
import shutil
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from tests.models.tiny_models import randomize, tiny_config
from transformers import Qwen4ExpConfig, Qwen4ExpForCausalLM, Qwen4ExpForConditionalGeneration
from transformers.utils import logging

from strata.formats.synth_text import CHAT_TEMPLATE, synthetic_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

# Large enough for the byte-level vocabulary, which llama.cpp needs.
VOCAB_SIZE = 300
VISION = {
    "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 64,
    "num_position_embeddings": 16,
}  # fmt: skip


def save_text_model(folder: Path, **changes: Any) -> Qwen4ExpForCausalLM:
    """A random text model, saved in one file with the n-gram table in three parts."""
    config = tiny_config(**({"split_ngram_parts": 3} | changes))
    config._attn_implementation = "eager"
    model = Qwen4ExpForCausalLM(config).eval()
    randomize(model, seed=zlib.crc32(repr(sorted(changes.items())).encode()))
    _save(model, folder)
    return model


def save_vision_model(folder: Path) -> Qwen4ExpForConditionalGeneration:
    """The same with a vision tower, in many shards under the wrapper's prefix."""
    text = tiny_config(vocab_size=VOCAB_SIZE, eos_token_id=[7, 8]).to_dict()
    config = Qwen4ExpConfig(text_config=text, vision_config=VISION)
    config._attn_implementation = "eager"
    model = Qwen4ExpForConditionalGeneration(config).eval()
    randomize(model, seed=5)  # type: ignore[arg-type]
    _save(model, folder, max_shard_size="150KB")
    return model


def _save(model: Any, folder: Path, **how: Any) -> None:
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    model.save_pretrained(folder, **how)


def add_tokenizer(folder: Path, vocab_size: int = VOCAB_SIZE) -> None:
    """tokenizer.json and its companions, in the shape the tokenizers package writes."""
    keys = synthetic_tokenizer(vocab_size)
    tokens, kinds = keys["tokenizer.ggml.tokens"], np.asarray(keys["tokenizer.ggml.token_type"])
    assert isinstance(tokens, list)
    assert isinstance(keys["tokenizer.ggml.merges"], list)
    stored = {
        "model": {
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(tokens) if kinds[i] == 1},
            "merges": [merge.split() for merge in keys["tokenizer.ggml.merges"]],
        },
        "added_tokens": [
            {"id": i, "content": token, "special": bool(kinds[i] == 3)}
            for i, token in enumerate(tokens)
            if kinds[i] in (3, 4)
        ],
    }
    (folder / "tokenizer.json").write_text(json.dumps(stored))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|im_end|>", "bos_token": None, "pad_token": "<|endoftext|>"})
    )
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def add_draft_layer(folder: Path) -> dict[str, np.ndarray]:
    """``mtp.*`` tensors shaped like the last (sparse) layer; returns them."""
    path = folder / "model.safetensors"
    state = load_file(path)
    rng = np.random.default_rng(3)
    last = max(int(name.split(".")[2]) for name in state if name.startswith("model.layers."))
    width = state["model.embed_tokens.weight"].shape[1]
    streams = state["model.hyper_connection_mixer.hc_norm.weight"].shape[0]
    sizes = {
        "mtp." + name.replace(f"model.layers.{last}.", "layers.0.").removeprefix("model."): a.shape
        for name, a in state.items()
        if name.startswith((f"model.layers.{last}.", "model.hyper_connection_mixer."))
    }
    sizes |= {
        "mtp.fc_embedding.weight": (width, width),
        "mtp.fc_hidden.weight": (width, width),
        "mtp.pre_fc_norm_embedding.weight": (width,),
        "mtp.pre_fc_norm_hidden.weight": (streams,),
    }
    draft = {name: rng.normal(size=size).astype(np.float32) for name, size in sizes.items()}
    save_file(state | draft, path)
    return draft


def edit_config(folder: Path, **fields: Any) -> None:
    """Replaces fields of config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def copied(folder: Path, target: Path) -> Path:
    """A copy that a test may damage."""
    shutil.copytree(folder, target)
    return target


class LlamaCpp:
    """One file opened by llama.cpp on one thread with float32 keys and values."""

    def __init__(self, path: Path) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx = params.n_batch = params.n_ubatch = 512
        params.n_parallel = 1
        params.cpuparams.n_threads = 1
        params.warmup = False
        params.no_extra_bufts = True
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        params.verbosity = 0
        self._server = xllamacpp.Server(params)

    def count_tokens(self, prompt: str, num_tokens: int) -> int:
        """Tokens generated greedily after a text."""
        answer = self._server.handle_completions(
            {"prompt": prompt, "n_predict": num_tokens, "temperature": 0, "ignore_eos": True}
        )
        return int(answer["usage"]["completion_tokens"])

    def logprobs(self, ids: list[int], vocab_size: int) -> np.ndarray:
        """[V] natural logarithms of the next token's probabilities."""
        answer = self._server.handle_completions(
            {
                "prompt": ids,
                "n_predict": 1,
                "n_probs": vocab_size,
                "cache_prompt": False,
                # Only tokens that complete a character are reported. The bias forces an "A";
                # reported probabilities are those before it.
                "logit_bias": [[ord("A"), 1000.0]],
            }
        )
        out = np.full(vocab_size, np.nan)
        for token in answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]:
            out[token["id"]] = token["logprob"]
        return out
