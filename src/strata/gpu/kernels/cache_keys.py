"""Triton's key of a compiled kernel, made the same whatever was compiled before it.

The key covers the global constants of every function a kernel calls. Triton (3.6) collects those of
a called function before it looks into that function, so they are part of the key only if the
function was looked into earlier, for another kernel: the same kernel has one key here and another
there, and what one process compiled the next does not find. Here a called function is looked into
first.
"""

from __future__ import annotations

from typing import Any

from triton.runtime import jit


def settle_keys() -> None:
    """Makes keys independent of the order they are asked for; for the whole process, once."""
    finder = getattr(jit, "DependenciesFinder", None)
    collect = getattr(finder, "_update_hash", None)
    if collect is None or getattr(collect, "looks_first", False):
        return  # another version of Triton, or done

    def look_first(self: Any, called: Any) -> None:
        _ = called.cache_key
        collect(self, called)

    look_first.looks_first = True  # type: ignore[attr-defined]
    finder._update_hash = look_first  # type: ignore[union-attr]
