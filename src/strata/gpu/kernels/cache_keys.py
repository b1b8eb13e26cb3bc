"""Triton's bookkeeping of compiled kernels: keys that do not depend on order, and cheaper launches.

The key covers the global constants of every function a kernel calls. Triton (3.6) collects those of
a called function before it looks into that function, so they are part of the key only if the
function was looked into earlier, for another kernel: the same kernel has one key here and another
there, and what one process compiled the next does not find. Here a called function is looked into
first.

Before each launch Triton compares those constants with what they were when the kernel was compiled,
which is a fifth of what a launch costs the host. Constants of this package's modules do not change.
"""

from __future__ import annotations

from typing import Any

from triton.runtime import jit


def settle_keys() -> None:
    """Makes keys independent of the order they are asked for; for the whole process, once."""
    finder = getattr(jit, "DependenciesFinder", None)
    collect = getattr(finder, "_update_hash", None)
    if collect is None or getattr(collect, "is_settled", False):
        return  # another version of Triton, or done

    def look_first(self: Any, called: Any) -> None:
        _ = called.cache_key
        collect(self, called)

    look_first.is_settled = True  # type: ignore[attr-defined]
    finder._update_hash = look_first  # type: ignore[union-attr]


def skip_checks() -> None:
    """Launches of this package's kernels do not compare constants; for the whole process, once."""
    compile_one = getattr(jit.JITFunction, "_do_compile", None)
    if compile_one is None or getattr(compile_one, "is_settled", False):
        return  # another version of Triton, or done

    def compile_and_forget(self: Any, *args: Any, **kwargs: Any) -> Any:
        compiled = compile_one(self, *args, **kwargs)
        # A kernel is called by no other, so nobody else asks for what it uses.
        if self.fn.__module__.startswith("strata.") and self.fn.__name__.endswith("_kernel"):
            self.used_global_vals = {}
        return compiled

    compile_and_forget.is_settled = True  # type: ignore[attr-defined]
    jit.JITFunction._do_compile = compile_and_forget
