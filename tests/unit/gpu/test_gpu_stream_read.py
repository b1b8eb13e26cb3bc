"""The fused read of the streams against its three steps, by equality; rows alone and together."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.unit.gpu.row_codes import assert_equal_codes, poison, zero_codes  # noqa: E402
from tests.unit.reference.stored_rows import random_rows  # noqa: E402

from strata.gpu.float_matrix import pack_floats  # noqa: E402
from strata.gpu.kernels.float_product import can_split, float_product  # noqa: E402
from strata.gpu.kernels.hyper_connections import mix, silu_of_quotient  # noqa: E402
from strata.gpu.kernels.product import product  # noqa: E402
from strata.gpu.kernels.stream_read import read_activated, read_order, read_streams  # noqa: E402
from strata.gpu.packing import pack  # noqa: E402

STREAMS, WIDTH = 4, 96


@pytest.mark.parametrize(("name", "rank"), [("Q8_0", 320), ("IQ4_NL", 64), ("Q6_K", 256)])
@pytest.mark.parametrize("num_rows", [1, 3])
def test_one_launch_has_the_bits_of_three(name: str, rank: int, num_rows: int, device: str) -> None:
    rng = np.random.default_rng(rank + num_rows)
    raw = torch.from_numpy(random_rows(name, STREAMS * WIDTH, rank, seed=rank)).to(device)
    low = torch.tensor(rng.standard_normal((num_rows, rank)), dtype=torch.float32, device=device)
    xn = torch.tensor(
        rng.standard_normal((num_rows, STREAMS * WIDTH)), dtype=torch.float32, device=device
    )
    bad = torch.zeros(1, dtype=torch.int32, device=device)

    wanted_low, wanted_codes = (
        zero_codes(num_rows, rank, device),
        zero_codes(num_rows, WIDTH, device),
    )
    activated, gate = poison(device, num_rows, rank), poison(device, *xn.shape)
    wanted = poison(device, num_rows, WIDTH)
    silu_of_quotient(low, STREAMS, activated, wanted_low, bad)
    raw = raw[read_order(STREAMS, WIDTH).to(device)]
    product(pack(name, raw, rank), wanted_low, gate)
    mix(xn, gate, STREAMS, wanted, wanted_codes, bad)

    low_codes, codes = zero_codes(num_rows, rank, device), zero_codes(num_rows, WIDTH, device)
    x = poison(device, num_rows, WIDTH)
    read_streams(low, pack(name, raw, rank), xn, low_codes, x, codes, bad)
    assert torch.equal(x, wanted)
    assert_equal_codes(codes, wanted_codes)
    assert_equal_codes(low_codes, wanted_low)
    assert bad.item() == 0


@pytest.mark.parametrize(("name", "rank"), [("BF16", 320), ("F16", 40), ("F32", 8)])
@pytest.mark.parametrize(("num_rows", "share"), [(1, 1), (1, 4), (2, 2), (3, 2)])
def test_a_plain_matrix_too(name: str, rank: int, num_rows: int, share: int, device: str) -> None:
    rng = np.random.default_rng(rank + num_rows)

    def random(*shape: int) -> torch.Tensor:
        return torch.tensor(rng.standard_normal(shape), dtype=torch.float32, device=device)

    dtype = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}[name]
    raw = random(STREAMS * WIDTH, rank).to(dtype).view(torch.uint8)
    raw = raw[read_order(STREAMS, WIDTH).to(device)]
    low, xn = random(num_rows, rank), random(num_rows, STREAMS * WIDTH)
    bad = torch.zeros(1, dtype=torch.int32, device=device)
    up = pack_floats(name, raw, rank)
    activated, gate = poison(device, num_rows, rank), poison(device, *xn.shape)
    wanted, wanted_codes = poison(device, num_rows, WIDTH), zero_codes(num_rows, WIDTH, device)
    silu_of_quotient(low, STREAMS, activated)
    float_product(up, activated, gate)
    mix(xn, gate, STREAMS, wanted, wanted_codes, bad)

    x, codes = poison(device, num_rows, WIDTH), zero_codes(num_rows, WIDTH, device)
    split = poison(device, num_rows, rank)
    silu_of_quotient(low, STREAMS, split, is_split=can_split(rank))
    read_activated(split, up, xn, x, codes, bad, share=share)
    assert torch.equal(x, wanted)
    assert_equal_codes(codes, wanted_codes)
    assert bad.item() == 0


def test_the_order_names_every_row_once() -> None:
    order = read_order(4, 96)
    assert sorted(order.tolist()) == list(range(384))
    assert order[:33].tolist() == [*range(32), 96]
