"""Names of kernels: a profile on a card knows a kernel by its function's name alone."""

from __future__ import annotations

import ast
from pathlib import Path

import strata

KERNELS = Path(strata.__file__).parent / "gpu" / "kernels"


def kernel_names() -> dict[str, list[str]]:
    """Modules that define each function which is launched, by the function's name."""
    modules: dict[str, list[str]] = {}
    for path in sorted(KERNELS.glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.endswith("_kernel"):
                modules.setdefault(node.name, []).append(path.stem)
    return modules


def test_every_kernel_has_a_name_of_its_own():
    names = kernel_names()
    assert len(names) > 20
    assert {name: found for name, found in names.items() if len(found) > 1} == {}
