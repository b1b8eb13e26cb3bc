"""What the extension refuses: arrays it could not write into, threads it cannot have.

Checked against what numpy holds afterwards, and in processes of their own where a wrong end would
be the end of the process.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from strata import _native
from strata.formats.block_formats import FORMATS

CTX = _native.Context(2, "scalar")


def unwritable(shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Arrays of the right shape that could be written through a converted copy only."""
    wide = np.zeros((*shape[:-1], 2 * shape[-1]), np.float32)
    return {"float64": np.zeros(shape, np.float64), "gaps": wide[..., ::2]}


@pytest.mark.parametrize("kind", ["float64", "gaps"])
def test_an_output_is_never_a_copy(kind: str) -> None:
    x = np.ones((3, 32), np.float32)
    raw = np.ones((16, 32), np.float32).view(np.uint8)
    matrix = _native.Matrix.pack(CTX, FORMATS["F32"].ggml_id, raw, 32)
    out = unwritable((3, 16))[kind]
    with pytest.raises(ValueError, match="without gaps"):
        _native.product(CTX, [matrix], x, [out])
    out = unwritable((3, 32))[kind]
    with pytest.raises(TypeError):
        _native.silu(CTX, x, out)
    with pytest.raises(TypeError):
        _native.silu_of_quotient(CTX, out, 2.0)
    ids = np.zeros((3, 2), np.int64 if kind == "float64" else np.int32)
    with pytest.raises(TypeError):
        _native.route(CTX, x, 1.0, ids, unwritable((3, 2))[kind], None)
    with pytest.raises(TypeError):
        _native.GdnRows(out, out, out, out, out)


def test_an_input_may_be_converted() -> None:
    x = np.linspace(-3, 3, 64).reshape(2, 32)
    out = np.zeros((2, 32), np.float32)
    _native.sigmoid(CTX, x, out)
    np.testing.assert_allclose(out, 1 / (1 + np.exp(-x)), rtol=1e-6)


REFUSED_THREADS = """
import resource
from pathlib import Path
from strata.cpu.build import open_context
from strata.errors import DeviceError

pages = int(Path("/proc/self/statm").read_text().split()[0])
# Room for some stacks of worker threads, not for a thousand.
limit = pages * resource.getpagesize() + (256 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    open_context(1024, None)
except DeviceError as error:
    print(error)
open_context(2, None)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_refused_threads_are_an_error_and_not_the_end_of_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", REFUSED_THREADS], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "the system refuses 1024 worker threads" in done.stdout
    assert "--threads" in done.stdout
