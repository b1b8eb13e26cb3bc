"""A kernel's key in Triton's cache of compiled kernels, against itself after other kernels."""

from triton.language import constexpr
from triton.runtime.jit import JITFunction

import strata.gpu.kernels  # noqa: F401 - settles keys

FACTOR = constexpr(3)


def _inner(x):
    return x * FACTOR


def _outer(x):
    return INNER(x)


INNER = JITFunction(_inner)


def test_key_does_not_depend_on_what_was_compiled_before():
    alone = JITFunction(_outer).cache_key
    assert INNER.used_global_vals  # so it was looked into
    assert JITFunction(_outer).cache_key == alone


def test_key_depends_on_constants_of_called_functions(monkeypatch):
    before = JITFunction(_outer).cache_key
    monkeypatch.setitem(globals(), "FACTOR", constexpr(4))
    monkeypatch.setitem(globals(), "INNER", JITFunction(_inner))
    assert JITFunction(_outer).cache_key != before
