"""Embedding rows by ids on the device against ``formats.block_decode``; the draft layer's input."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
from tests.unit.gpu.row_codes import poison  # noqa: E402
from tests.unit.reference.stored_rows import random_rows  # noqa: E402

from strata.formats.block_decode import dequantize  # noqa: E402
from strata.formats.block_formats import FORMATS  # noqa: E402
from strata.gpu.float_matrix import pack_floats  # noqa: E402
from strata.gpu.kernels.draft_input import join, keep_streams  # noqa: E402
from strata.gpu.kernels.embed import embed  # noqa: E402
from strata.gpu.packing import pack  # noqa: E402
from strata.gpu.packing_fields import BLOCK_FORMATS  # noqa: E402
from strata.gpu.weight_layout import FLOAT_FORMATS  # noqa: E402
from strata.reference.norms import rms_norm  # noqa: E402


@pytest.mark.parametrize("name", [*BLOCK_FORMATS, *FLOAT_FORMATS])
def test_rows_are_the_file_s(name: str, device: str) -> None:
    inner = {1: 1036, 32: 608, 64: 320, 256: 512}[FORMATS[name].block_size]
    raw = random_rows(name, 21, inner, seed=int(np.random.default_rng().integers(1 << 30)))
    stored = torch.from_numpy(raw).to(device)
    table = (pack_floats if name in FLOAT_FORMATS else pack)(name, stored, inner)
    ids = torch.tensor([20, 0, 7, -1], dtype=torch.int32, device=device)
    out = poison(device, 4, inner)
    embed(table, ids, out)
    expected = dequantize(FORMATS[name], raw[[20, 0, 7, 0]])
    np.testing.assert_allclose(out.cpu().numpy(), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("has_ring", [True, False])
def test_embedding_and_streams_are_joined(device: str, *, has_ring: bool) -> None:
    rng = np.random.default_rng()
    rows, streams, width, first = 3, 2, 40, 14

    def tensor(*shape: int) -> torch.Tensor:
        return torch.from_numpy(rng.standard_normal(shape).astype(np.float32)).to(device)

    embedded, source = tensor(rows, width), tensor(rows, streams, width)
    embed_gamma, stream_gamma = tensor(width), tensor(streams * width)
    joined = poison(device, rows, streams, 2 * width)
    position = torch.tensor([first], device=device)
    kept = source.view(rows, -1)
    if has_ring:
        kept = poison(device, 16, streams * width)
        keep_streams(source, position, kept)
        assert kept.isnan().all(1).sum() == 13
    join(
        embedded, kept, position if has_ring else None, embed_gamma, stream_gamma, 1e-6, joined
    )  # fmt: skip
    wide = source.cpu().double().numpy().reshape(rows, -1)
    hidden = rms_norm(wide, stream_gamma.cpu().numpy(), 1e-6).reshape(rows, streams, width)
    token = rms_norm(embedded.cpu().double().numpy(), embed_gamma.cpu().numpy(), 1e-6)
    expected = np.concatenate([np.repeat(token[:, None], streams, 1), hidden], axis=2)
    np.testing.assert_allclose(joined.cpu().numpy(), expected, rtol=0, atol=1e-5)
