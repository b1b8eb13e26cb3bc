"""Model files of any geometry and mix of formats, with random well-scaled weights.

Owns geometries, mixes and the size of every weight. They compute, they do not speak: for tests
and benchmarks. Blocks are made by synth_blocks, text by synth_text.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from strata.errors import SettingsError
from strata.formats.block_decode import dequantize
from strata.formats.convert_metadata import metadata_from_config
from strata.formats.convert_output import ConvertReport, Progress, open_writer, written_paths
from strata.formats.convert_types import TensorClass, TypePlan, named_format
from strata.formats.gguf_writer import TensorPlan
from strata.formats.naming import Role, Shape, expected_shape, required_tensors
from strata.formats.quantize import QUANTIZABLE, quantize
from strata.formats.synth_blocks import plain_weights, random_blocks
from strata.formats.synth_text import END_OF_TEXT, IMAGE_PAD, special_ids, synthetic_tokenizer
from strata.spec_reader import read_spec
from strata.units import MiB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from strata.model_spec import ModelSpec

CHUNK_BYTES = 32 * MiB
# Rows of the n-gram table are padded to a multiple of this, as in the trained model.
TABLE_MULTIPLE = 128


@dataclass(frozen=True, slots=True)
class SynthGeometry:
    """Sizes of a synthetic model; the defaults are the trained model's."""

    name: str = "synthetic"
    vocab_size: int = 248_320
    hidden_size: int = 2560
    num_layers: int = 48
    attention_interval: int = 4
    context_len: int = 262_144
    num_streams: int = 4
    hc_rank: int = 320
    gdn_key_heads: int = 16
    gdn_value_heads: int = 48
    gdn_head_dim: int = 128
    gdn_conv_kernel: int = 4
    num_heads: int = 24
    num_kv_heads: int = 2
    head_dim: int = 256
    rope_dim: int = 64
    rope_base: float = 1e7
    index_heads: int = 4
    index_dim: int = 128
    index_budget: int = 2048
    index_block: int = 4
    num_experts: int = 512
    top_k: int = 10
    expert_size: int = 640
    shared_expert_size: int = 640
    ngram_layer: int | None = 1
    ngram_size: int = 3
    heads_per_ngram: int = 8
    ngram_row_size: int = 160
    ngram_conv_kernel: int = 4
    # Each n-gram head gets a prime number of rows from here on; the trained model has 20,000,000.
    ngram_rows_per_head: int = 20_000
    is_head_tied: bool = False
    num_draft_layers: int = 0
    # What a block adds to the residual, as a share of an embedding. Trained networks add little at
    # a time: this one doubles the residual over 48 layers. At full size every block would amplify
    # the rounding of the ones before it, and two correct engines would disagree.
    branch_gain: float = 0.15
    # How far the logit of one fixed successor of each token stands above the others, in deviations
    # of the logits. Without it the first two choices are as close as chance has them, which
    # trained networks seldom show. For small models: their whole embedding is decoded for it.
    successor_margin: float = 0.0

    def config(self) -> dict[str, object]:
        """The same geometry as a checkpoint's config.json."""
        pairs = self.rope_dim // 2
        ids = special_ids()
        return {
            "model_type": "qwen4_exp_text",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_layers,
            "full_attention_interval": self.attention_interval,
            "max_position_embeddings": self.context_len,
            "hc_count": self.num_streams,
            "hc_lowrank": self.hc_rank,
            "linear_num_key_heads": self.gdn_key_heads,
            "linear_num_value_heads": self.gdn_value_heads,
            "linear_key_head_dim": self.gdn_head_dim,
            "linear_value_head_dim": self.gdn_head_dim,
            "linear_conv_kernel_dim": self.gdn_conv_kernel,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": self.rope_base,
                "partial_rotary_factor": self.rope_dim / self.head_dim,
                "mrope_section": [(pairs + 2) // 3, (pairs + 1) // 3, pairs // 3],
            },
            "indexer_n_heads": self.index_heads,
            "indexer_kv_heads": 1,
            "indexer_head_dim": self.index_dim,
            "indexer_budget": self.index_budget,
            "indexer_compress_ratio": self.index_block,
            "num_experts": self.num_experts,
            "num_experts_per_tok": self.top_k,
            "moe_intermediate_size": self.expert_size,
            "shared_expert_intermediate_size": self.shared_expert_size,
            "output_gate_type": "sigmoid",
            "ple_layer_ids": [] if self.ngram_layer is None else [self.ngram_layer + 1],
            "ple_embed_dim": self.ngram_row_size * (self.ngram_size - 1) * self.heads_per_ngram,
            "ple_conv_kernel_size": self.ngram_conv_kernel,
            "ngram_size": self.ngram_size,
            "heads_per_ngram": self.heads_per_ngram,
            "ngram_vocab_size_base": self.ngram_rows_per_head,
            "eos_token_id": [ids[END_OF_TEXT]],
            "image_token_id": ids[IMAGE_PAD],
            "tie_word_embeddings": self.is_head_tied,
        }


_TINY = SynthGeometry(
    name="synthetic tiny", vocab_size=512, hidden_size=256, num_layers=4, context_len=4096,
    hc_rank=32, gdn_key_heads=2, gdn_value_heads=4, gdn_head_dim=64, num_heads=4, num_kv_heads=2,
    head_dim=64, rope_dim=32, rope_base=1e4, index_heads=2, index_dim=64, index_budget=64,
    num_experts=8, top_k=2, expert_size=256, shared_expert_size=256, heads_per_ngram=2,
    ngram_row_size=64, ngram_rows_per_head=1000, successor_margin=5.0,
)  # fmt: skip

GEOMETRIES: Mapping[str, SynthGeometry] = MappingProxyType(
    {
        "tiny": _TINY,
        "bench": SynthGeometry(
            name="synthetic bench", vocab_size=65_536, num_layers=12, num_experts=64
        ),
        "coder": SynthGeometry(name="synthetic coder", num_experts=256),
        "full": SynthGeometry(name="synthetic full"),
    }
)

_C = TensorClass
_SHARED = (Role.SHARED_GATE, Role.SHARED_UP, Role.SHARED_DOWN)

MIXES: Mapping[str, TypePlan] = MappingProxyType(
    {
        # After UD-Q4_K_XL: everything outside the experts Q8_0, single layers higher.
        "q4_k": TypePlan(
            by_class={
                _C.EXPERTS_GATE_UP: "Q4_K", _C.EXPERTS_DOWN: "Q5_1", _C.DENSE: "Q8_0",
                _C.EMBEDDING: "Q8_0", _C.HEAD: "Q8_0", _C.NGRAM: "IQ4_NL", _C.HYPER: "Q8_0",
                _C.ROUTER: "F32", _C.SMALL: "Q8_0",
            },
            by_name=(
                ("blk.2.ffn_gate_exps.weight", "Q5_K"),
                ("blk.2.ffn_up_exps.weight", "Q5_K"),
                ("blk.[24].ffn_down_exps.weight", "Q8_0"),
            ),
        ),
        # After GSQ-RCO IQ3_S: dense mix, small projections BF16.
        "iq3_s": TypePlan(
            by_class={
                _C.EXPERTS_GATE_UP: "IQ3_S", _C.EXPERTS_DOWN: "IQ4_NL", _C.DENSE: "IQ4_XS",
                _C.EMBEDDING: "Q5_K", _C.HEAD: "Q6_K", _C.NGRAM: "IQ4_NL", _C.HYPER: "BF16",
                _C.ROUTER: "BF16", _C.SMALL: "BF16",
            },
            by_role={
                Role.GDN_OUT: "Q5_K", Role.ATTN_OUT: "Q5_K", Role.ATTN_K: "Q6_K",
                Role.ATTN_V: "Q8_0", Role.PLE_VALUE: "BF16", **dict.fromkeys(_SHARED, "Q6_K"),
            },
        ),
        # After GSQ Q2_0.
        "q2_0": TypePlan(
            by_class={
                _C.EXPERTS_GATE_UP: "Q2_0", _C.EXPERTS_DOWN: "Q2_0", _C.DENSE: "Q4_K",
                _C.EMBEDDING: "Q4_K", _C.HEAD: "Q5_K", _C.NGRAM: "IQ4_NL", _C.HYPER: "BF16",
                _C.ROUTER: "BF16", _C.SMALL: "BF16",
            },
            by_role={
                Role.GDN_OUT: "Q5_K", Role.ATTN_V: "Q5_K", Role.GDN_GATE: "Q3_K",
                Role.PLE_VALUE: "BF16", **dict.fromkeys(_SHARED, "Q2_0"),
            },
        ),
    }
)  # fmt: skip
"""Mixes of formats as public files have them."""


def uniform_mix(name: str) -> TypePlan:
    """Every matrix in one format, whatever the format; routers F32. For tests of one format."""
    fmt = named_format(name).name
    return TypePlan(by_class={**dict.fromkeys(TensorClass, fmt), TensorClass.ROUTER: "F32"})


# Size of a weight times the root of its inputs. Chosen so that every gate, softmax and sigmoid of
# a synthetic model works away from its flat parts and logits have a deviation of about two.
_GAINS = {
    Role.HEAD: 4.0, Role.ROUTER: 4.0, Role.SHARED_ROUTER: 2.0,
    Role.HC_ATTN_DOWN: 4.0, Role.HC_FFN_DOWN: 4.0, Role.FINAL_HC_DOWN: 4.0,
    Role.DRAFT_HC_DOWN: 4.0,
    Role.HC_ATTN_UP: 2.0, Role.HC_FFN_UP: 2.0, Role.FINAL_HC_UP: 2.0, Role.DRAFT_HC_UP: 2.0,
    Role.HC_ATTN_INJECT: 4.0, Role.HC_FFN_INJECT: 4.0,
    Role.EXPERTS_GATE: 2.0, Role.EXPERTS_UP: 2.0, Role.EXPERTS_DOWN: 2.0,
    Role.SHARED_GATE: 2.0, Role.SHARED_UP: 2.0, Role.GDN_BETA: 2.0,
    # Values of many cells cancel where they are averaged.
    Role.ATTN_OUT: 4.0,
}  # fmt: skip
# Size of what a synthetic draft layer takes from a stream, as a share of an embedding.
_STREAM_SHARE = 0.3
_UNIT_ROWS = (Role.EMBEDDING, Role.NGRAM_TABLE)
# The last product of each block that adds to the residual.
_BRANCH_ENDS = (
    Role.ATTN_OUT, Role.GDN_OUT, Role.EXPERTS_DOWN, Role.SHARED_DOWN, Role.PLE_VALUE,
)  # fmt: skip


def _deviation(role: Role, shape: Shape, branch_gain: float) -> float:
    if role in _UNIT_ROWS:
        return 1.0
    gain = _GAINS.get(role, 1.0) * (branch_gain if role in _BRANCH_ENDS else 1.0)
    return gain / float(np.sqrt(shape[-1]))


def _norm(shape: Shape, rng: np.random.Generator) -> NDArray[np.float64]:
    return 1.0 + 0.1 * rng.standard_normal(shape)


# Values of the tensors that are always F32. Time steps and decays are spread as at the start of
# training: softplus(dt) log-uniform in 0.001 .. 0.1, -A in 1 .. 16.
_VALUES: dict[Role, Callable[[Shape, np.random.Generator], NDArray[np.float64]]] = {
    Role.GDN_DT: lambda shape, rng: np.log(np.expm1(np.exp(rng.uniform(-6.9, -2.3, shape)))),
    Role.GDN_A: lambda shape, rng: -rng.uniform(1.0, 16.0, shape),
    Role.GDN_CONV: lambda shape, rng: 0.5 * rng.standard_normal(shape),
    Role.PLE_CONV: lambda shape, rng: 0.3 * rng.standard_normal(shape),
}


def spec_of(geometry: SynthGeometry) -> tuple[ModelSpec, dict[str, object]]:
    """Geometry and metadata (tokenizer included) of a synthetic model.

    Raises:
        CheckpointError: sizes contradict each other.
        SettingsError: the vocabulary is too small.
    """
    metadata = metadata_from_config(
        geometry.config(), name=geometry.name, num_draft_layers=geometry.num_draft_layers
    )
    metadata |= synthetic_tokenizer(geometry.vocab_size)
    spec = read_spec(metadata, source="synthetic geometry")
    return replace(spec, is_head_tied=geometry.is_head_tied), metadata


def synthesize(
    path: Path,
    geometry: SynthGeometry,
    types: TypePlan,
    seed: int = 0,
    progress: Progress | None = None,
    *,
    shard_bytes: int | None = None,
    has_ngram_shard: bool = False,
) -> ConvertReport:
    """Write a model with random weights; the same seed gives the same bytes.

    Args:
        path: the file; with shards its stem.
        geometry: sizes; see GEOMETRIES.
        types: formats; see MIXES and TypePlan.preset.
        seed: of all weights.
        progress: called with bytes done, bytes in all, and the tensor at work.
        shard_bytes: tensor bytes after which a new shard begins.
        has_ngram_shard: the n-gram table lies alone in the last shard.

    Raises:
        CheckpointError: sizes contradict each other, or the disk is full.
        SettingsError: the vocabulary is too small.
    """
    if seed < 0:
        raise SettingsError(f"the seed is {seed}; expected 0 or more.\n  Try: --seed 0.")
    spec, metadata = spec_of(geometry)
    roles = required_tensors(spec)
    plans = [_plan(name, role, spec, types) for name, role in roles.items()]
    total = sum(plan.num_bytes for plan in plans)
    with open_writer(
        path, metadata, plans, shard_bytes=shard_bytes, has_ngram_shard=has_ngram_shard
    ) as writer:
        done = 0
        for plan in plans:
            role = roles[plan.name]
            if role is Role.HEAD and plan.format.name in QUANTIZABLE and geometry.successor_margin:
                embedding = next(item for item in plans if item.name == Role.EMBEDDING.value)
                chunks = _expecting_head(plan, embedding, geometry, seed)
            elif role is Role.DRAFT_IN and plan.format.name in QUANTIZABLE:
                chunks = _passing_on(plan, _rng_of(plan, seed))
            else:
                chunks = _tensor_bytes(plan, role, geometry, _rng_of(plan, seed))
            for data in chunks:
                writer.append(plan.name, data)
                done += data.nbytes
                if progress is not None:
                    progress(done, total, plan.name)
    return ConvertReport(written_paths(writer), len(plans), total, ())


def _plan(name: str, role: Role, spec: ModelSpec, types: TypePlan) -> TensorPlan:
    shape = expected_shape(role, spec)
    if role is Role.NGRAM_TABLE:
        shape = (-(-shape[0] // TABLE_MULTIPLE) * TABLE_MULTIPLE, shape[1])
    layer = int(name.split(".")[1]) if name.startswith("blk.") else None
    return TensorPlan(name, shape, types.format_for(role, layer, shape)[0])


def _rng_of(plan: TensorPlan, seed: int) -> np.random.Generator:
    key = np.random.SeedSequence((seed, zlib.crc32(plan.name.encode())))
    return np.random.Generator(np.random.SFC64(key))


def _expecting_head(
    plan: TensorPlan, embedding: TensorPlan, geometry: SynthGeometry, seed: int
) -> Iterator[NDArray[np.uint8]]:
    """The head's stored bytes: row successor[t] leans towards the embedding of token t."""
    stored = _tensor_bytes(embedding, Role.EMBEDDING, geometry, _rng_of(embedding, seed))
    rows = np.concatenate([dequantize(embedding.format, data.reshape(-1)) for data in stored])
    rng = _rng_of(plan, seed)
    # A logit's deviation is that of a random row; a row that leans by a share s of its size gains
    # s * root(D) deviations.
    share = min(1.0, geometry.successor_margin / float(np.sqrt(plan.shape[1])))
    head = rng.standard_normal(plan.shape, np.float32) * np.float32(np.sqrt(1 - share**2))
    head[rng.permutation(len(head))] += np.float32(share) * rows.reshape(plan.shape)
    head *= np.float32(_deviation(Role.HEAD, plan.shape, geometry.branch_gain))
    yield quantize(plan.format, head)


def _passing_on(plan: TensorPlan, rng: np.random.Generator) -> Iterator[NDArray[np.uint8]]:
    """A draft layer's projection that passes the embedding on, with a little of the streams.

    The streams it gives then resemble the trunk's, and drafts are right about as often as the head
    has a likeliest successor.
    """
    width, inner = plan.shape
    rows = _STREAM_SHARE / np.sqrt(width) * rng.standard_normal(plan.shape, np.float32)
    rows[:, :width] = np.eye(width, inner - width, dtype=np.float32)
    yield quantize(plan.format, rows.astype(np.float32))


def _tensor_bytes(
    plan: TensorPlan, role: Role, geometry: SynthGeometry, rng: np.random.Generator
) -> Iterator[NDArray[np.uint8]]:
    """The tensor's stored bytes, a chunk at a time."""
    make = _norm if "norm" in role.value else _VALUES.get(role)
    if make is not None:
        yield plain_weights(plan.format, make(plan.shape, rng).astype(np.float32))
        return
    remaining = plan.num_bytes // plan.format.block_bytes
    most = max(1, CHUNK_BYTES // plan.format.block_bytes)
    deviation = _deviation(role, plan.shape, geometry.branch_gain)
    while remaining:
        count = min(most, remaining)
        yield random_blocks(plan.format, count, deviation, rng)
        remaining -= count
