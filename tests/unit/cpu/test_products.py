"""Clause C1 and C2 of docs/numerics.md: one product, one answer.

Checked against ``reference.expert_numerics``, plain numpy that shares no code with the kernels, by
equality of bits: every block format, instruction set, number of rows and of threads.
"""

import numpy as np
import pytest

import strata.cpu.native  # noqa: F401 - hands the kernels their tables
from strata import _native
from strata.formats.block_formats import FORMATS
from strata.reference.expert_numerics import (
    StoredMatrix,
    combine,
    expert_mlp,
    product,
    sigmoid_f32,
)

PLAIN_TENSORS = ("I8", "I16", "I32", "I64", "F64")  # in files, but never as weights
WEIGHT_FORMATS = [name for name in FORMATS if name not in PLAIN_TENSORS]
ISAS = [isa for isa in ("scalar", "avx2", "avx512", "amx") if _native.is_isa_supported(isa)]


def random_rows(rng, name, rows, inner):
    """Random stored rows of a format, with scales that keep sums finite and exercise every code."""
    block = FORMATS[name]
    raw = rng.integers(0, 256, (rows, block.row_bytes(inner)), dtype=np.uint8)
    blocks = raw.reshape(rows, -1, block.block_bytes)
    scale = (rng.standard_normal((*blocks.shape[:2], 2)) * 0.02).astype(np.float16).view(np.uint8)
    places = {
        "Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "Q4_K": (0, 2), "Q5_K": (0, 2),
        "Q4_1": (0, 2), "Q5_1": (0, 2),
    }  # fmt: skip
    if name in ("F32", "F16", "BF16"):
        values = rng.standard_normal((rows, inner)).astype(np.float32)
        if name == "F32":
            return values.view(np.uint8).reshape(rows, -1)
        if name == "F16":
            return values.astype(np.float16).view(np.uint8).reshape(rows, -1)
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(rows, -1)
    if name == "MXFP4":
        blocks[..., 0] = rng.integers(0, 140, blocks.shape[:2])
        return raw
    if name == "NVFP4":
        return raw
    if name == "IQ1_M":
        # The scale's four nibbles are the top bits of four words; keep its exponent small.
        blocks[..., 55] &= 0x2F
        return raw
    for i, place in enumerate(places.get(name, (0,))):
        blocks[..., place : place + 2] = scale[..., 2 * i : 2 * i + 2]
    return raw


def pack(ctx, name, raw, inner):
    return _native.Matrix.pack(ctx, FORMATS[name].ggml_id, raw, inner)


def run_product(ctx, name, raw, x):
    out = np.full((len(x), len(raw)), np.nan, np.float32)
    _native.product(ctx, [pack(ctx, name, raw, x.shape[1])], x, [out])
    return out


def same_bits(a, b):
    """Equal as numbers; the sign of a zero is not part of the contract."""
    return np.array_equal(a, b)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", WEIGHT_FORMATS)
def test_product_equals_numpy(name, isa):
    rng = np.random.default_rng(WEIGHT_FORMATS.index(name))
    inner = 512 + 256 * (name == "Q4_K")
    raw = random_rows(rng, name, 37, inner)
    x = rng.standard_normal((9, inner)).astype(np.float32)
    x[1, 32:64] = 0  # a block whose scale is zero
    x[2] *= 1e-39  # subnormal scales
    x[3] *= 1e4
    ctx = _native.Context(2, isa)
    assert same_bits(run_product(ctx, name, raw, x), product(name, raw, x, "test"))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", WEIGHT_FORMATS)
def test_short_and_odd_rows(name, isa):
    """One block a row, and a last group of blocks that is not full."""
    rng = np.random.default_rng(5)
    block_size = max(FORMATS[name].block_size, 32)
    for inner in (block_size, block_size * 5):
        raw = random_rows(rng, name, 16, inner)
        x = rng.standard_normal((3, inner)).astype(np.float32)
        got = run_product(_native.Context(1, isa), name, raw, x)
        assert same_bits(got, product(name, raw, x, "test"))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", WEIGHT_FORMATS)
def test_rows_do_not_see_each_other(name, isa):
    """C2: 1 to 9 and 130 rows in a call, and 1 to 3 threads, give each row the same bits."""
    rng = np.random.default_rng(11)
    raw = random_rows(rng, name, 48, 256)
    x = rng.standard_normal((130, 256)).astype(np.float32)
    alone = np.concatenate(
        [run_product(_native.Context(1, isa), name, raw, x[i : i + 1]) for i in range(9)]
    )
    for num_threads in (1, 2, 3):
        ctx = _native.Context(num_threads, isa)
        for rows in (1, 2, 3, 4, 5, 6, 7, 8, 9, 130):
            got = run_product(ctx, name, raw, x[:rows])
            assert same_bits(got[:9], alone[:rows]), (num_threads, rows)


@pytest.mark.parametrize("isa", ISAS)
def test_float_rows_of_any_length(isa):
    """F32 rows need not be whole blocks, nor whole segments of 320 columns."""
    rng = np.random.default_rng(3)
    for inner in (1, 3, 6, 33, 319, 320, 321, 643, 1024):
        w = rng.standard_normal((5, inner)).astype(np.float32)
        x = rng.standard_normal((9, inner)).astype(np.float32)
        expected = product("F32", w.view(np.uint8), x, "test")
        for rows in (1, 2, 9):
            got = run_product(_native.Context(1, isa), "F32", w.view(np.uint8), x[:rows])
            assert same_bits(got, expected[:rows]), (inner, rows)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "formats", [("Q4_K", "Q4_K", "Q5_1"), ("IQ3_S", "Q6_K", "IQ4_NL"), ("F32", "BF16", "F16")]
)
def test_experts_equal_numpy(formats, isa):
    rng = np.random.default_rng(17)
    num, hidden, size, top_k, rows = 6, 256, 64, 3, 5
    shapes = ((size, hidden), (size, hidden), (hidden, size))
    stacks = [
        [random_rows(rng, name, *shape) for _ in range(num)]
        for name, shape in zip(formats, shapes, strict=True)
    ]
    ids = np.stack([rng.permutation(num)[:top_k] for _ in range(rows)]).astype(np.int32)
    weights = rng.random((rows, top_k)).astype(np.float32)
    x = rng.standard_normal((rows, hidden)).astype(np.float32)
    gate_logit = rng.standard_normal(rows).astype(np.float32)
    ctx = _native.Context(2, isa)
    numbers = [FORMATS[name].ggml_id for name in formats]
    routed = _native.Experts(*numbers, num, hidden, size)
    shared = _native.Experts(*numbers, 1, hidden, size)
    for e in range(num):
        routed.load(ctx, e, *(stack[e] for stack in stacks))
    shared.load(ctx, 0, *(stack[0] for stack in stacks))
    out = np.full((rows, hidden), np.nan, np.float32)
    _native.experts(ctx, routed, x, ids, weights, shared, sigmoid_f32(gate_logit), out)
    for i in range(rows):
        matrices = [
            [StoredMatrix(name, stack[e]) for name, stack in zip(formats, stacks, strict=True)]
            for e in range(num)
        ]
        outputs = [expert_mlp(x[i : i + 1], *matrices[e], "test")[0] for e in ids[i]]
        expected = combine(
            outputs, weights[i], expert_mlp(x[i : i + 1], *matrices[0], "test")[0], gate_logit[i]
        )
        assert same_bits(out[i], expected), i
        alone = np.empty((1, hidden), np.float32)
        _native.experts(
            ctx,
            routed,
            x[i : i + 1],
            ids[i : i + 1],
            weights[i : i + 1],
            shared,
            sigmoid_f32(gate_logit[i : i + 1]),
            alone,
        )
        assert same_bits(alone[0], out[i])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_bad_activation_is_an_error(bad):
    rng = np.random.default_rng(0)
    raw = random_rows(rng, "Q8_0", 16, 64)
    x = np.zeros((2, 64), np.float32)
    x[1, 40] = bad
    with pytest.raises(ValueError, match="NaN or infinite"):
        run_product(_native.Context(1, ISAS[-1]), "Q8_0", raw, x)


def test_wrong_shapes_are_refused():
    ctx = _native.Context(1, "scalar")
    raw = np.zeros((16, 34), np.uint8)
    with pytest.raises(ValueError, match="whole number of blocks"):
        _native.Matrix.pack(ctx, FORMATS["Q8_0"].ggml_id, raw, 33)
    with pytest.raises(ValueError, match="do not hold"):
        _native.Matrix.pack(ctx, FORMATS["Q8_0"].ggml_id, raw, 64)
    with pytest.raises(ValueError, match="no block format"):
        _native.Matrix.pack(ctx, 999, raw, 32)
    m = _native.Matrix.pack(ctx, FORMATS["Q8_0"].ggml_id, raw, 32)
    with pytest.raises(ValueError, match="columns"):
        _native.product(ctx, [m], np.zeros((1, 64), np.float32), [np.zeros((1, 16), np.float32)])
    with pytest.raises(ValueError, match="wrong shape"):
        _native.product(ctx, [m], np.zeros((1, 32), np.float32), [np.zeros((1, 15), np.float32)])
